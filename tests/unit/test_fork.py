"""What was made before a fork is refused in the child, at once and by name, and the parent goes on undisturbed."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from simulated_cluster import SimulatedCluster

from ingestd.client.client import Client
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.sync import SyncConsumerGroup
from ingestd.consumer.sync import SyncConsumer, SyncPartition
from ingestd.errors import UsedAfterFork
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.sync import SyncProducer
from ingestd.tasks import tell_of_fork

if TYPE_CHECKING:
    from collections.abc import Callable


def in_child(work: Callable[[], None]) -> str:
    """Run `work` in a forked child; what it raised, by name, or "nothing". A child that hangs is killed by an alarm."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that this process has threads is the point
        child = os.fork()
    if child == 0:
        import signal

        signal.alarm(10)
        said = "nothing"
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is the result
            said = type(error).__name__
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def alone(work: Any) -> None:
    """Drive a coroutine that must raise before it waits for anything: the parent's loop is not ours to run."""
    try:
        work.send(None)
    finally:
        work.close()


def alone_ends(work: Any) -> None:
    """Drive a coroutine that must end without waiting for anything."""
    with pytest.raises(StopIteration):
        work.send(None)


class _Reading:
    """A partition consumer that nobody asks anything."""

    key = TopicPartition("events", 0)
    next_offset = position = 0

    async def take(self) -> None:
        raise AssertionError("asked in the child")

    def pause(self) -> None:
        raise AssertionError("asked in the child")

    close = pause


def test_a_synchronous_producer_is_refused_in_the_child_and_goes_on_in_the_parent() -> None:
    made: list[SimulatedCluster] = []

    def make() -> SimulatedCluster:
        made.append(SimulatedCluster(1))
        return made[0]

    with SyncProducer([], make_client=make) as producer:  # type: ignore[arg-type]
        producer.send("events", b"a", partition=0)
        assert in_child(lambda: producer.send("events", b"b")) == UsedAfterFork.__name__
        assert in_child(lambda: producer.flush(1.0)) == UsedAfterFork.__name__
        assert in_child(producer.close) == "nothing"
        assert producer.send("events", b"c", partition=0).offset == 1
    assert made[0].logs[0].values == [b"a", b"c"]


async def test_a_producer_is_refused_in_the_child_and_goes_on_in_the_parent() -> None:
    cluster = SimulatedCluster(1)
    async with AsyncProducer(cluster) as producer:  # type: ignore[arg-type]
        for value in (b"a", b"b"):
            producer.send("events", value, partition=0)
        # The open batch would take another record the short way.
        assert in_child(lambda: producer.send("events", b"c", partition=0)) == UsedAfterFork.__name__
        assert in_child(lambda: alone(producer.flush(1.0))) == UsedAfterFork.__name__
        producer.send("events", b"d", partition=0)
        await producer.flush(5.0)
    assert cluster.logs[0].values == [b"a", b"b", b"d"]


async def test_a_client_is_refused_in_the_child() -> None:
    async with Client(["127.0.0.1:1"]) as client:
        for question in (
            lambda: alone(client.any()),
            lambda: alone(client.leader("t", 0)),
            lambda: alone(client.controller()),
            lambda: alone(client.partitions("t")),
        ):
            assert in_child(question) == UsedAfterFork.__name__
        assert in_child(lambda: alone_ends(client.close())) == "nothing"


def test_a_synchronous_consumer_is_refused_in_the_child_and_goes_on_in_the_parent() -> None:
    with SyncConsumer(["127.0.0.1:1"]) as consumer:
        for question in (consumer.topics, consumer.status, lambda: consumer.partitions("t"), consumer.resume_all):
            assert in_child(question) == UsedAfterFork.__name__
        assert in_child(consumer.close) == "nothing"
        assert consumer.status()


def test_a_synchronous_group_is_refused_in_the_child_and_goes_on_in_the_parent() -> None:
    with SyncConsumerGroup(["127.0.0.1:1"], "g", ["t"]) as group:
        for question in (lambda: group.poll(0.0), group.take_chunks, group.commit, group.status):
            assert in_child(question) == UsedAfterFork.__name__
        assert in_child(group.close) == "nothing"
        assert group.poll(0.0) is None


def test_a_partition_that_is_read_is_refused_in_the_child_but_for_its_close() -> None:
    with SyncConsumer(["127.0.0.1:1"]) as consumer:
        partition = SyncPartition(_Reading(), consumer._call, check_crcs=True)  # type: ignore[arg-type]
        assert in_child(lambda: next(partition.batches())) == UsedAfterFork.__name__
        assert in_child(partition.pause) == UsedAfterFork.__name__
        assert in_child(partition.close) == "nothing"


def test_one_that_is_gone_is_not_told() -> None:
    told: list[Opened] = []

    class Opened:
        def forked(self) -> None:
            told.append(self)

    kept, gone = Opened(), Opened()
    tell_of_fork(kept)
    tell_of_fork(gone)
    del gone

    def work() -> None:
        assert told == [kept]

    assert in_child(work) == "nothing"
    assert not told


@pytest.mark.parametrize("times", [1, 2])
def test_one_made_in_the_child_works_there(times: int) -> None:
    def work() -> None:
        with SyncProducer([], make_client=lambda: SimulatedCluster(1)) as producer:  # type: ignore[arg-type,return-value]
            for _ in range(times):
                producer.send("events", b"a", partition=0)

    assert in_child(work) == "nothing"
