"""Worker: draining ends as soon as nothing is left to wait for, whyever that is."""

import asyncio
import os
import socket
from types import SimpleNamespace

import pytest

from ingestd.daemon.arena import PAGE_BYTES, Arena
from ingestd.daemon.control import Drained, Revoke
from ingestd.daemon.worker import Worker


class FakePipeline:
    """One source, not settled until it is given up."""

    unsettled = 1

    def drain(self):
        pass

    def revoke(self, source):
        self.unsettled = 0

    def moved(self):
        return []

    def gauges(self):
        return None


@pytest.fixture
async def worker():
    descriptor = Arena.create(4 * PAGE_BYTES)
    arena = Arena(descriptor)
    ours, theirs = socket.socketpair()
    made = Worker(arena, ours)
    made.configure = SimpleNamespace(slot=0, incarnation=1, routes=())
    made.said = []
    made.tell = made.said.append
    yield made
    arena.close()
    os.close(descriptor)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("how", ["the route fails here", "the route failed in another worker"])
async def test_a_route_that_stops_while_it_drains_is_not_waited_for(worker, how):
    pipeline = worker._pipelines["r"] = FakePipeline()
    draining = asyncio.create_task(worker._drain(30))
    await asyncio.sleep(0.01)
    if how == "the route fails here":
        pipeline.revoke("a")
        worker.failed(SimpleNamespace(name="r"), "it can not be delivered")
    else:
        worker._received(Revoke("r", ["a"]))
    await asyncio.wait_for(draining, 5)
    assert worker.said[-1] == Drained(0)
