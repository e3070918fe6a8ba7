"""Fetch: runs of whole batches as they lie in the segments, now or when enough has come; no record is looked at.

The answer is framed by hand, so that the records are read from the file once and sent from where they were read.
Layout: https://kafka.apache.org/protocol#The_Messages_Fetch
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import structlog

from ingestd.broker.messages import messages
from ingestd.broker.request import Answer
from ingestd.errors import CorruptBatch, ErrorCode, KafkaError
from ingestd.wire.apis import Api, is_flexible
from ingestd.wire.primitives import array_length, string, uuid_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from ingestd.broker.broker import Broker
    from ingestd.broker.log.partition_log import LogSlice, PartitionLog
    from ingestd.broker.request import Handled, Request
    from ingestd.wire.codec import Buffer

API: Final = Api.fetch
VERSIONS: Final = range(4, 19)

_FIRST_WITH_TOPIC_ID: Final = 13
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_ERROR_AND_SESSION: Final = Struct(">hi")
_PARTITION_START: Final = Struct(">ihqq")
_NO_SESSION: Final = 0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One partition of the request."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    error: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class _Found:
    """What there is for one partition: its log, unless there is an error, and the batches to send, if any."""

    partition: int
    error: ErrorCode
    log: PartitionLog | None = None
    records: LogSlice | None = None

    @property
    def size(self) -> int:
        return 0 if self.records is None else self.records.length


@dataclass(frozen=True, slots=True)
class _TopicWanted:
    """A topic of the request, as the request names it."""

    name: str
    topic_id: UUID | None
    partitions: list[_Wanted]


class _Growth:
    """Waits for logs to grow by a number of bytes together."""

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
        """End the wait: there is enough, or there will be no more."""
        if not self._reached.done():
            self._reached.set_result(None)

    async def wait(self, logs: Sequence[PartitionLog], seconds: float) -> None:
        """Until the bytes are there or the time is over."""
        for log in logs:
            log.watchers.add(self)
        timer = asyncio.get_running_loop().call_later(seconds, self.gone)
        try:
            await self._reached
        finally:
            timer.cancel()
            for log in logs:
                log.watchers.discard(self)


def handle(broker: Broker, request: Request) -> Handled:
    """Answered at once when there is enough, or an error, or no time to wait."""
    asked = messages(API, request.version).decode(request.body)
    if getattr(asked, "session_id", _NO_SESSION) != _NO_SESSION:
        return _refuse(request.version, ErrorCode.fetch_session_id_not_found)
    topics = [_topic_wanted(broker, topic) for topic in asked.topics]
    found = _look(broker, asked, topics)
    missing = asked.min_bytes - _size(found)
    seconds = asked.max_wait.total_seconds()
    if missing <= 0 or seconds <= 0 or _error(found) is not ErrorCode.none or not any(found):
        return _answer(broker, request.version, topics, found)
    return _wait(broker, request.version, asked, topics, _logs(found), missing, seconds)


async def _wait(
    broker: Broker,
    version: int,
    asked: Any,
    topics: list[_TopicWanted],
    logs: list[PartitionLog],
    missing: int,
    seconds: float,
) -> Answer:
    await _Growth(missing).wait(logs, seconds)
    return _answer(broker, version, topics, _look(broker, asked, topics))


def _topic_wanted(broker: Broker, topic: Any) -> _TopicWanted:
    topic_id = getattr(topic, "topic_id", None)
    name = getattr(topic, "topic", "")
    error = ErrorCode.none
    known = name
    if not name:
        found = broker.storage.topics.identified(topic_id)
        known = "" if found is None else found.name
        error = ErrorCode.unknown_topic_id if found is None else ErrorCode.none
    return _TopicWanted(
        name,
        topic_id,
        [
            _Wanted(
                known,
                partition.partition,
                partition.fetch_offset,
                partition.partition_max_bytes,
                getattr(partition, "current_leader_epoch", -1),
                error,
            )
            for partition in topic.partitions
        ],
    )


def _look(broker: Broker, asked: Any, topics: list[_TopicWanted]) -> list[list[_Found]]:
    """What can be sent now, within the request's bounds; always at least one batch if there is any (KIP-74)."""
    left = min(asked.max_bytes, broker.settings.max_fetch_bytes)
    if broker.memory.exhausted:
        left = 0
    empty = True
    answer = []
    for topic in topics:
        found = []
        for wanted in topic.partitions:
            one = _look_at(broker, wanted, min(left, wanted.max_bytes), whatever_size=empty)
            found.append(one)
            if one.size:
                empty = False
                left = max(0, left - one.size)
        answer.append(found)
    return answer


