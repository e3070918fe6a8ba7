"""Commits: tells a consumer group how far a query is, so that tools show its lag. The checkpoint stays the truth."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from ingestd.errors import ErrorCode, IngestdError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingestd.client.metadata import TopicPartition

__all__ = ["Commits", "GroupWriter", "why_not_committed"]

_log = logging.getLogger(__name__)

_PAUSE: Final = 10.0
"""Seconds without a try after one that failed: a query waits for each."""
_ANEW: Final = 3_600.0
"""Seconds after which all is committed again: brokers forget what was not committed for a week (KIP-211)."""


class GroupWriter(Protocol):
    """What commits offsets; `Planner` does."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, IngestdError | None]:
        """Commit offsets of a group. Returns the error of each partition. Raises `IngestdError`."""
        ...


class Commits:
    """Of one query and one group.

    Invariants
        Only offsets that have changed are committed, but for once an hour.
        No error ends the query. Each is logged once.
    """

    def __init__(self, group: str, writer: GroupWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._writer = writer
        self._clock = clock
        self._committed: dict[TopicPartition, int] = {}
        self._anew = clock() + _ANEW
        self._not_before = -1.0
        self._said: set[str] = set()

    def done(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Every record below these offsets is processed, and Spark has logged that."""
        self.done_of(lambda: offsets)

    def done_of(self, current: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """The same of what this finds; it may raise `IngestdError`, as a commit may."""
        now = self._clock()
        if now >= self._anew:
            self._committed.clear()
            self._anew = now + _ANEW
        if now < self._not_before:
            return
        try:
            news = dict(current().items() - self._committed.items())
            if not news:
                return
            outcomes = self._writer.commit(self._group, news)
        except IngestdError as error:
            self._failed(error)
            return
        for key, refusal in outcomes.items():
            if refusal is None:
                self._committed[key] = news[key]
            else:
                self._failed(refusal)

    def _failed(self, error: IngestdError) -> None:
        self._not_before = self._clock() + _PAUSE
        reason = why_not_committed(self._group, error)
        if reason not in self._said:
            self._said.add(reason)
            _log.warning("ingestd source: commitTo: %s. The query goes on: its checkpoint has its offsets", reason)


def why_not_committed(group: str, error: IngestdError) -> str:
    """What to tell a person about a commit that failed."""
    if isinstance(error, KafkaError) and error.code is ErrorCode.unknown_member_id:
        return (
            f"offsets of group {group} were not committed, because the group has active members; expected a group "
            "that no consumer is in"
        )
    return f"offsets of group {group} were not committed: {error}"
