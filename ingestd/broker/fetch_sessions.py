"""Fetch sessions (KIP-227): a client names its partitions once, then only changes; answers have only changes too."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from ingestd.broker.clock import Clock

__all__ = ["FetchPlan", "FetchSession", "FetchSessions", "Wanted"]

NO_SESSION: Final = 0
_FINAL_EPOCH: Final = -1
_INITIAL_EPOCH: Final = 0
_LAST_EPOCH: Final = (1 << 31) - 1
_LAST_ID: Final = (1 << 31) - 1
_IDLE_SECONDS: Final = 120.0
"""Seconds without use after which a session may be dropped for another client's."""

Key: TypeAlias = "tuple[str, UUID | None, int]"
State: TypeAlias = "tuple[int, int, int, int]"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One partition to fetch from, with its topic's name (up to version 12) or id. Sizes in bytes; epoch -1: none."""

    topic: str
    topic_id: UUID | None
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int

    @property
    def key(self) -> Key:
        """Identifies the partition within its session."""
        return self.topic, self.topic_id, self.partition


@dataclass(slots=True)
class FetchSession:
    """What one client fetches, and what it was last told about each partition.

    That is the error, the high watermark, the last stable offset and the log's start.
    """

    id: int
    by_topic_id: bool
    wanted: OrderedDict[Key, Wanted] = field(default_factory=OrderedDict)
    told: dict[Key, State] = field(default_factory=dict)
    epoch: int = 1
    used: float = 0.0

    def news(self, key: Key, state: State, *, has_records: bool) -> bool:
        """Whether an answer must have this partition. Remembers what the answer says. An error is always news.

        A partition that was in an answer goes to the end of the order, so that busy ones starve no other.
        """
        changed = state[0] != ErrorCode.none or self.told.get(key) != state
        self.told[key] = state
        if has_records and key in self.wanted:
            self.wanted.move_to_end(key)
        return changed or has_records


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What a request asks for. `incremental`: the answer has only the partitions with news."""

    wanted: tuple[Wanted, ...]
    session: FetchSession | None
    incremental: bool


class FetchSessions:
    """The sessions of all clients, at most `limit`. If there is no room, a client fetches without a session."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, asked: Any, *, by_topic_id: bool) -> FetchPlan:
        """What a kio FetchRequest asks for. Raises `KafkaError`: FETCH_SESSION_ID_NOT_FOUND, among others."""
        session_id = getattr(asked, "session_id", NO_SESSION)
        epoch = getattr(asked, "session_epoch", _FINAL_EPOCH)
        named = tuple(_wanted(asked.topics))
        if epoch in {_FINAL_EPOCH, _INITIAL_EPOCH}:
            self._sessions.pop(session_id, None)
            session = self._begin(named, by_topic_id=by_topic_id) if epoch == _INITIAL_EPOCH else None
            return FetchPlan(named, session, incremental=False)
        session = self._use(session_id, epoch, by_topic_id=by_topic_id)
        for wanted in named:
            session.wanted[wanted.key] = wanted
        for topic in asked.forgotten_topics_data:
            for partition in topic.partitions:
                key = getattr(topic, "topic", ""), getattr(topic, "topic_id", None), partition
                session.wanted.pop(key, None)
                session.told.pop(key, None)
        return FetchPlan(tuple(session.wanted.values()), session, incremental=True)

    def _begin(self, wanted: tuple[Wanted, ...], *, by_topic_id: bool) -> FetchSession | None:
        now = self._clock.monotonic()
        if len(self._sessions) >= self._limit:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used < _IDLE_SECONDS:
                return None
            del self._sessions[oldest.id]
        session = FetchSession(self._new_id(), by_topic_id, used=now)
        session.wanted.update((one.key, one) for one in wanted)
        self._sessions[session.id] = session
        return session

    def _new_id(self) -> int:
        """A random id, new with near certainty: clients still use ids of closed sessions, or of an earlier start."""
        while (session_id := secrets.randbelow(_LAST_ID) + 1) in self._sessions:
            pass
        return session_id

    def _use(self, session_id: int, epoch: int, *, by_topic_id: bool) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found, f"fetch session {session_id}")
        if session.epoch != epoch:
            raise KafkaError(
                ErrorCode.invalid_fetch_session_epoch,
                f"epoch {epoch} of fetch session {session_id}, not {session.epoch}",
            )
        if session.by_topic_id != by_topic_id:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error, f"fetch session {session_id}")
        session.epoch = epoch % _LAST_EPOCH + 1
        session.used = self._clock.monotonic()
        self._sessions.move_to_end(session_id)
        return session


def _wanted(topics: Any) -> Iterable[Wanted]:
    for topic in topics:
        name, topic_id = getattr(topic, "topic", ""), getattr(topic, "topic_id", None)
        for partition in topic.partitions:
            yield Wanted(
                name,
                topic_id,
                partition.partition,
                partition.fetch_offset,
                partition.partition_max_bytes,
                getattr(partition, "current_leader_epoch", -1),
            )
