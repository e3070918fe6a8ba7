"""Fetch (API 1) framed by hand: records are views into the answer, never copied.

Topics are named up to version 12 and identified by topic id from version 13 on (KIP-516). Versions 0 to 3, which kio
does not have, are for brokers before Kafka 0.11. Any version may bring message sets, from old logs. Layouts:
https://kafka.apache.org/protocol#The_Messages_Fetch
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.wire.apis import Api, is_flexible
from ingestd.wire.nodes import NodeEndpoint, read_node_endpoints
from ingestd.wire.primitives import BodyReader, array_length, error_code, string, uuid_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from ingestd.errors import ErrorCode
    from ingestd.wire.codec import Buffer

__all__ = [
    "FIRST_WITH_TOPIC_ID",
    "FIRST_WITH_WHOLE_BATCHES",
    "HIGHEST",
    "HIGHEST_BY_NAME",
    "LOWEST",
    "AbortedTransaction",
    "FetchAnswer",
    "FetchPartition",
    "FetchedPartition",
    "fetch_request",
    "read_fetch_response",
]

LOWEST: Final = 0
FIRST_WITH_WHOLE_BATCHES: Final = 3
"""In versions before this, a message larger than its partition's limit comes torn, each time (KIP-74)."""
HIGHEST_BY_NAME: Final = 12
"""The last version that names topics."""
FIRST_WITH_TOPIC_ID: Final = 13
HIGHEST: Final = 18
"""The last version known here. It needs every topic's id."""

