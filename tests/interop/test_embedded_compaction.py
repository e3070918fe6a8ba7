"""Compaction beside a real Kafka: the same records in, the same latest value of each key out, for readers elsewhere."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ingestd.broker.log.swaps import read_cleaned_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from embedded.process import BrokerProcess
    from harness.cluster import KafkaCluster

SECONDS = 60
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


def create(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1, config=COMPACTED)])[topic].result(SECONDS)


def written(seed: int, count: int) -> list[tuple[bytes, bytes | None]]:
    """Pairs of 300 keys; one of ten deletes its key. The values do not compress."""
    chosen = random.Random(seed)
    return [
        (b"key %d" % chosen.randrange(300), None if chosen.randrange(10) == 0 else chosen.randbytes(900))
        for _ in range(count)
    ]


def produce(servers: str, topic: str, pairs: Iterable[tuple[bytes, bytes | None]], **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, **settings})
    for key, value in pairs:
        producer.produce(topic, value, key, partition=0)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0


def read(servers: str, topic: str) -> list[Any]:
    """All messages, by librdkafka."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "enable.partition.eof": True, "check.crcs": True}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Any] = []
        while (message := consumer.poll(SECONDS)) is not None and not message.error():
            found.append(message)
        assert message is not None
        assert message.error().name() == "_PARTITION_EOF"
        return found
    finally:
        consumer.close()


def latest(messages: Iterable[Any]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for message in messages:
        found.pop(message.key(), None)
        if message.value() is not None:
            found[message.key()] = message.value()
    return found


def until_compacted(servers: str, topic: str, before: int) -> list[Any]:
    """The messages once most superseded ones are gone."""
    end = time.monotonic() + SECONDS
    while len(messages := read(servers, topic)) > before // 2:
        assert time.monotonic() < end, f"{len(messages)} of {before} messages are still there"
        time.sleep(0.1)
    return messages


def until_at_rest(broker: BrokerProcess, topic: str) -> None:
    """Until all but the newest segment is compacted. Nothing goes on to be removed from then on."""
    directory = broker.data / f"{topic}-0"
    end = time.monotonic() + SECONDS
    while (cleaned := read_cleaned_offset(directory)[0]) != max(int(path.stem) for path in directory.glob("*.log")):
        assert time.monotonic() < end, f"compacted up to {cleaned} only"
        time.sleep(0.1)


@pytest.fixture
def compacting(broker_process: Callable[..., BrokerProcess]) -> BrokerProcess:
    return broker_process("--cleaner-interval", "0.2")


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_kafka_and_the_embedded_broker_leave_the_same_map(
    kafka_cluster: Callable[..., KafkaCluster], compacting: BrokerProcess, new_topic: str, codec: str
) -> None:
    cluster = kafka_cluster(settings={"log.cleaner.backoff.ms": "200"})
    pairs = written(1, 8_000)
    expected: dict[bytes, bytes] = {}
    for key, value in pairs:
        expected.pop(key, None)
        if value is not None:
            expected[key] = value
    counts = []
    for servers in (cluster.servers, compacting.servers):
        create(servers, new_topic)
        produce(servers, new_topic, pairs, **{"compression.type": codec})
        messages = until_compacted(servers, new_topic, len(pairs))
        assert latest(messages) == expected
        assert all(pairs[message.offset()] == (message.key(), message.value()) for message in messages)
        counts.append(len(messages))
    assert compacting.data.joinpath(f"{new_topic}-0", "cleaned-offset").exists()


def test_java_reads_what_is_left_and_its_dump_finds_whole_segments(
    compacting: BrokerProcess, new_topic: str, java_tool: Callable[..., str]
) -> None:
    pairs = [(key, None if value is None else value.hex().encode()) for key, value in written(2, 5_000)]
    create(compacting.servers, new_topic)
    produce(compacting.servers, new_topic, pairs, **{"compression.type": "lz4"})
    until_at_rest(compacting, new_topic)
    messages = read(compacting.servers, new_topic)
    assert len(messages) < len(pairs) // 2
    lines = java_tool(
        "consumer.ConsoleConsumer", "--bootstrap-server", compacting.servers, "--topic", new_topic, "--partition", "0",
        "--offset", "earliest", "--max-messages", str(len(messages)), "--timeout-ms", "30000",
        "--formatter-property", "print.key=true", "--formatter-property", "print.offset=true",
    ).splitlines()  # fmt: skip
    found = [line.split("\t") for line in lines if line.startswith("Offset:")]  # Java may say more on a busy machine
    assert [
        (int(offset.removeprefix("Offset:")), key.encode(), None if value == "null" else value.encode())
        for offset, key, value in found
    ] == [(message.offset(), message.key(), message.value()) for message in messages]
    directory = compacting.data / f"{new_topic}-0"
    offsets = [offset for path in sorted(directory.glob("*.log")) for offset in dumped(java_tool, path)]
    assert offsets == [message.offset() for message in messages]


def dumped(java_tool: Callable[..., str], segment: Path) -> list[int]:
    """The offsets of the records that Kafka's own reader finds in a segment. It says if a batch is not valid."""
    said = java_tool("DumpLogSegments", "--files", str(segment), "--deep-iteration")
    assert "isvalid: false" not in said
    return [int(line.split("offset: ")[1].split()[0]) for line in said.splitlines() if line.startswith("| offset: ")]
