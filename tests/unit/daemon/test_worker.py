"""Worker: draining ends as soon as nothing is left to wait for, whyever that is."""

import asyncio
import os
import socket
from types import SimpleNamespace

import pytest

from ingestd.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from ingestd.daemon import worker as worker_module
from ingestd.daemon.arena import PAGE_BYTES, Arena
from ingestd.daemon.configuration import ClusterSettings
from ingestd.daemon.control import (
    Conclude,
    Drained,
    MetadataPushed,
    Moved,
    PositionsReported,
    Revoke,
    SourceEnded,
    Unacknowledged,
    Withdrawn,
)
from ingestd.daemon.source import Assignment, End, Found
from ingestd.daemon.worker import Worker
from ingestd.daemon.worker_cluster import WorkerCluster
from ingestd.errors import ErrorCode
from ingestd.producer.identity import ProducerIdentity
from ingestd.records.codecs import Codec, Compression
from ingestd.records.lines import LineEncoder


class FakeRunner:
    """One source, not settled until it is given up."""

    settled = False
    waiting = oldest = 0.0

    def __init__(self):
        self.concluded = []

    @property
    def unacknowledged(self):
        return Unacknowledged() if self.settled else Unacknowledged(1, 700)

    def drain(self):
        pass

    def conclude(self, source):
        self.concluded.append(source)

    def revoke(self, source):
        self.settled = True

    def holds(self, _):
        return False

    def moved(self):
        return []

    def gauges(self):
        return {}

    async def close(self):
        pass


@pytest.fixture
async def worker():
    descriptor = Arena.create(4 * PAGE_BYTES)
    arena = Arena(descriptor)
    ours, theirs = socket.socketpair()
    made = Worker(arena, ours)
    made.configure = SimpleNamespace(slot=0, incarnation=1, routes=(), position_interval=0.01)
    made.said = []
    made.tell = made.said.append
    yield made
    arena.close()
    os.close(descriptor)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("how", ["the route fails here", "the route failed in another worker"])
async def test_a_route_that_stops_while_it_drains_is_not_waited_for(worker, how):
    runner = worker._runners["r"] = FakeRunner()
    draining = asyncio.create_task(worker._drain(30))
    await asyncio.sleep(0.01)
    if how == "the route fails here":
        runner.revoke("a")
        worker.failed(SimpleNamespace(name="r"), "it can not be delivered")
    else:
        worker._received(Revoke("r", ["a"]))
    await asyncio.wait_for(draining, 5)
    assert worker.said[-1] == Drained(0)


async def test_what_is_left_at_the_end_of_a_drain_is_said_by_route(worker):
    worker._runners["r"] = FakeRunner()
    worker._runners["s"] = FakeRunner()
    worker._runners["s"].settled = True
    await worker._drain(0)
    assert worker.said[-1] == Drained(1, {"r": Unacknowledged(1, 700)})


async def test_sources_are_concluded_in_their_routes_runner(worker):
    runner = worker._runners["r"] = FakeRunner()
    worker._received(Conclude("r", ["a", "b"]))
    assert runner.concluded == ["a", "b"]


async def test_the_end_of_a_source_is_told_as_it_is(worker):
    end = End("truncated", "/logs/a", 7, 9, at_once=True)
    worker.ended(Assignment("r", Found("a", 0, {}), 3), end)
    assert worker.said[-1] == SourceEnded("r", "a", 3, end)


async def test_ends_for_which_nothing_waits_are_told_together_behind_the_positions(worker, monkeypatch):
    # Each was told in a message of its own, with counters: where many files rotate that took half of a worker's time.
    runner = worker._runners["r"] = FakeRunner()
    moved = [Moved("r", name, 3, 7, {}) for name in "ab"]
    monkeypatch.setattr(runner, "moved", lambda: moved)
    before = len(worker.said)
    ends = [SourceEnded("r", name, 3, End("deleted", f"/logs/{name}", 7, 7)) for name in "ab"]
    for ended in ends:
        worker.ended(Assignment("r", Found(ended.source, 0, {}), 3), ended.end)
    assert len(worker.said) == before
    async with asyncio.timeout(5):
        while ends[-1] not in worker.said:
            await asyncio.sleep(0)
    positions, _, *told = worker.said[before:]
    assert positions == PositionsReported(moved)
    assert told == ends


async def test_ends_that_wait_are_told_at_the_latest_with_the_end_of_a_drain(worker):
    end = End("concluded", "/logs/a", 7, 7)
    worker.ended(Assignment("r", Found("a", 0, {}), 3), end)
    await worker._drain(0)
    assert worker.said.index(SourceEnded("r", "a", 3, end)) < worker.said.index(Drained(0))


def _snapshot(version, partitions):
    known = tuple(PartitionMetadata(number, 1, 0, (1,), (1,)) for number in range(partitions))
    topic = TopicMetadata("t", None, known)
    return ClusterMetadata("id", 1, {1: Node(1, "127.0.0.1", 1)}, {"t": topic}, version)


async def test_news_of_a_cluster_that_no_route_uses_is_no_concern_of_a_worker(worker):
    # An embedded broker that no route writes to was restarted: every worker failed with it, and all that followed.
    worker._received(MetadataPushed("embedded", _snapshot(1, 1)))


async def test_a_batch_whose_partition_is_no_more_comes_back_so_that_it_can_go_elsewhere(worker, monkeypatch):
    # The topic was deleted and made again with fewer: the batch waited for its partition as long as the worker lived.
    monkeypatch.setattr("ingestd.producer.partition_producer._BEYOND", 0.05)
    cluster = WorkerCluster(ClusterSettings("c", bootstrap=("nowhere:1",)), 0, worker)
    cluster.metadata.push(_snapshot(1, 6))
    out = memoryview(bytearray(65536))
    (made,) = (
        LineEncoder(Compression(Codec.none, None), 4096).encode(b"line\n", out, timestamp_ms=0, partition=5).batches
    )
    back = asyncio.get_running_loop().create_future()
    cluster.producer.send_batch("t", 5, out[made.start : made.start + made.length], made.records, back.set_result)
    cluster.metadata.push(_snapshot(2, 2))
    # The worker asks its supervisor for a producer id and for metadata; neither matters to a partition that is gone.
    while not any(isinstance(said, worker_module.IdentityWanted) for said in worker.said):
        await asyncio.sleep(0)
    (wish,) = [said for said in worker.said if isinstance(said, worker_module.IdentityWanted)]
    worker._received(worker_module.Answered(wish.ticket, ProducerIdentity(7, 0)))
    delivery = await asyncio.wait_for(back, 5)
    assert delivery.error.code is ErrorCode.unknown_topic_or_partition
    await cluster.producer.close(timeout=0)
    await cluster.client.close(timeout=1)


async def test_what_the_first_messages_lead_to_is_told_although_they_come_while_the_channel_is_opened(worker):
    """A file that is gone ends as soon as it is assigned: nobody heard of that, and its rest was not read."""
    del worker.tell
    worker._runners["r"] = FakeRunner()
    sent = []

    async def open_control(received, lost):
        received(Revoke("r", ["a"], ticket=7))
        await asyncio.sleep(0.01)
        assert sent == []
        lost()
        return SimpleNamespace(send=sent.append, close=lambda: None)

    await asyncio.wait_for(worker.run(open_control), 5)
    assert sent == [Withdrawn(7)]
