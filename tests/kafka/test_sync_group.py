"""The synchronous consumer group on real Kafka: threads share the partitions of a topic."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from harness.members import QUICK, produce

from ingestd.client.admin import ClusterAdmin
from ingestd.client.client import Client
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.settings import GroupProtocol
from ingestd.consumer.group.sync import SyncConsumerGroup
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.cluster import KafkaCluster

COUNT, PARTITIONS = 4_000, 4
PATIENCE = 60.0


class Reader(threading.Thread):
    """A thread with a member that counts what it is given, until it is told to leave."""

    def __init__(self, kafka: KafkaCluster, name: str, handled: Counter[tuple[int, int]], **settings: Any) -> None:
        super().__init__(name="reader")
        self.kafka, self.topic, self.handled = kafka, name, handled
        self.settings = replace(QUICK, **settings)
        self.mine: set[TopicPartition] = set()
        self.told_elsewhere = 0
        self.leaving = threading.Event()
        self.failure: BaseException | None = None

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.told_elsewhere += threading.current_thread() is not self
        self.mine |= set(partitions)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.told_elsewhere += threading.current_thread() is not self
        self.mine -= set(partitions)

    def run(self) -> None:
        try:
            with SyncConsumerGroup(
                self.kafka.bootstrap,
                self.topic,
                [self.topic],
                self.settings,
                assigned=self.assigned,
                revoked=self.revoked,
            ) as group:
                while not self.leaving.is_set():
                    record = group.poll(0.1)
                    if record is not None:
                        self.handled[record.partition, record.offset] += 1
                    for key, records in group.take_chunks(0.1, 50).items():
                        self.handled.update((key.partition, each.offset) for each in records)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.failure = error

    def leave(self) -> None:
        self.leaving.set()
        self.join(PATIENCE)
        assert not self.is_alive()
        assert self.failure is None
        assert self.told_elsewhere == 0


def until(holds: Callable[[], bool], *readers: Reader) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        assert [reader.failure for reader in readers] == [None] * len(readers)
        time.sleep(0.01)


def committed(kafka: KafkaCluster, group_id: str) -> dict[int, int]:
    async def ask() -> dict[int, int]:
        async with Client(kafka.bootstrap) as client:
            (found,) = await ClusterAdmin(client).list_group_offsets({group_id: None})
            return {key.partition: offset.offset for key, offset in found.offsets.items()}

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "settings",
    [{"assignors": ("range",)}, {"assignors": ("cooperative-sticky",)}, {"protocol": GroupProtocol.consumer}],
    ids=["eager", "cooperative", "kip848"],
)
def test_threads_come_and_go_and_every_record_is_handled_exactly_once(
    kafka: KafkaCluster, topic: Callable[..., str], settings: dict[str, Any]
) -> None:
    name = topic(partitions=PARTITIONS)
    handled: Counter[tuple[int, int]] = Counter()
    first, second = (Reader(kafka, name, handled, **settings) for _ in range(2))
    first.start()
    until(lambda: len(first.mine) == PARTITIONS, first)
    produce(kafka.servers, name, COUNT // 2, PARTITIONS)
    second.start()
    until(lambda: len(first.mine) == len(second.mine) == PARTITIONS // 2, first, second)
    produce(kafka.servers, name, COUNT // 2, PARTITIONS, first=COUNT // 2)
    first.leave()
    assert first.mine == set()
    until(lambda: len(handled) == COUNT, second)
    second.leave()
    assert set(handled.values()) == {1}
    assert committed(kafka, name) == dict.fromkeys(range(PARTITIONS), COUNT // PARTITIONS)


def test_offsets_of_ones_own_are_committed_and_a_seek_goes_back(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=1)
    produce(kafka.servers, name, 100, 1)
    key = TopicPartition(name, 0)
    with SyncConsumerGroup(kafka.bootstrap, name, [name], replace(QUICK, auto_commit_interval=None)) as group:
        found: list[int] = []
        while len(found) < 100:
            found += [record.offset for record in group.take_chunks(PATIENCE, 30).get(key, ())]
        assert found == list(range(100))
        group.commit({key: 10})
        assert committed(kafka, name) == {0: 10}
        group.seek(key, 90)
        assert [record.offset for record in group.take_chunks(PATIENCE)[key]] == list(range(90, 100))
        group.seek(key, "earliest")
        columns = group.take_columns(PATIENCE)[key]
        assert columns[0].count > 0
        with pytest.raises(IngestdError, match="is not assigned"):
            group.seek(TopicPartition(name, 7), 0)
    assert committed(kafka, name) == {0: 10}


def test_reading_outlives_the_only_broker_and_closing_needs_none(kafka_cluster: Callable[..., KafkaCluster]) -> None:
    cluster = kafka_cluster()
    name = cluster.create_topic()
    produce(cluster.servers, name, 10, 1)
    group = SyncConsumerGroup(cluster.bootstrap, name, [name], QUICK, revoked=lambda _: None)
    found: list[int] = []

    def read(count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(found) < count:
            assert time.monotonic() < deadline
            record = group.poll(1.0)
            found.extend([] if record is None else [record.offset])

    read(5)
    group.commit()
    cluster.kill(1)
    read(10)
    assert group.poll(0.5) is None
    cluster.start(1)
    produce(cluster.servers, name, 10, 1, first=10)
    read(20)
    assert found == list(range(20))
    cluster.kill(1)
    group.close(3.0)
    assert not group._host._thread.is_alive()
