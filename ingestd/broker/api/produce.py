"""Produce: each batch is checked by its header and CRC, patched in place, and appended as it came.

The request is parsed by hand, so that the batches stay where they were received. No record is parsed, and no byte is
copied before the write. Layout: https://kafka.apache.org/protocol#The_Messages_Produce
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from struct import Struct
from typing import TYPE_CHECKING, Final

from ingestd.broker.log.arrival import check_arrival, stamped
from ingestd.broker.log.validation import check_batch
from ingestd.broker.request import Answer
from ingestd.broker.settings import Flush
from ingestd.broker.topics import check_not_internal
from ingestd.broker.transactions.admission import Missing, admit_batch
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api, is_flexible
from ingestd.wire.primitives import BodyReader, array_length, nullable_string, string, uuid_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from ingestd.broker.broker import Broker
    from ingestd.broker.log.group_commit import GroupCommit
    from ingestd.broker.log.partition_log import PartitionLog
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context
    from ingestd.broker.transactions.transaction_partition import Outcome
    from ingestd.records.batch import BatchHeader

API: Final = Api.produce
VERSIONS: Final = range(3, 14)

_FIRST_WITH_ZSTD: Final = 7
_FIRST_WITH_ABORTABLE: Final = 11
_FIRST_THAT_ADDS: Final = 12
_FIRST_WITH_TOPIC_ID: Final = 13
_ACKS_AND_TIMEOUT: Final = Struct(">hi")
_PARTITION_ANSWER: Final = Struct(">ihqq")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")


@dataclass(frozen=True, slots=True)
class _Result:
    """The result for one partition's batch. `commit`: the group commit that must still write it to the disk.

    `append_time_ms`: the time that all records got, -1 if they keep their own. `added`: the addition of the partition
    to the batch's transaction, if that is not on the disk yet.
    """

    partition: int
    error: KafkaError | None = None
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    commit: GroupCommit | None = None
    added: asyncio.Future[Outcome] | None = None


@dataclass(frozen=True, slots=True)
class _TopicResult:
    name: str
    topic_id: UUID | None
    partitions: list[_Result]


def handle(context: Context, request: Request) -> Handled:
    """Answered at once, or after the fsync with `Flush.always`."""
    broker = context.broker
    reader = BodyReader(request.body, flexible=is_flexible(API, request.version))
    transactional_id = reader.nullable_string()
    acks, _timeout_ms = reader.unpack(_ACKS_AND_TIMEOUT)
    refusal = None
    if acks not in {-1, 0, 1}:
        refusal = KafkaError(ErrorCode.invalid_required_acks, f"acks {acks}: expected -1, 0 or 1")
    topics = []
    for _ in range(reader.array_length(2)):
        by_id = request.version >= _FIRST_WITH_TOPIC_ID
        topic_id = reader.uuid() if by_id else None
        name = "" if by_id else reader.string()
        topic, unknown = _topic(broker, name, topic_id)
        results = []
        for _ in range(reader.array_length(5)):
            partition = reader.int32()
            records = reader.nullable_bytes()
            reader.skip_tagged_fields()
            error = refusal or unknown
            if error is None:
                results.append(_append(context, request.version, transactional_id, (topic, partition), records))
            else:
                results.append(_Result(partition, error))
        reader.skip_tagged_fields()
        topics.append(_TopicResult(name, topic_id, results))
    if broker.settings.flush is Flush.always:
        flushes = _begin_flushes(topics)
        if acks != 0:
            return _wait(request.version, topics, flushes)
    return _answer(request.version, topics, silent=acks == 0)


def _topic(broker: Broker, name: str, topic_id: UUID | None) -> tuple[str, KafkaError | None]:
    try:
        if topic_id is not None or not name:
            name = broker.topic_with_id(topic_id).name
        check_not_internal(name, "written")
    except KafkaError as error:
        return "", error
    return name, None


def _append(
    context: Context, version: int, transactional_id: str | None, where: tuple[str, int], records: memoryview | None
) -> _Result:
    broker = context.broker
    number = where[1]
    added = None
    try:
        partition = context.led(*where)
        log = partition.log
        batch, header = check_batch(records, log.config.max_message_bytes, zstd=version >= _FIRST_WITH_ZSTD)
        now_ms = int(broker.clock.wall() * 1000)
        check_arrival(batch, header, log.config, now_ms)
        _check_writable(broker, log, header)
        if header.transactional:
            added = admit_batch(broker.transactions, transactional_id, header, where, log, _missing(version))
        append_time_ms = -1
        if log.config.append_time:
            append_time_ms, header = now_ms, stamped(batch, header, now_ms)
        appended = log.append(batch, header)
    except KafkaError as error:
        return _Result(number, error)
    # Also a duplicate may not be on the disk yet.
    return _Result(number, None, appended.base_offset, append_time_ms, log.start_offset, partition.commit, added)


def _missing(version: int) -> Missing:
    """What becomes of a partition that is not in the transaction."""
    if version >= _FIRST_THAT_ADDS:
        return Missing.added
    return Missing.abortable if version >= _FIRST_WITH_ABORTABLE else Missing.refused


def _check_writable(broker: Broker, log: PartitionLog, header: BatchHeader) -> None:
    try:
        broker.storage.check_writable()
    except KafkaError:
        log.refused(header)
        raise


def _begin_flushes(topics: list[_TopicResult]) -> dict[GroupCommit, asyncio.Future[None]]:
    """Readers get what was appended after an fsync, also if its producer does not wait for one."""
    commits = {result.commit for topic in topics for result in topic.partitions if result.commit is not None}
    return {commit: commit.flushed() for commit in commits}


async def _wait(version: int, topics: list[_TopicResult], flushes: dict[GroupCommit, asyncio.Future[None]]) -> Answer:
    errors: dict[GroupCommit | None, KafkaError] = {}
    for commit, flushed in flushes.items():
        try:
            # Others wait for the same flush. The end of this connection must not cancel it.
            await asyncio.shield(flushed)
        except KafkaError as error:
            errors[commit] = error
    for topic in topics:
        for number, result in enumerate(topic.partitions):
            failure = errors.get(result.commit)
            if result.added is not None and (await asyncio.shield(result.added)).error:
                failure = KafkaError(ErrorCode.not_enough_replicas, "the transaction could not be written")
            if failure is not None:
                topic.partitions[number] = replace(result, error=failure, base_offset=-1)
    return _answer(version, topics, silent=False)


def _answer(version: int, topics: list[_TopicResult], *, silent: bool) -> Answer:
    first = next(_errors(topics), ErrorCode.none)
    if silent:
        return Answer(None, first)
    flexible = is_flexible(API, version)
    end = b"\x00" if flexible else b""
    body = bytearray(array_length(len(topics), flexible=flexible))
    for topic in topics:
        body += uuid_bytes(topic.topic_id) if version >= _FIRST_WITH_TOPIC_ID else string(topic.name, flexible=flexible)
        body += array_length(len(topic.partitions), flexible=flexible)
        for result in topic.partitions:
            code = ErrorCode.none if result.error is None else result.error.code
            body += _PARTITION_ANSWER.pack(result.partition, code, result.base_offset, result.append_time_ms)
            if version >= 5:
                body += _INT64.pack(result.log_start_offset)
            if version >= 8:
                body += array_length(0, flexible=flexible)
                body += nullable_string(None if result.error is None else result.error.detail, flexible=flexible)
            body += end
        body += end
    body += _INT32.pack(0) + end
    return Answer([bytes(body)], first)


def _errors(topics: list[_TopicResult]) -> Iterator[ErrorCode]:
    return (result.error.code for topic in topics for result in topic.partitions if result.error is not None)
