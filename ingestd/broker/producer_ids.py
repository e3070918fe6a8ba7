"""Producer ids. Each is given once in the life of a data directory. They come in blocks, so that few cost a write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.log.files import write_atomically
from ingestd.errors import ConfigurationError, ErrorCode, KafkaError
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ProducerIds"]

_FILE: Final = "next-producer-id"
_BLOCK: Final = 1000
_log = get_logger(__name__)


class ProducerIds:
    """Gives out producer ids. Ids from the file's number on were never given out. The rest of a block is never used."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._next = 0
        self._end = 0
        self._refusing = False

    def load(self) -> None:
        """Read where the last block ended. Raises `OSError`, `ConfigurationError`."""
        if not self._path.exists():
            return
        try:
            self._next = self._end = int(self._path.read_text("ascii"))
        except ValueError as error:
            raise ConfigurationError(f"{self._path}: not a producer id") from error

    def take(self) -> int:
        """A new producer id. Raises `KafkaError` if the disk takes no new block of ids.

        The error is COORDINATOR_LOAD_IN_PROGRESS, as from a Kafka that has no block: after it every client asks again.
        At KAFKA_STORAGE_ERROR, Java's clients before 3.4 would end their producer (KAFKA-14417).
        """
        if self._next == self._end:
            self._take_block()
        taken = self._next
        self._next += 1
        return taken

    def _take_block(self) -> None:
        try:
            write_atomically(self._path, str(self._end + _BLOCK).encode("ascii"))
        except OSError as error:
            if not self._refusing:
                _log.error("no producer ids are given out until the disk takes them", error=str(error))
            self._refusing = True
            raise KafkaError(ErrorCode.coordinator_load_in_progress, f"no producer id: {error}") from error
        self._refusing = False
        self._end += _BLOCK
