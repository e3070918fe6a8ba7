"""Numbered records, sent through our producer to a cluster that makes trouble, and the judge of what became of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from harness.reading import read_back
from ingestd.client.client import Client
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import Edge
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.errors import IngestdError
    from ingestd.producer.delivery import Delivery

__all__ = ["NumberedRecords", "consumed"]


class NumberedRecords:
    """`records` numbers, to the partitions of a topic in turn, in batches of ten; and what became of each."""

    def __init__(self, topic: str, partitions: int, records: int = 400) -> None:
        self.topic = topic
        self.partitions = partitions
        self.ends: dict[int, list[Delivery]] = {number: [] for number in range(records)}

    async def send(
        self, bootstrap: list[str], *, each_hundred: Callable[[int], None] = lambda _: None, **settings: Any
    ) -> None:
        """Send all and wait for their ends; calls `each_hundred` amid every hundred records, with its number."""
        defaults = {"batch_records": 10, "linger": 0.001, "retry_initial": 0.01, "retry_maximum": 0.1}
        made = ProducerSettings(**(defaults | settings))
        async with Client(bootstrap) as client, AsyncProducer(client, made) as producer:
            for number, ends in self.ends.items():
                producer.send(self.topic, b"%d" % number, partition=number % self.partitions, done=ends.append)
                if number % 100 == 50:
                    each_hundred(number // 100)
                if number % 10 == 9:
                    await asyncio.sleep(0.001)
            await producer.flush(60)

    @property
    def errors(self) -> list[IngestdError]:
        """Why records failed."""
        return [end.error for ends in self.ends.values() for end in ends if end.error is not None]

    def check(self, log: dict[int, list[bytes]], *, once: bool = True) -> None:
        """Everything ended once; the log holds what was acknowledged, once and in order, and nothing else.

        Where brokers look at no sequences, what they were sent again may be there again: not `once`.
        """
        assert {len(ends) for ends in self.ends.values()} == {1}
        for partition in range(self.partitions):
            numbers = range(partition, len(self.ends), self.partitions)
            acknowledged = [b"%d" % number for number in numbers if self.ends[number][0].error is None]
            found = log[partition] if once else list(dict.fromkeys(log[partition]))
            assert found == acknowledged, f"partition {partition}"

    async def check_by_librdkafka(self, servers: str, *, once: bool = True) -> None:
        """`check` what librdkafka reads."""
        self.check(await asyncio.to_thread(read_back, servers, self.topic), once=once)


async def consumed(
    bootstrap: list[str], topic: str, partitions: int, *, trouble: Callable[[], None] = lambda: None
) -> dict[int, list[bytes]]:
    """Every value of a topic by our consumer; `trouble` is made when it has started to read."""

    async def values(consumer: Consumer, partition: int) -> list[bytes]:
        reading = await consumer.consume_partition(topic, partition, Edge.earliest, Edge.latest)
        return [record.value or b"" async for record in reading]

    async with Client(bootstrap) as client, Consumer(client) as consumer:
        trouble()
        return dict(enumerate(await asyncio.gather(*(values(consumer, number) for number in range(partitions)))))
