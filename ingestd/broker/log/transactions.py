"""Transactions of one partition: which are open, and up to where none is (the last stable offset)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AbortedTransaction", "LogEnd", "OpenTransactions"]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """A place in a log: an offset, and the bytes that were appended before it since the log was opened.

    For a place before the end that the log had when it was opened, the bytes are negative.
    """

    offset: int
    appended_bytes: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """The transactional records of a producer from `first_offset` to its marker at `last_offset` do not count.

    `stable_offset` is the last stable offset behind the marker. Transactions that are aborted later begin there, or
    behind it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


class OpenTransactions:
    """Where the transactions began that readers of committed records may not read yet.

    Invariants
        A transaction counts until its marker is before the high watermark.
        A producer has one open transaction at most.
    """

    __slots__ = ("_ended", "_open")

    def __init__(self) -> None:
        # In order of their beginnings, because a dict keeps the order in which keys were added.
        self._open: dict[int, LogEnd] = {}
        self._ended: list[tuple[LogEnd, int]] = []

    def began(self, producer_id: int, at: LogEnd) -> None:
        """A producer's first batch of a transaction is in the log."""
        self._open[producer_id] = at

    def ended(self, producer_id: int, marker_offset: int) -> None:
        """The marker of a producer's transaction is in the log."""
        self._ended.append((self._open.pop(producer_id), marker_offset))

    def first_open(self, end: int) -> int:
        """The offset of the first open transaction; `end` if there is none. Ended ones are not counted."""
        return next((at.offset for at in self._open.values()), end)

    def stable(self, readable: LogEnd) -> LogEnd:
        """The end of what readers of committed records may read, where `readable` is that of all readers.

        It is told each high watermark, and forgets transactions whose marker is before it.
        """
        if self._ended:
            self._ended = [ended for ended in self._ended if ended[1] >= readable.offset]
        first = readable
        for at in (*(at for at, _marker in self._ended), *tuple(self._open.values())[:1]):
            if at.offset < first.offset:
                first = at
        return first
