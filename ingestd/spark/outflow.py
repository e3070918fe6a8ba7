"""Outflow: sends ready record batches from a plain thread, with a client, a producer and a loop of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ingestd.client.admin import ClusterAdmin
from ingestd.client.client import Client
from ingestd.client.loop_thread import CLOSE_MARGIN, LoopThread
from ingestd.errors import CommitOutcomeUnknown, ErrorCode, IngestdError, KafkaError, is_retriable
from ingestd.figures import in_count
from ingestd.producer.identity import ProducerIdentity
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.transaction_coordinator import EndedTransaction, RequestedTransactions
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from ingestd.client.group import GroupMember, OffsetAndMetadata
    from ingestd.client.metadata import TopicPartition
    from ingestd.producer.delivery import Delivery
    from ingestd.producer.settings import ProducerSettings
    from ingestd.spark.cluster import Cluster

__all__ = ["OpenTransaction", "Outflow", "end_transactions"]

T = TypeVar("T")

_MOST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of batches that are not acknowledged."""
_END_SECONDS: Final = 10.0
_AT_ONCE: Final = 50
"""Transactions that are being ended."""
_PAUSE: Final = 0.1


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that waits for somebody to end it. Pickles."""

    transactional_id: str
    producer_id: int
    epoch: int
    implicit: bool


class _LeavesOpen(RequestedTransactions):
    """Asks the cluster, but for the end of a transaction that was left open."""

    def __init__(self, client: Client, settings: ProducerSettings) -> None:
        super().__init__(client, settings)
        self._name = settings.transactional_id or ""
        self._identity: ProducerIdentity | None = None
        self._left = False

    def leave_open(self) -> OpenTransaction:
        assert self._identity is not None, "the producer was initialized"
        self._left = True
        return OpenTransaction(self._name, self._identity.producer_id, self._identity.epoch, self.implicit)

    async def initialize(self, previous: ProducerIdentity | None, deadline: Deadline) -> ProducerIdentity:
        self._identity = await super().initialize(previous, deadline)
        return self._identity

    async def end(
        self, identity: ProducerIdentity, *, commit: bool, implicit: bool, deadline: Deadline
    ) -> EndedTransaction:
        if self._left:
            return EndedTransaction(identity)
        return await super().end(identity, commit=commit, implicit=implicit, deadline=deadline)


async def end_transactions(
    cluster: Cluster, settings: ProducerSettings, left: Sequence[OpenTransaction], *, commit: bool
) -> None:
    """Commit, or abort, transactions that were left open. A commit whose outcome is not known is asked for again.

    Raises `KafkaError`, `DeadlineExceeded`, `CommitOutcomeUnknown`, after all have been tried.
    """
    client = Client(cluster.bootstrap, cluster.client)
    deadline = Deadline.after(settings.metadata_timeout)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def end(one: OpenTransaction) -> None:
        asked = RequestedTransactions(client, replace(settings, transactional_id=one.transactional_id))
        identity = ProducerIdentity(one.producer_id, one.epoch)
        async with turns:
            while True:
                try:
                    await asked.end(identity, commit=commit, implicit=one.implicit, deadline=deadline)
                except CommitOutcomeUnknown as error:
                    if deadline.remaining <= 0 or error.__cause__ is None or not is_retriable(error.__cause__):
                        raise
                    await asyncio.sleep(_PAUSE)
                else:
                    return

    try:
        ends = await asyncio.gather(*map(end, left), return_exceptions=True)
    finally:
        await client.close(_END_SECONDS / 2)
    for error in ends:
        if error is not None:
            raise error


class Outflow:
    """Takes batches until `finish`, which waits for all of them. Used again after that. For one thread at a time.

    Invariants
        Batches of a partition are in its log in the order of `send`, whatever is sent again.
        No more than `_MOST_BYTES` wait, but for one batch beyond it.
        The first error of a batch is raised by the next `send` or `finish`.
    """

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._settings = settings
        self._host = LoopThread("sink")
        self._client, self._coordinator, self._producer = self._host.begin(_build(cluster, settings))
        self._waiting = 0
        self._error: IngestdError | None = None
        self._ended = asyncio.Event()

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has. It is created if the brokers do that. Raises `KafkaError`."""
        seconds = self._settings.metadata_timeout
        return self._call(_partitions(self._client, topic, seconds), seconds, f"partitions of {topic}")

    def send(self, topic: str, partition: int, batch: bytearray | memoryview, records: int) -> None:
        """Send a batch that is not sealed. Waits while too much is on its way. Raises the first error of a batch."""
        self._call(self._send(topic, partition, batch, records), self._settings.delivery_timeout, f"sending to {topic}")

    def finish(self) -> None:
        """Wait until every batch is acknowledged. Raises the first error of one."""
        self._call(self._all_ended(), self._settings.delivery_timeout, "waiting for acknowledgements")

    def begin(self) -> None:
        """Take the transactional id over, and open a transaction. What another one left open is aborted."""
        seconds = self._settings.metadata_timeout
        self._call(self._producer.init_transactions(seconds), seconds, "init_transactions")
        self._call(self._producer.begin(seconds), seconds, "begin")

    def add_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: GroupMember) -> None:
        """Have offsets of a group committed with the transaction."""
        seconds = self._settings.metadata_timeout
        self._call(self._producer.add_offsets(offsets, member, seconds), seconds, "add_offsets")

    def leave_open(self) -> OpenTransaction:
        """From now on nothing here ends the transaction, `close` neither. Every batch of it was acknowledged."""
        assert self._coordinator is not None, "there is a transactional id"
        return self._coordinator.leave_open()

    def committed(self, group: str, partition: TopicPartition) -> OffsetAndMetadata | None:
        """What the group has committed of a partition; an open transaction is waited for. Raises `IngestdError`."""
        seconds = self._settings.metadata_timeout
        return self._call(_committed(self._client, group, partition, seconds), seconds, f"offsets of {group}")

    def close(self) -> None:
        """End the client, the producer and the thread. What is on its way then is given up."""
        self._host.close(partial(_end, self._client, self._producer), _END_SECONDS)

    def _call(self, work: Coroutine[Any, Any, T], seconds: float, doing: str) -> T:
        return self._host.call(work, seconds + CLOSE_MARGIN, doing, lambda: self._client.trouble or "no broker answers")

    async def _send(self, topic: str, partition: int, batch: bytearray | memoryview, records: int) -> None:
        while self._waiting >= _MOST_BYTES and self._error is None:
            self._ended.clear()
            await self._ended.wait()
        self._raise()
        size = len(batch)
        self._producer.send_batch(topic, partition, memoryview(batch), records, partial(self._done, size))
        self._waiting += size

    async def _all_ended(self) -> None:
        while self._waiting:
            self._ended.clear()
            await self._ended.wait()
        self._raise()

    def _done(self, size: int, delivery: Delivery) -> None:
        self._waiting -= size
        if delivery.error is not None and self._error is None:
            where = f"{delivery.topic}-{delivery.partition}"
            self._error = IngestdError(
                f"ingestd sink: {in_count(delivery.records, 'row')} for {where}: {delivery.error}"
            )
            self._error.__cause__ = delivery.error
        self._ended.set()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


async def _build(cluster: Cluster, settings: ProducerSettings) -> tuple[Client, _LeavesOpen | None, AsyncProducer]:
    client = Client(cluster.bootstrap, cluster.client)
    coordinator = None if settings.transactional_id is None else _LeavesOpen(client, settings)
    return client, coordinator, AsyncProducer(client, settings, coordinator=coordinator)


async def _end(client: Client, producer: AsyncProducer) -> None:
    try:
        await producer.close(_END_SECONDS / 2)
    finally:
        await client.close(_END_SECONDS / 2)


async def _partitions(client: Client, topic: str, seconds: float) -> int:
    try:
        return len(await client.partitions(topic, seconds))
    except KafkaError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
    await client.metadata.refresh([topic], seconds, create=True)
    return len(await client.partitions(topic, seconds))


async def _committed(client: Client, group: str, partition: TopicPartition, seconds: float) -> OffsetAndMetadata | None:
    (found,) = await ClusterAdmin(client).list_group_offsets({group: [partition]}, require_stable=True, timeout=seconds)
    if found.error is not None:
        raise found.error
    if partition in found.errors:
        raise found.errors[partition]
    return found.offsets.get(partition)
