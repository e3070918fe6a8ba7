"""Claims: which tail of this process takes a file. A file belongs to one tail; the second is told who has it."""

from __future__ import annotations

__all__ = ["CLAIMS", "Claims"]


class Claims:
    """Files by device and inode, each with the route that takes it. Claiming twice for one route is one claim."""

    def __init__(self) -> None:
        self._owners: dict[tuple[int, int], str] = {}

    def claim(self, file: tuple[int, int], route: str) -> str:
        """Take a file (device, inode) for `route`, unless another has it. Returns the route that has it now."""
        return self._owners.setdefault(file, route)

    def release(self, file: tuple[int, int], route: str) -> None:
        """Give up the file, if it is this route's."""
        if self._owners.get(file) == route:
            del self._owners[file]

    def release_all(self, route: str) -> None:
        """Give up every file of a route."""
        for file in [file for file, owner in self._owners.items() if owner == route]:
            del self._owners[file]


CLAIMS = Claims()
"""The claims of this process: all finders run in one, the supervisor."""
