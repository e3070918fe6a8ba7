"""Reads topics back with librdkafka, from any cluster: the oracle of every delivery test."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["end_offsets", "read_back"]

ANSWER_SECONDS = 30


@contextmanager
def _reader(servers: str, isolation: str) -> Iterator[Consumer]:
    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "read-back",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 65536,
            "log_level": 2,
        }
    )
    try:
        yield reader
    finally:
        reader.close()


def end_offsets(servers: str, topic: str, *, isolation: str = "read_uncommitted") -> dict[int, int]:
    """The high watermark (or last stable offset) of each partition."""
    with _reader(servers, isolation) as reader:
        return {
            number: reader.get_watermark_offsets(TopicPartition(topic, number), timeout=ANSWER_SECONDS)[1]
            for number in _partitions(reader, topic)
        }


def read_back(
    servers: str, topic: str, *, isolation: str = "read_uncommitted", timeout: float = 60
) -> dict[int, list[bytes]]:
    """Every record's value, by partition in order of offsets, up to the present end. A null value reads as b"".

    Raises `TimeoutError` when the ends are not reached in `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    with _reader(servers, isolation) as reader:
        values: dict[int, list[bytes]] = {number: [] for number in _partitions(reader, topic)}
        unfinished = set(values)
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in values])
        while unfinished:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: partitions {sorted(unfinished)} not read to their ends in {timeout:g} s")
            for message in reader.consume(5000, timeout=0.2):
                error = message.error()
                number = message.partition()
                assert number is not None
                if error is None:
                    values[number].append(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(number)
                elif not error.retriable():
                    raise KafkaException(error)
        return values


def _partitions(reader: Consumer, topic: str) -> list[int]:
    described = reader.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic]
    if described.error is not None:
        raise KafkaException(described.error)
    return sorted(described.partitions)
