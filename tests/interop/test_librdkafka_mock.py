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
from harness.reading import read_back

from ingestd.client.client import Client
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import Edge
from ingestd.errors import ErrorCode, KafkaError, UnsupportedVersion
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.records.codecs import Codec, Compression
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingestd.errors import IngestdError
    from ingestd.producer.delivery import Delivery

TOPIC = "events"
PARTITIONS = 4
RECORDS = 400
NONE = ErrorCode.none


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster(3) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, 3)
        yield cluster


class Load:
    """Numbered records to every partition in turn, in batches of ten, and what became of each."""

    def __init__(self) -> None:
        self.ends: dict[int, list[Delivery]] = {number: [] for number in range(RECORDS)}

    async def send(self, producer: AsyncProducer, *, each_hundred: Callable[[int], None] = lambda _: None) -> None:
        for number in range(RECORDS):
            producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS, done=self.ends[number].append)
            if number % 100 == 50:
                each_hundred(number // 100)
            if number % 10 == 9:
                await asyncio.sleep(0.001)

    def errors(self) -> list[IngestdError]:
        return [end.error for (end,) in self.ends.values() if end.error is not None]

    def check(self, log: dict[int, list[bytes]]) -> None:
        """Everything ended once; the log holds what was acknowledged, once and in order, and nothing else."""
        assert {len(ends) for ends in self.ends.values()} == {1}
        for partition in range(PARTITIONS):
            acknowledged = [
                b"%d" % number for number in range(partition, RECORDS, PARTITIONS) if self.ends[number][0].error is None
            ]
            assert log[partition] == acknowledged


async def produce(mock: MockCluster, load: Load, **settings: object) -> None:
    async with Client(mock.bootstrap) as client, AsyncProducer(client, small_batches(**settings)) as producer:
        await load.send(producer)
        await producer.flush(60)


def small_batches(**settings: object) -> ProducerSettings:
    defaults = {
        "batch_records": 10,
        "linger": 0.001,
        "retry_initial": 0.01,
        "retry_maximum": 0.1,
        "in_flight_requests": 1,
    }
    return ProducerSettings(**(defaults | settings))  # type: ignore[arg-type]


async def log_of(mock: MockCluster) -> dict[int, list[bytes]]:
    return await asyncio.to_thread(read_back, mock.servers, TOPIC)


async def consume(mock: MockCluster, *, delay: Callable[[], None] = lambda: None) -> dict[int, list[bytes]]:
    """Every record, by our consumer."""
    async with Client(mock.bootstrap) as client, Consumer(client) as consumer:

        async def partition(number: int) -> list[bytes]:
            reading = await consumer.consume_partition(TOPIC, number, Edge.oldest, Edge.newest)
            return [record.value or b"" async for record in reading]

        delay()
        return dict(enumerate(await asyncio.gather(*(partition(number) for number in range(PARTITIONS)))))


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


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_codec_arrives_and_comes_back(mock: MockCluster, codec: Codec) -> None:
    load = Load()
    await produce(mock, load, compression=Compression(codec), in_flight_requests=5)
    assert load.errors() == []
    load.check(await log_of(mock))
    load.check(await consume(mock))


@pytest.mark.parametrize("errors", RETRIED.values(), ids=RETRIED)
@pytest.mark.parametrize("idempotent", [True, False])
async def test_what_the_cluster_refuses_for_now_arrives_once_and_in_order(
    mock: MockCluster, errors: list[ErrorCode | int], idempotent: bool
) -> None:
    load = Load()
    mock.fail(Api.produce, *errors)
    await produce(mock, load, idempotent=idempotent)
    load.check(await log_of(mock))
    sequence_errors = {ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id}
    if idempotent or not sequence_errors & set(errors):
        assert load.errors() == []


@pytest.mark.parametrize("seed", range(6))
async def test_errors_at_random_cost_no_record_and_double_none(mock: MockCluster, seed: int) -> None:
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
    load = Load()
    await produce(mock, load)
    assert load.errors() == []
    load.check(await log_of(mock))


@pytest.mark.parametrize(
    "error", [ErrorCode.invalid_record, ErrorCode.topic_authorization_failed, ErrorCode.unsupported_compression_type]
)
async def test_what_the_cluster_refuses_for_good_fails_loudly_and_alone(mock: MockCluster, error: ErrorCode) -> None:
    load = Load()
    mock.fail(Api.produce, *[NONE] * 8, error)
    await produce(mock, load)
    failed = load.errors()
    assert 1 <= len(failed) < RECORDS / 2
    assert {each.code for each in failed if isinstance(each, KafkaError)} == {error}
    load.check(await log_of(mock))


async def test_a_fenced_producer_fails_everything_and_says_so(mock: MockCluster) -> None:
    mock.fail(Api.produce, *[NONE] * 4, ErrorCode.invalid_producer_epoch)
    async with Client(mock.bootstrap) as client, AsyncProducer(client, small_batches()) as producer:

        async def send_on() -> None:
            while True:
                producer.send(TOPIC, b"value", partition=0)
                await asyncio.sleep(0.005)

        with pytest.raises(KafkaError) as raised:
            await send_on()
    assert raised.value.code is ErrorCode.invalid_producer_epoch


async def test_leaders_that_move_while_records_are_sent_are_followed(mock: MockCluster) -> None:
    load = Load()

    def move(turn: int) -> None:
        for partition in range(PARTITIONS):
            mock.lead(TOPIC, partition, 1 + (partition + turn) % 3)

    async with Client(mock.bootstrap) as client, AsyncProducer(client, small_batches()) as producer:
        await load.send(producer, each_hundred=move)
        await producer.flush(60)
    assert load.errors() == []
    load.check(await log_of(mock))


async def test_nodes_that_go_and_come_back_are_waited_for(mock: MockCluster) -> None:
    load = Load()

    def restart(turn: int) -> None:
        mock.down(1 + turn % 3)
        asyncio.get_running_loop().call_later(0.2, mock.up, 1 + turn % 3)

    async with Client(mock.bootstrap) as client, AsyncProducer(client, small_batches()) as producer:
        await load.send(producer, each_hundred=restart)
        await producer.flush(60)
    assert load.errors() == []
    load.check(await log_of(mock))


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
async def test_reading_goes_on_behind_every_passing_error(mock: MockCluster, errors: list[ErrorCode | int]) -> None:
    load = Load()
    await produce(mock, load)
    mock.fail(Api.list_offsets, *[error for error in errors if error == DISCONNECT][:2])
    load.check(await consume(mock, delay=lambda: mock.fail(Api.fetch, *errors)))


@pytest.mark.parametrize(("produce_version", "codec"), [(1, Codec.gzip), (2, Codec.none), (2, Codec.lz4)])
async def test_a_broker_of_before_batches_gets_message_sets(
    mock: MockCluster, produce_version: int, codec: Codec
) -> None:
    mock.limit(Api.produce, 0, produce_version)
    load = Load()
    await produce(mock, load, idempotent=False, compression=Compression(codec))
    assert load.errors() == []
    load.check(await log_of(mock))
    load.check(await consume(mock))


async def test_a_broker_that_speaks_no_common_version_is_named(mock: MockCluster) -> None:
    mock.limit(Api.produce, 90, 99)
    load = Load()
    await produce(mock, load)
    assert {type(error) for error in load.errors()} == {UnsupportedVersion}
    assert "produce: this broker speaks versions 90 to 99" in str(load.errors()[0])
