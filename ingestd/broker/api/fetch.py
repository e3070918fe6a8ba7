"""Fetch: sends runs of whole batches as they are in the segments, at once or when there is enough. No record is parsed.

The answer is framed by hand. So records are read from the file once, and sent from the memory that they were read into.
Layout: https://kafka.apache.org/protocol#The_Messages_Fetch
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.fetch_sessions import NO_SESSION
from ingestd.broker.messages import messages
from ingestd.broker.request import Answer
from ingestd.errors import CorruptBatch, ErrorCode, KafkaError
from ingestd.logs import get_logger
from ingestd.wire.apis import Api, is_flexible
from ingestd.wire.primitives import array_length, string, uuid_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from ingestd.broker.fetch_sessions import FetchPlan, State, Wanted
    from ingestd.broker.log.partition_log import LogSlice, PartitionLog, Watcher
    from ingestd.broker.log.transactions import AbortedTransaction
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context
    from ingestd.wire.codec import Buffer

API: Final = Api.fetch
VERSIONS: Final = range(4, 19)

_READ_COMMITTED: Final = 1
_FIRST_WITH_SESSION: Final = 7
_FIRST_WITH_TOPIC_ID: Final = 13
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_ERROR_AND_SESSION: Final = Struct(">hi")
_PARTITION_START: Final = Struct(">ihqq")
_ABORTED: Final = Struct(">qq")

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    """The result for one partition: its log, unless there is an error, and the batches to send, if any.

    `more`: more batches follow, which this answer has no room for, or which are in the next segment. `aborted`: the
    aborted transactions among the batches; None for readers of all records.
    """

    wanted: Wanted
    error: ErrorCode
    log: PartitionLog | None = None
    records: LogSlice | None = None
    more: bool = False
    aborted: Sequence[AbortedTransaction] | None = None

    @property
    def size(self) -> int:
        return 0 if self.records is None else self.records.length

    @property
    def high_watermark(self) -> int:
        return -1 if self.log is None else self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return -1 if self.log is None else self.log.last_stable_offset

    @property
    def start_offset(self) -> int:
        return -1 if self.log is None else self.log.start_offset

    @property
    def state(self) -> State:
        return self.error, self.high_watermark, self.last_stable_offset, self.start_offset


class _Growth:
    """Waits until readers get a number of bytes more of some logs, in total."""

    __slots__ = ("_missing", "_reached")

    def __init__(self, missing: int) -> None:
        self._missing = missing
        self._reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def grew(self, size: int) -> None:
        """Count a batch."""
        self._missing -= size
        if self._missing <= 0:
            self.gone()

    def gone(self) -> None:
        """End the wait: enough has come, the time is over, or a log is gone."""
        if not self._reached.done():
            self._reached.set_result(None)

    async def wait(self, watched: Sequence[set[Watcher]], seconds: float) -> None:
        """Wait until the bytes are there or the time is over. `watched`: the watchers of each log."""
        for watchers in watched:
            watchers.add(self)
        timer = asyncio.get_running_loop().call_later(seconds, self.gone)
        try:
            await self._reached
        finally:
            timer.cancel()
            for watchers in watched:
                watchers.discard(self)


def handle(context: Context, request: Request) -> Handled:
    """Answered at once if there is enough, or an error, or no time to wait."""
    broker = context.broker
    asked = messages(API, request.version).decode(request.body)
    try:
        plan = broker.fetch_sessions.plan(asked, by_topic_id=request.version >= _FIRST_WITH_TOPIC_ID)
    except KafkaError as refused:
        return _frame(request.version, refused.code, NO_SESSION, [])
    found = _look(context, asked, plan)
    seconds = asked.max_wait.total_seconds()
    if seconds <= 0 or _missing(asked, found) <= 0:
        return _answer(request.version, plan, found)
    return _wait(context, request.version, asked, plan, seconds)


def _missing(asked: Any, found: list[_Found]) -> int:
    """Bytes that the answer must wait for; 0 if there is an error, or if waiting would bring nothing more."""
    if not found or any(one.error or one.more for one in found):
        return 0
    return int(asked.min_bytes) - sum(one.size for one in found)


async def _wait(context: Context, version: int, asked: Any, plan: FetchPlan, seconds: float) -> Answer:
    # Look again: nobody was told of batches that came before this task's first step.
    found = _look(context, asked, plan)
    if (missing := _missing(asked, found)) > 0:
        logs = [one.log for one in found if one.log is not None]
        committed = asked.isolation_level == _READ_COMMITTED
        await _Growth(missing).wait([log.stable_watchers if committed else log.watchers for log in logs], seconds)
        found = _look(context, asked, plan)
    return _answer(version, plan, found)


def _look(context: Context, asked: Any, plan: FetchPlan) -> list[_Found]:
    """The batches that can be sent now, within the request's limits; at least one if there is any (KIP-74)."""
    broker = context.broker
    left = 0 if broker.memory.exhausted else min(asked.max_bytes, broker.settings.max_fetch_bytes)
    committed = asked.isolation_level == _READ_COMMITTED
    empty = True
    found = []
    for wanted in plan.wanted:
        one = _look_at(context, wanted, min(left, wanted.max_bytes), whatever_size=empty, committed=committed)
        found.append(one)
        if one.size:
            empty = False
            left = max(0, left - one.size)
    return found


