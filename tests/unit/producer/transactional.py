"""What tests of transactions share: a producer on the cluster in memory, transactions, calls by name."""

from __future__ import annotations

import asyncio
import functools
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from simulated_clock import simulate
from simulated_transactions import CoordinatorFault, TransactionalCluster

from ingestd.client.group import GroupMember, OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import ErrorCode, WrongTransactionState
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence

    from ingestd.producer.delivery import Delivered

BOTH = pytest.mark.parametrize("level", [1, 2])
LOST = CoordinatorFault(lost=True)
UNHEARD = CoordinatorFault(lost=True, done=False)
OFFSETS = {TopicPartition("source", 3): OffsetAndMetadata(17)}
MEMBER = GroupMember("group")


def refusal(code: ErrorCode) -> CoordinatorFault:
    """An answer with this error, before anything happened."""
    return CoordinatorFault(code, done=False)


@asynccontextmanager
async def producing(
    cluster: TransactionalCluster, *, ready: bool = True, **changes: Any
) -> AsyncIterator[AsyncProducer]:
    """A transactional producer, initialized."""
    settings = ProducerSettings(**({"transactional_id": "tx", "delivery_timeout": 20.0} | changes))
    async with AsyncProducer(cluster, settings) as producer:  # type: ignore[arg-type]
        if ready:
            await producer.init_transactions()
        yield producer


def in_simulation(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in simulated time."""

    @functools.wraps(work)
    def run(*arguments: Any, **named: Any) -> None:
        simulate(lambda: work(*arguments, **named))

    return run


async def transact(
    producer: AsyncProducer, *values: bytes, partitions: Sequence[int] = (0,), done: Delivered | None = None
) -> None:
    """A transaction with these records in each of these partitions."""
    async with producer.transaction():
        for value in values:
            for partition in partitions:
                producer.send("events", value, partition=partition, done=done)


async def transact_offsets(producer: AsyncProducer, member: GroupMember, *values: bytes) -> None:
    """A transaction with these records and with offsets of a group's member."""
    async with producer.transaction() as transaction:
        for value in values:
            producer.send("events", value, partition=0)
        await transaction.add_offsets(OFFSETS, member)


async def settled(cluster: TransactionalCluster) -> list[list[bytes]]:
    """What readers of committed records see once the markers are written."""
    await asyncio.sleep(1.0)
    return cluster.committed


class ChangedMindError(Exception):
    """What a block that makes a transaction raises."""


@contextmanager
def changing_mind() -> Iterator[list[BaseException]]:
    """A block that must end in `ChangedMindError`; the exception itself is put into the list."""
    raised: list[BaseException] = []
    try:
        yield raised
    except ChangedMindError as error:
        raised.append(error)
        return
    raise AssertionError("the exception did not go on")


CALLS: dict[str, Callable[[AsyncProducer], Any]] = {
    "init_transactions": lambda producer: producer.init_transactions(),
    "begin": lambda producer: producer.begin(),
    "commit": lambda producer: producer.commit(),
    "abort": lambda producer: producer.abort(),
    "add_offsets": lambda producer: producer.add_offsets(OFFSETS, MEMBER),
    "send": lambda producer: producer.send("events", b"x", partition=0),
    "send_batch": lambda producer: producer.send_batch("events", 0, memoryview(bytearray(100)), 1, print),
}


async def call(producer: AsyncProducer, name: str) -> None:
    """One of `CALLS`, awaited where it is to be."""
    result = CALLS[name](producer)
    if result is not None:
        await result


async def refused(producer: AsyncProducer, *calls: str) -> None:
    """Each of these calls says that the state does not allow it, names it, and changes nothing."""
    before = producer.transaction_state
    for name in calls:
        with pytest.raises(WrongTransactionState, match=before.value):
            await call(producer, name)
        assert producer.transaction_state is before
