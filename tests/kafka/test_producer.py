"""The producer against real Apache Kafka, read back by clients written elsewhere."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import aiokafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from ingestd.client.client import Client
from ingestd.errors import DeadlineExceeded, ErrorCode, KafkaError
from ingestd.producer.partitioners import consistent_crc32
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.sync import OutgoingMessage, SendFailed, SyncProducer
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster

    from ingestd.producer.delivery import Delivery

CODECS = tuple(codec.name for codec in Codec)
PARTITIONS = 4


class Load:
    """Ready batches of numbered records, in arenas that are reused as soon as they are given back."""

    def __init__(self, producer: AsyncProducer, topic: str, partitions: int = PARTITIONS, arenas: int = 32) -> None:
        self.producer = producer
        self.topic = topic
        self.sent: list[list[bytes]] = [[] for _ in range(partitions)]
        self.ends: list[Delivery] = []
        self._free = asyncio.Semaphore(arenas)

    async def send(self, batches: int, records: int = 50, pause: float = 0.0) -> None:
        """Send to the partitions in turn, waiting for a free arena."""
        for number in range(batches):
            await self._free.acquire()
            partition = number % len(self.sent)
            sent = self.sent[partition]
            values = [b"%d-%07d" % (partition, len(sent) + index) for index in range(records)]
            sent.extend(values)
            self._hand_over(partition, values)
            await asyncio.sleep(pause)

    def _hand_over(self, partition: int, values: list[bytes]) -> None:
        now = time.time_ns() // 1_000_000  # an old timestamp would meet retention
        builder = BatchBuilder(1 << 20)
        for value in values:
            builder.append(None, value, (), now)
        arena = builder.build(Compression(Codec.lz4))

        def done(delivery: Delivery) -> None:
            arena[:] = bytes(len(arena))
            self.ends.append(delivery)
            self._free.release()

        self.producer.send_batch(self.topic, partition, memoryview(arena), len(values), done)


@pytest.mark.parametrize("codec", CODECS)
async def test_records_of_every_codec_are_read_by_librdkafka_and_aiokafka_as_they_were_sent(
    kafka: KafkaCluster, topic: Callable[..., str], codec: str
) -> None:
    name = topic(partitions=1)
    sent = [
        (b"key" if n % 3 else None, b"value %d" % n * 20 if n % 5 else None, [("h", b"%d" % n)]) for n in range(500)
    ]
    now = time.time_ns() // 1_000_000
    ends: list[Delivery] = []
    async with (
        Client(kafka.bootstrap) as client,
        AsyncProducer(client, ProducerSettings(compression=Compression.parse(codec))) as producer,
    ):
        for number, (key, value, headers) in enumerate(sent):
            producer.send(name, value, key=key, headers=headers, timestamp_ms=now + number, done=ends.append)
        await producer.flush(20)
    assert [end.base_offset for end in ends] == list(range(len(sent)))
    reader = Consumer({"bootstrap.servers": kafka.servers, "group.id": "reader", "check.crcs": True})
    reader.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
    read = reader.consume(len(sent), timeout=20)
    reader.close()
    assert [(message.key(), message.value(), message.headers()) for message in read] == sent
    assert [message.timestamp()[1] for message in read] == [now + number for number in range(len(sent))]
    other = aiokafka.AIOKafkaConsumer(name, bootstrap_servers=kafka.servers, auto_offset_reset="earliest")
    await other.start()
    try:
        for key, value, headers in sent:
            record = await asyncio.wait_for(other.getone(), 20)
            assert (record.key, record.value, list(record.headers)) == (key, value, headers)
    finally:
        await other.stop()


async def test_ready_batches_are_acknowledged_with_the_offsets_where_they_are(
    kafka: KafkaCluster, topic: Callable[..., str], read_back: Callable[[str], dict[int, list[bytes]]]
) -> None:
    name = topic(partitions=PARTITIONS)
    async with Client(kafka.bootstrap) as client, AsyncProducer(client) as producer:
        load = Load(producer, name)
        await load.send(200)
        await producer.flush(20)
    assert len(load.ends) == 200
    assert [end for end in load.ends if end.error is not None] == []
    assert [end.base_offset for end in load.ends if end.partition == 0] == list(range(0, 50 * 50, 50))
    assert read_back(name) == dict(enumerate(load.sent))


@pytest.mark.parametrize("acks", [0, 1])
async def test_weaker_acknowledgements_deliver_too(
    kafka: KafkaCluster, topic: Callable[..., str], read_back: Callable[[str], dict[int, list[bytes]]], acks: int
) -> None:
    name = topic(partitions=1)
    async with Client(kafka.bootstrap) as client, AsyncProducer(client, ProducerSettings(acks=acks)) as producer:
        load = Load(producer, name, 1)
        await load.send(20)
        await producer.flush(20)
        # Without acknowledgement the end of a batch says no more than that the kernel has it: one with it follows.
        async with AsyncProducer(client) as certain:
            certain.send(name, b"last", partition=0)
            await certain.flush(20)
    assert {end.base_offset >= 0 for end in load.ends} == {acks == 1}
    assert read_back(name)[0][:-1] == load.sent[0]


async def test_the_partition_of_a_key_is_the_one_that_librdkafka_chooses(
    kafka: KafkaCluster, topic: Callable[..., str], read_back: Callable[[str], dict[int, list[bytes]]]
) -> None:
    from confluent_kafka import Producer

    ours, murmur, theirs, their_murmur = (topic(partitions=7) for _ in range(4))
    keys = [b"key-%d" % number for number in range(200)]
    async with Client(kafka.bootstrap) as client:
        for name, settings in ((ours, ProducerSettings(partitioner=consistent_crc32)), (murmur, ProducerSettings())):
            async with AsyncProducer(client, settings) as producer:
                for key in keys:
                    producer.send(name, key, key=key)
                await producer.flush(20)
    for name, partitioner in ((theirs, "consistent_random"), (their_murmur, "murmur2_random")):
        other = Producer({"bootstrap.servers": kafka.servers, "partitioner": partitioner})
        for key in keys:
            other.produce(name, key, key=key)
        assert other.flush(20) == 0
    assert read_back(ours) == read_back(theirs)
    assert read_back(murmur) == read_back(their_murmur)


async def test_a_batch_too_large_for_its_topic_is_split_and_one_record_too_large_fails_alone(
    kafka: KafkaCluster, topic: Callable[..., str], read_back: Callable[[str], dict[int, list[bytes]]]
) -> None:
    name = topic(partitions=1, max_message_bytes="20000")
    values = [b"%04d" % number + b"x" * 4000 for number in range(30)]
    values[17] = b"0017" + b"y" * 30_000
    ends: dict[int, Delivery] = {}
    async with Client(kafka.bootstrap) as client, AsyncProducer(client) as producer:
        for number, value in enumerate(values):
            producer.send(name, value, partition=0, done=lambda end, number=number: ends.setdefault(number, end))
        producer.send(name, b"after", partition=0)
        await producer.flush(20)
        producer.send(name, b"later", partition=0)
        await producer.flush(20)
    stored = read_back(name)[0]
    assert stored == [*values[:17], *values[18:], b"after", b"later"]
    assert [number for number, end in ends.items() if end.error is not None] == [17]
    assert all(stored[end.base_offset] == values[number] for number, end in ends.items() if number != 17)


async def test_a_topic_that_does_not_exist_fails_after_the_metadata_timeout(kafka: KafkaCluster) -> None:
    ends: list[Delivery] = []
    async with (
        Client(kafka.bootstrap) as client,
        AsyncProducer(client, ProducerSettings(metadata_timeout=5.0)) as producer,
    ):
        producer.send("no-such-topic", b"chosen", done=ends.append)
        producer.send("no-such-topic", b"named", partition=0, done=ends.append)
        await producer.flush(30)
    assert [end.error.code for end in ends if isinstance(end.error, KafkaError)] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
    ]


@pytest.mark.timeout(300)
async def test_a_killed_leader_costs_no_record_doubles_none_and_reorders_none(kafka3: KafkaCluster) -> None:
    name = kafka3.create_topic(partitions=PARTITIONS)
    async with Client(kafka3.bootstrap) as client:
        producer = AsyncProducer(client, ProducerSettings(delivery_timeout=float("inf")))
        load = Load(producer, name)
        sending = asyncio.create_task(load.send(1200, pause=0.005))
        await asyncio.sleep(1.0)
        victim = await asyncio.to_thread(kafka3.leader, name, 0)
        await asyncio.to_thread(kafka3.kill, victim)
        await asyncio.wait_for(sending, 90)
        await asyncio.to_thread(kafka3.start, victim)
        await load.send(400, pause=0.002)
        await producer.flush(60)
        await producer.close()
    assert len(load.ends) == 1600
    assert [end.error for end in load.ends if end.error is not None] == []
    assert await asyncio.to_thread(kafka3.read_back, name) == dict(enumerate(load.sent))


@pytest.mark.timeout(300)
async def test_a_frozen_leader_is_left_when_there_is_another_and_not_only_after_the_request_timeout(
    kafka3: KafkaCluster,
) -> None:
    name = kafka3.create_topic(partitions=PARTITIONS)
    settings = ProducerSettings(delivery_timeout=float("inf"), request_timeout=150.0)
    async with Client(kafka3.bootstrap) as client:
        producer = AsyncProducer(client, settings)
        load = Load(producer, name)
        await load.send(40)
        victim = await asyncio.to_thread(kafka3.leader, name, 0)
        kafka3.freeze(victim)
        # An election takes ten seconds and more where the frozen node is the controller as well.
        await asyncio.wait_for(load.send(200), 75)
        kafka3.thaw(victim)
        await producer.flush(60)
        await producer.close()
    await asyncio.to_thread(kafka3.wait_in_sync)
    assert [end.error for end in load.ends if end.error is not None] == []
    assert await asyncio.to_thread(kafka3.read_back, name) == dict(enumerate(load.sent))


async def test_with_all_brokers_down_close_ends_by_its_deadline_and_every_batch_has_its_end(
    kafka_cluster: Callable[..., KafkaCluster],
) -> None:
    cluster = await asyncio.to_thread(kafka_cluster)
    name = await asyncio.to_thread(cluster.create_topic)
    async with Client(cluster.bootstrap) as client:
        producer = AsyncProducer(client, ProducerSettings(delivery_timeout=float("inf")))
        load = Load(producer, name, 1)
        await load.send(10)
        await producer.flush(20)
        cluster.kill(1)
        await load.send(20)
        with pytest.raises(DeadlineExceeded):
            await producer.flush(0.5)
        await asyncio.wait_for(producer.close(1.0), 30.0)  # by itself it would wait for ever
    assert len(load.ends) == 30
    assert [end.error is None for end in load.ends] == [True] * 10 + [False] * 20


def test_threads_share_a_synchronous_producer(
    kafka: KafkaCluster, topic: Callable[..., str], read_back: Callable[[str], dict[int, list[bytes]]]
) -> None:
    name = topic(partitions=2)
    offsets: dict[bytes, tuple[int, int]] = {}

    def work(thread: int) -> None:
        for number in range(20):
            value = b"%d-%d" % (thread, number)
            sent = producer.send(name, value, partition=thread % 2)
            offsets[value] = (sent.partition, sent.offset)

    with SyncProducer(kafka.bootstrap) as producer:
        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = read_back(name)
    assert len(offsets) == 80
    assert all(stored[partition][offset] == value for value, (partition, offset) in offsets.items())


def test_sending_many_says_which_failed_and_where_the_others_are(
    kafka: KafkaCluster, topic: Callable[..., str], read_back: Callable[[str], dict[int, list[bytes]]]
) -> None:
    name = topic(partitions=1, max_message_bytes="1000")
    values = [b"a", b"b" * 5000, b"c"]
    with SyncProducer(kafka.bootstrap) as producer, pytest.raises(SendFailed) as raised:
        producer.send_many([OutgoingMessage(name, value) for value in values])
    assert [(each.index, each.message.value) for each in raised.value.failures] == [(1, values[1])]
    assert isinstance(raised.value.failures[0].error, KafkaError)
    assert raised.value.failures[0].error.code is ErrorCode.message_too_large
    assert read_back(name)[0] == [b"a", b"c"]
