"""Connections cut at every step of the protocol, by a proxy, on a real Kafka: each record has one outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from harness.cluster import KafkaCluster
from harness.proxy import Moment, Proxies

from ingestd import (
    AsyncProducer,
    Client,
    ClientSettings,
    ClusterAdmin,
    Consumer,
    ConsumerGroup,
    Edge,
    GroupMember,
    GroupSettings,
    OffsetAndMetadata,
    ProducerSettings,
    TopicPartition,
)
from ingestd.consumer.group.settings import GroupProtocol, NoOffset
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.producer.delivery import Delivery

PARTITIONS = 2
ROUNDS = 20
"""Records of a partition after each cut."""

# A refresh that nobody waits for follows at once, so that a metadata request is there to be cut.
QUICK = ClientSettings(metadata_minimum_interval=0.0, metadata_max_age=0.2)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("proxied") / "cluster", proxied=True) as cluster:
        yield cluster


@pytest.mark.parametrize("moment", Moment)
async def test_a_producer_loses_doubles_and_reorders_nothing_whatever_request_is_cut(
    proxied: KafkaCluster, moment: Moment
) -> None:
    topic = proxied.create_topic(partitions=PARTITIONS)
    sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    ends: list[Delivery] = []
    async with (
        Proxies(proxied) as proxies,
        Client(proxies.bootstrap, QUICK) as client,
        AsyncProducer(client, ProducerSettings(linger=0.0)) as producer,
    ):
        for api in (Api.api_versions, Api.metadata, Api.init_producer_id):
            proxies.cut(api, moment)
        for _ in range(6):
            for number in range(PARTITIONS * ROUNDS):
                partition = number % PARTITIONS
                value = b"%d-%05d" % (partition, len(sent[partition]))
                sent[partition].append(value)
                producer.send(topic, value, partition=partition, done=ends.append)
                await asyncio.sleep(0)
            await producer.flush(60)
            proxies.cut(Api.produce, moment)
    assert proxies.waiting == [(Api.produce, moment)]  # the last one ordered, after everything
    assert proxies.cuts == {Api.api_versions: 1, Api.metadata: 1, Api.init_producer_id: 1, Api.produce: 5}
    assert [end.error for end in ends] == [None] * sum(map(len, sent))
    assert proxied.read_back(topic) == dict(enumerate(sent))


@pytest.mark.parametrize("moment", Moment)
async def test_a_consumer_reads_each_record_once_and_in_order_whatever_request_is_cut(
    proxied: KafkaCluster, moment: Moment
) -> None:
    topic = proxied.create_topic(partitions=1)
    count = 6 * ROUNDS
    async with Proxies(proxied) as proxies, Client(proxies.bootstrap, QUICK) as client, Consumer(client) as consumer:
        for api in (Api.api_versions, Api.metadata, Api.list_offsets):
            proxies.cut(api, moment)
        reading = await consumer.consume_partition(topic, 0, Edge.earliest)
        read: list[bytes | None] = []

        async def read_all() -> None:
            async for record in reading:
                read.append(record.value)
                if len(read) == count:
                    return

        task = asyncio.create_task(read_all())
        async with Client(proxied.bootstrap) as other, AsyncProducer(other) as producer:
            for number in range(count):
                if number % ROUNDS == 0:
                    proxies.cut(Api.fetch, moment)
                    await producer.flush(60)
                producer.send(topic, b"%05d" % number, partition=0)
        async with asyncio.timeout(60):
            await task
            while proxies.waiting:
                await asyncio.sleep(0.05)
    assert read == [b"%05d" % number for number in range(count)]
    assert proxies.cuts == {Api.api_versions: 1, Api.metadata: 1, Api.list_offsets: 1, Api.fetch: 6}


@pytest.mark.parametrize("moment", Moment)
async def test_transactions_stay_whole_whatever_request_is_cut(proxied: KafkaCluster, moment: Moment) -> None:
    topic, source, group_id = proxied.create_topic(partitions=PARTITIONS), proxied.create_topic(), f"group-{moment}"
    committed: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    cuts = [Api.find_coordinator, Api.init_producer_id, Api.produce, Api.txn_offset_commit, Api.end_txn]
    settings = ProducerSettings(transactional_id=f"cut-{moment}", linger=0.0)
    async with (
        Proxies(proxied) as proxies,
        Client(proxies.bootstrap, QUICK) as client,
        AsyncProducer(client, settings) as producer,
    ):
        for api in cuts:
            proxies.cut(api, moment)
        await producer.init_transactions()
        for turn in range(6):
            values = [[b"%d-%d-%03d" % (turn, partition, number) for number in range(ROUNDS)] for partition in range(2)]
            await producer.begin()
            for partition, lines in enumerate(values):
                for value in lines:
                    producer.send(topic, value, partition=partition)
            await producer.add_offsets({TopicPartition(source, 0): OffsetAndMetadata(turn + 1)}, GroupMember(group_id))
            if turn % 2:
                await producer.abort()
            else:
                await producer.commit()
                for partition, lines in enumerate(values):
                    committed[partition] += lines
            proxies.cut(Api.end_txn, moment)
            proxies.cut(Api.produce, moment)
        (group,) = await ClusterAdmin(client).list_group_offsets({group_id: None}, require_stable=True)
    assert {api for api, _ in proxies.waiting} <= {Api.end_txn, Api.produce}  # those that were ordered last
    assert proxies.cuts == dict.fromkeys(cuts, 1) | {Api.end_txn: 6, Api.produce: 6}
    assert group.offsets[source, 0].offset == 5  # the last transaction that was committed
    expected = dict(enumerate(committed))
    async with asyncio.timeout(60):  # a commit is answered before its markers are written
        while await asyncio.to_thread(proxied.read_back, topic, isolation="read_committed") != expected:
            await asyncio.sleep(0.1)


CLASSIC = (Api.join_group, Api.sync_group, Api.heartbeat)
NEXT_GENERATION = (Api.consumer_group_heartbeat,) * 3


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize(
    ("protocol", "membership"), [(GroupProtocol.classic, CLASSIC), (GroupProtocol.consumer, NEXT_GENERATION)]
)
async def test_a_group_handles_every_record_whatever_request_is_cut(
    proxied: KafkaCluster, protocol: GroupProtocol, membership: tuple[Api, ...], moment: Moment
) -> None:
    topic, group_id = proxied.create_topic(partitions=PARTITIONS), f"{protocol}-{moment}"
    settings = GroupSettings(
        protocol=protocol,
        no_offset=NoOffset.earliest,
        session_timeout=6.0,
        heartbeat_interval=0.2,
        auto_commit_interval=0.1,
    )
    cuts = [Api.find_coordinator, *membership, Api.offset_fetch, Api.offset_commit]
    sent: list[bytes] = []
    handled: Counter[bytes | None] = Counter()
    async with (
        Proxies(proxied) as proxies,
        Client(proxies.bootstrap, QUICK) as client,
        Client(proxied.bootstrap) as other,
        AsyncProducer(other, ProducerSettings(linger=0.0)) as producer,
        asyncio.timeout(120),
    ):

        async def feed() -> None:
            """Send records until every cut was made, and one more, which is the last that is handled."""
            while proxies.waiting:
                sent.append(b"%05d" % len(sent))
                producer.send(topic, sent[-1], partition=len(sent) % PARTITIONS)
                await asyncio.sleep(0.005)
            await producer.flush(60)
            sent.append(b"last")
            producer.send(topic, b"last", partition=0)

        for api in cuts:
            proxies.cut(api, moment)
        feeding = asyncio.create_task(feed())
        async with ConsumerGroup(client, group_id, settings) as group, group.subscribe([topic]) as records:
            async for record in records:
                handled[record.value] += 1
                if sent[-1] == b"last" and len(handled) == len(sent):
                    break
        await feeding
        (group,) = await ClusterAdmin(client).list_group_offsets({group_id: None})
    assert proxies.cuts == Counter(cuts)
    assert set(handled) == set(sent)
    assert {place: committed.offset for place, committed in group.offsets.items()} == {
        (topic, partition): end for partition, end in proxied.end_offsets(topic).items()
    }
