"""Position: the offset to fetch next, and what is known of the log before it (KIP-320)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingestd.consumer.fetched import Fetched

__all__ = ["UNKNOWN_EPOCH", "Position"]

UNKNOWN_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Position:
    """The offset to fetch next. The batches before it, from `epoch_start` on, were appended under `leader_epoch`."""

    offset: int
    leader_epoch: int = UNKNOWN_EPOCH
    epoch_start: int = UNKNOWN_EPOCH

    def after(self, fetched: Fetched) -> Position:
        """The position after what was fetched from here."""
        if fetched.leader_epoch == UNKNOWN_EPOCH:
            return Position(fetched.next_offset)
        same = fetched.leader_epoch == self.leader_epoch and self.epoch_start >= 0
        start = self.epoch_start if same else fetched.epoch_start
        return Position(fetched.next_offset, fetched.leader_epoch, start)

    def diverges_at(self, leader_epoch: int, end_offset: int) -> int | None:
        """The offset from which on the log is another, by the leader's answer about our epoch. None: it is the same.

        The answer has the largest epoch up to ours in its log, and the end of that epoch.
        """
        if end_offset < 0 or leader_epoch < 0:  # it has no epoch that old: nothing that was read is there
            return max(self.epoch_start, 0) if self.epoch_start >= 0 else self.offset
        if leader_epoch < self.leader_epoch:  # all that was read under our epoch is gone
            return min(end_offset, self.offset if self.epoch_start < 0 else self.epoch_start)
        return end_offset if end_offset < self.offset else None
