"""Connections cut at every step of transactions without KIP-890, by a proxy, on a real Kafka: all or nothing is there.

With KIP-890: `test_cut_connections.py`. Here the epoch stays over transactions, so a repeated question needs another.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from harness.cluster import KafkaCluster, java_tool
from harness.proxy import Moment, Proxies

from ingestd import (
    AsyncProducer,
    Client,
    ClusterAdmin,
    GroupMember,
    OffsetAndMetadata,
    ProducerSettings,
    TopicPartition,
)
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

CUT = (
    Api.init_producer_id,
    Api.add_partitions_to_txn,
    Api.add_offsets_to_txn,
    Api.txn_offset_commit,
    Api.produce,
    Api.end_txn,
)


@pytest.fixture(scope="module")
def explicit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A node with proxies before it, whose cluster has `transaction.version` 1."""
    with KafkaCluster(tmp_path_factory.mktemp("explicit") / "cluster", proxied=True) as cluster:
        level = ("downgrade", "--feature", "transaction.version=1")
        java_tool("FeatureCommand", "--bootstrap-server", cluster.servers, *level)
        yield cluster


@pytest.mark.parametrize("moment", Moment)
async def test_transactions_with_added_partitions_stay_whole_whatever_request_is_cut(
    explicit: KafkaCluster, moment: Moment
) -> None:
    topic, source = explicit.create_topic(partitions=2), explicit.create_topic()
    committed: dict[int, list[bytes]] = {0: [], 1: []}
    settings = ProducerSettings(transactional_id=f"cut-{moment}", linger=0.0)
    async with (
        Proxies(explicit) as proxies,
        Client(proxies.bootstrap) as client,
        AsyncProducer(client, settings) as producer,
    ):
        proxies.cut(Api.init_producer_id, moment)
        await producer.init_transactions()
        for turn, api in enumerate(CUT * 2):
            if api is not Api.init_producer_id:
                proxies.cut(api, moment)
            await producer.begin()
            for partition in committed:
                values = [b"%d-%d-%d" % (turn, partition, number) for number in range(10)]
                for value in values:
                    producer.send(topic, value, partition=partition)
                committed[partition] += [] if turn % 3 == 1 else values
            await producer.add_offsets({TopicPartition(source, 0): OffsetAndMetadata(turn)}, GroupMember(f"g-{moment}"))
            await (producer.abort() if turn % 3 == 1 else producer.commit())
        listed = await ClusterAdmin(client).list_group_offsets({f"g-{moment}": None}, require_stable=True)
    assert proxies.waiting == []
    assert proxies.cuts == {api: 1 if api is Api.init_producer_id else 2 for api in CUT}
    assert listed[0].offsets[source, 0].offset == len(CUT) * 2 - 1
    async with asyncio.timeout(60):  # a commit is answered before its markers are written
        while await asyncio.to_thread(explicit.read_back, topic, isolation="read_committed") != committed:
            await asyncio.sleep(0.1)
