"""Asynchronous producer: takes records and ready batches. Each ends in exactly one delivery."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from ingestd.checks import require_client, require_settings
from ingestd.client.group import OffsetAndMetadata
from ingestd.errors import (
    BufferFull,
    Closed,
    DeadlineExceeded,
    IngestdError,
    UsedAfterFork,
    WrongTransactionState,
)
from ingestd.producer.batch import Batch
from ingestd.producer.dispatcher import Dispatcher
from ingestd.producer.failures import SendFailed
from ingestd.producer.identity import FetchedIdentities
from ingestd.producer.interceptors import Interceptors
from ingestd.producer.ledger import Ledger
from ingestd.producer.message import OutgoingMessage, SentMessage
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.transaction import Transaction
from ingestd.producer.transaction_state import TransactionState
from ingestd.records.batch import HEADER_BYTES, codec_of
from ingestd.records.loops import RecordIntake
from ingestd.retry import Deadline
from ingestd.tasks import TaskOwner, same_loop, tell_of_fork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from ingestd.client.client import Client
    from ingestd.client.group import GroupMember
    from ingestd.client.metadata import TopicPartition
    from ingestd.producer.delivery import Delivered, Delivery
    from ingestd.producer.events import ProducerEvents
    from ingestd.producer.identity import IdentitySource
    from ingestd.producer.transaction_coordinator import TransactionCoordinator
    from ingestd.producer.transactions import Transactions
    from ingestd.records.decode import Record

__all__ = ["AsyncProducer"]


_log = logging.getLogger(__name__)

_FLUSH_SECONDS: Final = 30.0
"""Seconds for `flush` and `close` by default."""
_TRANSACTION_SECONDS: Final = 60.0
"""Seconds for a call about a transaction by default."""


class AsyncProducer(RecordIntake):
    """Sends records to any number of topics. Belongs to one event loop, and shares a client, which it does not close.

    Example:
        async with Client(["kafka-1:9092"]) as client, AsyncProducer(client) as producer:
            for number in range(1000):
                while True:
                    try:
                        producer.send("orders", b"%d" % number, key=b"customer-7")
                        break
                    except BufferFull:
                        await producer.room()
            await producer.flush()
            sent = await producer.send_and_wait("orders", b"the last one")
            print(sent.partition, sent.offset)

    `send` is a plain call. The record is sent with others, after `linger` seconds at most. `flush` waits for all
    records, and so does the end of the block. Both raise `SendFailed` if some were not delivered. To know how each
    record ends, give `send` a `done`, or call `send_future`. `send_and_wait` is for a record now and then.

    What most programs set, in `ProducerSettings`: `compression` ("lz4", "zstd:3"), `linger`, `delivery_timeout`,
    `acks`, `partitioner`. By default it is idempotent and all in-sync replicas acknowledge.

    With a `transactional_id` in its settings it is transactional. Call `init_transactions` once. Then records are
    accepted only within `transaction` (or between `begin` and `commit` or `abort`). There a delivery says that a record
    is in the log. Readers of committed records see it after the commit.

    Invariants
        What `send` or `send_batch` accepted ends in exactly one call of its `done`, before `close` has ended. No
        transport holds a batch whose `done` was called.
        Within a partition, records are in the log in the order of the calls.
    """

    def __init__(
        self,
        client: Client,
        settings: ProducerSettings | None = None,
        *,
        identities: IdentitySource | None = None,
        coordinator: TransactionCoordinator | None = None,
        events: ProducerEvents | None = None,
    ) -> None:
        """Needs a running loop from the first `send` on; takes no connection and asks for nothing before that.

        `events` hears what becomes of batches, for metrics. `identities` and `coordinator` are for processes whose
        producer ids, or transactions, another one looks after. Raises `ConfigurationError` for what is no client, or no
        `ProducerSettings`.
        """
        require_client(client)
        settings = require_settings(settings, ProducerSettings)
        self._settings = settings
        self._ledger = Ledger(settings.buffer_bytes)
        super().__init__(self._ledger.allowance)
        self._tasks = TaskOwner()
        self._closing = False
        self._transactions: Transactions | None = None
        self._interceptors = Interceptors(settings.interceptors, self._untold) if settings.interceptors else None
        if settings.transactional_id is not None:
            # Imported here: no other producer pays for them.
            from ingestd.producer.transaction_coordinator import RequestedTransactions  # noqa: PLC0415
            from ingestd.producer.transactions import TransactionEvents, Transactions  # noqa: PLC0415

            coordinator = RequestedTransactions(client, settings) if coordinator is None else coordinator
            self._transactions = Transactions(coordinator, settings, self._tasks, self._transaction_changed)
            events = TransactionEvents(self._transactions.failed, events)
            self._ledger.shut()
        self._dispatcher = Dispatcher(
            client,
            settings,
            FetchedIdentities(client, settings.request_timeout) if identities is None else identities,
            self._ledger,
            self._tasks,
            events,
            # The short way knows no interceptors. If there are any, every record goes the long way.
            self._intakes if self._interceptors is None else {},
            self._transactions,
        )
        self._closed = False
        self._forked: IngestdError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        tell_of_fork(self)
        self._stop_status = client.add_status("producer", self.status)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. Raises what `close` raises. An exception that ended the block goes on instead, with a note."""
        try:
            await self.close()
        except SendFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))

    def __del__(self) -> None:
        left = 0 if getattr(self, "_closed", True) else self._ledger.entries
        if left:
            _log.warning("producer dropped without close: %d batches were not delivered", left)

    @property
    def outstanding(self) -> int:
        """How many batches, and records that wait for the metadata of their topic, are accepted and not done."""
        return self._ledger.entries

    @property
    def interceptor_failures(self) -> int:
        """How often an interceptor raised; each is logged."""
        return 0 if self._interceptors is None else self._interceptors.failures

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records given to `send` that are accepted and not done; `BufferFull` begins at `buffer_bytes`."""
        return self._ledger.bytes

    def status(self) -> dict[str, Any]:
        """What the producer does now, for bug reports, in values that JSON can hold. Part of `Client.status`."""
        ended = self._dispatcher.ended
        transactions = self._transactions
        return {
            "transactional_id": self._settings.transactional_id,
            "transaction": None if transactions is None else transactions.status(),
            "outstanding": self.outstanding,
            "buffered_bytes": self.buffered_bytes,
            "buffer_bytes": self._settings.buffer_bytes,
            "ended": None if ended is None else str(ended),
        }

    def _take(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
        done: Delivered | None,
    ) -> None:
        """Accept or refuse a record: the long way of `send`, which is in `records/_intake_plain.py`.

        If you add a reason to refuse records here, make sure that they come here: call `Ledger.shut`, or close the open
        batches.
        """
        self._check_open("send")
        if self._ledger.full:
            waiting, bound = self._ledger.bytes, self._settings.buffer_bytes
            raise BufferFull(f"{waiting} bytes wait to be acknowledged; the bound is {bound}")
        if self._interceptors is not None:
            message = OutgoingMessage(topic, value, key, partition, headers, timestamp_ms)
            self._interceptors.send(message, done, self._accept)
            return
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        self._dispatcher.topic(topic).send(key, value, partition, headers, timestamp_ms, done)

    def _accept(self, message: OutgoingMessage, done: Delivered | None) -> None:
        """What interceptors made of a record."""
        stamp = time.time_ns() // 1_000_000 if message.timestamp_ms is None else message.timestamp_ms
        producer = self._dispatcher.topic(message.topic)
        producer.send(message.key, message.value, message.partition, message.headers, stamp, done)

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> SentMessage:
        """Send one record as soon as there is room, and wait until it is in the log. Returns where it is.

        Raises what `send` raises (but not `BufferFull`), and the record's own error. A caller that is cancelled
        meanwhile does not know how the record ends: it is on its way.
        """
        while True:
            try:
                sending = self.send_future(
                    topic, value, key=key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
                )
            except BufferFull:
                await self.room()
            else:
                return await sending

    def send_future(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[SentMessage]:
        """`send`, with a future for this record: where it is, or its error. Raises what `send` raises.

        For programs that send more before they wait. For many records `send` with `flush` is far cheaper.
        """
        self._check_place()
        stamp = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        ended: asyncio.Future[SentMessage] = asyncio.get_running_loop().create_future()

        def done(delivery: Delivery) -> None:
            if ended.done():  # cancelled
                return
            if delivery.error is not None:
                ended.set_exception(delivery.error)
                return
            at = stamp if delivery.log_append_time_ms < 0 else delivery.log_append_time_ms
            ended.set_result(SentMessage(delivery.topic, delivery.partition, delivery.base_offset, at))

        self.send(topic, value, key=key, partition=partition, headers=headers, timestamp_ms=stamp, done=done)
        return ended

    async def room(self) -> None:
        """Wait until `send` has room. Returns at once if the producer is closed: then `send` raises."""
        self._check_place()
        if not self._closing:
            await self._ledger.room()

    def send_batch(self, topic: str, partition: int, batch: memoryview, records: int, done: Delivered) -> None:
        """Accept a ready v2 batch of `records` records with base offset 0.

        The producer writes its producer fields and its CRC in place, so `batch` must be writable. Its memory must not
        change until `done`, and is not touched after that. `buffer_bytes` does not count it: the caller bounds the
        memory. Raises `Closed`, `KafkaError` (an invalid partition, or what ended the producer), `UnsupportedCodec`
        for a compression type that does not exist, `ValueError` for memory that cannot be written, or that cannot hold
        a batch.
        """
        self._check_open("send_batch")
        if batch.readonly or not batch.c_contiguous or batch.itemsize != 1 or len(batch) <= HEADER_BYTES or records < 1:
            raise ValueError(
                f"{topic}[{partition}]: {records} records in {batch!r}; expected one in writable, contiguous bytes"
            )
        codec_of(batch)
        now = time.monotonic()
        producer = self._dispatcher.topic(topic).producer_of(partition)
        generation = self._ledger.enter()
        producer.offer(Batch(batch, records, done, now, now + self._settings.delivery_timeout, generation))

    def recall(self, topic: str, partition: int) -> None:
        """End what was never sent to this partition, with `Closed`. What was sent goes on to its end.

        Raises `KafkaError` for an invalid topic or partition.
        """
        self._check_place()
        error = Closed(f"{topic}[{partition}]: recalled before it was sent")
        self._dispatcher.topic(topic).producer_of(partition).recall(error)

    def _check_open(self, doing: str) -> None:
        """Raise the reason if nothing is accepted now."""
        self._check_place()
        if self._closing:
            raise Closed("the producer is closed")
        if self._dispatcher.ended is not None:
            raise self._dispatcher.ended
        if self._transactions is not None:
            self._transactions.require_open(doing)

    async def flush(self, timeout: float = _FLUSH_SECONDS) -> None:
        """Send all open batches now, and wait until everything that was accepted before this call is done.

        Raises `DeadlineExceeded` after `timeout` seconds; sending goes on. Raises `SendFailed` if records without
        `done` failed since the last flush. Each failure is raised once, and may be a warning in the log too. In a
        transaction `commit` raises instead.
        """
        self._check_place()
        await self._dispatcher.flush(Deadline.after(timeout), "flushing the producer")
        failed = self._ledger.failures.take()
        if failed is not None:
            raise failed from failed.error

    def _untold(self, topic: str, records: int, error: IngestdError) -> None:
        if self._transactions is None:
            self._ledger.failures.note(topic, records, error)

    def forked(self) -> None:
        """See `Forkable`: in the child every call raises `UsedAfterFork`, but for `close`, which does nothing there."""
        self._forked = UsedAfterFork("the producer was made before this process was forked; make one here")
        self._closed = True
        self._ledger.shut()

    def _check_process(self) -> None:
        if self._forked is not None:
            raise self._forked

    def _check_place(self) -> None:
        self._check_process()
        self._loop = same_loop(self._loop, "the producer")
        self._thread = threading.get_ident()

    # Transactions

    @property
    def is_transactional(self) -> bool:
        """Whether the producer has a transactional id."""
        return self._transactions is not None

    @property
    def transaction_state(self) -> TransactionState:
        """Where a transactional producer stands. Raises `WrongTransactionState` for one that is not."""
        return self._transactional("transaction_state").state

    async def init_transactions(self, timeout: float = _TRANSACTION_SECONDS) -> None:
        """Take the transactional id over, before the first transaction.

        When this returns, other producers with this id are fenced, and the transaction that one left open is aborted.
        Raises
        `DeadlineExceeded` (it may be called again), `KafkaError`, `WrongTransactionState`.
        """
        await self._transactional("init_transactions").initialize(timeout)

    def transaction(self, timeout: float = _TRANSACTION_SECONDS) -> Transaction:
        """`async with producer.transaction() as transaction:` commits at the end, and aborts on any exception.

        `timeout` is for its beginning, and for its end. See `Transaction`.
        """
        return Transaction(self._transactional("transaction"), timeout)

    async def begin(self, timeout: float = _TRANSACTION_SECONDS) -> None:
        """Open a transaction. Raises `WrongTransactionState`, `DeadlineExceeded`, `KafkaError`.

        It asks the cluster only if an abort was not finished, or made a new epoch necessary.
        """
        await self._transactional("begin").begin(timeout)

    async def commit(self, timeout: float = _TRANSACTION_SECONDS) -> None:
        """Wait until every record of the transaction is acknowledged, then commit.

        Raises `TransactionFailed`: certainly not committed, to be aborted. `CommitOutcomeUnknown`: to be called again.
        `ProducerFenced` (`KafkaError` where it may not commit at all): certainly not committed, and the producer's end.
        """
        await self._transactional("commit").commit(timeout)

    async def abort(self, timeout: float = _TRANSACTION_SECONDS) -> None:
        """Abort the transaction. Its records that are not acknowledged fail with `TransactionFailed`.

        Raises `DeadlineExceeded` (call it again, or `begin`), `KafkaError`, `WrongTransactionState`.
        """
        await self._transactional("abort").abort(timeout)

    async def add_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: GroupMember,
        timeout: float = _TRANSACTION_SECONDS,
    ) -> None:
        """Commit offsets of a group with the transaction. An offset is the next one to read, not the last one read.

        The coordinator refuses a `member` of an older generation (KIP-447). Raises `KafkaError`, `DeadlineExceeded`.
        After each of them the transaction can only be aborted.
        """
        await self._transactional("add_offsets").add_offsets(offsets, member, timeout)

    async def add_message(
        self,
        partition: TopicPartition,
        record: Record,
        member: GroupMember,
        *,
        metadata: str = "",
        timeout: float = _TRANSACTION_SECONDS,
    ) -> None:
        """Mark a consumed record of `partition` as done, with the transaction. As `add_offsets`, which takes many."""
        await self.add_offsets({partition: OffsetAndMetadata(record.offset + 1, metadata=metadata)}, member, timeout)

    def _transactional(self, doing: str) -> Transactions:
        if self._transactions is None:
            raise WrongTransactionState(f"{doing}: the producer has no transactional_id in its settings")
        self._check_process()
        if self._closing:
            raise Closed("the producer is closed")
        return self._transactions

    def _transaction_changed(self) -> None:
        assert self._transactions is not None
        if self._transactions.state is TransactionState.IN_TRANSACTION and not self._closing:
            self._ledger.reopen()
        else:
            self._ledger.shut()

    async def close(self, timeout: float = _FLUSH_SECONDS) -> None:
        """Accept nothing more, send for up to `timeout` seconds, and fail the rest with `Closed`. Safe to call twice.

        Raises `SendFailed` if records without `done` failed since the last flush, those that it fails itself included.
        The producer is closed nevertheless. An open transaction is aborted. If that does not succeed in time, the
        broker does it at the transaction's timeout.
        """
        if self._closed:
            return
        self._closing = True
        undone = f"not drained within {timeout:g} s"
        self._ledger.shut()
        self._ledger.wake_all()
        try:
            if self._transactions is not None:
                await self._close_transaction(self._transactions, timeout)
            else:
                self._check_place()
                await self._dispatcher.flush(Deadline.after(timeout), "draining the producer")
        except DeadlineExceeded as late:
            undone = str(late)
        finally:
            self._closed = True
            self._stop_status()
            self._dispatcher.end(Closed(f"the producer was closed: {undone}"))
            self._ledger.failures.say()
            await self._tasks.close()
        failed = self._ledger.failures.take()
        if failed is not None:
            raise failed from failed.error

    async def _close_transaction(self, transactions: Transactions, timeout: float) -> None:
        try:
            await transactions.close(timeout)
        except IngestdError as error:
            _log.warning("%s: a transaction was left open: %s", self._settings.transactional_id, error)
        finally:
            transactions.end()
