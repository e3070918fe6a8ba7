"""Connections cut at every step of the protocol, by a proxy, on a real Kafka: each record has one outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from harness.cluster import KafkaCluster
from harness.proxy import Moment, Proxies

from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import Edge
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
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
            await producer.flush(30)
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
        reading = await consumer.consume_partition(topic, 0, Edge.oldest)
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
                    await producer.flush(30)
                producer.send(topic, b"%05d" % number, partition=0)
        async with asyncio.timeout(60):
            await task
            while proxies.waiting:
                await asyncio.sleep(0.05)
    assert read == [b"%05d" % number for number in range(count)]
    assert proxies.cuts == {Api.api_versions: 1, Api.metadata: 1, Api.list_offsets: 1, Api.fetch: 6}
