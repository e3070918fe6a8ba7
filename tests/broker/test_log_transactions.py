"""Transactions in a partition's log: what readers of committed records get, under any history, kills included."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from embedded.batches import batch_of, marker, numbered_batch
from embedded.logs import Opened, SlowDisk, append, committed_records
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ingestd.broker.log.markers import marker_batch
from ingestd.broker.settings import Flush
from ingestd.errors import ErrorCode, KafkaError
from ingestd.records.decode import ControlKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.broker.log.partition_log import PartitionLog

PRODUCERS = st.integers(1, 4)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    one = Opened(tmp_path)
    yield one
    one.end()


def committed_from(log: PartitionLog, offset: int, max_bytes: int) -> list[tuple[int, bytes]]:
    return [(one.offset, one.value or b"") for one in committed_records(log, offset, max_bytes)]


@dataclass
class Written:
    """A producer as the model has it. `first`: where its transaction began; None: it has none.

    `timestamp_ms`: of its last batch or marker.
    """

    epoch: int = 0
    timestamp_ms: int = -1
    sequence: int = 0
    first: int | None = None
    records: list[tuple[int, bytes]] = field(default_factory=list)


class Transactions(RuleBasedStateMachine):
    """`certain` has the records that count; those of an open transaction are with their producer."""

    @initialize(interval=st.sampled_from(["0", "200", "4096"]))
    def begin(self, interval: str) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.disk = SlowDisk()
        self.opened = Opened(self.directory, disk=self.disk, **{"index.interval.bytes": interval})
        self.certain: list[tuple[int, bytes]] = []
        self.producers: dict[int, Written] = {}

    @property
    def log(self) -> PartitionLog:
        return self.opened.log

    @rule(producer=PRODUCERS, records=st.integers(1, 3))
    def write_in_a_transaction(self, producer: int, records: int) -> None:
        one = self.producers.setdefault(producer, Written())
        values = [b"%d of %d" % (one.sequence + number, producer) for number in range(records)]
        offset = append(self.log, numbered_batch(values, producer, one.epoch, one.sequence, transactional=True))
        one.sequence += records
        one.timestamp_ms = 1_000 + records - 1
        one.first = offset if one.first is None else one.first
        one.records += enumerate(values, offset)

    @rule(producer=PRODUCERS, aborts=st.booleans(), bumps=st.booleans())
    def end_a_transaction(self, producer: int, aborts: bool, bumps: bool) -> None:
        """A marker without a transaction changes nothing but the epoch: a coordinator may send it again."""
        one = self.producers.setdefault(producer, Written())
        if bumps:
            one.epoch, one.sequence = one.epoch + 1, 0
        one.timestamp_ms = 2_000 + one.epoch
        append(self.log, marker_batch(producer, one.epoch, ControlKind(0 if aborts else 1), 3, one.timestamp_ms))
        if not aborts:
            self.certain += one.records
        one.records, one.first = [], None

    @rule(records=st.integers(1, 20))
    def write_outside(self, records: int) -> None:
        values = [b"plain %d" % number for number in range(records)]
        offset = append(self.log, batch_of(values))
        self.certain += enumerate(values, offset)

    @rule()
    def catch_up(self) -> None:
        """The disk thread writes the indexes of all segments but the last."""
        self.disk.catch_up()

    @rule()
    def kill(self) -> None:
        """What the disk thread had not done yet is never done."""
        indexes = set((self.directory / "t-0").glob("*.index"))
        self.disk.catch_up()  # it has descriptors to close
        for path in (self.directory / "t-0").glob("*.index"):
            if path not in indexes:
                path.unlink()
        self.opened.again()

    @rule()
    def close(self) -> None:
        self.log.close()
        self.disk.catch_up()
        assert self.log.sealed
        self.opened.again()

    @rule()
    def delete_whole_segments_that_are_certain(self) -> None:
        bases = [segment.base_offset for segment in self.log._segments]
        self.log.delete_before(max((base for base in bases if base <= self.log.last_stable_offset), default=0))

    @invariant()
    def readers_get_what_is_committed_before_the_first_open_transaction(self) -> None:
        open_ones = [one.first for one in self.producers.values() if one.first is not None]
        assert self.log.last_stable_offset == min([*open_ones, self.log.end_offset])
        assert self.log.high_watermark == self.log.end_offset
        readable = [
            one for one in sorted(self.certain) if self.log.start_offset <= one[0] < self.log.last_stable_offset
        ]
        for start in {self.log.start_offset, (self.log.start_offset + self.log.last_stable_offset) // 2}:
            for max_bytes in (1, 1_000, 1 << 20):
                found = committed_from(self.log, start, max_bytes)
                assert found == [one for one in readable if one[0] >= start]

    @invariant()
    def producers_are_described_as_they_are(self) -> None:
        known = {one.producer_id: one for one in self.log.producers}
        for producer_id, one in self.producers.items():
            assert self.log.in_transaction(producer_id, one.epoch) == (one.first is not None)
            assert known[producer_id].epoch == one.epoch
            assert known[producer_id].last_sequence == one.sequence - 1
            assert known[producer_id].timestamp_ms == one.timestamp_ms
            assert known[producer_id].first_offset == (-1 if one.first is None else one.first)

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            self.opened.end()
            shutil.rmtree(self.directory)


def test_readers_of_committed_records_get_those_alone_under_any_history() -> None:
    run_state_machine_as_test(Transactions, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


def test_producers_go_on_when_all_that_told_of_them_was_deleted_between_two_kills(tmp_path: Path) -> None:
    """The first kill comes before any index is on the disk. All that is left in the log is a marker of one producer.

    A real Kafka answers the same. To a producer that it knows by its marker alone it says OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
    opened = Opened(tmp_path, disk=SlowDisk())
    for producer in (7, 8):
        append(opened.log, numbered_batch([b"a"], producer, 0, 0, transactional=producer == 8))
    while len(opened.log.segments) < 5:
        append(opened.log, batch_of([b"plain"]))
    append(opened.log, marker(8, 0))
    log = opened.again()
    log.delete_before(log.segments[-1].base_offset)
    log = opened.again()
    for producer in (7, 8):
        with pytest.raises(KafkaError) as refused:
            append(log, numbered_batch([b"c"], producer, 0, 2))
        assert refused.value.code is ErrorCode.out_of_order_sequence_number
        assert append(log, numbered_batch([b"b"], producer, 0, 1)) == log.end_offset - 1
    opened.end()


