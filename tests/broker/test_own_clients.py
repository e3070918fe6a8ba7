"""Our own client, producer and consumer on the embedded broker, also while it is killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.reading import read_back

from ingestd.client.admin import ClusterAdmin
from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import ConsumerSettings, Edge
from ingestd.errors import AuthenticationFailed, BufferFull
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.records.codecs import Codec, Compression
from ingestd.wire.connection import ConnectionSettings
from ingestd.wire.sasl.scram import Scram

if TYPE_CHECKING:
    from collections.abc import Callable

    from embedded.process import BrokerProcess

    from ingestd.producer.delivery import Delivery

SECONDS = 60.0


async def read_all(client: Client, topic: str, partition: int) -> list[tuple[int, bytes | None]]:
    async with Consumer(client) as consumer:
        reading = await consumer.consume_partition(topic, partition, Edge.earliest, Edge.latest)
        return [(record.offset, record.value) async for record in reading]


@pytest.mark.parametrize("codec", Codec)
async def test_what_our_producer_sends_our_consumer_reads(
    embedded: BrokerProcess, new_topic: str, codec: Codec
) -> None:
    deliveries: list[Delivery] = []
    async with Client([embedded.servers]) as client:
        async with AsyncProducer(client, ProducerSettings(compression=Compression(codec))) as producer:
            for number in range(5000):
                producer.send(new_topic, b"value %d" % number, partition=number % 2, done=deliveries.append)
            await producer.flush(SECONDS)
        assert [delivery.error for delivery in deliveries if delivery.error] == []
        for partition in (0, 1):
            expected = [b"value %d" % number for number in range(partition, 5000, 2)]
            assert await read_all(client, new_topic, partition) == list(enumerate(expected))


async def test_what_our_producer_commits_is_read_and_what_it_aborts_is_not(
    embedded: BrokerProcess, new_topic: str
) -> None:
    async with Client([embedded.servers]) as client:
        async with AsyncProducer(client, ProducerSettings(transactional_id=new_topic)) as producer:
            await producer.init_transactions(SECONDS)
            for number in range(10):
                await producer.begin()
                for partition in (0, 1):
                    producer.send(new_topic, b"%d" % number, partition=partition)
                await (producer.abort() if number % 3 == 2 else producer.commit())
        settings = ConsumerSettings(isolation="read_committed")
        for partition in (0, 1):
            async with Consumer(client, settings) as consumer:
                reading = await consumer.consume_partition(new_topic, partition, Edge.earliest, Edge.latest)
                assert [record.value async for record in reading] == [b"%d" % n for n in range(10) if n % 3 != 2]


def test_an_example_reads_in_a_group_and_the_next_one_goes_on_there(embedded: BrokerProcess, new_topic: str) -> None:
    program = Path(__file__).parents[1] / "examples" / "consumer_group.py"
    produce = [sys.executable, "-m", "ingestd", "produce", "-b", embedded.servers, "-t", new_topic]
    for _ in range(2):
        subprocess.run(produce, input=b"one\ntwo\n", timeout=SECONDS, check=True, capture_output=True)
        command = [sys.executable, program, embedded.servers, new_topic, new_topic, "2"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
        assert ran.stdout.splitlines()[-1] == "2 records"
    described = [sys.executable, "-m", "ingestd", "groups", "describe", "-b", embedded.servers, new_topic]
    assert subprocess.run(described, capture_output=True, timeout=SECONDS, check=True).stdout


def test_an_example_writes_each_record_once_and_the_next_one_goes_on_there(
    embedded: BrokerProcess, new_topic: str
) -> None:
    program = Path(__file__).parents[1] / "examples" / "exactly_once.py"
    produce = [sys.executable, "-m", "ingestd", "produce", "-b", embedded.servers, "-t", new_topic]
    for _ in range(2):
        subprocess.run(produce, input=b"one\ntwo\n", timeout=SECONDS, check=True, capture_output=True)
        command = [sys.executable, program, embedded.servers, new_topic, f"{new_topic}-out", "2"]
        subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    read = read_back(embedded.servers, f"{new_topic}-out", isolation="read_committed")
    assert sorted(value for values in read.values() for value in values) == [b"ONE", b"ONE", b"TWO", b"TWO"]


async def test_our_producer_loses_and_doubles_nothing_while_the_broker_is_killed(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    broker = broker_process()
    offsets: dict[int, int] = {}
    failed: list[Delivery] = []

    def delivered(number: int) -> Callable[[Delivery], None]:
        def done(delivery: Delivery) -> None:
            if delivery.error is None:
                offsets[number] = delivery.base_offset
            else:
                failed.append(delivery)

        return done

    async with Client([broker.servers]) as client:
        async with AsyncProducer(client) as producer:
            stop = False

            async def write() -> int:
                number = 0
                while not stop:
                    try:
                        producer.send("killed", b"%d" % number, partition=0, done=delivered(number))
                    except BufferFull:
                        await producer.room()
                        continue
                    number += 1
                    if number % 100 == 0:
                        await asyncio.sleep(0.002)
                return number

            async with asyncio.TaskGroup() as group:
                writing = group.create_task(write())
                for kill in range(3):
                    enough = len(offsets) + 2000
                    async with asyncio.timeout(SECONDS):
                        while len(offsets) < enough and not failed:
                            await asyncio.sleep(0.01)
                    assert failed == [], f"kill {kill}"
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.start)
                stop = True
            await producer.flush(SECONDS)
        assert failed == []
        sent = writing.result()
        read = await read_all(client, "killed", 0)
        assert read == [(number, b"%d" % number) for number in range(sent)]
        assert offsets == {number: number for number in range(sent)}


async def test_a_topic_that_is_deleted_and_made_again_begins_at_0(embedded: BrokerProcess, new_topic: str) -> None:

    async with Client([embedded.servers]) as client:
        admin = ClusterAdmin(client)
        for _ in range(2):
            deliveries: list[Delivery] = []
            async with AsyncProducer(client) as producer:
                producer.send(new_topic, b"x", partition=0, done=deliveries.append)
                await producer.flush(SECONDS)
            assert [(delivery.error, delivery.base_offset) for delivery in deliveries] == [(None, 0)]
            outcomes = await admin.delete_topics([new_topic])
            assert [outcome.error for outcome in outcomes] == [None]


async def test_an_account_for_a_broker_that_has_none_is_refused_at_once(embedded: BrokerProcess) -> None:
    """It does not know the request at all, which was taken for a lost connection and tried again until the deadline."""
    settings = ClientSettings(ConnectionSettings(sasl=Scram("user", "password")))
    async with Client([embedded.servers], settings) as client, AsyncProducer(client) as producer:
        for asking in (client.partitions("topic", 30), producer.send_and_wait("topic", b"", partition=0)):
            with pytest.raises(AuthenticationFailed, match="this is not a listener for SASL"):
                await asyncio.wait_for(asking, 10)
