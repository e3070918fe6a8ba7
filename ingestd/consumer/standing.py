"""Standing: what the brokers said about a partition, kept while it moves from one to another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ingestd.consumer.position import UNKNOWN_EPOCH
from ingestd.retry import Backoff

if TYPE_CHECKING:
    from uuid import UUID

__all__ = ["Standing"]


class Standing:
    """Kept by those who choose a broker for a partition, and fetch it."""

    def __init__(self, topic_id: UUID | None) -> None:
        self.topic_id = topic_id
        """Id of the topic that is read. The cluster may have another topic of that name by now."""
        self.fetched_by_id = False
        """Whether fetches name the topic's id."""
        self.gone = False
        """Whether the last answer of the leader was that there is no such topic."""
        self.checked_epoch = UNKNOWN_EPOCH
        """The leader's epoch whose log is known to be the one that was read."""
        self.backoff = Backoff()
        self.failing_since: float | None = None
        """Since when no leader has served it, on the monotonic clock."""
        self.refused_by: tuple[int, int] | None = None
        """The last leader that refused it, and its epoch."""
        self.empty_answers = 0
        """Answers in a row to fetches of it alone that had nothing, although its log reached the end of the read."""
        self.remote: tuple[int, int] | None = None
        """A position in remote storage, and the epoch of the leader that said so. Empty answers mean nothing there."""
        self._leader_only_until = 0.0

    @property
    def follows(self) -> bool:
        """Whether it may be sent to a replica that is closer than its leader."""
        return time.monotonic() >= self._leader_only_until

    def stay_with_leader(self, seconds: float) -> None:
        """Fetch it only from its leader for so long."""
        self._leader_only_until = time.monotonic() + seconds

    def failing(self) -> float:
        """No leader serves it now. Returns for how many seconds already."""
        now = time.monotonic()
        if self.failing_since is None:
            self.failing_since = now
        return now - self.failing_since

    def served(self) -> None:
        """A broker answered for it without an error."""
        self.failing_since = None
        self.refused_by = None
        self.gone = False
        self.backoff.reset()
