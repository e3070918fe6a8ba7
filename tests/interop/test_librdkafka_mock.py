"""Our clients against librdkafka's mock cluster, which answers with the errors it is told to.

Each time: every record accepted ends once; what was acknowledged is in the log once and in order, what failed is not.
The mock cluster takes any sequence, so where it refuses batches only one request is in flight: behind a batch that it
did not append it would append the next. (kfake, which checks sequences, is asked with five.)
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from harness.librdkafka import DISCONNECT, MockCluster
from harness.numbered import NumberedRecords, consumed

from ingestd.client.client import Client
from ingestd.errors import ErrorCode, KafkaError, UnsupportedVersion
from ingestd.producer.failures import SendFailed
from ingestd.producer.producer import AsyncProducer
from ingestd.records.codecs import Codec, Compression
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "events"
PARTITIONS = 4
NONE = ErrorCode.none


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster(3) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        yield cluster


@pytest.fixture
def records() -> NumberedRecords:
    return NumberedRecords(TOPIC, PARTITIONS)


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_codec_arrives_and_comes_back(mock: MockCluster, records: NumberedRecords, codec: Codec) -> None:
    await records.send(mock.bootstrap, compression=Compression(codec))
    assert records.errors == []
    await records.check_by_librdkafka(mock.servers)
    records.check(await consumed(mock.bootstrap, TOPIC, PARTITIONS))


RETRIED = {
    "not the leader": [ErrorCode.not_leader_or_follower] * 4,
    "timed out": [ErrorCode.request_timed_out] * 4,
    "disconnected": [DISCONNECT] * 4,
    "too few replicas": [ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas_after_append] * 2,
    "storage error": [ErrorCode.kafka_storage_error] * 3,
    "damaged on the way": [ErrorCode.corrupt_message] * 2,
    "out of order": [ErrorCode.out_of_order_sequence_number],
    "out of order later": [NONE] * 6 + [ErrorCode.out_of_order_sequence_number, NONE] * 3,
    "producer forgotten": [NONE] * 6 + [ErrorCode.unknown_producer_id] * 2,
    "disconnected now and then": [NONE, DISCONNECT] * 8,
}
SEQUENCES = {ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id}


@pytest.mark.parametrize("errors", RETRIED.values(), ids=RETRIED)
@pytest.mark.parametrize("idempotent", [True, False])
async def test_what_the_cluster_refuses_for_now_arrives_once_and_in_order(
    mock: MockCluster, records: NumberedRecords, errors: list[ErrorCode | int], idempotent: bool
) -> None:
    mock.fail(Api.produce, *errors)
    await records.send(mock.bootstrap, idempotent=idempotent, in_flight_requests=1)
    await records.check_by_librdkafka(mock.servers)
    if idempotent or not SEQUENCES & set(errors):
        assert records.errors == []


@pytest.mark.parametrize("seed", range(6))
async def test_errors_at_random_cost_no_record_and_double_none(
    mock: MockCluster, records: NumberedRecords, seed: int
) -> None:
    source = random.Random(seed)
    errors = [
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.kafka_storage_error,
        ErrorCode.not_enough_replicas,
        DISCONNECT,
    ]
    mock.fail(Api.produce, *(source.choice(errors) if source.random() < 0.4 else NONE for _ in range(60)))
    mock.fail(Api.metadata, *(source.choice([DISCONNECT, NONE, NONE]) for _ in range(4)))
    mock.fail(Api.init_producer_id, *(source.choice([ErrorCode.not_coordinator, DISCONNECT, NONE]) for _ in range(3)))
    await records.send(mock.bootstrap, in_flight_requests=1)
    assert records.errors == []
    await records.check_by_librdkafka(mock.servers)


@pytest.mark.parametrize(
    "error", [ErrorCode.invalid_record, ErrorCode.topic_authorization_failed, ErrorCode.unsupported_compression_type]
)
async def test_what_the_cluster_refuses_for_good_fails_loudly_and_alone(
    mock: MockCluster, records: NumberedRecords, error: ErrorCode
) -> None:
    mock.fail(Api.produce, *[NONE] * 8, error)
    await records.send(mock.bootstrap, in_flight_requests=1)
    assert 1 <= len(records.errors) < len(records.ends) / 2
    assert {each.code for each in records.errors if isinstance(each, KafkaError)} == {error}
    await records.check_by_librdkafka(mock.servers)


async def test_a_fenced_producer_fails_everything_and_says_so(mock: MockCluster) -> None:
    mock.fail(Api.produce, *[NONE] * 4, ErrorCode.invalid_producer_epoch)
    async with Client(mock.bootstrap) as client, AsyncProducer(client) as producer:

        async def send_on() -> None:
            while True:
                producer.send(TOPIC, b"value", partition=0)
                await producer.flush(10)

        with pytest.raises(SendFailed) as raised:
            await send_on()
    assert isinstance(raised.value.error, KafkaError)
    assert raised.value.error.code is ErrorCode.invalid_producer_epoch


async def test_leaders_that_move_while_records_are_sent_are_followed(
    mock: MockCluster, records: NumberedRecords
) -> None:
    def move(turn: int) -> None:
        for partition in range(PARTITIONS):
            mock.lead(TOPIC, partition, 1 + (partition + turn) % 3)

    await records.send(mock.bootstrap, each_hundred=move, in_flight_requests=1)
    assert records.errors == []
    await records.check_by_librdkafka(mock.servers)


async def test_nodes_that_go_and_come_back_are_waited_for(mock: MockCluster, records: NumberedRecords) -> None:
    def restart(turn: int) -> None:
        mock.down(1 + turn % 3)
        asyncio.get_running_loop().call_later(0.2, mock.up, 1 + turn % 3)

    await records.send(mock.bootstrap, each_hundred=restart, in_flight_requests=1)
    assert records.errors == []
    # A node may have appended what it was to answer when it went, and the mock cluster takes it again.
    await records.check_by_librdkafka(mock.servers, once=False)


FETCH_ERRORS = {
    "not the leader": [ErrorCode.not_leader_or_follower] * 3,
    "disconnected": [NONE, DISCONNECT] * 3,
    "fenced epoch": [ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch],
    "replica behind": [ErrorCode.replica_not_available, ErrorCode.offset_not_available],
    "session lost": [ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch],
    "storage error": [ErrorCode.kafka_storage_error] * 2,
    "unknown topic": [ErrorCode.unknown_topic_or_partition],
}


@pytest.mark.parametrize("errors", FETCH_ERRORS.values(), ids=FETCH_ERRORS)
async def test_reading_goes_on_behind_every_passing_error(
    mock: MockCluster, records: NumberedRecords, errors: list[ErrorCode | int]
) -> None:
    await records.send(mock.bootstrap)

    def trouble() -> None:
        mock.fail(Api.list_offsets, *[error for error in errors if error == DISCONNECT][:2])
        mock.fail(Api.fetch, *errors)

    records.check(await consumed(mock.bootstrap, TOPIC, PARTITIONS, trouble=trouble))


@pytest.mark.parametrize(("produce_version", "codec"), [(1, Codec.gzip), (2, Codec.none), (2, Codec.lz4)])
async def test_a_broker_of_before_batches_gets_message_sets(
    mock: MockCluster, records: NumberedRecords, produce_version: int, codec: Codec
) -> None:
    mock.limit(Api.produce, 0, produce_version)
    await records.send(mock.bootstrap, idempotent=False, compression=Compression(codec))
    assert records.errors == []
    await records.check_by_librdkafka(mock.servers)
    records.check(await consumed(mock.bootstrap, TOPIC, PARTITIONS))


async def test_a_broker_that_speaks_no_common_version_is_named(mock: MockCluster, records: NumberedRecords) -> None:
    mock.limit(Api.produce, 90, 99)
    await records.send(mock.bootstrap)
    assert {type(error) for error in records.errors} == {UnsupportedVersion}
    assert "produce: this broker speaks versions 90 to 99" in str(records.errors[0])
