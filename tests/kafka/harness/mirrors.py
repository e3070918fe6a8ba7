"""Mirrors between two real clusters: a target, daemons with one mirror each, records and positions by librdkafka."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from harness.cluster import KafkaCluster
from harness.daemon import ConfiguredDaemon
from ingestd import Client, ClusterAdmin, OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["copied_to_the_end", "positions", "produce", "records", "runs_once", "set_back", "source_offset"]

NUMBERS = itertools.count()
"""Of mirrors: each has a group of its own."""

BEGAN = int(time.time() * 1000)
"""Times of records, in ms: brokers delete what is older than a week."""


@pytest.fixture(scope="session")
def west(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """The target: a second node for the whole session. Tests leave it as they found it, but for topics."""
    with KafkaCluster(tmp_path_factory.mktemp("west") / "cluster") as cluster:
        yield cluster


@pytest.fixture
def mirror(kafka: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Iterator[Callable[..., ConfiguredDaemon]]:
    """`mirror(topics=[…])`: a daemon with one mirror from `kafka` to `west`, not started.

    `name` is the mirror's. `source`, `target`: other clusters. `daemon` has keys of `[daemon]`; the rest the mirror's.
    """
    made: list[ConfiguredDaemon] = []

    def make(
        name: str | None = None,
        daemon: dict[str, object] | None = None,
        *,
        source: KafkaCluster = kafka,
        target: KafkaCluster = west,
        **keys: Any,
    ) -> ConfiguredDaemon:
        name = name or f"m{next(NUMBERS)}"
        tables = {
            "clusters.east": {"bootstrap": source.bootstrap},
            "clusters.west": {"bootstrap": target.bootstrap},
            f"mirrors.{name}": {"source": "east", "target": "west", "refresh_interval": 0.5, **keys},
        }
        made.append(ConfiguredDaemon(tmp_path / f"daemon-{len(made)}", tables, daemon={"workers": 2, **(daemon or {})}))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def produce(servers: str, topic: str, values: Iterable[bytes], *, partitions: int = 1, **settings: Any) -> None:
    """Records with keys, headers and times of their own."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, **settings})
    for number, value in enumerate(values):
        producer.produce(
            topic, value, f"k{number}".encode(), partition=number % partitions,
            timestamp=BEGAN + number, headers=[("h", str(number).encode())],
        )  # fmt: skip
    assert producer.flush(30) == 0


def records(servers: str, topic: str, partition: int = 0, *, isolation: str = "read_committed") -> list[Any]:
    """Everything of a partition: key, value, headers, timestamp type and time, read by librdkafka."""
    settings = {
        "bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False,
        "isolation.level": isolation, "enable.partition.eof": True, "auto.offset.reset": "earliest",
    }  # fmt: skip
    consumer = Consumer(settings)
    found = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, 1.0):
                if message.error() is not None:
                    return found
                found.append((message.key(), message.value(), message.headers(), message.timestamp()))
        raise TimeoutError(f"{topic}-{partition}: no end within 30 s, {len(found)} records")
    finally:
        consumer.close()


def runs_once(daemon: ConfiguredDaemon, status: int = 0) -> None:
    """Run it to the present end."""
    daemon.start("--once")
    assert daemon.wait(60) == status, daemon.log.read_text()


def copied_to_the_end(daemon: ConfiguredDaemon, partitions: int, timeout: float = 60) -> None:
    """Wait until so many partitions of its mirror have no lag, as their owners have said."""

    def copied() -> bool:
        lags = [line for line in daemon.metrics().splitlines() if line.startswith("ingestd_source_lag_records{")]
        return len(lags) == partitions and all(line.endswith(" 0.0") for line in lags)

    daemon.until(copied, "all is copied", timeout)


def positions(cluster: KafkaCluster, group: str, topic: str, partitions: int = 1) -> list[OffsetAndMetadata]:
    """A group's committed offsets, with what stands beside them: confluent_kafka reads and writes more than that."""
    committed = asyncio.run(_committed(cluster, group))
    return [committed[topic, number] for number in range(partitions)]


async def _committed(cluster: KafkaCluster, group: str) -> Mapping[Any, OffsetAndMetadata]:
    async with Client(cluster.bootstrap) as client:
        (found,) = await ClusterAdmin(client).list_group_offsets({group: None})
    return found.offsets


def set_back(cluster: KafkaCluster, group: str, topic: str, offsets: Sequence[OffsetAndMetadata]) -> None:
    """Commit these offsets of a topic's partitions in the group's name."""
    asyncio.run(_set_back(cluster, group, {(topic, number): one for number, one in enumerate(offsets)}))


async def _set_back(
    cluster: KafkaCluster, group: str, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata]
) -> None:
    async with Client(cluster.bootstrap) as client:
        outcomes = await ClusterAdmin(client).alter_group_offsets(group, offsets)
    assert [outcome.error for outcome in outcomes] == [None] * len(offsets)


def source_offset(position: OffsetAndMetadata) -> int:
    """The offset at the source that stands beside a position."""
    offset: int = json.loads(position.metadata)["offset"]
    return offset
