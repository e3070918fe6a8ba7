"""How connections are taken: many in a turn of the loop, and again after descriptors ran out."""

from __future__ import annotations

import asyncio
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop
from embedded.process import BrokerProcess
from embedded.raw import RawClient

from ingestd.broker.acceptor import Acceptor
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS = 100
MOST_TURNS = 10


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_all_who_connect_are_taken_within_a_few_turns_of_the_loop(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    taken: list[asyncio.BaseTransport] = []

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            taken.append(transport)

    async def run() -> None:
        tasks = TaskOwner()
        acceptor = Acceptor(Protocol, tasks, None)
        address = await acceptor.listen("localhost", 0)
        clients = [socket.create_connection(address, 5) for _ in range(CLIENTS)]
        for _ in range(MOST_TURNS):
            await asyncio.sleep(0)
        assert len(taken) == CLIENTS
        acceptor.close()
        await tasks.close()
        for each in (*taken, *clients):
            each.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 5)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def test_when_descriptors_run_out_the_log_says_so_and_clients_are_served_later(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, RawClient(broker.port) as first:
        first.metadata()
        descriptors = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (descriptors + 3, hard))
        waiting = [RawClient(broker.port) for _ in range(10)]
        broker.until_logged("can not take a connection; clients wait")
        first.metadata()
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
        for client in waiting:
            client.metadata()
            client.socket.close()
