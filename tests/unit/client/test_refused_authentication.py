"""Brokers that refuse this client: said at once to whoever needs them, or tried again where that was asked for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ingestd.client import broker as broker_module
from ingestd.client.broker import Broker
from ingestd.client.client import Client
from ingestd.client.metadata import Node
from ingestd.client.refresh import is_refusal
from ingestd.errors import AuthenticationFailed, ConfigurationError, ConnectionLost, DeadlineExceeded, IngestdError
from ingestd.producer.producer import AsyncProducer

ONE = Node(1, "one", 1)


@pytest.fixture
def refuse(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`refuse({"one:1": error})`: those brokers refuse so; None lets everybody in again."""
    refusals: dict[str, IngestdError] = {}

    async def refused(host: str, port: int, **options: Any) -> Any:
        if (error := refusals.get(f"{host}:{port}")) is not None:
            raise error
        return await cluster.open(host, port, **options)

    def refuse(errors: dict[str, IngestdError] | None) -> None:
        refusals.clear()
        refusals.update(errors or {})

    monkeypatch.setattr(broker_module.Connection, "open", refused)
    return refuse


WRONG = AuthenticationFailed("one:1: PLAIN: wrong password")


async def test_who_needs_the_connection_is_told_the_reason_and_its_kind(refuse: Any, settings: Any) -> None:
    for error in (WRONG, ConfigurationError("/run/secret: can not be read")):
        refuse({"one:1": error})
        broker = Broker(ONE, settings())
        with pytest.raises(type(error)) as caught:
            await broker.connection(5)
        assert caught.value is error
        await broker.close()


async def test_where_it_shall_be_tried_again_it_is_a_lost_connection_with_the_same_words(
    refuse: Any, settings: Any
) -> None:
    refuse({"one:1": WRONG})
    broker = Broker(ONE, settings(retry_authentication=True))
    with pytest.raises(ConnectionLost, match="one:1: PLAIN: wrong password"):
        await broker.connection(5)
    refuse(None)
    assert not (await broker.connection(5)).closed
    await broker.close()


async def test_one_broker_that_refuses_is_passed_over_for_others_that_do_not(
    cluster: Any, refuse: Any, settings: Any
) -> None:
    refuse({"one:1": WRONG})
    async with Client(["one:1", "two:2"], settings()) as client:
        assert await client.partitions("t", 5) == [0, 1, 2]
        assert client.metadata.failure is None


async def test_when_none_answers_and_one_refused_that_is_the_reason_and_it_is_told_at_once(
    cluster: Any, refuse: Any, settings: Any
) -> None:
    cluster.down = {"two:2", "three:3"}
    refuse({"one:1": WRONG})
    async with Client(["one:1", "two:2"], settings()) as client:
        begun = time.monotonic()
        with pytest.raises(AuthenticationFailed, match="one:1: PLAIN: wrong password"):
            await client.partitions("t", 60)
        assert time.monotonic() - begun < 30
        assert isinstance(client.metadata.failure, AuthenticationFailed)
        refuse(None)
        assert await client.partitions("t", 5) == [0, 1, 2]
        assert client.metadata.failure is None


async def test_where_it_shall_be_tried_again_metadata_is_waited_for(refuse: Any, settings: Any) -> None:
    refuse({"one:1": WRONG})
    async with Client(["one:1"], settings(retry_authentication=True)) as client:
        with pytest.raises(DeadlineExceeded, match="wrong password"):
            await client.partitions("t", 0.2)
        assert client.metadata.failure is None
        assert is_refusal(client.metadata.last_error)  # a broker did answer


async def test_a_broker_that_is_away_refuses_nobody(cluster: Any, settings: Any) -> None:
    cluster.down = {"one:1"}
    async with Client(["one:1"], settings(retry_authentication=True)) as client:
        with pytest.raises(DeadlineExceeded):
            await client.partitions("t", 0.2)
        assert not is_refusal(client.metadata.last_error)


async def test_records_that_wait_for_metadata_fail_with_the_reason(refuse: Any, settings: Any) -> None:
    refuse({"one:1": WRONG})
    outcomes: list[Any] = []
    async with Client(["one:1"], settings()) as client, AsyncProducer(client) as producer:
        producer.send("t", b"x", done=outcomes.append)
        await producer.flush(30)
    assert [str(outcome.error) for outcome in outcomes] == ["one:1: PLAIN: wrong password"]


async def test_what_is_sent_later_is_refused_for_the_same_reason(refuse: Any, settings: Any) -> None:
    """A topic that could not be had is not waited for again at once; that it is unknown would be the wrong reason."""
    refuse({"one:1": WRONG})
    async with Client(["one:1"], settings()) as client, AsyncProducer(client) as producer:

        async def send_on() -> None:
            for _ in range(20):
                producer.send("t", b"x", done=lambda _: None)
                await producer.flush(30)

        with pytest.raises(AuthenticationFailed, match="wrong password"):
            await send_on()
