"""How connections are taken: many in a turn of the loop, and again after descriptors ran out."""

from __future__ import annotations

import asyncio
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop
from embedded.batches import batch_of
from embedded.process import BrokerProcess
from embedded.raw import RawClient, entity

from ingestd.broker.acceptor import Acceptor
from ingestd.broker.api.handlers import HANDLERS
from ingestd.errors import ErrorCode
from ingestd.tasks import TaskOwner
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS = 100
MOST_TURNS = 10


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_all_who_connect_are_taken_within_a_few_turns_of_the_loop(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    taken: list[asyncio.BaseTransport] = []

    class Protocol(asyncio.BufferedProtocol):
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


def test_clients_leave_the_broker_the_descriptors_that_it_needs(tmp_path: Path) -> None:
    """With 64 descriptors, 100 clients come. Who is taken is served: schemas are imported and logs opened then."""
    waits = "can not take a connection; clients wait"
    with BrokerProcess(tmp_path, "--flush", "always", under=["prlimit", "--nofile=64:64"]) as broker:
        clients = [RawClient(broker.port) for _ in range(100)]
        first, second, *others = clients
        broker.until_logged(waits)
        for number in range(40):
            first.metadata(f"topic-{number}")
            assert second.produce(f"topic-{number}", 0, batch_of([b"x"])).error is ErrorCode.none
        for version in HANDLERS[Api.find_coordinator].versions:
            fields = {"coordinator_keys": ("g",)} if version >= 4 else {"key": "g"}
            first.ask(entity(Api.find_coordinator, version, "FindCoordinatorRequest", **fields))
        for version in HANDLERS[Api.list_groups].versions:
            fields = {name: () for name, since in (("states_filter", 4), ("types_filter", 5)) if version >= since}
            first.ask(entity(Api.list_groups, version, "ListGroupsRequest", **fields))
        for client in (first, second, *others[:80]):
            client.socket.close()
        for client in others[80:]:
            client.metadata()
            client.socket.close()
        assert broker.stop() == 0
    said = broker.stderr.read_text()
    assert not [word for word in ("Traceback", "failed", "not begun", "not closed") if word in said], said
    assert said.count("Too many open files") == said.count(waits) == 1, said
