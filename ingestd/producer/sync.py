"""Synchronous producer, for plain threads: each call waits for acknowledgements. Owns a thread with an event loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from operator import eq, itemgetter
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from ingestd.client.client import Client
from ingestd.client.loop_thread import CLOSE_MARGIN, LoopThread
from ingestd.errors import BufferFull, IngestdError
from ingestd.producer.failures import NotSent, SendFailed
from ingestd.producer.message import OutgoingMessage, SentMessage
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.records.loops import SendResults

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
    from types import TracebackType

    from ingestd.client.group import GroupMember, OffsetAndMetadata
    from ingestd.client.metadata import TopicPartition
    from ingestd.client.settings import ClientSettings
    from ingestd.producer.transaction_state import TransactionState
    from ingestd.records.decode import Record


__all__ = ["NotSent", "OutgoingMessage", "SendFailed", "SentMessage", "SentMessages", "SyncProducer"]

T = TypeVar("T")

_TRANSACTION_SECONDS: Final = 60.0
"""Seconds for a call about a transaction by default."""


class SentMessages(Sequence[SentMessage]):
    """Where many records are, in the order in which they were given. Each `SentMessage` is made when it is read."""

    __slots__ = ("offsets", "partitions", "timestamps_ms", "topics")

    def __init__(
        self, topics: Sequence[str], partitions: Sequence[int], offsets: Sequence[int], timestamps_ms: Sequence[int]
    ) -> None:
        """Lists with the values of all records, one for each field of `SentMessage`."""
        self.topics = topics
        self.partitions = partitions
        self.offsets = offsets
        self.timestamps_ms = timestamps_ms

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[SentMessage]:
        return map(SentMessage, self.topics, self.partitions, self.offsets, self.timestamps_ms)

    @overload
    def __getitem__(self, index: int) -> SentMessage: ...

    @overload
    def __getitem__(self, index: slice) -> SentMessages: ...

    def __getitem__(self, index: int | slice) -> SentMessage | SentMessages:
        if isinstance(index, slice):
            return SentMessages(
                self.topics[index], self.partitions[index], self.offsets[index], self.timestamps_ms[index]
            )
        return SentMessage(self.topics[index], self.partitions[index], self.offsets[index], self.timestamps_ms[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # as with a list

    def __repr__(self) -> str:
        return repr(list(self))


class SyncProducer:
    """Sends records and waits until they are in the log. For plain threads: any number of them share it.

    Example:
        with SyncProducer(["kafka-1:9092"]) as producer:
            sent = producer.send("orders", b"one", key=b"customer-7")
            print(sent.partition, sent.offset)
            producer.send_many([OutgoingMessage("orders", b"%d" % number) for number in range(1000)])

    Each call raises the error of its records. The records of one `send_many`, and those of many threads, share batches
    and requests. Each single `send` waits for a round trip. The producer has its own client, thread and event loop.
    TLS and accounts are in `client_settings`, the settings of `AsyncProducer` in `settings`.

    With a `transactional_id` in its settings it is transactional. Call `init_transactions` once. Then send within
    `transaction` (or between `begin` and `commit` or `abort`). There is one transaction at a time: what any thread
    sends belongs to it.

    Invariants
        Its thread, client and connections end with `close`. Dropped unclosed, it warns (ResourceWarning), and its
        thread ends too.
        A call returns when each of its records has succeeded or failed.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        settings: ProducerSettings | None = None,
        client_settings: ClientSettings | None = None,
        *,
        make_client: Callable[[], Client] | None = None,
    ) -> None:
        """Start the thread; nothing is connected before the first `send`. `bootstrap`: addresses, each "host:port".

        Without `settings` the linger is 0: a caller that waits for each record gains nothing from it. `make_client` is
        called on the loop. It makes the client, instead of `bootstrap` and `client_settings`. Raises
        `ConfigurationError`.
        """
        settings = ProducerSettings(linger=0.0) if settings is None else settings
        build = make_client or (lambda: Client(bootstrap, client_settings))
        self._host = LoopThread("producer")
        self._client, self._producer = self._host.begin(_build(build, settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_producer"):  # it was made
            self._host.drop(self, partial(_end, self._client, self._producer, 0.0))

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> SentMessage:
        """Send one record and wait. Returns where it is. The arguments are those of `AsyncProducer.send`.

        Raises its error: `KafkaError`, `DeadlineExceeded` after `delivery_timeout`, `Closed`; `TypeError` for a value
        that is not bytes.
        """
        work = self._producer.send_and_wait(
            topic, value, key=key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
        )
        return self._call(work, None, "sending")

    def send_many(self, messages: Iterable[OutgoingMessage]) -> SentMessages:
        """Send records and wait until each has succeeded or failed. Returns where they are, in the order given.

        Raises `SendFailed`, which names those that failed, after all others have succeeded. Raises `Closed`. If one is
        not a record, `TypeError` or `ValueError` is raised when those before it have ended. Those after it are not
        sent.
        """
        given = list(messages)
        if not given:
            return SentMessages((), (), (), ())
        return self._call(_send_many(self._producer, given), None, "sending")

    def flush(self, timeout: float = 30.0) -> None:
        """Send at once the records of other threads' calls, and wait for them, for up to `timeout` seconds.

        Errors of records are raised where they were sent. Raises `DeadlineExceeded`, `Closed`.
        """
        self._call(self._producer.flush(timeout), timeout + CLOSE_MARGIN, "flushing")

    # Transactions. Each call raises what the same call of `AsyncProducer` raises.

    @property
    def is_transactional(self) -> bool:
        """Whether the producer has a transactional id."""
        return self._producer.is_transactional

    @property
    def transaction_state(self) -> TransactionState:
        """Where a transactional producer stands. Raises `WrongTransactionState` for one that is not."""
        return self._producer.transaction_state

    def init_transactions(self, timeout: float = _TRANSACTION_SECONDS) -> None:
        """Take the transactional id over: fence other producers with it, and abort a transaction that is open."""
        self._transact(self._producer.init_transactions(timeout), timeout, "init_transactions")

    @contextmanager
    def transaction(self, timeout: float = _TRANSACTION_SECONDS) -> Iterator[None]:
        """`with producer.transaction():` commits at the end, and aborts on any exception, which goes on."""
        transaction = self._producer.transaction(timeout)
        self._transact(transaction.__aenter__(), timeout, "begin")
        try:
            yield
        except BaseException as error:
            try:
                self._transact(transaction.__aexit__(type(error), error, error.__traceback__), timeout, "abort")
            except IngestdError as trouble:
                error.add_note(f"the transaction was not aborted: {trouble}")
            raise
        # A commit that fails is followed by an abort.
        self._transact(transaction.__aexit__(None, None, None), 2 * timeout, "commit")

    def begin(self, timeout: float = _TRANSACTION_SECONDS) -> None:
        """Open a transaction."""
        self._transact(self._producer.begin(timeout), timeout, "begin")

    def commit(self, timeout: float = _TRANSACTION_SECONDS) -> None:
        """Wait until every record of the transaction is acknowledged, then commit."""
        self._transact(self._producer.commit(timeout), timeout, "commit")

    def abort(self, timeout: float = _TRANSACTION_SECONDS) -> None:
        """Abort the transaction. Its records that are not acknowledged fail with `TransactionFailed`."""
        self._transact(self._producer.abort(timeout), timeout, "abort")

    def add_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: GroupMember,
        timeout: float = _TRANSACTION_SECONDS,
    ) -> None:
        """Commit offsets of a group with the transaction. An offset is the next one to read, not the last one read."""
        self._transact(self._producer.add_offsets(offsets, member, timeout), timeout, "add_offsets")

    def add_message(
        self,
        partition: TopicPartition,
        record: Record,
        member: GroupMember,
        *,
        metadata: str = "",
        timeout: float = _TRANSACTION_SECONDS,
    ) -> None:
        """Mark a consumed record of `partition` as done, with the transaction."""
        work = self._producer.add_message(partition, record, member, metadata=metadata, timeout=timeout)
        self._transact(work, timeout, "add_message")

    def _transact(self, work: Coroutine[Any, Any, object], timeout: float, doing: str) -> None:
        self._call(work, timeout + CLOSE_MARGIN, doing)

    def close(self, timeout: float = 30.0) -> None:
        """Send for up to `timeout` seconds, fail the rest with `Closed`, and end the thread. Safe to call twice.

        An open transaction is aborted. Raises `DeadlineExceeded` if something blocks the thread.
        """
        # Calls of other threads that are under way end with the records they wait for.
        self._host.close(partial(_end, self._client, self._producer, timeout), timeout)

    def _call(self, work: Coroutine[Any, Any, T], timeout: float | None, doing: str) -> T:
        return self._host.call(work, timeout, doing)


async def _build(make_client: Callable[[], Client], settings: ProducerSettings) -> tuple[Client, AsyncProducer]:
    client = make_client()
    return client, AsyncProducer(client, settings)


async def _end(client: Client, producer: AsyncProducer, timeout: float) -> None:
    try:
        await producer.close(timeout)
    finally:
        await client.close()


async def _send_many(producer: AsyncProducer, messages: list[OutgoingMessage]) -> SentMessages:
    """Hand over every message, waiting for room as needed; where they are, once all have ended."""
    all_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    results = SendResults(messages, partial(_end_wait, all_ended), time.time_ns() // 1_000_000)
    while results.given < len(messages):
        try:
            producer.send_each(results)
        except BufferFull:
            await producer.room()
        except IngestdError as error:
            results.refuse(error)
        except Exception as error:
            # What is no record at all. Those before it are on their way: they have ended when the caller hears of it.
            index, wrong = results.given, messages[results.given]
            while results.given < len(messages):
                results.refuse(error)
            await all_ended
            if not isinstance(wrong, OutgoingMessage):
                raise TypeError(f"messages[{index}]: {wrong!r}; expected an OutgoingMessage") from None
            raise
    await all_ended
    if results.failures:
        in_order = sorted(results.failures, key=itemgetter(0))
        failures = [NotSent(index, messages[index], error) for index, error in in_order]
        records = Counter(failure.message[0] for failure in failures)
        raise SendFailed(failures[0].error, records, failures, given=len(messages))
    return SentMessages([message[0] for message in messages], results.partitions, results.offsets, results.timestamps)


def _end_wait(awaited: asyncio.Future[None]) -> None:
    if not awaited.done():  # who waits may have given up
        awaited.set_result(None)
