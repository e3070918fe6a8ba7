"""The synchronous consumer group, from plain threads, against a coordinator in memory and partitions that are fed."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from fed_partitions import Consumer
from group_coordinator import Groups
from next_generation_coordinator import FAST

from ingestd.client import broker as broker_module
from ingestd.client.loop_thread import soon
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group import consumer_group as consumer_group_module
from ingestd.consumer.group.settings import GroupSettings
from ingestd.consumer.group.sync import SyncConsumerGroup
from ingestd.errors import Closed, ConfigurationError, ErrorCode, IngestdError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ingestd.records.decode import Record

T = TypeVar("T")
SETTINGS = GroupSettings(
    assignors=("range",),
    heartbeat_interval=0.02,
    session_timeout=5.0,
    rebalance_timeout=5.0,
    request_timeout=5.0,
    auto_commit_interval=60.0,
    no_offset="earliest",
)
ALL = [TopicPartition("t", number) for number in range(4)]
PATIENCE = 20.0


class Sync:
    """Groups on one coordinator; what a test asks of their loop is done there."""

    def __init__(self, groups: Groups, consumer: Consumer) -> None:
        self.groups = groups
        self.consumer = consumer
        self.opened: list[SyncConsumerGroup] = []

    def open(self, settings: GroupSettings = SETTINGS, **callbacks: Any) -> SyncConsumerGroup:
        self.opened.append(SyncConsumerGroup(["one:1"], "g", ["t"], settings, FAST, **callbacks))
        return self.opened[-1]

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return self.opened[-1]._host.call(work, PATIENCE, "a test")

    def until(self, holds: Callable[[], bool]) -> None:
        self.on_loop(self.groups.until(holds))

    def feed(self, partition: int, count: int) -> None:
        """Put so many records more into a partition, once it is read."""
        self.until(lambda: ALL[partition] in self.consumer.partitions)
        self.on_loop(soon(self.consumer.partitions[ALL[partition]].feed, count))

    def rebalance(self) -> None:
        """Have the group join again; it has heard of it when this returns."""
        self.on_loop(soon(self.groups.script["Heartbeat"].append, ErrorCode.rebalance_in_progress))
        self.on_loop(self.groups.more("Heartbeat", 2))


@pytest.fixture
def sync(monkeypatch: pytest.MonkeyPatch) -> Sync:
    groups, consumer = Groups(), Consumer()
    monkeypatch.setattr(broker_module.Connection, "open", groups.open)
    monkeypatch.setattr(consumer_group_module, "Consumer", lambda *_, **__: consumer)
    return Sync(groups, consumer)


def told_of_assignment(sync: Sync, group: SyncConsumerGroup) -> None:
    """Poll until `assigned` was called: the partitions are read only then."""
    deadline = time.monotonic() + PATIENCE
    while not sync.consumer.partitions:
        assert time.monotonic() < deadline
        assert group.poll(0.01) is None


def polled(group: SyncConsumerGroup) -> Record:
    record = group.poll(PATIENCE)
    assert record is not None
    return record


def test_records_come_one_by_one_and_what_was_not_given_is_not_committed(sync: Sync) -> None:
    with sync.open() as group:
        assert group.poll(0.0) is None
        sync.feed(1, 5)
        assert [polled(group).offset for _ in range(3)] == [0, 1, 2]
        assert group.assignment == frozenset(ALL)
        assert group.member.group_id == "g"
        assert sync.groups.offsets == {}
    assert sync.groups.offsets == {("t", 1): (3, 5, "")}
    assert sync.groups.left == [("m1", None)]


def test_many_at_once_come_by_partition_and_go_on_where_one_by_one_stopped(sync: Sync) -> None:
    with sync.open() as group:
        sync.feed(1, 5)
        assert polled(group).offset == 0
        ((key, records),) = group.take_chunks(PATIENCE, 2).items()
        assert (key, [record.offset for record in records]) == (ALL[1], [1, 2])
        ((_, (columns,)),) = group.take_columns(PATIENCE).items()
        assert columns.count == 2
        assert group.take_chunks(0.0) == {}
        with pytest.raises(ConfigurationError, match="max_records: 0; expected 1 or more"):
            group.take_chunks(0.0, 0)
    assert sync.groups.offsets == {("t", 1): (5, 5, "")}


@pytest.mark.parametrize("at_once", [0, 2])
def test_the_block_that_ends_with_an_exception_does_not_commit_what_was_given_last(sync: Sync, at_once: int) -> None:
    def read() -> None:
        with sync.open() as group:
            sync.feed(1, 5)
            if at_once:
                assert [record.offset for record in group.take_chunks(PATIENCE, at_once)[ALL[1]]] == [0, 1]
            while polled(group).offset < 2:
                pass
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        read()
    assert sync.groups.offsets == {("t", 1): (2, 5 if at_once else -1, "")}


def test_without_automatic_commits_nothing_is_committed_but_by_commit(sync: Sync) -> None:
    settings = replace(SETTINGS, auto_commit_interval=None)
    with sync.open(settings) as group:
        sync.feed(1, 5)
        for _ in range(2):
            polled(group)
        group.commit()
        assert sync.groups.offsets == {("t", 1): (2, 5, "")}
        polled(group)
        group.commit({ALL[1]: 1})
        assert sync.groups.offsets == {("t", 1): (1, -1, "")}
        with pytest.raises(IngestdError, match="t-9 is not assigned"):
            group.commit({TopicPartition("t", 9): 1})
        polled(group)
    assert sync.groups.offsets == {("t", 1): (1, -1, "")}


def test_callbacks_are_called_in_the_callers_thread_within_poll_and_may_commit(sync: Sync) -> None:
    told: list[tuple[str, Sequence[TopicPartition], threading.Thread]] = []

    def tell(what: str) -> Callable[[Sequence[TopicPartition]], None]:
        return lambda partitions: told.append((what, list(partitions), threading.current_thread()))

    def revoked(partitions: Sequence[TopicPartition]) -> None:
        tell("revoked")(partitions)
        group.commit()

    settings = replace(SETTINGS, auto_commit_interval=None)
    with sync.open(settings, assigned=tell("assigned"), revoked=revoked) as group:
        sync.until(lambda: sync.groups.state == "Stable")
        assert told == []  # nobody has polled yet
        told_of_assignment(sync, group)
        sync.feed(1, 5)
        assert polled(group).offset == 0
        sync.rebalance()
        assert sync.groups.offsets == {}
        sync.on_loop(soon(sync.consumer.partitions.clear))
        told_of_assignment(sync, group)
        assert sync.groups.offsets == {("t", 1): (1, 5, "")}
    here = threading.current_thread()
    assert told == [(what, ALL, here) for what in ("assigned", "revoked", "assigned", "revoked")]


def test_a_callback_says_where_to_begin(sync: Sync) -> None:
    def assigned(_: Sequence[TopicPartition]) -> None:
        group.seek(ALL[1], 3)
        group.pause([ALL[2]])
        with pytest.raises(IngestdError, match="within a callback"):
            group.poll(0.0)

    with sync.open(assigned=assigned) as group:
        told_of_assignment(sync, group)
        sync.feed(1, 2)
        assert polled(group).offset == 3
        assert group.paused == {ALL[2]}
        sync.feed(2, 1)
        assert polled(group).offset == 4
        assert group.poll(0.01) is None
        group.resume(group.paused)
        assert polled(group).partition == 2


def test_what_a_callback_raises_comes_out_of_poll_and_the_group_goes_on(sync: Sync) -> None:
    def assigned(_: Sequence[TopicPartition]) -> None:
        raise ValueError("broken")

    with sync.open(assigned=assigned) as group:
        with pytest.raises(ValueError, match="broken"):
            group.poll(PATIENCE)
        sync.feed(1, 1)
        assert polled(group).offset == 0


def test_what_revoked_raises_at_the_end_is_raised_when_all_is_closed(sync: Sync) -> None:
    def revoked(_: Sequence[TopicPartition]) -> None:
        raise ValueError("broken")

    group = sync.open(revoked=revoked)
    sync.feed(1, 1)
    polled(group)
    with pytest.raises(ValueError, match="broken"):
        group.close()
    assert sync.groups.offsets == {("t", 1): (1, 5, "")}
    assert sync.groups.left == [("m1", None)]
    assert not group._host._thread.is_alive()


@pytest.mark.parametrize("with_lost", [False, True])
def test_a_member_that_the_coordinator_forgot_is_told_what_it_lost(sync: Sync, *, with_lost: bool) -> None:
    told: list[str] = []
    callbacks: dict[str, Any] = {"revoked": lambda _: told.append("revoked")}
    if with_lost:
        callbacks["lost"] = lambda _: told.append("lost")
    with sync.open(**callbacks) as group:
        sync.feed(1, 5)
        polled(group)
        sync.on_loop(soon(sync.groups.kick, "m1"))
        while not told:
            group.poll(0.01)
        assert told == ["lost" if with_lost else "revoked"]


def test_who_comes_too_late_for_revoked_is_told_that_the_partitions_are_lost(sync: Sync) -> None:
    told: list[str] = []
    settings = replace(SETTINGS, rebalance_timeout=2.0)
    callbacks: dict[str, Any] = {"revoked": lambda _: told.append("revoked"), "lost": lambda _: told.append("lost")}
    with sync.open(settings, **callbacks) as group:
        sync.feed(1, 5)
        polled(group)
        joins = sync.groups.counts["JoinGroup"]
        sync.rebalance()
        sync.until(lambda: sync.groups.counts["JoinGroup"] > joins)  # it gave up waiting for the caller
        assert told == []
        with pytest.raises(KafkaError, match="t-1 was given up before it was committed"):
            group.commit()
        group.poll(0.01)
        assert told == ["lost"]
        assert sync.groups.offsets == {}


def test_closing_ends_with_all_brokers_down(sync: Sync) -> None:
    group = sync.open(revoked=lambda _: None)
    sync.feed(1, 5)
    polled(group)

    def down() -> None:
        sync.groups.down = True
        sync.groups.cut()

    sync.on_loop(soon(down))
    group.close(0.5)
    assert not group._host._thread.is_alive()
    group.close()
    with pytest.raises(Closed):
        group.poll(0.0)


def test_an_interrupt_loses_no_record(sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    # It hit between the loop's answer and the caller, and the record counted as given.
    with sync.open() as group:
        sync.feed(1, 5)
        call = group._host.call

        def interrupted(work: Any, timeout: float, doing: str) -> None:
            call(work, timeout, doing)
            raise KeyboardInterrupt

        for ask in (lambda: group.poll(PATIENCE), lambda: group.take_chunks(PATIENCE)):
            monkeypatch.setattr(group._host, "call", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ask()
            monkeypatch.undo()
        assert [polled(group).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    assert sync.groups.offsets == {("t", 1): (5, 5, "")}


def test_one_dropped_unclosed_warns_and_takes_its_thread_down(sync: Sync) -> None:
    sync.open()
    thread = sync.opened[-1]._host._thread
    with pytest.warns(ResourceWarning, match="unclosed"):
        sync.opened.clear()
    thread.join(30)
    assert not thread.is_alive()