def test_a_batch_outside_of_its_producers_open_transaction_is_refused(opened: Opened) -> None:
    append(opened.log, numbered_batch([b"a"], 7, 0, 0, transactional=True))
    with pytest.raises(KafkaError) as refused:
        append(opened.log, numbered_batch([b"b"], 7, 0, 1))
    assert refused.value.code is ErrorCode.invalid_txn_state
    append(opened.log, marker(7, 0))
    assert append(opened.log, numbered_batch([b"b"], 7, 0, 1)) == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_a_marker_of_an_older_epoch_or_an_older_coordinator_is_refused(opened: Opened, restarted: bool) -> None:
    append(opened.log, numbered_batch([b"a"], 7, 3, 0, transactional=True))
    append(opened.log, marker(7, 3, coordinator_epoch=5))
    log = opened.again() if restarted else opened.log
    for late, code in (
        (marker(7, 2, coordinator_epoch=5), ErrorCode.invalid_producer_epoch),
        (marker(7, 3, coordinator_epoch=4), ErrorCode.transaction_coordinator_fenced),
    ):
        with pytest.raises(KafkaError) as refused:
            append(log, late)
        assert refused.value.code is code
    assert log.end_offset == 2


def test_a_marker_that_must_raise_the_epoch_ends_no_transaction_of_its_own_epoch(opened: Opened) -> None:
    """KIP-1228: with KIP-890 the next transaction has the epoch of the marker before it, and that may come late."""
    log = opened.log
    log.check_raises_epoch(7, 4)
    append(log, numbered_batch([b"a"], 7, 3, 0, transactional=True))
    log.check_raises_epoch(7, 4)
    append(log, marker(7, 4))
    log.check_raises_epoch(7, 4)  # it comes again
    append(log, numbered_batch([b"b"], 7, 4, 0, transactional=True))
    for late in (3, 4):
        with pytest.raises(KafkaError) as refused:
            log.check_raises_epoch(7, late)
        assert refused.value.code is ErrorCode.invalid_producer_epoch
    log.check_raises_epoch(7, 5)


