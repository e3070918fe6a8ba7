"""Our transactions against franz-go's fake cluster: coordinators that answer with errors before and after they act."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from harness.kfake import Kfake
from harness.reading import read_back

from ingestd.client.client import Client
from ingestd.client.group import GroupMember, OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import ErrorCode, ProducerFenced, TransactionFailed
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.go_peers import GoPeer

pytestmark = pytest.mark.peers

TOPIC = "events"


@pytest.fixture
def fake(go_peers: dict[str, GoPeer]) -> Iterator[Kfake]:
    with Kfake(go_peers["kfake"].binary, topic=TOPIC, partitions=2) as running:
        yield running


async def transact(producer: AsyncProducer, number: int) -> None:
    """Records in two partitions, and an offset of a group."""
    async with producer.transaction() as transaction:
        for partition in range(2):
            producer.send(TOPIC, b"%d-%d" % (number, partition), partition=partition)
        await transaction.add_offsets({TopicPartition(TOPIC, 0): OffsetAndMetadata(number)}, GroupMember("group"))


def committed(fake: Kfake) -> dict[int, list[bytes]]:
    """What librdkafka reads as committed."""
    return read_back(fake.servers, TOPIC, isolation="read_committed")


def whole(*numbers: int) -> dict[int, list[bytes]]:
    """These transactions, and nothing else."""
    return {partition: [b"%d-%d" % (number, partition) for number in numbers] for partition in range(2)}


PASSING = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
)
QUESTIONS = (Api.init_producer_id, Api.txn_offset_commit, Api.end_txn)


@pytest.mark.parametrize("api", QUESTIONS)
async def test_what_passes_is_asked_again_and_each_transaction_is_there_once(fake: Kfake, api: Api) -> None:
    settings = ProducerSettings(transactional_id="tx")
    async with Client(fake.bootstrap) as client, AsyncProducer(client, settings) as producer:
        for code in PASSING:
            fake.fail(api, code)
        await producer.init_transactions()
        for number in range(5):
            for code in PASSING:
                fake.fail(api, code)
            fake.disconnect(api)
            await transact(producer, number)
    assert await asyncio.to_thread(committed, fake) == whole(*range(5))


async def test_a_transaction_refused_at_its_end_is_aborted_and_the_next_is_committed(fake: Kfake) -> None:
    settings = ProducerSettings(transactional_id="tx")
    async with Client(fake.bootstrap) as client, AsyncProducer(client, settings) as producer:
        await producer.init_transactions()
        await transact(producer, 0)
        fake.fail(Api.end_txn, ErrorCode.transaction_abortable)
        with pytest.raises(TransactionFailed):
            await transact(producer, 1)
        await transact(producer, 2)
    assert await asyncio.to_thread(committed, fake) == whole(0, 2)


async def test_a_zombie_is_fenced(fake: Kfake) -> None:
    settings = ProducerSettings(transactional_id="tx")
    async with (
        Client(fake.bootstrap) as client,
        AsyncProducer(client, settings) as zombie,
        AsyncProducer(client, settings) as successor,
    ):
        await zombie.init_transactions()
        await zombie.begin()
        zombie.send(TOPIC, b"zombie", partition=0)
        await zombie.flush(20)
        await successor.init_transactions()
        await transact(successor, 0)
        with pytest.raises(ProducerFenced):
            await zombie.commit()
    assert await asyncio.to_thread(committed, fake) == whole(0)
