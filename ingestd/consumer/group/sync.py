"""Synchronous consumer group: a member for plain threads. Owns a thread with an event loop."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from ingestd.checks import require_seconds, require_settings
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
"""Seconds for which records are given without asking the loop. There they are marked, and callbacks wait."""
_CALL_SECONDS: Final = 60.0
"""Seconds for a call that asks brokers, if it has no timeout argument."""


class SyncConsumerGroup:
    """A member of a group, for plain threads: reads the partitions that it is assigned and commits their offsets.

    Example:
        settings = GroupSettings(no_offset="earliest")
        with SyncConsumerGroup(["kafka-1:9092"], "billing", ["orders"], settings) as group:
            while True:
                record = group.poll(1.0)
                if record is not None:
                    print(record.topic, record.partition, record.offset, record.value)

    It joins at once. `poll` gives one record. `take_chunks` and `take_columns` give many, by partition. Each goes on
    where the last one stopped. Records that were given count as processed when more is asked for, when `commit` is
    called, and on `close`, but not if the `with` block ends with an exception. Records that were not given are never
    committed: delivery is at least once.

    Commits depend on `GroupSettings.auto_commit_interval` (Kafka's `enable.auto.commit`). With a number, which is the
    default, processed records are committed every so many seconds, before their partition goes to another member, and
    on `close`. With None only `commit` commits, and `close` does not either.

    `assigned`, `revoked` and `lost` are called with a list of partitions, in the caller's thread, from within `poll`,
    `take_chunks`, `take_columns` and `close`. A callback may call `commit`, `seek`, `pause`, `resume` and `assignment`.
    In `assigned`, `seek` says where to begin. In `revoked` the partitions are still ours, so `commit` counts. In `lost`
    others may have them already. Without `lost`, `revoked` is called instead. The call raises what a callback raises.

    Heartbeats do not depend on the caller. A rebalance waits until the caller asks for more, `rebalance_timeout` at
    most. Records that were given and not committed by then are read again by others. A caller that works longer than
    `max_poll_interval` on the records it was given leaves the group: `PollIntervalExceeded`.

    One thread at a time may use it. TLS and accounts are in `client_settings`.

    Invariants
        What was not given is never marked.
        Callbacks run in the caller's thread, one at a time, in the order in which their causes came.
        Its thread, client and connections end with `close`. Dropped unclosed, it warns (ResourceWarning).
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

        Raises `ConfigurationError`. If no broker is reached, `poll` waits, and the log has a warning.
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

        Raises what ended the membership, once: `KafkaError`, `PollIntervalExceeded`. Asking again joins again. Raises
        `CorruptBatch` until a `seek` goes past it, `Closed`, `UsedAfterFork`.
        """
        if monotonic() < self._look_at and (record := self._at_hand()) is not None:
            return record
        return self._ask(1, self._records.give_one, timeout)

    def take_chunks(self, timeout: float = 1.0, max_records: int | None = None) -> dict[TopicPartition, list[Record]]:
        """All records at hand, by partition, up to `max_records`. Other clients call this `getmany` or `consume`.

        Waits up to `timeout` seconds for the first. Empty: there was none. Calls callbacks. Raises what `poll` raises.
        """
        most = most_of(max_records)
        return self._ask(most, partial(self._records.give_chunks, most), timeout) or {}

    def take_columns(self, timeout: float = 1.0, max_records: int | None = None) -> dict[TopicPartition, list[Columns]]:
        """All records at hand as columns, by partition, one value for each record batch. Otherwise as `take_chunks`.

        The batches of one fetch of a partition are given together, so there may be more than `max_records`.
        """
        return self._ask(most_of(max_records), self._records.give_columns, timeout) or {}

    def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, timeout: float | None = None
    ) -> None:
        """Commit what was given, which counts as processed now; or commit `offsets`, the next ones to read.

        Waits up to `timeout` seconds; None: `GroupSettings.commit_timeout`. Raises `KafkaError`; it is
        REBALANCE_IN_PROGRESS if a partition was given up meanwhile (its new owner gets the records again). Raises
        `IngestdError` for a partition that is not assigned, `DeadlineExceeded`, `Closed`.
        """
        seconds = self._settings.commit_timeout if timeout is None else timeout
        self._host.call(self._records.commit(offsets, timeout), seconds + CLOSE_MARGIN, "commit")

    def seek(self, partition: TopicPartition, start: Start) -> None:
        """Go on from another offset of `partition`. Records that were given and not committed are not marked any more.

        The new offset counts as processed: the next commit commits it. Raises `IngestdError` if the partition is not
        assigned, `DeadlineExceeded`, and what `Consumer.offsets` raises.
        """
        self._host.call(self._records.seek(partition, start), _CALL_SECONDS, f"seek in {partition}")

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Give and fetch no records of these partitions until they are resumed. Causes no rebalance."""
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
        """The partitions that are ours now. None before the first rebalance is done."""
        return self._host.call(soon(lambda: self._records.assignment), _CALL_SECONDS, "assignment")

    @property
    def member(self) -> GroupMember:
        """The member, for `SyncProducer.add_offsets`. Raises `IngestdError` before it joined."""
        session = self._group.session
        if session is None:
            raise IngestdError("member: the group has not been joined yet; expected an assignment before")
        return session.member

    def status(self) -> dict[str, Any]:
        """See `ConsumerGroup.status`."""
        return self._host.call(soon(self._group.status), _CALL_SECONDS, "status")

    def close(self, timeout: float = 10.0) -> None:
        """Commit what was given (unless `auto_commit_interval` is None), leave the group, and end the thread.

        Calls `revoked`. Ends in about `timeout` seconds, also with all brokers down. Safe to call twice. Raises what a
        callback raised, once all is closed, and `DeadlineExceeded` if something blocks the thread.
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
        """Have the loop bring something, and take it here. Meanwhile calls the callbacks that wait."""
        if self._calling:
            raise IngestdError("records were asked for within a callback of the group; expected the callback to return")
        require_seconds("timeout", timeout)
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
        """Call the callbacks that wait, here, in the caller's thread."""
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
    )
    await records.__aenter__()
    return client, group, records


async def _end(client: Client, group: ConsumerGroup, timeout: float) -> None:
    try:
        await group.close(timeout)
    finally:
        await client.close()