_CONSUMER: Final = -1
_INT32: Final = struct.Struct(">i")
_WAIT_AND_LEAST: Final = struct.Struct(">ii")
_SESSION: Final = struct.Struct(">ii")
_ABORTED: Final = struct.Struct(">qq")
_LEADER: Final = struct.Struct(">ii")
_DIVERGING: Final = struct.Struct(">iq")
_FETCHED: Final = struct.Struct(">ihq")


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """What to fetch of one partition. An epoch of -1 is not known, and the broker does not check it."""

    partition: int
    offset: int
    max_bytes: int = 1024 * 1024
    leader_epoch: int = -1
    last_fetched_epoch: int = -1


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction of this producer that begins at `first_offset` was aborted."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition's part of an answer. Offsets, ids and epochs are -1 if the broker did not give them.

    From version 13 on `topic` is empty and `topic_id` set; before, it is the other way round. `records` are whole
    batches and perhaps a torn last one, as a view that keeps the whole answer alive. `leader_id` and `leader_epoch`
    name the new leader after NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH (KIP-951). `diverging_epoch` and
    `diverging_end_offset` say that the log was truncated below what the consumer has read (KIP-595).
    """

    topic: str
    topic_id: UUID | None
    partition: int
    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...]
    preferred_read_replica: int
    records: memoryview
    leader_id: int
    leader_epoch: int
    diverging_epoch: int
    diverging_end_offset: int


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """A whole answer. `session_id` is 0 if the broker keeps no fetch session (KIP-227)."""

    throttle_ms: int
    error: ErrorCode
    session_id: int
    partitions: list[FetchedPartition]
    nodes: tuple[NodeEndpoint, ...]


def fetch_request(
    version: int,
    topics: Sequence[tuple[str, UUID | None, Sequence[FetchPartition]]],
    *,
    max_wait_ms: int,
    min_bytes: int = 1,
    max_bytes: int = 50 * 1024 * 1024,
    read_committed: bool = False,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Sequence[tuple[str, UUID | None, Sequence[int]]] = (),
    rack: str = "",
) -> list[Buffer]:
    """The body. `topics` and `forgotten` list (name, topic id, partitions); the id is used from version 13 on.

    Session epoch -1 is a full fetch without a session. 0 asks for a session. Above 0 is the next fetch of a session.
    Versions before 7 have neither sessions nor `forgotten`. `max_bytes` exists from version 3 on, `read_committed` from
    version 4 on: older brokers have no transactions.
    """
    flexible = is_flexible(Api.fetch, version)
    end = b"\x00" if flexible else b""
    body = bytearray()
    if version <= 14:
        body += _INT32.pack(_CONSUMER)
    body += _WAIT_AND_LEAST.pack(max_wait_ms, min_bytes)
    if version >= 3:
        body += _INT32.pack(max_bytes)
    if version >= 4:
        body.append(read_committed)
    if version >= 7:
        body += _SESSION.pack(session_id, session_epoch)
    layout = struct.Struct(_partition_layout(version))
    body += array_length(len(topics), flexible=flexible)
    for name, topic_id, partitions in topics:
        body += _topic(version, name, topic_id)
        body += array_length(len(partitions), flexible=flexible)
        for partition in partitions:
            body += layout.pack(*_partition_fields(version, partition))
            body += end
        body += end
    if version >= 7:
        body += array_length(len(forgotten), flexible=flexible)
        for name, topic_id, numbers in forgotten:
            body += _topic(version, name, topic_id)
            body += array_length(len(numbers), flexible=flexible)
            body += struct.pack(f">{len(numbers)}i", *numbers)
            body += end
    if version >= 11:
        body += string(rack, flexible=flexible)
    body += end
    return [bytes(body)]


def _topic(version: int, name: str, topic_id: UUID | None) -> bytes:
    if version >= FIRST_WITH_TOPIC_ID:
        return uuid_bytes(topic_id)
    return string(name, flexible=is_flexible(Api.fetch, version))


def _partition_layout(version: int) -> str:
    """Number; leader epoch from 9 on; offset; last fetched epoch from 12 on; log start offset from 5 on; bytes."""
    return f">i{'i' * (version >= 9)}q{'i' * (version >= 12)}{'q' * (version >= 5)}i"


def _partition_fields(version: int, asked: FetchPartition) -> list[int]:
    fields = [asked.partition]
    if version >= 9:
        fields.append(asked.leader_epoch)
    fields.append(asked.offset)
    if version >= 12:
        fields.append(asked.last_fetched_epoch)
    if version >= 5:
        fields.append(-1)  # the log start offset is for followers
    fields.append(asked.max_bytes)
    return fields


def read_fetch_response(version: int, body: memoryview) -> FetchAnswer:
    """The whole answer. Raises `ProtocolError`."""
    reader = BodyReader(body, flexible=is_flexible(Api.fetch, version))
    throttle_ms = reader.int32() if version >= 1 else 0
    error = error_code(reader.int16()) if version >= 7 else error_code(0)
    session_id = reader.int32() if version >= 7 else 0
    partitions: list[FetchedPartition] = []
    for _ in range(reader.array_length(3)):
        by_id = version >= FIRST_WITH_TOPIC_ID
        topic_id = reader.uuid() if by_id else None
        topic = "" if by_id else reader.string()
        partitions.extend(
            _read_partition(version, reader, topic, topic_id) for _ in range(reader.array_length(_FETCHED.size))
        )
        reader.skip_tagged_fields()
    nodes: tuple[NodeEndpoint, ...] = ()
    for tag, content in reader.tagged_fields():
        if tag == 0 and version >= 16:
            nodes = read_node_endpoints(content)
    return FetchAnswer(throttle_ms, error, session_id, partitions, nodes)


def _read_partition(version: int, reader: BodyReader, topic: str, topic_id: UUID | None) -> FetchedPartition:
    partition, code, high_watermark = reader.unpack(_FETCHED)
    # Brokers before version 4 have no transactions: everything that is replicated is stable.
    last_stable_offset = reader.int64() if version >= 4 else high_watermark
    log_start_offset = reader.int64() if version >= 5 else -1
    aborted = []
    for _ in range(reader.array_length(_ABORTED.size) if version >= 4 else 0):
        aborted.append(AbortedTransaction(*reader.unpack(_ABORTED)))
        reader.skip_tagged_fields()
    preferred_read_replica = reader.int32() if version >= 11 else -1
    records = reader.nullable_bytes()
    leader_id = leader_epoch = diverging_epoch = diverging_end_offset = -1
    for tag, content in reader.tagged_fields():
        if tag == 0:
            diverging_epoch, diverging_end_offset = content.unpack(_DIVERGING)
        elif tag == 1:
            leader_id, leader_epoch = content.unpack(_LEADER)
    return FetchedPartition(
        topic,
        topic_id,
        partition,
        error_code(code),
        high_watermark,
        last_stable_offset,
        log_start_offset,
        tuple(aborted),
        preferred_read_replica,
        memoryview(b"") if records is None else records,
        leader_id,
        leader_epoch,
        diverging_epoch,
        diverging_end_offset,
    )
