"""What a topic's configuration asks of a batch that arrives: the embedded broker takes and refuses what Kafka does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from embedded.raw import RawClient

from ingestd.errors import ErrorCode
from ingestd.records.batch import seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression

if TYPE_CHECKING:
    from embedded.process import BrokerProcess
    from harness.cluster import KafkaCluster

SECONDS = 20
HOUR, DAY = 3_600_000, 86_400_000
NOT_YET = {ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available}
LOG_APPEND_TIME = 2

Record = tuple[bytes | None, int]
"""A key, and how many milliseconds before now the record is from."""


def batch(now_ms: int, records: list[Record], codec: Codec) -> bytearray:
    builder = BatchBuilder(limit=1 << 20)
    for key, ago in records:
        builder.append(key, b"value" * 20, (), now_ms - ago)
    built = bytearray(builder.build(Compression(codec)))
    seal(memoryview(built))
    return built


CASES: list[tuple[dict[str, str], list[Record]]] = [
    ({}, [(None, 0)]),
    ({}, [(None, 400 * DAY), (b"k", -HOUR // 2)]),
    ({}, [(None, 0), (b"k", -2 * HOUR)]),
    ({"message.timestamp.after.max.ms": str(3 * HOUR)}, [(None, -2 * HOUR)]),
    ({"message.timestamp.after.max.ms": "0"}, [(None, -HOUR)]),
    ({"message.timestamp.before.max.ms": str(DAY)}, [(None, HOUR), (None, 0)]),
    ({"message.timestamp.before.max.ms": str(DAY)}, [(None, 0), (None, 2 * DAY), (None, 0)]),
    ({"message.timestamp.before.max.ms": "0"}, [(None, DAY)]),
    ({"message.timestamp.type": "LogAppendTime"}, [(None, 400 * DAY)]),
    ({"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "0"}, [(None, 2 * DAY)]),
    ({"message.timestamp.type": "LogAppendTime"}, [(None, -2 * DAY)]),
    ({"cleanup.policy": "compact"}, [(b"k", 0), (b"", 0)]),
    ({"cleanup.policy": "compact"}, [(b"k", 0), (None, 0)]),
    ({"cleanup.policy": "compact,delete"}, [(None, 0)]),
    ({"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}, [(None, 0)]),
    ({"cleanup.policy": ""}, [(None, 0)]),
    ({"max.message.bytes": "100"}, [(b"k", 0)]),
    ({"max.message.bytes": "2000"}, [(b"k", 0)]),
    ({"min.insync.replicas": "2"}, [(b"k", 0)]),
]  # fmt: skip


@pytest.mark.parametrize("codec", [Codec.none, Codec.gzip])
def test_each_batch_is_taken_or_refused_as_kafka_does(
    kafka: KafkaCluster, embedded: BrokerProcess, new_topic: str, codec: Codec
) -> None:
    outcomes = []
    for servers in (kafka.servers, embedded.servers):
        admin = AdminClient({"bootstrap.servers": servers})
        topics = [NewTopic(f"{new_topic}-{at}", 1, 1, config=config) for at, (config, _) in enumerate(CASES)]
        for made in admin.create_topics(topics).values():
            made.result(SECONDS)
        with RawClient(int(servers.rpartition(":")[2])) as client:
            outcomes.append([outcome(client, topic.topic, CASES[at], codec) for at, topic in enumerate(topics)])
    assert [pair for pair in zip(CASES, *outcomes, strict=True) if pair[1] != pair[2]] == []
    assert {told for told, _ in outcomes[0]} >= {ErrorCode.none, ErrorCode.invalid_record, ErrorCode.invalid_timestamp}


def outcome(client: RawClient, topic: str, case: tuple[dict[str, str], list[Record]], codec: Codec) -> Any:
    """The error, and whether the answer has the time of the append."""
    end = time.monotonic() + SECONDS
    while True:
        before = int(time.time() * 1000)
        told = client.produce(topic, 0, batch(before, case[1], codec))
        if told.error not in NOT_YET or time.monotonic() > end:
            break
        time.sleep(0.05)
    appended = told.log_append_time_ms
    return told.error, appended if appended == -1 else before <= appended <= int(time.time() * 1000)


def alter(servers: str, topic: str, **values: str) -> None:
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ],
    )
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)


def produced(servers: str, topic: str, *values: bytes, **settings: Any) -> list[tuple[int, int]]:
    """The type and the time of each record's timestamp, as its producer is told."""
    told: list[tuple[int, int]] = []
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, **settings})
    for value in values:
        producer.produce(
            topic, value, b"key", partition=0, timestamp=1_000,
            on_delivery=lambda error, message: errors.append(error) if error else told.append(message.timestamp()),
        )  # fmt: skip
    producer.flush(SECONDS)
    if errors:
        raise KafkaException(errors[0])
    return told


def test_a_change_counts_from_the_next_batch_on(embedded: BrokerProcess, new_topic: str) -> None:
    servers = embedded.servers
    before = int(time.time() * 1000)
    produced(servers, new_topic, b"created")
    alter(servers, new_topic, message_timestamp_type="LogAppendTime")
    ((kind, appended),) = produced(servers, new_topic, b"appended", **{"compression.type": "lz4"})
    assert kind == LOG_APPEND_TIME
    alter(servers, new_topic, message_timestamp_type="CreateTime", max_message_bytes="300")
    produced(servers, new_topic, b"x" * 100)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        produced(servers, new_topic, b"x" * 400)
    alter(servers, new_topic, max_message_bytes="3000")
    produced(servers, new_topic, b"x" * 400)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(new_topic, 0, OFFSET_BEGINNING)])
        read = consumer.consume(4, timeout=SECONDS)
    finally:
        consumer.close()
    assert [message.offset() for message in read] == [0, 1, 2, 3]
    assert [message.timestamp() for message in read] == [(1, 1_000), (2, appended), (1, 1_000), (1, 1_000)]
    assert before <= appended <= int(time.time() * 1000)
