"""A group whose members transform records in transactions (KIP-447), killed and joined at will: each exactly once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from harness.reading import end_offsets

if TYPE_CHECKING:
    from harness.cluster import KafkaCluster

pytestmark = pytest.mark.timeout(240)

PARTITIONS = 4
RECORDS = 1500
"""In each partition of the source; enough for some seconds."""

MEMBER = """
import asyncio, sys

from ingestd import (
    AsyncProducer, Client, ConsumerGroup, ConsumerGroupHandler, ConsumerSettings, GroupSettings, IngestdError,
    Isolation, OffsetAndMetadata, ProducerSettings,
)
from ingestd.consumer.group.settings import NoOffset


class Transform(ConsumerGroupHandler):
    def __init__(self, producer, target):
        self.producer, self.target, self.turn = producer, target, asyncio.Lock()

    async def setup(self, session):
        print("joined", flush=True)

    async def consume_claim(self, session, claim):
        async for records in claim.chunks():
            for first in range(0, len(records), 20):
                part = records[first : first + 20]
                try:
                    async with self.turn, self.producer.transaction() as transaction:
                        for record in part:
                            self.producer.send(self.target, record.value, partition=claim.key.partition)
                        behind = OffsetAndMetadata(part[-1].offset + 1, part[-1].leader_epoch)
                        await transaction.add_offsets({claim.key: behind}, session.member)
                except IngestdError as error:
                    print("refused", repr(error), flush=True)
                    return
                if claim.ended:
                    return
                await asyncio.sleep(0.02)


async def main(servers, source, target, name):
    settings = GroupSettings(
        no_offset=NoOffset.earliest, auto_commit_interval=None, session_timeout=6.0, heartbeat_interval=0.5,
        consumer=ConsumerSettings(isolation=Isolation.read_committed),
    )
    transactional = ProducerSettings(transactional_id=f"{target}-{name}", linger=0.0)
    async with (
        Client(servers.split(",")) as client,
        AsyncProducer(client, transactional) as producer,
        ConsumerGroup(client, f"group-{target}", settings) as group,
    ):
        await producer.init_transactions()
        handler = Transform(producer, target)
        while True:
            await group.consume([source], handler)


asyncio.run(main(*sys.argv[1:]))
"""


class Members:
    """Processes of one group."""

    def __init__(self, cluster: KafkaCluster, source: str, target: str) -> None:
        self._arguments = (cluster.servers, source, target)
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str) -> None:
        """Start a member, or its next incarnation, and wait until it has its partitions, and for some transactions."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", MEMBER, *self._arguments, name, stdout=subprocess.PIPE
        )
        self.running[name] = process
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while (line := await process.stdout.readline()) != b"joined\n":
                assert line, f"member {name} ended"
        await asyncio.sleep(1.0)

    async def kill(self, name: str) -> None:
        """SIGKILL, at whatever it was doing."""
        process = self.running.pop(name)
        os.kill(process.pid, signal.SIGKILL)
        # What it said is nobody's: the pipe must be read to its end for the process to be gone.
        await process.communicate()


def fill(cluster: KafkaCluster, topic: str) -> None:
    """Numbered records, written by librdkafka."""
    producer = Producer({"bootstrap.servers": cluster.servers, "linger.ms": 20, "log_level": 2})
    for partition in range(PARTITIONS):
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number, partition=partition)
        producer.flush(30)


async def test_members_that_are_killed_and_join_in_the_middle_transform_each_record_once(kafka: KafkaCluster) -> None:
    source, target = (kafka.create_topic(partitions=PARTITIONS) for _ in range(2))
    await asyncio.to_thread(fill, kafka, source)
    members = Members(kafka, source, target)
    try:
        await members.start("a")
        await members.start("b")
        await members.kill("a")
        # What it left open, and the offsets in it, end with the next incarnation under the same transactional id.
        await members.start("a")
        await members.start("c")
        await members.kill("b")
        await members.start("b")
        expected = {partition: [b"%d" % number for number in range(RECORDS)] for partition in range(PARTITIONS)}
        async with asyncio.timeout(90):
            while await asyncio.to_thread(_committed, kafka, target) < PARTITIONS * RECORDS:
                await asyncio.sleep(0.5)
    finally:
        for name in list(members.running):
            await members.kill(name)
    seen = await asyncio.to_thread(kafka.read_back, target, isolation="read_committed")
    for partition, values in expected.items():
        assert len(seen[partition]) == len(values)
        assert seen[partition] == values


def _committed(cluster: KafkaCluster, topic: str) -> int:
    """How many records librdkafka reads as committed."""
    if sum(end_offsets(cluster.servers, topic, isolation="read_committed").values()) < PARTITIONS * RECORDS:
        return 0  # markers count as well, so that it is not worth reading
    return sum(map(len, cluster.read_back(topic, isolation="read_committed").values()))
