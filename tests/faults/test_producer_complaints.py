"""What users of other producers complain of, tried on a real Kafka. tests/README.md lists every such complaint."""

from __future__ import annotations

import asyncio
import gc
import selectors
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.cluster import KafkaCluster

from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.errors import BufferFull, IngestdError
from ingestd.producer.failures import SendFailed
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.sync import SyncProducer
from ingestd.records.codecs import Compression
from ingestd.wire.connection import ConnectionSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingestd.producer.delivery import Delivery

pytestmark = pytest.mark.timeout(300)

FOREVER = float("inf")
PAGE = 4096
WARM, MEASURED = 250_000, 1_000_000
GROWTH_BYTES = 8_000_000
GROWTH_BLOCKS = 5_000


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("alone") / "cluster", log_requests=True) as cluster:
        yield cluster


@pytest.fixture
def alone(one_node: KafkaCluster) -> Iterator[KafkaCluster]:
    """One node, to be killed and stopped at will."""
    yield one_node
    one_node.heal()


async def send(producer: AsyncProducer, topic: str, value: bytes, done: Callable[[Delivery], None]) -> None:
    try:
        producer.send(topic, value, done=done)
    except BufferFull:
        await producer.room()
        producer.send(topic, value, done=done)


async def test_a_million_records_leave_no_memory_behind(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    """Memory that grows with every record: its callback, its error, its place in a list that nobody empties."""
    name = topic(partitions=4)
    counted = [0]

    def done(delivery: Delivery) -> None:
        assert delivery.error is None
        counted[0] += 1

    def memory() -> tuple[int, int]:
        gc.collect()
        return sys.getallocatedblocks(), int(Path("/proc/self/statm").read_text().split()[1]) * PAGE

    settings = ProducerSettings(compression=Compression.parse("lz4"), buffer_bytes=8_000_000)
    async with Client(kafka.bootstrap) as client, AsyncProducer(client, settings) as producer:
        for number in range(WARM):
            await send(producer, name, b"%050d" % number, done)
        await producer.flush(60)
        blocks, resident = memory()
        for number in range(MEASURED):
            await send(producer, name, b"%050d" % number, done)
        await producer.flush(60)
        blocks_after, resident_after = memory()
    assert counted == [WARM + MEASURED]
    assert sum(kafka.end_offsets(name).values()) == WARM + MEASURED
    assert blocks_after - blocks < GROWTH_BLOCKS
    assert resident_after - resident < GROWTH_BYTES


class CountingSelector(selectors.DefaultSelector):
    """Counts the turns of the loop that it is the selector of."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        return super().select(timeout)


def test_an_idle_producer_neither_turns_its_loop_nor_asks_its_brokers(alone: KafkaCluster) -> None:
    """A busy loop: a timer that is always due, a poll of nothing; and, without brokers, an attempt after the other.

    A loop that is busy turns many thousand times a second.
    """
    name = alone.create_topic(partitions=4)
    selector = CountingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    turns: dict[str, int] = {}

    async def idle(what: str) -> None:
        before = selector.turns
        await asyncio.sleep(3)
        turns[what] = selector.turns - before

    async def work() -> None:
        settings = ProducerSettings(delivery_timeout=FOREVER)
        async with Client(alone.bootstrap, ClientSettings(connection=ConnectionSettings(client_id="idle"))) as client:
            producer = AsyncProducer(client, settings)
            await idle("unused")
            for number in range(100):
                producer.send(name, b"%d" % number, partition=number % 4)
            await producer.flush(30)
            # A node logs a request after it has answered it: what was asked before this one is in the log with it.
            async with Client(
                alone.bootstrap, ClientSettings(connection=ConnectionSettings(client_id="behind"))
            ) as other:
                await other.partitions(name)
            await asyncio.to_thread(alone.wait_for_request, "behind", "Metadata")
            await asyncio.sleep(0.5)
            asked = alone.requests_by_client()["idle"]
            await idle("drained")
            assert alone.requests_by_client()["idle"] == asked
            alone.kill(1)
            await asyncio.sleep(1)
            await idle("brokers down, nothing to send")
            producer.send(name, b"kept")
            await idle("brokers down, a record to send")
            with pytest.raises(SendFailed, match="the producer was closed: draining the producer"):
                await producer.close(0.5)

    try:
        loop.run_until_complete(work())
    finally:
        loop.close()
    assert turns["unused"] <= 3
    assert turns["drained"] <= 10
    assert turns["brokers down, nothing to send"] <= 300
    assert turns["brokers down, a record to send"] <= 600


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_producer_goes_on_when_its_only_broker_comes_back(alone: KafkaCluster, end: str) -> None:
    """Stuck after a restart: waiting for an answer of a connection that is gone, or for a leader that is known."""
    name = await asyncio.to_thread(alone.create_topic, partitions=2)
    sent: list[list[bytes]] = [[], []]
    ends: list[Delivery] = []
    async with Client(alone.bootstrap) as client:
        producer = AsyncProducer(client, ProducerSettings(delivery_timeout=FOREVER, linger=0.0))

        async def produce(records: int) -> None:
            for _ in range(records):
                for partition, values in enumerate(sent):
                    values.append(b"%d-%06d" % (partition, len(values)))
                    producer.send(name, values[-1], partition=partition, done=ends.append)
                await asyncio.sleep(0.001)

        for _ in range(2):
            await produce(200)
            under_way = asyncio.create_task(produce(1000))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(alone.stop if end == "stop" else alone.kill, 1)
            await under_way
            await asyncio.to_thread(alone.start, 1)
            await produce(100)
            await producer.flush(60)
        await producer.close()
    assert [end.error for end in ends if end.error is not None] == []
    assert len(ends) == sum(map(len, sent))
    assert await asyncio.to_thread(alone.read_back, name) == dict(enumerate(sent))


def test_a_synchronous_producer_is_closed_within_its_deadline_when_all_brokers_are_down(alone: KafkaCluster) -> None:
    """A close that waits for a broker for ever, and calls of other threads that never return."""
    name = alone.create_topic(partitions=1)
    producer = SyncProducer(alone.bootstrap, ProducerSettings(delivery_timeout=FOREVER))
    assert producer.send(name, b"while it lives").offset == 0
    alone.kill(1)
    raised: list[IngestdError] = []
    waiting = threading.Event()

    def call() -> None:
        waiting.set()
        try:
            producer.send(name, b"after it died")
        except IngestdError as error:
            raised.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    waiting.wait(10)
    began = time.monotonic()
    producer.close(1.0)
    for thread in threads:
        thread.join(30)
    assert time.monotonic() - began < 20
    assert len(raised) == 3
