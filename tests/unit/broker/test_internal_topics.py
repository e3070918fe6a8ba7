"""Topics whose names begin with two underscores are the broker's own: clients only read them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from embedded.batches import batch_of
from embedded.raw import RawClient, entity

from ingestd.broker.server import BrokerServer
from ingestd.broker.settings import BrokerSettings
from ingestd.broker.storage import NewTopic
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from pathlib import Path

NAME = "__consumer_offsets"


def created(client: RawClient) -> ErrorCode:
    topic = entity(
        Api.create_topics,
        5,
        "CreatableTopic",
        name=NAME,
        num_partitions=1,
        replication_factor=1,
        assignments=(),
        configs=(),
    )
    return ErrorCode(
        client.ask(entity(Api.create_topics, 5, "CreateTopicsRequest", topics=(topic,))).topics[0].error_code
    )


def deleted(client: RawClient) -> ErrorCode:
    request = entity(Api.delete_topics, 5, "DeleteTopicsRequest", topic_names=(NAME,), timeout=timedelta(seconds=1))
    return ErrorCode(client.ask(request).responses[0].error_code)


def shortened(client: RawClient) -> ErrorCode:
    partition = entity(Api.delete_records, 2, "DeleteRecordsPartition", partition_index=0, offset=0)
    topics = (entity(Api.delete_records, 2, "DeleteRecordsTopic", name=NAME, partitions=(partition,)),)
    request = entity(Api.delete_records, 2, "DeleteRecordsRequest", topics=topics, timeout=timedelta(seconds=1))
    return ErrorCode(client.ask(request).topics[0].partitions[0].error_code)


async def test_a_client_can_neither_make_nor_change_an_internal_topic(tmp_path: Path) -> None:
    def work(port: int) -> None:
        with RawClient(port) as client:
            assert client.metadata(NAME).topics[0].error_code == ErrorCode.unknown_topic_or_partition
            assert created(client) is ErrorCode.invalid_topic_exception

    def change(port: int) -> None:
        with RawClient(port) as client:
            topic = client.metadata(NAME).topics[0]
            assert (topic.error_code, topic.is_internal) == (ErrorCode.none, True)
            refused = client.produce(NAME, 0, batch_of([b"x"]))
            assert refused.error is ErrorCode.invalid_topic_exception
            assert "__consumer_offsets" in (refused.error_message or "")
            assert shortened(client) is ErrorCode.invalid_topic_exception
            assert deleted(client) is ErrorCode.invalid_topic_exception
            assert client.metadata(NAME).topics[0].error_code == ErrorCode.none

    async with BrokerServer(BrokerSettings(tmp_path / "data", port=0)) as server:
        await asyncio.to_thread(work, server.port)
        server._broker.storage.create([NewTopic(NAME, 3, {}, {})])
        await asyncio.to_thread(change, server.port)
        assert server._broker.partition(NAME, 0).log.end_offset == 0
