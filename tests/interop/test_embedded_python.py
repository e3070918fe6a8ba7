"""Python clients on the embedded broker: what each writes in each codec, every one reads, unchanged and in order."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from harness.kafka_python import left_sockets

if TYPE_CHECKING:
    from collections.abc import Callable

    from embedded.process import BrokerProcess

# kafka-python 3 reads its schemas by functions that Python deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
SECONDS = 30


@dataclass(frozen=True)
class Sent:
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


def records(count: int = 2000) -> list[Sent]:
    now = int(time.time() * 1000)
    return [
        Sent(
            key=None if number % 3 == 0 else b"key-%d" % number,
            value=None if number % 3 and number % 97 == 5 else b"value %d " % number + b"x" * (number % 300),
            headers=[("number", b"%d" % number)] if number % 2 else [],
            timestamp_ms=now + number,
        )
        for number in range(count)
    ]


def produce_librdkafka(servers: str, topic: str, codec: str, sent: list[Sent]) -> None:
    from confluent_kafka import Producer

    errors: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": servers, "compression.type": codec, "enable.idempotence": True, "linger.ms": 5}
    )
    for one in sent:
        producer.produce(
            topic, one.value, one.key, partition=0, timestamp=one.timestamp_ms, headers=one.headers,
            on_delivery=lambda error, _message: errors.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(SECONDS) == 0
    assert errors == []


def consume_librdkafka(servers: str, topic: str, count: int) -> list[Sent]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        read: list[Any] = []
        while len(read) < count:
            got = consumer.consume(count - len(read), timeout=SECONDS)
            assert got, f"{len(read)} of {count} records"
            assert [message.error() for message in got if message.error()] == []
            read += got
        assert [message.offset() for message in read] == list(range(count))
        return [Sent(m.key(), m.value(), list(m.headers() or []), m.timestamp()[1]) for m in read]
    finally:
        consumer.close()


@left_sockets()
def produce_kafka_python(servers: str, topic: str, codec: str, sent: list[Sent]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=servers, compression_type=None if codec == "none" else codec, linger_ms=5
    )
    try:
        futures = [
            producer.send(topic, one.value, one.key, one.headers, partition=0, timestamp_ms=one.timestamp_ms)
            for one in sent
        ]
        producer.flush(SECONDS)
        assert [future.get(SECONDS).offset for future in futures] == list(range(len(sent)))
    finally:
        producer.close()


@left_sockets()
def consume_kafka_python(servers: str, topic: str, count: int) -> list[Sent]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", consumer_timeout_ms=SECONDS * 1000
    )
    try:
        consumer.assign([TopicPartition(topic, 0)])
        read = [message for _, message in zip(range(count), consumer, strict=False)]
        assert [message.offset for message in read] == list(range(count))
        return [Sent(m.key, m.value, list(m.headers), m.timestamp) for m in read]
    finally:
        consumer.close()


async def produce_aiokafka(servers: str, topic: str, codec: str, sent: list[Sent]) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
        linger_ms=5,
    )
    async with producer:
        futures = [
            await producer.send(
                topic, one.value, one.key, partition=0, timestamp_ms=one.timestamp_ms, headers=one.headers
            )
            for one in sent
        ]
        assert [(await future).offset for future in futures] == list(range(len(sent)))


async def consume_aiokafka(servers: str, topic: str, count: int) -> list[Sent]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async with AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read: list[Any] = []
        while len(read) < count:
            got = await consumer.getmany(timeout_ms=SECONDS * 1000, max_records=count - len(read))
            assert got, f"{len(read)} of {count} records"
            read += [message for messages in got.values() for message in messages]
        assert [message.offset for message in read] == list(range(count))
        return [Sent(m.key, m.value, list(m.headers), m.timestamp) for m in read]


PRODUCERS: dict[str, Callable[..., Any]] = {
    "librdkafka": produce_librdkafka,
    "kafka-python": produce_kafka_python,
    "aiokafka": produce_aiokafka,
}
CONSUMERS: dict[str, Callable[..., Any]] = {
    "librdkafka": consume_librdkafka,
    "kafka-python": consume_kafka_python,
    "aiokafka": consume_aiokafka,
}


async def finished(result: Any) -> Any:
    return await result if hasattr(result, "__await__") else result


# kafka-python's snappy needs a library that nothing else here does.
WRITTEN = [(writer, codec) for writer in PRODUCERS for codec in CODECS if (writer, codec) != ("kafka-python", "snappy")]


@pytest.mark.parametrize(("writer", "codec"), WRITTEN)
async def test_every_client_reads_what_each_client_wrote(
    embedded: BrokerProcess, new_topic: str, writer: str, codec: str
) -> None:
    sent = records()
    await finished(PRODUCERS[writer](embedded.servers, new_topic, codec, sent))
    for reader, consume in CONSUMERS.items():
        if (reader, codec) == ("kafka-python", "snappy"):
            continue
        assert await finished(consume(embedded.servers, new_topic, len(sent))) == sent, reader


def test_a_consumer_that_waits_at_the_end_gets_a_record_as_soon_as_it_is_written(
    embedded: BrokerProcess, new_topic: str
) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": embedded.servers, "linger.ms": 0})
    producer.produce(new_topic, b"first", partition=0)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": embedded.servers,
            "group.id": "unused",
            "fetch.wait.max.ms": 120_000,  # longer than the test waits for a record
            "socket.timeout.ms": 200_000,
            "fetch.min.bytes": 1,
        }
    )
    try:
        consumer.assign([TopicPartition(new_topic, 0, 0)])
        assert consumer.consume(1, timeout=SECONDS)[0].value() == b"first"
        for number in range(5):
            assert consumer.poll(0.1) is None
            producer.produce(new_topic, b"%d" % number, partition=0)
            assert producer.flush(SECONDS) == 0
            message = consumer.poll(SECONDS)
            assert message is not None
            assert message.value() == b"%d" % number
    finally:
        consumer.close()


def test_librdkafka_finds_offsets_by_timestamp_to_the_record(embedded: BrokerProcess, new_topic: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    sent = records(500)
    produce_librdkafka(embedded.servers, new_topic, "lz4", sent)
    consumer = Consumer({"bootstrap.servers": embedded.servers, "group.id": "unused"})
    try:
        assert consumer.get_watermark_offsets(TopicPartition(new_topic, 0), timeout=SECONDS) == (0, 500)
        for number in (0, 1, 250, 499):
            asked = TopicPartition(new_topic, 0, sent[number].timestamp_ms)
            assert consumer.offsets_for_times([asked], timeout=SECONDS)[0].offset == number
        beyond = TopicPartition(new_topic, 0, sent[-1].timestamp_ms + 1)
        assert consumer.offsets_for_times([beyond], timeout=SECONDS)[0].offset == -1
    finally:
        consumer.close()


def test_librdkafka_administers_topics(embedded: BrokerProcess, new_topic: str) -> None:
    from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

    admin = AdminClient({"bootstrap.servers": embedded.servers})
    made = admin.create_topics([NewTopic(new_topic, 3, 1, config={"retention.ms": "1000000"})], request_timeout=SECONDS)
    made[new_topic].result(SECONDS)
    assert len(admin.list_topics(new_topic, SECONDS).topics[new_topic].partitions) == 3
    grown = admin.create_partitions([NewPartitions(new_topic, 5)], request_timeout=SECONDS)
    grown[new_topic].result(SECONDS)
    assert len(admin.list_topics(new_topic, SECONDS).topics[new_topic].partitions) == 5
    resource = ConfigResource(ResourceType.TOPIC, new_topic)
    config = admin.describe_configs([resource], request_timeout=SECONDS)[resource].result(SECONDS)
    assert config["retention.ms"].value == "1000000"
    assert config["retention.bytes"].value == "-1"
    assert admin.describe_cluster(request_timeout=SECONDS).result(SECONDS).controller.port == embedded.port
    admin.delete_topics([new_topic], request_timeout=SECONDS)[new_topic].result(SECONDS)
    assert new_topic not in admin.list_topics(timeout=SECONDS).topics


def test_large_values_pass_as_they_are(embedded: BrokerProcess, new_topic: str) -> None:
    sent = [Sent(None, os.urandom(900_000), [], int(time.time() * 1000)) for _ in range(20)]
    produce_librdkafka(embedded.servers, new_topic, "none", sent)
    assert consume_librdkafka(embedded.servers, new_topic, len(sent)) == sent
