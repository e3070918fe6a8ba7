"""What a transactional id may become: by hand where Kafka has a rule, and by random histories with lost answers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ingestd.broker.coordinator.transaction_records import transaction_records
from ingestd.broker.transactions.transaction import COMPLETE, LAST_EPOCH, PREPARED, Ids, Transaction, TransactionState
from ingestd.broker.transactions.transitions import (
    End,
    Start,
    check_member,
    completed,
    ended,
    fenced,
    initialized,
    with_partitions,
)
from ingestd.errors import ErrorCode, KafkaError, ProtocolError

PLACE = ("orders", 0)
MINUTE_MS = 60_000
CLASSIC, BUMPING = 0, 2


def no_id() -> int:
    raise AssertionError("no id is needed")


def known(state: TransactionState = TransactionState.empty, epoch: int = 3, **fields: Any) -> Transaction:
    return Transaction(7, epoch, MINUTE_MS, state, **fields)


def refusal(call: Any, *arguments: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        call(*arguments)
    return refused.value.code


def start(expected: Ids | None = None, version: int = BUMPING) -> Start:
    return Start(MINUTE_MS, version, expected)


# A producer begins.


def test_a_new_transactional_id_gets_a_producer_id_and_epoch_0() -> None:
    assert initialized(None, start(), lambda: 9, 5).ids == Ids(9, 0)


@pytest.mark.parametrize("state", [TransactionState.empty, *COMPLETE])
def test_the_next_producer_gets_the_next_epoch(state: TransactionState) -> None:
    new = initialized(known(state), start(), no_id, 5)
    assert (new.ids, new.state, new.partitions) == (Ids(7, 4), TransactionState.empty, frozenset())


def test_a_transaction_that_is_open_is_aborted_for_the_next_producer() -> None:
    open_one = known(TransactionState.ongoing, partitions=frozenset({PLACE}))
    aborting = initialized(open_one, start(), no_id, 5)
    assert (aborting.state, aborting.ids, aborting.partitions) == (
        TransactionState.prepare_abort,
        Ids(7, 4),
        frozenset({PLACE}),
    )
    assert refusal(initialized, aborting, start(), no_id, 5) is ErrorCode.concurrent_transactions
    assert initialized(completed(aborting, 5), start(), no_id, 5).ids == Ids(7, 5)


def test_a_producer_that_goes_on_keeps_its_id_and_may_ask_twice() -> None:
    """KIP-360: it gives what it had. If the answer was lost, it gives the same again."""
    new = initialized(known(), start(Ids(7, 3)), no_id, 5)
    assert new.ids == Ids(7, 4)
    assert initialized(new, start(Ids(7, 3)), no_id, 6).ids == Ids(7, 4)
    taken_over = initialized(new, start(), no_id, 7)
    assert refusal(initialized, taken_over, start(Ids(7, 3)), no_id, 8) is ErrorCode.producer_fenced
    assert refusal(initialized, taken_over, start(Ids(8, 5)), no_id, 8) is ErrorCode.producer_fenced


def test_after_the_last_epoch_comes_a_new_id() -> None:
    last = known(epoch=LAST_EPOCH)
    assert initialized(last, start(), lambda: 9, 5).ids == Ids(9, 0)
    rotated = initialized(last, start(Ids(7, LAST_EPOCH)), lambda: 9, 5)
    assert (rotated.ids, rotated.previous_producer_id) == (Ids(9, 0), 7)
    assert initialized(rotated, start(Ids(7, LAST_EPOCH)), no_id, 6).ids == Ids(9, 0)


# Partitions.


def test_a_transaction_begins_with_its_first_partition_and_keeps_its_time() -> None:
    first = with_partitions(known(TransactionState.complete_commit), Ids(7, 3), [PLACE], CLASSIC, 100)
    assert (first.state, first.started_ms) == (TransactionState.ongoing, 100)
    second = with_partitions(first, Ids(7, 3), [("orders", 1)], CLASSIC, 200)
    assert (second.partitions, second.started_ms) == (frozenset({PLACE, ("orders", 1)}), 100)
    assert with_partitions(second, Ids(7, 3), [PLACE], CLASSIC, 300) is second


@pytest.mark.parametrize(
    ("transaction", "ids", "code"),
    [
        (None, Ids(7, 3), ErrorCode.invalid_producer_id_mapping),
        (known(), Ids(8, 3), ErrorCode.invalid_producer_id_mapping),
        (known(), Ids(7, 2), ErrorCode.producer_fenced),
        (known(), Ids(7, 4), ErrorCode.producer_fenced),
        (known(TransactionState.prepare_commit), Ids(7, 3), ErrorCode.concurrent_transactions),
    ],
)
def test_only_the_present_producer_adds(transaction: Transaction | None, ids: Ids, code: ErrorCode) -> None:
    assert refusal(with_partitions, transaction, ids, [PLACE], CLASSIC, 5) is code
    assert refusal(check_member, transaction, ids) is code


# The end.


def test_an_end_that_is_asked_for_again_is_answered_as_before() -> None:
    for commits in (True, False):
        prepared = ended(known(TransactionState.ongoing), End(Ids(7, 3), commits, CLASSIC), no_id, 5)
        assert (prepared.state in PREPARED, prepared.commits, prepared.ids) == (True, commits, Ids(7, 3))
        done = completed(prepared, 6)
        assert ended(done, End(Ids(7, 3), commits, CLASSIC), no_id, 7) is done
        assert refusal(ended, done, End(Ids(7, 3), not commits, CLASSIC), no_id, 7) is ErrorCode.invalid_txn_state
        assert refusal(ended, prepared, End(Ids(7, 3), commits, CLASSIC), no_id, 7) is ErrorCode.concurrent_transactions


def test_nothing_can_not_be_ended_before_kip_890_and_aborted_with_it() -> None:
    assert refusal(ended, known(), End(Ids(7, 3), False, CLASSIC), no_id, 5) is ErrorCode.invalid_txn_state
    assert refusal(ended, known(), End(Ids(7, 3), True, BUMPING), no_id, 5) is ErrorCode.invalid_txn_state
    for state in (TransactionState.empty, *COMPLETE):
        aborting = ended(known(state), End(Ids(7, 3), False, BUMPING), no_id, 5)
        assert (aborting.state, aborting.ids, aborting.started_ms) == (TransactionState.prepare_abort, Ids(7, 4), 5)


def test_with_kip_890_each_end_raises_the_epoch_and_an_older_one_asks_again() -> None:
    prepared = ended(known(TransactionState.ongoing), End(Ids(7, 3), True, BUMPING), no_id, 5)
    assert prepared.ids == Ids(7, 4)
    assert refusal(ended, prepared, End(Ids(7, 3), True, BUMPING), no_id, 6) is ErrorCode.concurrent_transactions
    done = completed(prepared, 6)
    assert ended(done, End(Ids(7, 3), True, BUMPING), no_id, 7) is done
    assert refusal(ended, done, End(Ids(7, 3), False, BUMPING), no_id, 7) is ErrorCode.invalid_txn_state
    assert refusal(ended, done, End(Ids(7, 4), True, BUMPING), no_id, 7) is ErrorCode.invalid_txn_state
    assert refusal(ended, done, End(Ids(7, 2), True, BUMPING), no_id, 7) is ErrorCode.producer_fenced
    assert refusal(ended, None, End(Ids(7, 2), True, BUMPING), no_id, 7) is ErrorCode.invalid_producer_id_mapping
    assert refusal(ended, done, End(Ids(8, 4), True, BUMPING), no_id, 7) is ErrorCode.invalid_producer_id_mapping


def test_with_kip_890_the_end_in_the_last_epoch_brings_a_new_id() -> None:
    last = known(TransactionState.ongoing, epoch=LAST_EPOCH)
    prepared = ended(last, End(Ids(7, LAST_EPOCH), True, BUMPING), lambda: 9, 5)
    assert prepared.ids == Ids(7, LAST_EPOCH + 1), "the marker's"
    done = completed(prepared, 6)
    assert done.ids == Ids(9, 0)
    assert ended(done, End(Ids(7, LAST_EPOCH), True, BUMPING), no_id, 7) is done
    assert with_partitions(done, Ids(9, 0), [PLACE], BUMPING, 8).ids == Ids(9, 0)


def test_a_transaction_past_its_time_is_aborted_and_with_kip_890_its_producer_goes_on() -> None:
    """The producer hears the next epoch in the answer to its abort."""
    timed_out = completed(fenced(known(TransactionState.ongoing), BUMPING, 5), 6)
    assert refusal(ended, timed_out, End(Ids(7, 3), True, BUMPING), no_id, 7) is ErrorCode.invalid_txn_state
    assert ended(timed_out, End(Ids(7, 3), False, BUMPING), no_id, 7).ids == Ids(7, 4)
    assert initialized(timed_out, start(Ids(7, 3)), no_id, 7).ids == Ids(7, 4)
    classic = completed(fenced(known(TransactionState.ongoing), CLASSIC, 5), 6)
    assert refusal(ended, classic, End(Ids(7, 3), False, CLASSIC), no_id, 7) is ErrorCode.producer_fenced
    assert refusal(initialized, classic, start(Ids(7, 3)), no_id, 7) is ErrorCode.producer_fenced


# Histories.


@dataclass(eq=False)
class Producer:
    """One incarnation, as it sees itself. `writes`: it has an open transaction, as far as it knows."""

    ids: Ids
    number: int
    writes: bool = False


class Histories(RuleBasedStateMachine):
    """Incarnations of one producer, of which all but the newest are zombies. Answers get lost, and requests come twice.

    Invariants
        A zombie changes nothing.
        What was committed is complete, and not aborted afterwards.
        No two transactions of different incarnations have the same producer id and epoch.
        Each state is what its record says.
    """

    version = CLASSIC
    producers: Bundle[Producer] = Bundle("producers")

    @initialize(near_the_end=st.booleans())
    def begin(self, near_the_end: bool) -> None:
        self.new_ids = itertools.count(100)
        self.now = 0
        self.value: Transaction | None = None
        if near_the_end:
            self.value = Transaction(99, LAST_EPOCH - 3, MINUTE_MS)
        self.newest = 0
        self.owners: dict[Ids, int] = {}
        self.highest = (0, -1)

    def new_id(self) -> int:
        return next(self.new_ids)

    def take(self, new: Transaction) -> Transaction:
        self.value = new
        return new

    @rule(target=producers, hears=st.booleans())
    def join(self, hears: bool) -> Producer:
        """A new incarnation asks until it has an epoch. One that does not `hear` it is dead."""
        self.newest += 1
        one = Producer(Ids(-1, -1), self.newest)
        while True:
            try:
                new = self.take(initialized(self.value, start(version=self.version), self.new_id, self.now))
            except KafkaError:
                self.write_markers()
                continue
            if new.state is TransactionState.empty:
                one.ids = new.ids if hears else Ids(-1, -1)
                return one

    @rule(one=producers, hears=st.booleans())
    def go_on(self, one: Producer, hears: bool) -> None:
        """KIP-360, after an error outside of a transaction."""
        if one.writes or one.ids.epoch < 0:
            return
        before = self.value
        try:
            new = initialized(self.value, start(one.ids, self.version), self.new_id, self.now)
        except KafkaError as refused:
            self.refused(one, refused, before)
            return
        if new.state is TransactionState.prepare_abort:
            return  # Not asked so: Kafka's clients abort first.
        assert one.number == self.newest
        self.take(new)
        if hears:
            one.ids = new.ids

    @rule(one=producers, number=st.integers(0, 2), hears=st.booleans())
    def write(self, one: Producer, number: int, hears: bool) -> None:
        before = self.value
        try:
            new = with_partitions(self.value, one.ids, [("t", number)], self.version, self.now)
        except KafkaError as refused:
            self.refused(one, refused, before)
            return
        self.take(new)
        owner = self.owners.setdefault(one.ids, one.number)
        assert owner == one.number == self.newest
        one.writes = one.writes or hears

    @rule(one=producers, commits=st.booleans(), hears=st.booleans())
    def end(self, one: Producer, commits: bool, hears: bool) -> None:
        before = self.value
        try:
            new = ended(self.value, End(one.ids, commits, self.version), self.new_id, self.now)
        except KafkaError as refused:
            self.refused(one, refused, before)
            return
        assert one.number == self.newest
        self.take(new)
        assert new.commits is commits
        if hears:
            one.ids, one.writes = (new if new.state in COMPLETE else completed(new, self.now)).ids, False

    def refused(self, one: Producer, refused: KafkaError, before: Transaction | None) -> None:
        assert self.value is before
        if one.number < self.newest:
            assert refused.code in {
                ErrorCode.producer_fenced,
                ErrorCode.invalid_producer_id_mapping,
                ErrorCode.concurrent_transactions,
            }

    @rule()
    def write_markers(self) -> None:
        if self.value is not None and self.value.state in PREPARED:
            self.take(completed(self.value, self.now))

    @rule()
    def time_out(self) -> None:
        if self.value is not None and self.value.state is TransactionState.ongoing:
            self.take(fenced(self.value, self.version, self.now))

    @rule()
    def restart(self) -> None:
        """`last_epoch` is forgotten."""
        if self.value is not None:
            records = transaction_records(self.version)
            read = records.read(*records.encode(("id", self.value)))
            assert read is not None
            assert read[1] == replace(self.value, last_epoch=-1)
            self.value = read[1]

    @invariant()
    def epochs_rise(self) -> None:
        self.now += 1
        if self.value is not None:
            order = (self.value.producer_id, self.value.epoch)
            assert order >= self.highest
            assert 0 <= self.value.epoch <= LAST_EPOCH + 1
            self.highest = order


@pytest.mark.parametrize("version", [1, BUMPING])
def test_a_zombie_changes_nothing_and_epochs_never_go_back_whatever_happens(version: int) -> None:
    machine = type("Machine", (Histories,), {"version": version})
    run_state_machine_as_test(machine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None))


# Records.


def test_the_records_are_kafkas() -> None:
    """Bytes as Kafka 4.3 writes them: `DumpLogSegments` on them is in tests/interop."""
    value = known(TransactionState.ongoing, partitions=frozenset({("t", 1), ("t", 0)}), updated_ms=1, started_ms=2)
    key, fixed = transaction_records(0).encode(("id", value))
    assert key == bytes.fromhex("0000 0002 6964")
    ids = "0000000000000007 0003 0000ea60 01"
    assert fixed == bytes.fromhex(f"0000 {ids} 00000001 0001 74 00000002 00000000 00000001 {1:016x} {2:016x}")
    _key, flexible = transaction_records(2).encode(("id", replace(value, previous_producer_id=6, version=2)))
    tags = "02 00 08 0000000000000006 02 02 0002"
    assert flexible == bytes.fromhex(f"0001 {ids} 02 02 74 03 00000000 00000001 00 {1:016x} {2:016x} {tags}")


def test_what_is_no_record_is_said_to_be_none() -> None:
    records = transaction_records(2)
    key, value = records.encode(("id", known()))
    assert value is not None
    assert records.read(key, None) == ("id", None)
    assert records.read(b"\0\1" + key[2:], value) is None, "of a newer broker"
    status = 2 + 8 + 2 + 4
    for wrong in (b"", b"\0\2" + value[2:], value[:9], value[:status] + b"\x09" + value[status + 1 :]):
        with pytest.raises(ProtocolError):
            records.read(key, wrong)
    with pytest.raises(ProtocolError):
        records.read(None, value)