def _look_at(context: Context, wanted: Wanted, max_bytes: int, *, whatever_size: bool, committed: bool) -> _Found:
    try:
        topic = wanted.topic or context.broker.topic_with_id(wanted.topic_id).name
        log = context.led(topic, wanted.partition).log
        log.check_leader_epoch(wanted.leader_epoch)
        until = log.last_stable_offset if committed else log.high_watermark
        records, more = None, wanted.offset < until
        if max_bytes > 0 or whatever_size:
            records = log.slice(wanted.offset, max_bytes, until)
            # With nothing but a gap behind the offset, the client waits for the next batch.
            more = records is not None and not records.last
        if records is not None and records.length > max_bytes and not whatever_size:
            records, more = None, True
        aborted = _aborted(log, wanted, records, until) if committed else None
    except KafkaError as refused:
        return _Found(wanted, refused.code)
    except CorruptBatch as damaged:
        _log.error("log is damaged", topic=wanted.topic, partition=wanted.partition, error=str(damaged))
        return _Found(wanted, ErrorCode.corrupt_message)
    return _Found(wanted, ErrorCode.none, log, records, more, aborted)


def _aborted(log: PartitionLog, wanted: Wanted, records: LogSlice | None, until: int) -> Sequence[AbortedTransaction]:
    return () if records is None else log.aborted(wanted.offset, min(records.ends_before, until))


def _answer(version: int, plan: FetchPlan, found: list[_Found]) -> Answer:
    session = plan.session
    if session is None:
        return _frame(version, ErrorCode.none, NO_SESSION, found)
    news = [one for one in found if session.news(one.wanted.key, one.state, has_records=one.size > 0)]
    return _frame(version, ErrorCode.none, session.id, news if plan.incremental else found)


def _frame(version: int, error: ErrorCode, session_id: int, found: list[_Found]) -> Answer:
    flexible = is_flexible(API, version)
    end = b"\x00" if flexible else b""
    parts: list[Buffer] = []
    small = bytearray(_INT32.pack(0))
    if version >= _FIRST_WITH_SESSION:
        small += _ERROR_AND_SESSION.pack(error, session_id)
    # Each topic once, though a session mixes them: of two entries, some clients keep only the last.
    topics: dict[tuple[str, UUID | None], list[_Found]] = {}
    for one in found:
        topics.setdefault((one.wanted.topic, one.wanted.topic_id), []).append(one)
    small += array_length(len(topics), flexible=flexible)
    for (name, topic_id), partitions in topics.items():
        small += uuid_bytes(topic_id) if version >= _FIRST_WITH_TOPIC_ID else string(name, flexible=flexible)
        small += array_length(len(partitions), flexible=flexible)
        for one in partitions:
            partition_error, records = _read(one)
            small += _partition_start(version, one, partition_error)
            small += array_length(len(records), flexible=flexible)
            if records:
                parts += (bytes(small), records)
                small.clear()
            small += end
        small += end
    small += end
    parts.append(bytes(small))
    return Answer(parts, error or next((one.error for one in found if one.error), ErrorCode.none))


def _read(found: _Found) -> tuple[ErrorCode, bytes]:
    if found.records is None:
        return found.error, b""
    try:
        return found.error, found.records.read()
    except OSError as error:
        _log.error("log can not be read", segment=str(found.records.segment.path), error=str(error))
        return ErrorCode.kafka_storage_error, b""


def _partition_start(version: int, found: _Found, error: ErrorCode) -> bytes:
    """A partition's bytes before its records."""
    flexible = is_flexible(API, version)
    start = _PARTITION_START.pack(found.wanted.partition, error, found.high_watermark, found.last_stable_offset)
    if version >= 5:
        start += _INT64.pack(found.start_offset)
    aborted = found.aborted
    start += array_length(-1 if aborted is None else len(aborted), flexible=flexible)
    end = b"\x00" if flexible else b""
    start += b"".join(_ABORTED.pack(one.producer_id, one.first_offset) + end for one in aborted or ())
    if version >= 11:
        start += _INT32.pack(-1)
    return start
