"""One broker: its connection opened lazily, shared, opened again with backoff; ended for good by close."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from ingestd.client import broker as broker_module
from ingestd.client.broker import Broker
from ingestd.client.metadata import Node
from ingestd.errors import Closed, ConnectionLost, DeadlineExceeded

ONE = Node(1, "one", 1)


async def test_the_connection_is_opened_when_first_needed_and_then_reused(cluster: Any, settings: Any) -> None:
    broker = Broker(ONE, settings())
    assert (cluster.connects, broker.connected) == ([], False)
    first = await broker.connection(1)
    assert await broker.connection(1) is first
    assert (cluster.connects, broker.connected) == (["one:1"], True)
    await broker.close()


async def test_callers_at_the_same_time_share_one_attempt(cluster: Any, settings: Any) -> None:
    cluster.connecting = asyncio.Event()
    broker = Broker(ONE, settings())
    callers = [asyncio.create_task(broker.connection(5)) for _ in range(10)]
    await asyncio.sleep(0)
    cluster.connecting.set()
    assert len({id(connection) for connection in await asyncio.gather(*callers)}) == 1
    assert cluster.connects == ["one:1"]
    await broker.close()


async def test_callers_at_the_same_time_share_one_failure(cluster: Any, settings: Any) -> None:
    cluster.down = {"one:1"}
    broker = Broker(ONE, settings())
    outcomes = await asyncio.gather(*(broker.connection(5) for _ in range(10)), return_exceptions=True)
    assert all(isinstance(outcome, ConnectionLost) for outcome in outcomes)
    assert (cluster.connects, broker.failing) == (["one:1"], True)
    await broker.close()


async def test_a_caller_that_gives_up_leaves_the_attempt_to_the_others(cluster: Any, settings: Any) -> None:
    cluster.connecting = asyncio.Event()
    broker = Broker(ONE, settings())
    patient = asyncio.create_task(broker.connection(5))
    with pytest.raises(DeadlineExceeded):
        await broker.connection(0.01)
    cluster.connecting.set()
    await patient
    assert cluster.connects == ["one:1"]
    await broker.close()


async def test_the_first_failure_is_told_at_once_and_the_next_attempt_waits_out_the_backoff(
    cluster: Any, settings: Any
) -> None:
    cluster.down = {"one:1"}
    broker = Broker(ONE, settings(reconnect_initial=0.05, reconnect_maximum=0.05))
    with pytest.raises(ConnectionLost):
        await broker.connection(5)
    failed = time.monotonic()
    with pytest.raises(ConnectionLost):
        await broker.connection(5)
    assert time.monotonic() - failed >= 0.04
    assert len(cluster.connects) == 2
    await broker.close()


async def test_the_backoff_does_not_hold_up_a_caller_with_less_patience(cluster: Any, settings: Any) -> None:
    cluster.down = {"one:1"}
    broker = Broker(ONE, settings(reconnect_initial=3600.0, reconnect_maximum=3600.0))
    with pytest.raises(ConnectionLost):
        await broker.connection(5)
    with pytest.raises(DeadlineExceeded):
        await broker.connection(0.01)
    await broker.close()


async def test_a_lost_connection_is_opened_again_without_delay(cluster: Any, settings: Any) -> None:
    broker = Broker(ONE, settings(reconnect_initial=30.0))
    first: Any = await broker.connection(1)
    first.abort(ConnectionLost("reset"))
    assert await broker.connection(1) is not first
    await broker.close()


async def test_a_moved_node_is_reached_at_its_new_address_by_the_same_object(cluster: Any, settings: Any) -> None:
    broker = Broker(ONE, settings())
    first: Any = await broker.connection(1)
    broker.moved(Node(1, "one", 1, "rack"))
    assert not first.closed
    broker.moved(Node(1, "two", 2))
    assert first.closed
    second: Any = await broker.connection(1)
    assert second.address == "two:2"
    await broker.close()


async def test_a_connection_to_an_address_that_the_node_has_left_meanwhile_is_not_used(
    cluster: Any, settings: Any
) -> None:
    cluster.connecting = asyncio.Event()
    broker = Broker(ONE, settings())
    waiting = asyncio.create_task(broker.connection(5))
    while not cluster.connects:
        await asyncio.sleep(0)
    broker.moved(Node(1, "two", 2))
    cluster.connecting.set()
    with pytest.raises(ConnectionLost, match="two:2"):
        await waiting
    moved: Any = await broker.connection(5)
    assert moved.address == "two:2"
    await broker.close()


async def test_an_attempt_that_breaks_is_told_to_those_who_wait_and_does_not_end_all_attempts(
    cluster: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    broker = Broker(ONE, settings())
    with monkeypatch.context() as patched:
        patched.setattr(broker_module.Connection, "open", broken)
        with pytest.raises(ConnectionLost, match="a bug"):
            await broker.connection(5)
    await broker.connection(5)
    await broker.close()
    assert [str(context["exception"]) for context in reported] == ["a bug"]


async def test_close_ends_promptly_while_an_attempt_hangs(cluster: Any, settings: Any) -> None:
    cluster.connecting = asyncio.Event()
    broker = Broker(ONE, settings())
    waiting = asyncio.create_task(broker.connection(60))
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await broker.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await broker.connection(1)


async def test_a_deregistered_broker_says_that_its_connection_is_lost(cluster: Any, settings: Any) -> None:
    broker = Broker(ONE, settings())
    connection: Any = await broker.connection(1)
    broker.deregister("gone")
    assert connection.closed
    with pytest.raises(ConnectionLost, match="gone"):
        await broker.connection(1)
    await broker.close()


async def test_a_deregistered_broker_takes_no_connection_that_was_still_being_made(cluster: Any, settings: Any) -> None:
    cluster.connecting = asyncio.Event()
    broker = Broker(ONE, settings())
    waiting = asyncio.create_task(broker.connection(60))
    await asyncio.sleep(0)
    broker.deregister("gone")
    cluster.connecting.set()
    with pytest.raises(ConnectionLost, match="gone"):
        await waiting
    await broker.close()
    assert all(connection.closed for connection in cluster.connections)