class Noted:
    """A watcher."""

    def __init__(self) -> None:
        self.bytes = 0

    def grew(self, size: int) -> None:
        self.bytes += size

    def gone(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("restarted", [False, True])
def test_readers_of_committed_records_are_told_the_bytes_when_the_transaction_before_them_has_ended(
    opened: Opened, restarted: bool
) -> None:
    first, plain, end = numbered_batch([b"a"], 7, 0, 0, transactional=True), batch_of([b"b"]), marker(7, 0)
    log = opened.log
    if restarted:
        append(log, batch_of([b"before"]))
        append(log, first)
        log = opened.again()
    all_noted, committed_noted = Noted(), Noted()
    log.watchers.add(all_noted)
    log.stable_watchers.add(committed_noted)
    if not restarted:
        append(log, first)
    append(log, plain)
    assert committed_noted.bytes == 0
    append(log, end)
    assert committed_noted.bytes == len(first) + len(plain) + len(end)
    assert all_noted.bytes == committed_noted.bytes - (len(first) if restarted else 0)


def test_a_transaction_is_not_stable_before_its_marker_is_on_the_disk(tmp_path: Path) -> None:
    """Else a power cut could take the marker back, and another could come in its place."""
    opened = Opened(tmp_path, Flush.always)
    log = opened.log
    append(log, batch_of([b"plain"]))
    append(log, numbered_batch([b"a"], 7, 0, 0, transactional=True))
    before_marker = log.log_end
    append(log, marker(7, 0, aborts=True))
    log.synced(before_marker)
    assert (log.high_watermark, log.last_stable_offset) == (2, 1)
    log.synced(log.log_end)
    assert (log.high_watermark, log.last_stable_offset) == (3, 3)
    opened.end()


def test_records_of_an_open_transaction_can_be_deleted(opened: Opened) -> None:
    log = opened.log
    append(log, numbered_batch([b"a", b"b", b"c"], 7, 0, 0, transactional=True))
    append(log, batch_of([b"plain"]))
    log.delete_before(2)
    assert log.last_stable_offset == 2
    assert committed_from(log, 2, 1 << 20) == []
    append(log, marker(7, 0, aborts=True))
    assert committed_from(log, 2, 1 << 20) == [(3, b"plain")]


def test_a_producer_with_an_open_transaction_is_not_forgotten(opened: Opened) -> None:
    log = opened.log
    append(log, numbered_batch([b"a"], 7, 0, 0, transactional=True))
    append(log, numbered_batch([b"a"], 8, 0, 0))
    log._producers.states._expiry = -1.0
    log.enforce_retention(0)
    assert [one.producer_id for one in log.producers] == [7]


def test_an_index_of_a_version_without_transactions_is_read(opened: Opened) -> None:
    log = opened.log
    for _ in range(30):
        append(log, batch_of([b"x" * 50]))
    for sealing in log.close():
        sealing.result()
    paths = list(log.directory.glob("*.index"))
    assert paths
    for path in paths:
        content = path.read_bytes()
        older = content[8:48] + content[56:]
        path.write_bytes(b"ISI1" + crc32c(older).to_bytes(4, "big") + older)
    again = opened.again()
    assert [segment.sealed for segment in again._segments] == [True] * len(paths)
    assert len(committed_from(again, 0, 300)) == 30