def _look_at(broker: Broker, wanted: _Wanted, max_bytes: int, *, whatever_size: bool) -> _Found:
    error = wanted.error or broker.leader_error(wanted.leader_epoch)
    if error is not ErrorCode.none:
        return _Found(wanted.partition, error)
    try:
        log = broker.partition(wanted.topic, wanted.partition).log
        records = log.slice(wanted.offset, max_bytes) if max_bytes > 0 or whatever_size else None
    except KafkaError as refused:
        return _Found(wanted.partition, refused.code)
    except CorruptBatch as damaged:
        _log.error("log is damaged", partition=f"{wanted.topic}-{wanted.partition}", error=str(damaged))
        return _Found(wanted.partition, ErrorCode.corrupt_message)
    if records is not None and records.length > max_bytes and not whatever_size:
        records = None
    return _Found(wanted.partition, ErrorCode.none, log, records)


def _size(found: list[list[_Found]]) -> int:
    return sum(one.size for topic in found for one in topic)


def _error(found: list[list[_Found]]) -> ErrorCode:
    return next((one.error for topic in found for one in topic if one.error), ErrorCode.none)


def _logs(found: list[list[_Found]]) -> list[PartitionLog]:
    return [one.log for topic in found for one in topic if one.log is not None]


def _refuse(version: int, error: ErrorCode) -> Answer:
    flexible = is_flexible(API, version)
    end = b"\x00" if flexible else b""
    body = _INT32.pack(0) + _ERROR_AND_SESSION.pack(error, _NO_SESSION) + array_length(0, flexible=flexible) + end
    return Answer([body], error)


def _answer(broker: Broker, version: int, topics: list[_TopicWanted], found: list[list[_Found]]) -> Answer:
    flexible = is_flexible(API, version)
    end = b"\x00" if flexible else b""
    parts: list[Buffer] = []
    small = bytearray(_INT32.pack(0))
    if version >= 7:
        small += _ERROR_AND_SESSION.pack(ErrorCode.none, _NO_SESSION)
    small += array_length(len(topics), flexible=flexible)
    for topic, partitions in zip(topics, found, strict=True):
        small += (
            uuid_bytes(topic.topic_id) if version >= _FIRST_WITH_TOPIC_ID else string(topic.name, flexible=flexible)
        )
        small += array_length(len(partitions), flexible=flexible)
        for one in partitions:
            error, records = _read(one)
            small += _partition_start(version, one, error)
            small += array_length(len(records), flexible=flexible)
            if records:
                parts += (bytes(small), records)
                small.clear()
            small += end
        small += end
    small += end
    parts.append(bytes(small))
    del broker
    return Answer(parts, _error(found))


def _read(found: _Found) -> tuple[ErrorCode, bytes]:
    if found.records is None:
        return found.error, b""
    try:
        return found.error, found.records.read()
    except OSError as error:
        _log.error("log can not be read", segment=str(found.records.segment.path), error=str(error))
        return ErrorCode.kafka_storage_error, b""


def _partition_start(version: int, found: _Found, error: ErrorCode) -> bytes:
    """Everything of a partition before its records. No transactions: all up to the high watermark is stable."""
    flexible = is_flexible(API, version)
    end_offset = -1 if found.log is None else found.log.end_offset
    start = _PARTITION_START.pack(found.partition, error, end_offset, end_offset)
    if version >= 5:
        start += _INT64.pack(-1 if found.log is None else found.log.start_offset)
    start += array_length(-1, flexible=flexible)
    if version >= 11:
        start += _INT32.pack(-1)
    return start
