"""A partition's log against a list: whatever is appended, refused, removed, killed and torn, it holds what it said.

The disk is full at some calls, after a part of the bytes; a killed broker leaves bytes of a batch behind the last one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from embedded.batches import batch_of, numbered_batch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ingestd.broker.log.files import OpenFiles
from ingestd.broker.log.partition_log import PartitionLog
from ingestd.broker.settings import Flush
from ingestd.broker.topic_config import TopicConfig
from ingestd.errors import ErrorCode, KafkaError
from ingestd.records.batch import read_header, split_batches
from ingestd.records.decode import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXPIRY = 86_400.0
LARGEST_SEGMENT = 2_500
"""Bytes: one batch may be larger than a segment is meant to be."""
PRODUCERS = st.integers(0, 2)
VALUES = st.lists(st.integers(0, 400).map(lambda size: b"v" * size), min_size=1, max_size=5)
GOOD_CALLS = st.none() | st.integers(0, 5)
"""Calls that take room until the disk is full; None: it never is."""


class Inline(Executor):
    """Does what it is given at once."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*arguments, **named))
        return done


@contextmanager
def filling_up(good_calls: int | None) -> Iterator[None]:
    """The disk takes so many new files and writes, and half of the next."""
    left = float("inf") if good_calls is None else good_calls
    opens, writes = os.open, os.pwrite

    def taken() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    def new_file(path: Path, flags: int, *arguments: int) -> int:
        if flags & os.O_CREAT and not Path(path).exists() and not taken():
            raise OSError(28, "No space left on device")
        return opens(path, flags, *arguments)

    def write(descriptor: int, content: memoryview, position: int) -> int:
        if taken():
            return writes(descriptor, content, position)
        writes(descriptor, content[: len(content) // 2], position)
        raise OSError(28, "No space left on device")

    with mock.patch.object(os, "open", new_file), mock.patch.object(os, "pwrite", write):
        yield


class LogModel(RuleBasedStateMachine):
    """`expected` has every record's value by its offset, those that are gone from the log included."""

    @initialize(interval=st.sampled_from(["0", "200", "4096"]), descriptors=st.integers(1, 8))
    def begin(self, interval: str, descriptors: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.config = TopicConfig.of(
            {
                "segment.bytes": "500",
                "index.interval.bytes": interval,
                "retention.bytes": "1000",
                "retention.ms": "-1",
            },
            {},
        )
        self.descriptors = descriptors
        self.opened: list[OpenFiles] = []
        self.expected: list[bytes] = []
        # Of each producer: its epoch, the next sequence, and its batches: sequence, values, offset.
        self.producers: dict[int, tuple[int, int, list[tuple[int, list[bytes], int]]]] = {}
        self.open()

    def open(self) -> None:
        self.opened.append(OpenFiles(self.descriptors))
        self.log = PartitionLog(
            self.directory / "t-0",
            self.config,
            self.opened[-1],
            Inline(),
            leader_epoch=0,
            producer_expiry=EXPIRY,
            flush=Flush.os,
        )
        self.log.open()

    def append(self, batch: bytearray, good_calls: int | None) -> int | None:
        """Where the batch stands; None where the disk was full."""
        try:
            with filling_up(good_calls):
                return self.log.append(memoryview(batch), read_header(batch)).base_offset
        except KafkaError as error:
            if error.code is not ErrorCode.kafka_storage_error:
                raise
            return None

    @rule(values=VALUES, good_calls=GOOD_CALLS)
    def append_without_producer(self, values: list[bytes], good_calls: int | None) -> None:
        if (offset := self.append(batch_of(values), good_calls)) is not None:
            assert offset == len(self.expected)
            self.expected += values

    @rule(producer=PRODUCERS, values=VALUES, good_calls=GOOD_CALLS, new_epoch=st.booleans())
    def append_next(self, producer: int, values: list[bytes], good_calls: int | None, new_epoch: bool) -> None:
        epoch, sequence, sent = self.producers.get(producer, (0, 0, []))
        if new_epoch:
            epoch, sequence, sent = epoch + 1, 0, []
        if (offset := self.append(numbered_batch(values, producer, epoch, sequence), good_calls)) is not None:
            assert offset == len(self.expected)
            self.expected += values
            self.producers[producer] = epoch, sequence + len(values), [*sent, (sequence, values, offset)][-5:]

    @rule(producer=PRODUCERS, which=st.integers(0, 4))
    def append_again(self, producer: int, which: int) -> None:
        epoch, _, sent = self.producers.get(producer, (0, 0, []))
        if which < len(sent) and sent[which][2] >= self.log.start_offset:
            sequence, values, offset = sent[which]
            assert self.append(numbered_batch(values, producer, epoch, sequence), None) == offset

    @rule(producer=PRODUCERS, ahead=st.integers(1, 9))
    def append_out_of_order(self, producer: int, ahead: int) -> None:
        epoch, sequence, sent = self.producers.get(producer, (0, 0, []))
        if sent and sent[-1][2] >= self.log.start_offset:
            batch = numbered_batch([b"x"], producer, epoch, sequence + ahead)
            with pytest.raises(KafkaError) as refused:
                self.log.append(memoryview(batch), read_header(batch))
            assert refused.value.code is ErrorCode.out_of_order_sequence_number

    @rule(good_calls=GOOD_CALLS)
    def enforce_retention(self, good_calls: int | None) -> None:
        with filling_up(good_calls):
            self.log.enforce_retention(time.time())
        assert self.log.size < 1000 + LARGEST_SEGMENT

    @rule(back=st.integers(0, 30), good_calls=GOOD_CALLS)
    def delete_records(self, back: int, good_calls: int | None) -> None:
        offset = max(len(self.expected) - back, 0)
        before = self.log.start_offset
        with filling_up(good_calls):
            try:
                self.log.delete_before(offset)
            except OSError:
                # Whole segments may be gone.
                assert before <= self.log.start_offset < offset
            else:
                assert self.log.start_offset == max(before, offset)

    @rule(good_calls=GOOD_CALLS)
    def stop_and_start(self, good_calls: int | None) -> None:
        start_offset = self.log.start_offset
        with filling_up(good_calls):
            self.log.close()
        self.open()
        assert self.log.start_offset == start_offset

    @rule(torn=st.binary(max_size=80) | st.integers(0, 100).map(lambda size: bytes(batch_of([b"y" * 100]))[:size]))
    def kill_and_start(self, torn: bytes) -> None:
        start_offset = self.log.start_offset
        newest = max((self.directory / "t-0").glob("*.log"), default=None)
        if newest is not None:
            with newest.open("ab") as file:
                file.write(torn)
        self.open()
        assert self.log.start_offset == start_offset

    @invariant()
    def holds_what_it_said(self) -> None:
        assert self.log.end_offset == len(self.expected)
        found = []
        offset = self.log.start_offset
        while (piece := self.log.slice(offset, 700)) is not None:
            for batch in split_batches(piece.read()):
                found += decode_records(batch, first=offset)
            offset = found[-1].offset + 1
        assert [record.offset for record in found] == list(range(self.log.start_offset, len(self.expected)))
        assert [record.value for record in found] == self.expected[self.log.start_offset :]

    def teardown(self) -> None:
        for files in self.opened:
            files.close_all()
        shutil.rmtree(self.directory)


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
