"""Fetch session (KIP-227): one per broker. Says which partitions a fetch must name. Idle ones need not be named.

The broker remembers the last request. The next one names only what is new, changed or not wanted any more. Source:
https://cwiki.apache.org/confluence/display/KAFKA/KIP-227%3A+Introduce+Incremental+FetchRequests+to+Increase+Partition+Scalability
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from ingestd.consumer.settings import TopicPartition

__all__ = ["SESSION_ERRORS", "FetchSession", "PartitionFetch", "SessionFetch", "outside_session"]

_NO_SESSION: Final = 0
_FIRST_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = 2**31 - 1

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    }
)
"""Errors of a whole answer after which the next fetch must name every partition again."""


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """One partition's part of a fetch."""

    topic_id: UUID | None
    offset: int
    leader_epoch: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class SessionFetch:
    """One request of the session: its id and epoch, partitions to name, and those to forget (with their topic id)."""

    session_id: int
    session_epoch: int
    named: Mapping[TopicPartition, PartitionFetch]
    forgotten: Mapping[TopicPartition, UUID | None]

    @property
    def complete(self) -> bool:
        """Whether the answer names every partition, and not only those with news."""
        return self.session_epoch in (_FIRST_EPOCH, _FINAL_EPOCH)


def outside_session(wanted: Mapping[TopicPartition, PartitionFetch]) -> SessionFetch:
    """A request for `wanted` alone. The broker's session stays as it is."""
    return SessionFetch(_NO_SESSION, _FINAL_EPOCH, dict(wanted), {})


class FetchSession:
    """What the broker remembers of this consumer's fetches.

    Invariants
        One request at a time: `next_fetch`, then `answered` or `lost`, then `next_fetch`.
        The broker forgets a partition that is not wanted now. So it sends nothing from an old offset.
    """

    def __init__(self) -> None:
        self._id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._known: dict[TopicPartition, PartitionFetch] = {}

    @property
    def established(self) -> bool:
        """Whether the broker keeps a session that should be given back."""
        return self._id != _NO_SESSION

    def next_fetch(
        self, wanted: Mapping[TopicPartition, PartitionFetch], changed: Collection[TopicPartition] | None = None
    ) -> SessionFetch:
        """The request that makes the broker fetch exactly `wanted`.

        `changed`: the partitions that may differ from the last request. None: all may.
        """
        if self._epoch == _FIRST_EPOCH:
            self._known = dict(wanted)
            return SessionFetch(self._id, _FIRST_EPOCH, self._known.copy(), {})
        forgotten: dict[TopicPartition, UUID | None] = {}
        named: dict[TopicPartition, PartitionFetch] = {}
        for key in {*self._known, *wanted} if changed is None else changed:
            before, now = self._known.get(key), wanted.get(key)
            if before == now:
                continue
            if before is not None and (now is None or now.topic_id != before.topic_id):
                forgotten[key] = before.topic_id
                del self._known[key]
            if now is not None:
                named[key] = self._known[key] = now
        return SessionFetch(self._id, self._epoch, named, forgotten)

    def knows(self, keys: Collection[TopicPartition]) -> bool:
        """Whether the session has any of these partitions. Then the broker tells only what is new in their logs."""
        return not self._known.keys().isdisjoint(keys)

    def answered(self, session_id: int) -> None:
        """A good answer came, with the session id that the broker gave (0: it keeps none)."""
        if session_id == _NO_SESSION:
            self.forget()
            return
        self._id = session_id
        self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def refused(self, error: ErrorCode) -> None:
        """The broker refused the request as a whole with one of `SESSION_ERRORS`."""
        if error is ErrorCode.fetch_session_id_not_found:
            self.forget()
        else:
            self.lost()

    def lost(self) -> None:
        """No answer came, so it is not known what the broker remembers. The next fetch begins a new session."""
        self._epoch = _FIRST_EPOCH
        self._known = {}

    def forget(self) -> None:
        """The broker has no session (it restarted, or evicted it)."""
        self._id = _NO_SESSION
        self.lost()

    def final_fetch(self) -> SessionFetch:
        """The request that gives the session back to the broker."""
        return SessionFetch(self._id, _FINAL_EPOCH, {}, {})
