"""Mirrors between two real clusters: a target, daemons with one mirror each, records and positions by librdkafka."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from harness.cluster import KafkaCluster
from harness.daemon import ConfiguredDaemon
from ingestd import Client, ClusterAdmin, OffsetAndMetadata
from ingestd.cli.configured import configured_access, load_configuration
from ingestd.client.metadata import TopicPartition as Partition
from ingestd.consumer.offsets import resolve_offsets
from ingestd.consumer.settings import Edge, Isolation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "caught_up",
    "copied_to_the_end",
    "messages",
    "positions",
    "produce",
    "produce_to",
    "records",
    "runs_once",
    "set_back",
    "set_offsets",
    "source_offset",
]

NUMBERS = itertools.count()
"""Of mirrors: each has a group of its own."""

BEGAN = int(time.time() * 1000)
"""Times of records, in ms: brokers delete what is older than a week."""


@pytest.fixture(scope="session")
def west(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """The target: a second node for the whole session. Tests leave it as they found it, but for topics."""
    with KafkaCluster(tmp_path_factory.mktemp("west") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def south(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A third node for the whole session, for tests that kill, stop and freeze it. It runs when they end."""
    with KafkaCluster(tmp_path_factory.mktemp("south") / "cluster") as cluster:
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
        made.append(ConfiguredDaemon(tmp_path / f"daemon-{len(made)}", tables, daemon={"workers": 1, **(daemon or {})}))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def produce(servers: str, topic: str, values: Iterable[bytes], *, partitions: int = 1, **settings: Any) -> None:
    """Records with keys, headers and times of their own."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, **settings})
    refused: list[str] = []
    for number, value in enumerate(values):
        producer.produce(
            topic, value, f"k{number}".encode(), partition=number % partitions,
            timestamp=BEGAN + number, headers=[("h", str(number).encode())], on_delivery=_noting(refused),
        )  # fmt: skip
    assert (producer.flush(30), refused) == (0, [])


def produce_to(servers: str, topic: str, partition: int, value: bytes) -> None:
    """One record, of a value alone, to this partition."""
    producer = Producer({"bootstrap.servers": servers})
    refused: list[str] = []
    producer.produce(topic, value, partition=partition, on_delivery=_noting(refused))
    assert (producer.flush(30), refused) == (0, [])


def _noting(refused: list[str]) -> Callable[[KafkaError | None, Message], None]:
    """Have what is refused in this list: `flush` counts it as done."""

    def note(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(f"{message.topic()}-{message.partition()}: {error}")

    return note


def messages(servers: str, topic: str, partition: int = 0, *, isolation: str = "read_committed") -> list[Message]:
    """Everything of a partition, read by librdkafka."""
    settings = {
        "bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False,
        "isolation.level": isolation, "enable.partition.eof": True, "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 10,  # the end is said with the first empty answer
    }  # fmt: skip
    consumer = Consumer(settings)
    found = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.05):  # waits so long unless it has all of them
                if message.error() is None:
                    found.append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return found
        raise TimeoutError(f"{topic}-{partition}: no end within 30 s, {len(found)} records")
    finally:
        consumer.close()


def records(servers: str, topic: str, partition: int = 0, *, isolation: str = "read_committed") -> list[Any]:
    """Everything of a partition: key, value, headers, timestamp type and time, read by librdkafka."""
    found = messages(servers, topic, partition, isolation=isolation)
    return [(message.key(), message.value(), message.headers(), message.timestamp()) for message in found]


def runs_once(daemon: ConfiguredDaemon, status: int = 0) -> None:
    """Run it to the present end."""
    daemon.start("--once")
    assert daemon.wait(60) == status, daemon.log.read_text()


def caught_up(daemon: ConfiguredDaemon, partitions: int) -> bool:
    """Whether a daemon's mirror has so many partitions, and has copied each up to the end that the source has now.

    The daemon's lag is as old as its last answer from the source: 0 does not count what was produced since.
    """
    sources = daemon.status()["routes"][0]["sources"]
    if len(sources) != partitions or any(source["lag"] != 0 for source in sources):
        return False
    reached = {source["source"]: source["position"] for source in sources}
    ends = asyncio.run(_ends(daemon, [Partition(*name) for name in map(_parted, reached)]))
    return all(reached[name] >= end for name, end in ends.items())


def _parted(source: str) -> tuple[str, int]:
    topic, _, number = source.rpartition("-")
    return topic, int(number)


async def _ends(daemon: ConfiguredDaemon, partitions: Iterable[Partition]) -> dict[str, int]:
    """The ends of partitions at the source of a daemon's mirror, for who reads committed records."""
    configuration = load_configuration(daemon.file)
    (route,) = configuration.routes
    async with configured_access(configuration, route.source).client() as client:
        ends = await resolve_offsets(client, dict.fromkeys(partitions, Edge.latest), Isolation.read_committed, 30.0)
    return {str(partition): end for partition, end in ends.items()}


def copied_to_the_end(daemon: ConfiguredDaemon, partitions: int, timeout: float = 60) -> None:
    """Wait until a daemon's mirror has so many partitions, and has copied all of them."""
    daemon.until(lambda: caught_up(daemon, partitions), "all is copied", timeout)


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
    asyncio.run(_commit(cluster, {group: {(topic, number): one for number, one in enumerate(offsets)}}))


def set_offsets(cluster: KafkaCluster, groups: Mapping[str, Mapping[tuple[str, int], int]]) -> None:
    """Commit offsets of partitions in the names of these groups."""
    asyncio.run(_commit(cluster, groups))


async def _commit(
    cluster: KafkaCluster, groups: Mapping[str, Mapping[tuple[str, int], int | OffsetAndMetadata]]
) -> None:
    async with Client(cluster.bootstrap) as client:
        admin = ClusterAdmin(client)
        asked = [admin.alter_group_offsets(group, offsets) for group, offsets in groups.items()]
        outcomes = [outcome for each in await asyncio.gather(*asked) for outcome in each]
    assert [outcome.error for outcome in outcomes if outcome.error is not None] == []


def source_offset(position: OffsetAndMetadata) -> int:
    """The offset at the source that stands beside a position."""
    offset: int = json.loads(position.metadata)["offset"]
    return offset
