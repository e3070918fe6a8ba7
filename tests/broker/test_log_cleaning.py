"""A compacted log under any history of writes, cleanings and kills: the latest record of each key stays."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from embedded.batches import keyed_batch, marker
from embedded.cleaning import clean
from embedded.logs import Opened, append, committed_records
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ingestd.errors import ErrorCode, KafkaError
from ingestd.records.batch import patch_producer
from ingestd.records.codecs import Codec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.broker.log.partition_log import PartitionLog

Pair: TypeAlias = tuple[bytes, bytes | None]

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "5000",
    "segment.bytes": "260",
}
START = 1_000_000.0
PRODUCERS = st.integers(1, 3)
KEYS = st.integers(0, 7).map(lambda number: b"key %d" % number)
PAIRS = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 60).map(lambda size: b"v" * size)), min_size=1, max_size=5)
CODECS = st.sampled_from([Codec.none, Codec.lz4])


@dataclass
class Writer:
    """A producer as the model has it. `pairs`: those of its open transaction; None: it has none."""

    epoch: int = 0
    sequence: int = 0
    pairs: list[tuple[int, Pair]] | None = None


def latest(records: Iterable[tuple[int, Pair]]) -> dict[bytes, tuple[int, bytes | None]]:
    return {key: (offset, value) for offset, (key, value) in sorted(records)}


class Histories(RuleBasedStateMachine):
    """`written` has every record that counts, by its offset."""

    @initialize(interval=st.sampled_from(["0", "200"]), map_bytes=st.sampled_from([1, 800, 1 << 20]))
    def begin(self, interval: str, map_bytes: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.opened = Opened(self.directory, **COMPACTED, **{"index.interval.bytes": interval})
        self.map_bytes = map_bytes
        self.now = START
        self.written: dict[int, Pair] = {}
        self.writers: dict[int, Writer] = {}

    @property
    def log(self) -> PartitionLog:
        return self.opened.log

    @rule(pairs=PAIRS, codec=CODECS)
    def write_without_producer(self, pairs: list[Pair], codec: Codec) -> None:
        self.write(pairs, codec)

    def write(self, pairs: list[Pair], codec: Codec) -> None:
        offset = append(self.log, keyed_batch(pairs, codec))
        self.written.update(enumerate(pairs, offset))

    def numbered(self, pairs: list[Pair], codec: Codec, producer: int, ahead: int = 0) -> int:
        writer = self.writers.setdefault(producer, Writer())
        batch = keyed_batch(pairs, codec)
        transactional = writer.pairs is not None
        sequence = writer.sequence + ahead
        patch_producer(memoryview(batch), producer, writer.epoch, sequence, transactional=transactional)
        return append(self.log, batch)

    @rule(producer=PRODUCERS, pairs=PAIRS, codec=CODECS, begins=st.booleans())
    def write_numbered(self, producer: int, pairs: list[Pair], codec: Codec, begins: bool) -> None:
        writer = self.writers.setdefault(producer, Writer())
        if begins and writer.pairs is None:
            writer.pairs = []
        found = list(enumerate(pairs, self.numbered(pairs, codec, producer)))
        writer.sequence += len(pairs)
        if writer.pairs is None:
            self.written.update(found)
        else:
            writer.pairs += found

    @rule(batches=st.lists(PAIRS, min_size=3, max_size=8))
    def write_many(self, batches: list[list[Pair]]) -> None:
        for pairs in batches:
            self.write(pairs, Codec.none)

    @rule(producer=PRODUCERS, ahead=st.integers(1, 9))
    def a_sequence_that_does_not_follow_is_refused(self, producer: int, ahead: int) -> None:
        if self.writers.get(producer, Writer()).sequence:
            with pytest.raises(KafkaError) as refused:
                self.numbered([(b"k", b"v")], Codec.none, producer, ahead)
            assert refused.value.code is ErrorCode.out_of_order_sequence_number

    @rule(producer=PRODUCERS, aborts=st.booleans())
    def end_a_transaction(self, producer: int, aborts: bool) -> None:
        writer = self.writers.setdefault(producer, Writer())
        if writer.pairs is not None:
            append(self.log, marker(producer, writer.epoch, aborts=aborts))
            if not aborts:
                self.written.update(writer.pairs)
            writer.pairs = None

    @rule(seconds=st.sampled_from([0.0, 1.0, 10.0]))
    def clean(self, seconds: float) -> None:
        self.now += seconds
        self.opened.settle()
        before = self.log.cleaned_offset
        clean(self.log, self.now, self.map_bytes)
        # What is in segments that do not change, before the first open transaction.
        stable = [one for one in self.log.segments[:-1] if one.next_offset <= self.log.last_stable_offset]
        dirty = [one.next_offset for one in stable if one.size]
        if self.log.config.compacts:
            assert self.log.cleaned_offset == max([before, *dirty])
        else:
            assert self.log.cleaned_offset == before

    @rule(indexes=st.booleans())
    def kill(self, indexes: bool) -> None:
        self.opened.settle()
        if not indexes:
            for path in (self.directory / "t-0").glob("*.index"):
                path.unlink()
        end = self.log.end_offset
        self.opened.again()
        assert self.log.end_offset == end

    @rule()
    def close(self) -> None:
        for sealing in self.log.close():
            sealing.result()
        self.opened.again()

    @rule(to=st.sampled_from(["delete", "compact", "compact,delete"]))
    def change_the_policy(self, to: str) -> None:
        self.opened.configure(**{**COMPACTED, "cleanup.policy": to})

    @invariant()
    def the_latest_record_of_each_key_is_there(self) -> None:
        stable = self.log.last_stable_offset
        for max_bytes in (1, 1 << 20):
            found = committed_records(self.log, self.log.start_offset, max_bytes)
            pairs = {one.offset: (one.key or b"", one.value) for one in found}
            assert list(pairs) == [one.offset for one in found] == sorted(pairs)
            assert pairs.items() <= self.written.items()
            expected = latest((offset, pair) for offset, pair in self.written.items() if offset < stable)
            left = latest(pairs.items())
            # Of a key whose latest record is a tombstone, nothing may be left.
            gone = expected.keys() - left.keys()
            assert all(expected[key][1] is None for key in gone)
            assert left == {key: value for key, value in expected.items() if key not in gone}

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            self.opened.end()
            shutil.rmtree(self.directory)


def test_the_latest_record_of_each_key_stays_under_any_history(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody cuts the power here, and each small segment would wait for the disk.
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    run_state_machine_as_test(Histories, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))
