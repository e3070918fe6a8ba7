"""A client and what stands on it belong to one event loop: on another they say so at once, and hang nowhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from ingestd.client.client import Client
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import Edge
from ingestd.errors import WrongLoop
from ingestd.producer.producer import AsyncProducer

if TYPE_CHECKING:
    from embedded.process import BrokerProcess


def test_what_belongs_to_another_loop_is_refused_at_once_and_goes_on_there(
    embedded: BrokerProcess, new_topic: str
) -> None:
    async def on_its_own() -> tuple[Client, AsyncProducer, Consumer]:
        client = Client([embedded.servers])
        producer, consumer = AsyncProducer(client), Consumer(client)
        await producer.send_and_wait(new_topic, b"first")
        await consumer.consume_partition(new_topic, 0, Edge.earliest)
        return client, producer, consumer

    async def on_another() -> None:
        for call in (
            lambda: producer.send_and_wait(new_topic, b"nowhere"),
            lambda: producer.flush(30),
            lambda: client.metadata.refresh([new_topic], 30),
            lambda: client.partitions("another-topic", 30),
        ):
            async with asyncio.timeout(5):
                with pytest.raises(WrongLoop, match="another event loop"):
                    await call()

    with asyncio.Runner() as runner:
        client, producer, consumer = runner.run(on_its_own())
        with asyncio.Runner() as another:
            another.run(on_another())

        async def back() -> None:
            assert (await producer.send_and_wait(new_topic, b"second")).offset >= 0
            await consumer.close()
            await producer.close(10)
            await client.close()

        runner.run(back())
