"""Where records go while the topic's partitions change, are not there, or are chosen wrongly; codecs that are not."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from simulated_clock import simulate
from simulated_cluster import SimulatedCluster, ready_batch

from ingestd.client.metadata import TopicMetadata
from ingestd.errors import ErrorCode, KafkaError, UnsupportedCodec
from ingestd.producer.partitioners import RoundRobin, custom, hash_murmur2, murmur2_partition
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from ingestd.producer.delivery import Delivery

KEYS = [b"key %d" % number for number in range(60)]


def in_simulation(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        simulate(test)

    run.__name__ = test.__name__
    return run


@asynccontextmanager
async def producing(cluster: SimulatedCluster, **settings: Any) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(cluster, ProducerSettings(**settings)) as producer:  # type: ignore[arg-type]
        yield producer


def codes(ends: list[Delivery]) -> list[ErrorCode]:
    return [end.error.code for end in ends if isinstance(end.error, KafkaError)]


@in_simulation
async def test_a_topic_without_partitions_has_no_leader_available_and_its_breaker_opens() -> None:
    cluster = SimulatedCluster(1)
    cluster.exists = False
    cluster.errors["events"] = TopicMetadata("events", None, ())
    ends: list[Delivery] = []
    async with producing(cluster, metadata_timeout=2.0, breaker_failures=1, breaker_pause=20.0) as producer:
        producer.send("events", b"a", done=ends.append)
        await producer.flush(10.0)
        with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
            producer.send("events", b"b")
        asked = len(cluster.metadata.wishes)
        await asyncio.sleep(15.0)
        with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
            producer.send("events", b"c")
        assert len(cluster.metadata.wishes) == asked
    assert codes(ends) == [ErrorCode.leader_not_available]


@in_simulation
async def test_records_with_a_key_keep_their_partition_while_it_has_no_leader_and_others_avoid_it() -> None:
    cluster = SimulatedCluster(3)
    cluster.leaders[1] = (-1, 5)
    async with producing(cluster, partitioner=hash_murmur2, batch_records=5) as producer:
        for key in KEYS:
            producer.send("events", key, key=key)
            producer.send("events", b"keyless")
        with pytest.raises(TimeoutError):
            await producer.flush(3.0)
        assert cluster.logs[1].values == []
        cluster.move(1, 2)
        cluster.metadata.learn()
        await producer.flush(10.0)
    for partition, log in enumerate(cluster.logs):
        keyed = [value for value in log.values if value != b"keyless"]
        assert keyed == [key for key in KEYS if murmur2_partition(key, 3) == partition]
    assert b"keyless" not in cluster.logs[1].values
    assert sum(len(log.values) for log in cluster.logs) == 2 * len(KEYS)


@in_simulation
async def test_consistency_is_asked_for_record_by_record_and_decides_what_is_offered() -> None:
    offered: list[tuple[bytes | None, int]] = []

    class Picky(RoundRobin):
        """Needs consistency for some keys only."""

        def needs_consistency(self, key: bytes | None) -> bool:
            return key == b"consistent"

        def choose(self, key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int:
            offered.append((key, len(partitions)))
            return super().choose(key, value, partitions)

    cluster = SimulatedCluster(3)
    cluster.leaders[0] = (-1, 5)
    async with producing(cluster, partitioner=lambda topic: Picky(), delivery_timeout=2.0) as producer:
        for key in (b"consistent", b"any", None, b"consistent"):
            producer.send("events", b"", key=key, done=lambda _: None)
        with pytest.raises(TimeoutError):
            await producer.flush(0.5)
    assert offered == [(b"consistent", 3), (b"any", 2), (None, 2), (b"consistent", 3)]


@in_simulation
async def test_a_wrong_index_fails_a_record_that_waited_and_the_others_go() -> None:
    cluster = SimulatedCluster(2)
    cluster.exists = False
    ends: list[Delivery] = []
    sometimes = custom(lambda key, value, partitions: 7 if value == b"wrong" else 0, consistent=True)
    async with producing(cluster, partitioner=sometimes) as producer:
        for value in (b"a", b"wrong", b"b"):
            producer.send("events", value, done=ends.append)
        await asyncio.sleep(0.3)
        cluster.exists = True
        await producer.flush(10.0)
    assert codes(ends) == [ErrorCode.invalid_partitions]
    assert "the partitioner chose index 7 of 2 partitions" in str(next(end.error for end in ends if end.error))
    assert cluster.logs[0].values == [b"a", b"b"]


@in_simulation
async def test_a_ready_batch_of_an_unknown_codec_is_refused_at_once() -> None:
    cluster = SimulatedCluster(1)
    async with producing(cluster) as producer:
        batch = ready_batch([b"value"])
        batch[22] |= 5
        with pytest.raises(UnsupportedCodec, match="compression type 5"):
            producer.send_batch("events", 0, memoryview(batch), 1, lambda _: None)
        assert producer.outstanding == 0


@in_simulation
async def test_a_partitioner_that_raises_fails_the_record_that_waited_and_no_other() -> None:
    cluster = SimulatedCluster(1)
    cluster.exists = False
    ends: list[Delivery] = []

    def choose(key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int:
        del key, partitions
        return {b"a": 0, b"c": 0}[value or b""]

    async with producing(cluster, partitioner=custom(choose, consistent=True)) as producer:
        for value in (b"a", b"b", b"c"):
            producer.send("events", value, done=ends.append)
        await asyncio.sleep(0.1)
        cluster.exists = True
        await producer.flush(5.0)
    assert cluster.logs[0].values == [b"a", b"c"]
    assert [str(end.error) for end in ends if end.error is not None] == ["KeyError(b'b')"]
    assert len(ends) == 3


@in_simulation
async def test_a_flush_does_not_wait_for_the_linger_of_records_that_waited_for_metadata() -> None:
    cluster = SimulatedCluster(2)
    cluster.exists = False
    ends: list[Delivery] = []
    async with producing(cluster, linger=60.0, partitioner=hash_murmur2) as producer:
        for key in KEYS:
            producer.send("events", b"a", key=key, done=ends.append)
        flush = asyncio.ensure_future(producer.flush(10.0))
        await asyncio.sleep(0.5)
        cluster.exists = True
        await flush
    assert len(ends) == len(KEYS)
    assert not codes(ends)
