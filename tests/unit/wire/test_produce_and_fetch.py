"""Produce and Fetch framed by hand, against kio's own encoders and decoders as the oracle, in every version."""

from __future__ import annotations

import datetime as dt
import random
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from ingestd.errors import ProtocolError
from ingestd.wire import fetch, produce

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPIC_ID = UUID("0c8c8c5e-2f6b-4a5e-9d1e-0123456789ab")
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)


def written(entity: Any) -> bytes:
    buffer = BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def joined(parts: Sequence[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(bytes(part) for part in parts)


def milliseconds(count: int) -> dt.timedelta:
    return dt.timedelta(milliseconds=count)


def module(api: str, version: int, side: str) -> Any:
    return import_module(f"kio.schema.{api}.v{version}.{side}")


def kio_produce_request(version: int, topics: Sequence[tuple[str, Sequence[tuple[int, bytes]]]]) -> bytes:
    schema = module("produce", version, "request")
    named = [{"topic_id": TOPIC_ID} if version >= 13 else {"name": name} for name, _ in topics]
    return written(
        schema.ProduceRequest(
            transactional_id="transfer" if version % 2 else None,
            acks=-1,
            timeout=milliseconds(1234),
            topic_data=tuple(
                schema.TopicProduceData(
                    **name,
                    partition_data=tuple(
                        schema.PartitionProduceData(index=index, records=batch) for index, batch in batches
                    ),
                )
                for name, (_, batches) in zip(named, topics, strict=True)
            ),
        )
    )


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("topics", [0, 1, 3])
def test_produce_request_is_byte_for_byte_what_kio_writes(version: int, topics: int) -> None:
    lengths = random.Random(topics)
    data = [
        (f"tópic-{t}", [(p, lengths.randbytes(lengths.choice([0, 1, 126, 127, 128, 20_000]))) for p in range(t + 1)])
        for t in range(topics)
    ]
    ours = produce.produce_request(
        version,
        -1,
        1234,
        "transfer" if version % 2 else None,
        [(name, TOPIC_ID, batches) for name, batches in data],
    )
    assert joined(ours) == kio_produce_request(version, data)


def test_produce_request_hands_on_every_batch_as_the_very_object_it_was_given() -> None:
    batches = [memoryview(bytearray(100)), memoryview(bytearray(200))]
    parts = produce.produce_request(9, -1, 1000, None, [("t", None, list(enumerate(batches)))])
    assert [part for part in parts if isinstance(part, memoryview)] == batches
    assert all(part is batch for part, batch in zip(parts[1::2], batches, strict=True))


def kio_produce_response(version: int) -> bytes:
    schema = module("produce", version, "response")
    fields: dict[str, Any] = {
        "index": 7,
        "error_code": ErrorCode.not_leader_or_follower,
        "base_offset": 1 << 40,
        "log_append_time": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    }
    if version >= 5:
        fields["log_start_offset"] = 12
    if version >= 8:
        fields["record_errors"] = (schema.BatchIndexAndErrorMessage(batch_index=3, batch_index_error_message="bad"),)
        fields["error_message"] = "some records are bad"
    with_leader = dict(fields)
    answer: dict[str, Any] = {"throttle_time": milliseconds(55)}
    if version >= 10:
        with_leader["current_leader"] = schema.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
        answer["node_endpoints"] = (schema.NodeEndpoint(node_id=2, host="híer", port=9092, rack="r1"),)
    name = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "tópic"}
    answer["responses"] = (
        schema.TopicProduceResponse(
            **name,
            partition_responses=(
                schema.PartitionProduceResponse(**with_leader),
                schema.PartitionProduceResponse(**{**fields, "index": 8, "error_code": ErrorCode.none}),
            ),
        ),
        schema.TopicProduceResponse(**name, partition_responses=()),
    )
    return written(schema.ProduceResponse(**answer))


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_answer_means_what_kio_wrote(version: int) -> None:
    answer = produce.read_produce_answer(version, memoryview(kio_produce_response(version)))
    assert answer.throttle_ms == 55
    first, second = answer.partitions
    assert (first.topic, first.topic_id) == (("", TOPIC_ID) if version >= 13 else ("tópic", None))
    assert (first.partition, first.error) == (7, ErrorCode.not_leader_or_follower)
    assert first.base_offset == 1 << 40
    assert first.log_append_time_ms == 1_767_312_000_000
    assert first.log_start_offset == (12 if version >= 5 else -1)
    assert first.error_message == ("some records are bad" if version >= 8 else None)
    assert (first.leader_id, first.leader_epoch) == ((2, 9) if version >= 10 else (-1, -1))
    assert (second.partition, second.error, second.leader_id) == (8, ErrorCode.none, -1)
    assert [node.host for node in answer.nodes] == (["híer"] if version >= 10 else [])


def kio_fetch_request(version: int) -> bytes:
    schema = module("fetch", version, "request")
    partitions = []
    for number in range(3):
        fields: dict[str, Any] = {"partition": number, "fetch_offset": 1 << 33, "partition_max_bytes": 77}
        if version >= 9:
            fields["current_leader_epoch"] = 5
        if version >= 12:
            fields["last_fetched_epoch"] = 4
        partitions.append(schema.FetchPartition(**fields))
    name = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "tópic"}
    request: dict[str, Any] = {
        "max_wait": milliseconds(500),
        "min_bytes": 1,
        "max_bytes": 999,
        "isolation_level": 1,
        "topics": (schema.FetchTopic(**name, partitions=tuple(partitions)),),
    }
    if version >= 7:
        request |= {"session_id": 88, "session_epoch": 6}
        request["forgotten_topics_data"] = (schema.ForgottenTopic(**name, partitions=(4, 5)),)
    if version >= 11:
        request["rack_id"] = "rack-1"
    return written(schema.FetchRequest(**request))


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_request_is_byte_for_byte_what_kio_writes(version: int) -> None:
    partitions = [fetch.FetchPartition(number, 1 << 33, 77, 5, 4) for number in range(3)]
    ours = fetch.fetch_request(
        version,
        [("tópic", TOPIC_ID, partitions)],
        max_wait_ms=500,
        max_bytes=999,
        read_committed=True,
        session_id=88,
        session_epoch=6,
        forgotten=[("tópic", TOPIC_ID, [4, 5])],
        rack="rack-1",
    )
    assert joined(ours) == kio_fetch_request(version)


