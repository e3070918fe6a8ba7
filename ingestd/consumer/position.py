"""Position: where fetching a partition goes on, and what is known of the log before it (KIP-320)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingestd.consumer.fetched import Fetched

__all__ = ["UNKNOWN_EPOCH", "Position"]

UNKNOWN_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Position:
    """The offset to fetch next. What comes before it was appended under `leader_epoch`, from `epoch_start` on."""

    offset: int
    leader_epoch: int = UNKNOWN_EPOCH
    epoch_start: int = UNKNOWN_EPOCH

    def after(self, fetched: Fetched) -> Position:
        """The position behind what was fetched from here."""
        if fetched.leader_epoch == UNKNOWN_EPOCH:
            return Position(fetched.next_offset)
        same = fetched.leader_epoch == self.leader_epoch and self.epoch_start >= 0
        start = self.epoch_start if same else fetched.epoch_start
        return Position(fetched.next_offset, fetched.leader_epoch, start)

    def diverges_at(self, leader_epoch: int, end_offset: int) -> int | None:
        """Where the log became another, by the leader's answer about this position's epoch; None if it did not.

        The answer names the largest epoch up to ours that its log has, and that epoch's end.
        """
        if end_offset < 0 or leader_epoch < 0:  # it knows of no epoch that old: nothing of what was read is there
            return max(self.epoch_start, 0) if self.epoch_start >= 0 else self.offset
        if leader_epoch < self.leader_epoch:  # all that was read under our epoch is gone
            return min(end_offset, self.offset if self.epoch_start < 0 else self.epoch_start)
        return end_offset if end_offset < self.offset else None
