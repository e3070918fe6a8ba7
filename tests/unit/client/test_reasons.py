"""A deadline says what was waited for and what the last trouble was; a topic that may well be there is not unknown."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.client.admin import ClusterAdmin, NewTopic
from ingestd.client.client import Client, CoordinatorKind
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import ConsumerSettings, Edge
from ingestd.errors import ConnectionLost, DeadlineExceeded, ErrorCode, IngestdError, KafkaError
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ASKING: dict[str, tuple[str, Callable[[Client], Awaitable[Any]]]] = {
    "partitions": ("metadata of t", lambda client: client.partitions("t", 2)),
    "leader": ("metadata of t", lambda client: client.leader("t", 0, 2)),
    "controller": ("metadata of the cluster", lambda client: client.controller(2)),
    "coordinator": ("coordinator of group g", lambda client: client.coordinator("g", CoordinatorKind.group, 2)),
    "consume_partition": ("metadata of t", lambda client: consumer(client).consume_partition("t", 0, 0)),
    "offsets": ("metadata of t", lambda client: consumer(client).offsets({TopicPartition("t", 0): Edge.earliest})),
    "topics": ("topics", lambda client: consumer(client).topics()),
    "create_topics": ("", lambda client: ClusterAdmin(client).create_topics([NewTopic("t")], timeout=2)),
    "list_groups": ("", lambda client: ClusterAdmin(client).list_groups(timeout=2)),
    "describe_groups": ("", lambda client: ClusterAdmin(client).describe_groups(["g"], timeout=2)),
}


def consumer(client: Client) -> Consumer:
    return Consumer(client, ConsumerSettings(metadata_timeout=2.0))


@pytest.mark.parametrize("asking", ASKING)
async def test_what_is_asked_of_a_broker_that_refuses_ends_with_the_reason(
    cluster: Any, settings: Any, asking: str
) -> None:
    cluster.down = {"one:1"}
    about, ask = ASKING[asking]
    async with Client(["one:1"], settings()) as client:
        with pytest.raises((DeadlineExceeded, ConnectionLost)) as raised:
            await ask(client)
    assert str(raised.value).startswith(about)
    assert "one:1: refused" in str(raised.value)


@pytest.mark.parametrize("asking", ASKING)
async def test_what_is_asked_of_a_broker_that_is_silent_names_it(cluster: Any, settings: Any, asking: str) -> None:
    cluster.hanging = {"one:1"}
    about, ask = ASKING[asking]
    async with Client(["one:1"], settings()) as client:
        with pytest.raises((DeadlineExceeded, ConnectionLost)) as raised:
            await ask(client)
    assert str(raised.value).startswith(about)
    assert "one:1" in str(raised.value)


@pytest.mark.parametrize(("trouble", "partition"), [("down", None), ("down", 0), ("hanging", None)])
async def test_a_record_that_no_broker_takes_ends_by_its_delivery_timeout_with_the_reason(
    cluster: Any, settings: Any, trouble: str, partition: int | None
) -> None:
    # It was UNKNOWN_TOPIC_OR_PARTITION after the metadata timeout, however short the delivery timeout.
    setattr(cluster, trouble, {"one:1"})
    async with Client(["one:1"], settings()) as client, AsyncProducer(client, brief(3.0)) as producer:
        began = now()
        with pytest.raises(DeadlineExceeded, match="one:1"):
            await producer.send_and_wait("t", b"x", partition=partition)
        assert 2.9 < now() - began < 3.1


@pytest.mark.parametrize("partition", [None, 0])
async def test_a_flush_that_is_not_done_says_what_for(cluster: Any, settings: Any, partition: int | None) -> None:
    cluster.down = {"one:1"}
    async with Client(["one:1"], settings()) as client:
        producer = AsyncProducer(client, brief(60.0))
        producer.send("t", b"x", partition=partition)
        with pytest.raises(DeadlineExceeded, match=r"flushing the producer: not done within 1 s; t.*one:1: refused"):
            await producer.flush(1.0)
        with pytest.raises(IngestdError, match=r"the producer was closed: .* within 1 s; t.*one:1: refused"):
            await producer.close(1.0)


async def test_a_topic_whose_brokers_went_away_is_not_called_unknown(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client, AsyncProducer(client, brief(3.0)) as producer:
        await client.partitions("t")
        cluster.down = set(cluster.nodes.values()) | {"one:1"}
        for connection in cluster.connections:
            connection.abort(ConnectionLost("killed"))
        with pytest.raises(DeadlineExceeded, match="refused"):
            await producer.send_and_wait("other", b"x")


@pytest.mark.parametrize("partition", [None, 0])
@pytest.mark.parametrize(("create", "why"), [(True, "the brokers do not create it"), (False, "create_topics is off")])
async def test_a_topic_that_is_not_there_is_asked_for_so_that_it_is_created_and_fails_by_name(
    cluster: Any, settings: Any, partition: int | None, create: bool, why: str
) -> None:
    made = ProducerSettings(create_topics=create, metadata_timeout=2.0)
    cluster.scripts["InitProducerIdRequest"] = lambda module, *_: module.InitProducerIdResponse(
        throttle_time=dt.timedelta(0), error_code=ErrorCode.none, producer_id=1, producer_epoch=0
    )
    async with Client(["one:1"], settings()) as client, AsyncProducer(client, made) as producer:
        with pytest.raises(KafkaError, match=rf"UNKNOWN_TOPIC_OR_PARTITION .*there is no topic other, and {why}"):
            await producer.send_and_wait("other", b"x", partition=partition)
    asked = [request for request in cluster.asked_of("Metadata") if request.topics]
    assert {request.allow_auto_topic_creation for request in asked} == {create}


def brief(seconds: float) -> ProducerSettings:
    return ProducerSettings(delivery_timeout=seconds)


def now() -> float:
    return asyncio.get_running_loop().time()
