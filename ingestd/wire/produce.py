"""Produce (API 0) framed by hand: batches go from the caller's memory to the socket, without a copy.

Topics are named up to version 12 and identified by topic id in version 13 (KIP-516). Versions 0 to 2, which carry
message sets and which kio does not have, are for brokers before Kafka 0.11. Layouts:
https://kafka.apache.org/protocol#The_Messages_Produce
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.wire.apis import Api, is_flexible
from ingestd.wire.nodes import NodeEndpoint, read_node_endpoints
from ingestd.wire.primitives import (
    BodyReader,
    array_length,
    error_code,
    nullable_string,
    string,
    uuid_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from ingestd.errors import ErrorCode
    from ingestd.wire.codec import Buffer

__all__ = [
    "FIRST_WITH_BATCHES",
    "HIGHEST",
    "LOWEST",
    "PartitionAnswer",
    "ProduceAnswer",
    "produce_request",
    "read_produce_answer",
    "read_produce_response",
]

LOWEST: Final = 0
FIRST_WITH_BATCHES: Final = 3
"""The first version that takes record batches, not message sets."""
HIGHEST: Final = 12
"""The last version that names topics, for callers of `ApiVersions.pick` that have only names."""

_FIRST_WITH_TOPIC_ID: Final = 13
_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_INT32: Final = struct.Struct(">i")
_INDEX_ERROR_OFFSET: Final = struct.Struct(">ihq")
_LEADER: Final = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """What became of one partition's batch. Offsets and times are -1 if the broker did not give them.

    In version 13 `topic` is empty and `topic_id` set; before, it is the other way round. `leader_id` and `leader_epoch`
    name the new leader after NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH (KIP-951); otherwise they are -1.
    """

    topic: str
    topic_id: UUID | None
    partition: int
    error: ErrorCode
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    error_message: str | None
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    """A whole answer: each partition's result, the throttle time in milliseconds, and the addresses of new leaders."""

    partitions: list[PartitionAnswer]
    throttle_ms: int
    nodes: tuple[NodeEndpoint, ...]


def produce_request(
    version: int,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
    topics: Sequence[tuple[str, UUID | None, Sequence[tuple[int, Buffer]]]],
) -> list[Buffer]:
    """The body: small parts of ours, and between them each batch as it was given.

    `topics` lists (name, topic id, [(partition, batch)]). The name is used up to version 12, the id from 13 on. Each
    batch is one whole v2 record batch with base offset 0, one per partition. Up to version 2 it is a message set
    instead, of magic 1 in version 2 and of magic 0 before.
    """
    flexible = is_flexible(Api.produce, version)
    end = b"\x00" if flexible else b""
    parts: list[Buffer] = []
    # Bytes between two batches are gathered in `small`, so that the kernel gets two parts per batch and not ten.
    small = bytearray()
    if version >= 3:
        small += nullable_string(transactional_id, flexible=flexible)
    small += _ACKS_AND_TIMEOUT.pack(acks, timeout_ms)
    small += array_length(len(topics), flexible=flexible)
    for name, topic_id, batches in topics:
        small += uuid_bytes(topic_id) if version >= _FIRST_WITH_TOPIC_ID else string(name, flexible=flexible)
        small += array_length(len(batches), flexible=flexible)
        for partition, batch in batches:
            small += _INT32.pack(partition)
            small += array_length(len(batch), flexible=flexible)
            parts += (bytes(small), batch)
            small = bytearray(end)
        small += end
    small += end
    if small:
        parts.append(bytes(small))
    return parts


def read_produce_response(version: int, body: memoryview) -> list[PartitionAnswer]:
    """Each partition's result. Raises `ProtocolError`."""
    return read_produce_answer(version, body).partitions


def read_produce_answer(version: int, body: memoryview) -> ProduceAnswer:
    """The whole answer. Raises `ProtocolError`."""
    reader = BodyReader(body, flexible=is_flexible(Api.produce, version))
    answers: list[PartitionAnswer] = []
    for _ in range(reader.array_length(5)):
        by_id = version >= _FIRST_WITH_TOPIC_ID
        topic_id = reader.uuid() if by_id else None
        topic = "" if by_id else reader.string()
        answers.extend(
            _read_partition(version, reader, topic, topic_id)
            for _ in range(reader.array_length(_INDEX_ERROR_OFFSET.size))
        )
        reader.skip_tagged_fields()
    throttle_ms = reader.int32() if version >= 1 else 0
    nodes: tuple[NodeEndpoint, ...] = ()
    for tag, content in reader.tagged_fields():
        if tag == 0:
            nodes = read_node_endpoints(content)
    return ProduceAnswer(answers, throttle_ms, nodes)


def _read_partition(version: int, reader: BodyReader, topic: str, topic_id: UUID | None) -> PartitionAnswer:
    partition, code, base_offset = reader.unpack(_INDEX_ERROR_OFFSET)
    log_append_time_ms = reader.int64() if version >= 2 else -1
    log_start_offset = reader.int64() if version >= 5 else -1
    error_message = None
    if version >= 8:
        for _ in range(reader.array_length(5)):
            reader.int32()
            record_message = reader.nullable_string()
            error_message = error_message or record_message
            reader.skip_tagged_fields()
        error_message = reader.nullable_string() or error_message
    leader_id = leader_epoch = -1
    for tag, content in reader.tagged_fields():
        if tag == 0 and version >= 10:
            leader_id, leader_epoch = content.unpack(_LEADER)
    return PartitionAnswer(
        topic,
        topic_id,
        partition,
        error_code(code),
        base_offset,
        log_append_time_ms,
        log_start_offset,
        error_message,
        leader_id,
        leader_epoch,
    )
