"""Our transactions and groups against franz-go's fake cluster, told to answer with errors."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from harness.kfake import Kfake
from harness.reading import read_back

from ingestd.client.client import Client
from ingestd.client.group import GroupMember, OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.consumer_group import ConsumerGroup
from ingestd.consumer.group.settings import GroupProtocol, GroupSettings, NoOffset
from ingestd.errors import ErrorCode
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.go_peers import GoPeer

pytestmark = pytest.mark.peers

TOPIC = "events"
PARTITIONS = 3


@pytest.fixture
def fake(go_peers: dict[str, GoPeer]) -> Iterator[Kfake]:
    with Kfake(go_peers["kfake"].binary, topic=TOPIC, partitions=PARTITIONS) as running:
        yield running


COORDINATION = [
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
]
"""Of any coordinator."""


@pytest.mark.parametrize("seed", range(4))
async def test_transactions_are_whole_through_the_coordinators_errors(fake: Kfake, seed: int) -> None:
    source = random.Random(seed)
    committed: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    settings = ProducerSettings(transactional_id="transactional", retry_initial=0.01, retry_maximum=0.1)
    async with Client(fake.bootstrap) as client, AsyncProducer(client, settings) as producer:
        trouble(fake, source, (Api.init_producer_id, Api.find_coordinator))
        await producer.init_transactions()
        for number in range(12):
            trouble(fake, source, (Api.add_partitions_to_txn, Api.add_offsets_to_txn, Api.txn_offset_commit))
            await producer.begin()
            values = [b"%d-%d" % (number, index) for index in range(9)]
            for index, value in enumerate(values):
                producer.send(TOPIC, value, partition=index % PARTITIONS)
            offsets = {TopicPartition(TOPIC, 0): OffsetAndMetadata(number + 1)}
            await producer.add_offsets(offsets, GroupMember("group"))
            trouble(fake, source, (Api.end_txn,))
            if number % 3 == 2:
                await producer.abort()
                continue
            await producer.commit()
            for index, value in enumerate(values):
                committed[index % PARTITIONS].append(value)
    log = await asyncio.to_thread(read_back, fake.servers, TOPIC, isolation="read_committed")
    assert log == committed


def trouble(fake: Kfake, source: random.Random, apis: tuple[Api, ...]) -> None:
    for api in apis:
        if source.random() < 0.5:
            fake.fail(api, source.choice(COORDINATION))


@pytest.mark.parametrize("protocol", list(GroupProtocol))
@pytest.mark.parametrize("seed", range(2))
async def test_a_group_reads_everything_through_the_coordinators_errors(
    fake: Kfake, protocol: GroupProtocol, seed: int
) -> None:
    source = random.Random(seed)
    settings = GroupSettings(protocol=protocol, no_offset=NoOffset.earliest, auto_commit_interval=0.1)
    apis = (
        (Api.join_group, Api.sync_group, Api.heartbeat)
        if protocol is GroupProtocol.classic
        else (Api.consumer_group_heartbeat,)
    )
    read: list[int] = []
    async with Client(fake.bootstrap) as client, AsyncProducer(client) as producer:
        for number in range(300):
            producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        await producer.flush(20)
        trouble(fake, source, (*apis, Api.find_coordinator, Api.offset_fetch))
        async with (
            asyncio.timeout(60),
            ConsumerGroup(client, "group", settings) as group,
            group.subscribe([TOPIC]) as records,
        ):
            async for record in records:
                read.append(int(record.value or b""))
                if len(read) % 100 == 50:
                    trouble(fake, source, (*apis, Api.offset_commit))
                if len(set(read)) == 300:
                    break
        assert sorted(set(read)) == list(range(300))
        async with (
            asyncio.timeout(60),
            ConsumerGroup(client, "group", settings) as group,
            group.subscribe([TOPIC]) as records,
        ):
            producer.send(TOPIC, b"300", partition=0)
            async for record in records:
                assert int(record.value or b"") == 300
                break
