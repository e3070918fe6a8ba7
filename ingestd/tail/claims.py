"""Claims: which tail of this process takes a file. A file belongs to one tail; the others are told who has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingestd.tail.globs import Globs

__all__ = ["CLAIMS", "Claims"]


class Claims:
    """Files by device and inode, each with the tail that takes it. Claiming twice for one tail is one claim.

    A file belongs to the first tail, in the order of `enter`, whose globs match its path, whichever tail sees it first.
    Under a name that only a later tail matches (a link, or where it was renamed to), whoever claims first has it.
    """

    def __init__(self) -> None:
        self._tails: dict[str, Globs] = {}
        self._owners: dict[tuple[int, int], str] = {}

    def enter(self, tail: str, globs: Globs) -> None:
        """A tail that may claim; those that entered before it come before it."""
        self._tails[tail] = globs

    def claim(self, file: tuple[int, int], path: str, tail: str) -> str:
        """Take a file (device, inode) at `path` for `tail`, unless another has it, or comes first.

        Returns the tail that it belongs to.
        """
        owner = self._owners.get(file)
        if owner is None:
            owner = self._first(path, tail)
            if owner == tail:
                self._owners[file] = tail
        return owner

    def keep(self, file: tuple[int, int], tail: str) -> None:
        """Note that `tail` reads the file, wherever it is by now, unless another has it."""
        self._owners.setdefault(file, tail)

    def _first(self, path: str, tail: str) -> str:
        for other, globs in self._tails.items():
            if other == tail or globs.matches(path):
                return other
        return tail

    def release(self, file: tuple[int, int], tail: str) -> None:
        """Give up the file, if it is this tail's."""
        if self._owners.get(file) == tail:
            del self._owners[file]

    def leave(self, tail: str) -> None:
        """The tail takes nothing any more: what it had is free."""
        self._tails.pop(tail, None)
        for file in [file for file, owner in self._owners.items() if owner == tail]:
            del self._owners[file]


CLAIMS = Claims()
"""The claims of this process: all finders run in one, the supervisor."""