def kio_fetch_response(version: int, records: bytes | None) -> bytes:
    schema = module("fetch", version, "response")
    fields: dict[str, Any] = {
        "partition_index": 3,
        "error_code": ErrorCode.fenced_leader_epoch,
        "high_watermark": 100,
        "last_stable_offset": 90,
        "aborted_transactions": (schema.AbortedTransaction(producer_id=1 << 50, first_offset=80),),
        "records": records,
    }
    if version >= 5:
        fields["log_start_offset"] = 10
    if version >= 11:
        fields["preferred_read_replica"] = 2
    if version >= 12:
        fields["current_leader"] = schema.LeaderIdAndEpoch(leader_id=4, leader_epoch=11)
        fields["diverging_epoch"] = schema.EpochEndOffset(epoch=6, end_offset=66)
    empty = {**fields, "partition_index": 4, "aborted_transactions": None, "records": None}
    empty["error_code"] = ErrorCode.none
    answer: dict[str, Any] = {"throttle_time": milliseconds(9)}
    if version >= 7:
        answer |= {"error_code": ErrorCode.none, "session_id": 1234}
    if version >= 16:
        answer["node_endpoints"] = (schema.NodeEndpoint(node_id=4, host="h", port=1, rack=None),)
    name = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "tópic"}
    answer["responses"] = (
        schema.FetchableTopicResponse(
            **name, partitions=(schema.PartitionData(**fields), schema.PartitionData(**empty))
        ),
    )
    return written(schema.FetchResponse(**answer))


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_answer_means_what_kio_wrote_and_its_records_are_views_into_it(version: int) -> None:
    body = bytearray(kio_fetch_response(version, b"r" * 300))
    answer = fetch.read_fetch_response(version, memoryview(body))
    first, second = answer.partitions
    assert (answer.throttle_ms, answer.session_id) == (9, 1234 if version >= 7 else 0)
    assert (first.topic, first.topic_id) == (("", TOPIC_ID) if version >= 13 else ("tópic", None))
    assert (first.partition, first.error) == (3, ErrorCode.fenced_leader_epoch)
    assert (first.high_watermark, first.last_stable_offset) == (100, 90)
    assert first.log_start_offset == (10 if version >= 5 else -1)
    assert first.aborted_transactions == (fetch.AbortedTransaction(1 << 50, 80),)
    assert first.preferred_read_replica == (2 if version >= 11 else -1)
    assert (first.leader_id, first.leader_epoch) == ((4, 11) if version >= 12 else (-1, -1))
    assert (first.diverging_epoch, first.diverging_end_offset) == ((6, 66) if version >= 12 else (-1, -1))
    assert [node.id for node in answer.nodes] == ([4] if version >= 16 else [])
    assert (second.partition, second.error, len(second.records)) == (4, ErrorCode.none, 0)
    assert first.records == b"r" * 300
    first.records[0] = ord("x")
    assert b"xrrr" in body


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_answer_cut_anywhere_is_a_protocol_error(version: int) -> None:
    body = kio_produce_response(version)
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            produce.read_produce_response(version, memoryview(body[:cut]))


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_answer_cut_anywhere_is_a_protocol_error(version: int) -> None:
    body = kio_fetch_response(version, b"records")
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            fetch.read_fetch_response(version, memoryview(body[:cut]))


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_random_bytes_give_a_produce_answer_or_a_protocol_error_and_nothing_else(version: int) -> None:
    source = random.Random(version)
    body = kio_produce_response(version)
    for _ in range(500):
        damaged = bytearray(body)
        for _ in range(source.randrange(1, 6)):
            damaged[source.randrange(len(damaged))] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
        try:
            produce.read_produce_response(version, memoryview(damaged))
        except ProtocolError:
            continue


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_random_bytes_give_a_fetch_answer_or_a_protocol_error_and_nothing_else(version: int) -> None:
    source = random.Random(version)
    body = kio_fetch_response(version, b"records")
    for _ in range(500):
        damaged = bytearray(body)
        for _ in range(source.randrange(1, 6)):
            damaged[source.randrange(len(damaged))] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
        try:
            fetch.read_fetch_response(version, memoryview(damaged))
        except ProtocolError:
            continue


@pytest.mark.parametrize("length", [0x7FFFFFFF, -2, 1_000_000])
def test_hostile_array_length_is_refused_before_anything_is_allocated_for_it(length: int) -> None:
    with pytest.raises(ProtocolError):
        produce.read_produce_response(3, memoryview(length.to_bytes(4, "big", signed=True) + b"\0" * 64))


def test_error_code_of_a_newer_broker_is_read_as_unknown_server_error() -> None:
    body = bytearray(kio_produce_response(3))
    error_at = 4 + 2 + len("tópic".encode()) + 4 + 4
    body[error_at : error_at + 2] = (31_000).to_bytes(2, "big")
    assert produce.read_produce_response(3, memoryview(body))[0].error is ErrorCode.unknown_server_error
