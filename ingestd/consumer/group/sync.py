"""The synchronous consumer group: a member for plain threads. Owns a thread with an event loop."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from ingestd.checks import require_settings
from ingestd.client.client import Client
from ingestd.client.loop_thread import CLOSE_MARGIN, LoopThread, soon
from ingestd.client.settings import ClientSettings
from ingestd.consumer.group.consumer_group import ConsumerGroup, several
from ingestd.consumer.group.group_records import most_of
from ingestd.consumer.group.relayed import Relayed
from ingestd.consumer.group.settings import GroupSettings
from ingestd.errors import IngestdError
from ingestd.retry import Deadline
from ingestd.tasks import tell_of_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import TracebackType

    from ingestd.client.group import GroupMember, OffsetAndMetadata
    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.group.membership import Topics
    from ingestd.consumer.group.relayed import Callback
    from ingestd.consumer.settings import Start
    from ingestd.records.columns import Columns
    from ingestd.records.decode import Record

__all__ = ["SyncConsumerGroup"]

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.5
"""So long records are given without a look at the loop: what was processed is marked there, callbacks wait there."""
_CALL_SECONDS: Final = 60.0
"""For a call that asks brokers for something, where it has no timeout of its own."""


class SyncConsumerGroup:
    """A member of a group, for plain threads: reads the partitions that it is assigned and commits their offsets.

    Example:
        settings = GroupSettings(no_offset="earliest")
        with SyncConsumerGroup(["kafka-1:9092"], "billing", ["orders"], settings) as group:
            while True:
                record = group.poll(1.0)
                if record is not None:
                    print(record.topic, record.partition, record.offset, record.value)

    It joins at once. `poll` gives one record; `take_chunks` and `take_columns` give many, by partition. Each goes on
    where the last one stopped. What was given counts as processed when more is asked for, when `commit` is called, and
    on `close`, but not when the `with` block ends with an exception. What was not given is never committed: delivery
    is at least once.

    Commits, by `GroupSettings.auto_commit_interval` (Kafka's `enable.auto.commit`): with a number, which is the
    default, what was processed is committed every so many seconds, before its partition goes to another member, and on
    `close`. With None nothing is committed but by `commit`, not on `close` either.

    `assigned`, `revoked` and `lost` are called with a list of partitions, in the caller's thread, from within `poll`,
    `take_chunks`, `take_columns` and `close`. A callback may call `commit`, `seek`, `pause`, `resume` and `assignment`.
    In `assigned` a `seek` says where to begin. In `revoked` the partitions are still ours: `commit` counts. In `lost`
    others may have them already; without `lost`, `revoked` is called. What a callback raises comes out of the call.

    Heartbeats do not depend on the caller. A rebalance waits for the caller to ask for more, `rebalance_timeout` at
    most; what it was given and did not commit by then is read again by others. A caller that works for longer than
    `max_poll_interval` on what it was given leaves the group: `PollIntervalExceeded`.

    One thread at a time may use it. TLS and accounts are in `client_settings`.

    Invariants
        What was not given is never marked.
        Callbacks run in the caller's thread, one at a time, in the order in which their causes came.
        Its thread, client and connections end with `close`; one that is dropped unclosed says so (ResourceWarning).
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        group_id: str,
        topics: Topics,
        settings: GroupSettings | None = None,
        client_settings: ClientSettings | None = None,
        *,
        assigned: Callback | None = None,
        revoked: Callback | None = None,
        lost: Callback | None = None,
    ) -> None:
        """Start the thread and begin to join. `bootstrap`: addresses, each "host:port". `topics`: names or a pattern.

        Raises `ConfigurationError`. That no broker is reached is a warning in the log: `poll` waits.
        """
        self._settings = require_settings(settings, GroupSettings)
        self._calling = False
        self._look_at = 0.0
        """On the monotonic clock: when to look at the loop again. Never ahead once it is closed, or forked."""
        client_settings = require_settings(client_settings, ClientSettings)
        callbacks = (assigned, revoked, lost)
        build = _build(bootstrap, group_id, several(topics), self._settings, client_settings, callbacks)
        self._host = LoopThread("consumer group")
        self._client, self._group, self._records = self._host.begin(build)
        self._at_hand = self._records.at_hand
        tell_of_fork(self)

    def poll(self, timeout: float = 1.0) -> Record | None:
        """The next record; None: there was none for `timeout` seconds. Calls callbacks.

        Raises what ended the membership, once: `KafkaError`, `PollIntervalExceeded`; who asks again joins again.
        `CorruptBatch` until a `seek` goes past it; `Closed`, `UsedAfterFork`.
        """
        if monotonic() < self._look_at and (record := self._at_hand()) is not None:
            return record
        return self._ask(1, self._records.give_one, timeout)

    def take_chunks(self, timeout: float = 1.0, max_records: int | None = None) -> dict[TopicPartition, list[Record]]:
        """All records at hand, by partition, up to `max_records`; what other clients call `getmany` or `consume`.

        Waits up to `timeout` seconds for the first; empty: there was none. Calls callbacks. Raises what `poll` raises.
        """
        most = most_of(max_records)
        return self._ask(most, partial(self._records.give_chunks, most), timeout) or {}

    def take_columns(self, timeout: float = 1.0, max_records: int | None = None) -> dict[TopicPartition, list[Columns]]:
        """All that is at hand as columns, by partition, one value for each record batch; otherwise as `take_chunks`.

        What one fetch brought of a partition is given whole: there may be more than `max_records`.
        """
        return self._ask(most_of(max_records), self._records.give_columns, timeout) or {}

    def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, timeout: float | None = None
    ) -> None:
        """Commit what was given, which counts as processed from now on; or these offsets: the next ones to read.

        Waits for it, `timeout` seconds, `GroupSettings.commit_timeout` where it is None. Raises `KafkaError`,
        REBALANCE_IN_PROGRESS among others where a partition was given up meanwhile (its records come again, to its new
        owner); `IngestdError` for a partition that is not assigned, `DeadlineExceeded`, `Closed`.
        """
        seconds = self._settings.commit_timeout if timeout is None else timeout
        self._host.call(self._records.commit(offsets, timeout), seconds + CLOSE_MARGIN, "commit")

    def seek(self, partition: TopicPartition, start: Start) -> None:
        """Go on from another offset of `partition`. Records that were given and not committed are not marked any more.

        The place counts as processed: the next commit commits it. Raises `IngestdError` for a partition that is not
        assigned, `DeadlineExceeded`, and what `Consumer.offsets` raises.
        """
        self._host.call(self._records.seek(partition, start), _CALL_SECONDS, f"seek in {partition}")

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Give no records of these, and fetch no more, until they are resumed. Causes no rebalance."""
        self._host.call(soon(self._records.pause, partitions), _CALL_SECONDS, "pause")

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Give these again."""
        self._host.call(soon(self._records.resume, partitions), _CALL_SECONDS, "resume")

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What is paused."""
        return self._records.paused

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are ours now; none before the first rebalance is done."""
        return self._host.call(soon(lambda: self._records.assignment), _CALL_SECONDS, "assignment")

    @property
    def member(self) -> GroupMember:
        """Who we are to the coordinator: what `SyncProducer.add_offsets` wants. Raises `IngestdError` before we are."""
        session = self._group.session
        if session is None:
            raise IngestdError("member: the group has not been joined yet; expected an assignment before")
        return session.member

    def status(self) -> dict[str, Any]:
        """See `ConsumerGroup.status`."""
        return self._host.call(soon(self._group.status), _CALL_SECONDS, "status")

    def close(self, timeout: float = 10.0) -> None:
        """Commit what was given, unless nothing is committed by itself, leave the group, end the thread.

        Calls `revoked`. Ends in about `timeout` seconds when all brokers are down, too. Safe to call twice. Raises what
        a callback raised, when all is closed; `DeadlineExceeded` where something blocks the thread.
        """
        self._close(timeout, processed=True)

    def forked(self) -> None:
        """See `Forkable`: in the child every call raises `UsedAfterFork`, but for `close`, which does nothing there."""
        self._look_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(10.0, processed=kind is None)

    def __del__(self) -> None:
        if hasattr(self, "_records"):  # it was made
            self._host.drop(self, partial(_end, self._client, self._group, 0.0))

    def _ask(self, most: int, give: Callable[[], T], timeout: float) -> T:
        """Have the loop bring something, and take it here; calls what waits to be called meanwhile."""
        if self._calling:
            raise IngestdError("records were asked for within a callback of the group; expected the callback to return")
        deadline = Deadline.after(timeout)
        while True:
            self._call_back()
            ready = self._records.ready(deadline, most)
            came = self._host.call(ready, deadline.remaining + CLOSE_MARGIN, "waiting for records")
            self._look_at = monotonic() + _LOOK_SECONDS
            found = give()
            if found is not None and found != {}:
                return found
            if not came and not self._records.calls:
                return found

    def _call_back(self) -> None:
        """Call what waits to be called, here, in the caller's thread."""
        records = self._records
        while records.calls:
            call = self._host.call(soon(records.take_call), _CALL_SECONDS, "callback")
            self._calling = True
            try:
                call.callback(call.partitions)
            finally:
                self._calling = False
                self._host.call(soon(records.end_call, call), _CALL_SECONDS, "callback")

    def _close(self, timeout: float, *, processed: bool) -> None:
        if self._host.closed:
            return
        self._look_at = 0.0
        records, failures = self._records, []
        try:
            begin = soon(records.begin_close, timeout, processed=processed)
            self._host.call(begin, CLOSE_MARGIN, "closing the group")
            while not self._host.call(records.closed_or_called(), timeout + CLOSE_MARGIN, "closing the group"):
                try:
                    self._call_back()
                except Exception as error:  # noqa: BLE001 - raised below, when all is closed
                    failures.append(error)
        finally:
            self._host.close(partial(_end, self._client, self._group, 0.0), 0.0)
        if failures:
            raise failures[0]


async def _build(
    bootstrap: Sequence[str],
    group_id: str,
    topics: Topics,
    settings: GroupSettings,
    client_settings: ClientSettings,
    callbacks: tuple[Callback | None, Callback | None, Callback | None],
) -> tuple[Client, ConsumerGroup, Relayed]:
    client = Client(bootstrap, client_settings)
    group = ConsumerGroup(client, group_id, settings)
    records = Relayed(
        group,
        topics,
        callbacks,
        check_crcs=settings.consumer.check_crcs,
        rebalance_timeout=settings.rebalance_timeout,
    )
    await records.__aenter__()
    return client, group, records


async def _end(client: Client, group: ConsumerGroup, timeout: float) -> None:
    try:
        await group.close(timeout)
    finally:
        await client.close()
