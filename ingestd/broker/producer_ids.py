"""Producer ids, handed out once in the life of a data directory: in blocks, so that few of them cost a write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.log.files import write_atomically
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ProducerIds"]

_FILE: Final = "next-producer-id"
_BLOCK: Final = 1000


class ProducerIds:
    """Gives out producer ids. What the file says was never given out; what is left of a block goes with the process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._next = 0
        self._end = 0

    def load(self) -> None:
        """Read where the last block ended. Raises `OSError`, `ConfigurationError`."""
        if not self._path.exists():
            return
        try:
            self._next = self._end = int(self._path.read_text("ascii"))
        except ValueError as error:
            raise ConfigurationError(f"{self._path}: not a producer id") from error

    def take(self) -> int:
        """A producer id that nobody has. Raises `OSError`."""
        if self._next == self._end:
            write_atomically(self._path, str(self._end + _BLOCK).encode("ascii"))
            self._end += _BLOCK
        taken = self._next
        self._next += 1
        return taken
