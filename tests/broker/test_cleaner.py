"""The cleaner beside a log that changes meanwhile: what it chooses, and what is there after a kill at any step."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from embedded.batches import batch_of, keyed_batch, marker, numbered_batch
from embedded.cleaning import AtTime, clean
from embedded.logs import Opened, append, committed_records

from ingestd.broker.cleaner import cleaner as cleaner_module
from ingestd.broker.cleaner.cleaner import Cleaner
from ingestd.broker.cleaner.cleaning_process import CleaningProcess
from ingestd.broker.cleaner.dirt import dirt_of, grouped
from ingestd.broker.cleaner.latest_offsets import LatestOffsets
from ingestd.broker.log.swaps import finish_swaps
from ingestd.records.batch import patch_producer, read_header, split_batches
from ingestd.records.decode import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ingestd.broker.log.partition_log import PartitionLog

NOW = 1_000_000.0
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "500", "delete.retention.ms": "60000"}


@pytest.fixture(autouse=True)
def _never_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody cuts the power here, and each small segment would wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    one = Opened(tmp_path, **COMPACTED)
    yield one
    one.end()


def fill(log: PartitionLog, batches: int = 30, timestamp_ms: int = 1_000) -> None:
    """Three keys, over and over."""
    for number in range(batches):
        pairs: list[tuple[bytes, bytes | None]] = [(b"key %d" % (number % 3), b"value %d" % number * 5)]
        append(log, keyed_batch(pairs, timestamp_ms=timestamp_ms))


def contents(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for one in committed_records(log, log.start_offset, 1 << 20)]


def latest(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {key: value for _offset, key, value in contents(log) if value is not None}


# What is chosen.


def test_a_log_is_cleaned_when_more_than_the_ratio_of_it_is_dirty(opened: Opened) -> None:
    log = opened.log
    fill(log)
    opened.settle()
    dirt = dirt_of(log, int(NOW * 1000))
    assert dirt is not None
    assert (dirt.ratio, dirt.first_dirty, dirt.segments) == (1.0, 0, log.segments[:-1])
    clean(log, NOW)
    assert dirt_of(log, int(NOW * 1000)) is None
    clean_bytes = sum(segment.size for segment in log.segments[:-1])
    while (dirt := dirt_of(log, int(NOW * 1000))) is None:
        append(log, keyed_batch([(b"k", b"v" * 50)]))
        opened.settle()
    assert dirt.clean_bytes == clean_bytes
    assert dirt.dirty_bytes > clean_bytes
    assert dirt.dirty_bytes - log.segments[-2].size <= clean_bytes


def test_a_topic_that_is_not_compacted_is_left_alone(opened: Opened) -> None:
    opened.configure(**{**COMPACTED, "cleanup.policy": "delete"})
    fill(opened.log)
    opened.settle()
    assert dirt_of(opened.log, int(NOW * 1000)) is None


def test_what_is_younger_than_the_lag_stays_whatever_its_key(opened: Opened) -> None:
    opened.configure(**{**COMPACTED, "min.compaction.lag.ms": "10000"})
    log = opened.log
    fill(log, timestamp_ms=1_000_000)
    first_young = log.end_offset
    fill(log, timestamp_ms=1_008_000)
    opened.settle()
    assert dirt_of(log, 1_009_000) is None
    clean(log, 1_017.0)
    assert log.cleaned_offset <= first_young
    left = [offset for offset, _key, _value in contents(log)]
    assert len(left) < 30 + 10
    assert left[-30:] == list(range(first_young, first_young + 30))
    fill(log, timestamp_ms=1_008_000)
    opened.settle()
    clean(log, 1_019.0)
    assert log.cleaned_offset > first_young


def test_what_waits_for_longer_than_the_longest_lag_is_cleaned_whatever_the_ratio(opened: Opened) -> None:
    opened.configure(**{**COMPACTED, "min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "20000"})
    log = opened.log
    fill(log, timestamp_ms=1_000_000)
    opened.settle()
    clean(log, 1_019.0)
    assert log.cleaned_offset == 0
    clean(log, 1_021.0)
    assert log.cleaned_offset == log.segments[-1].base_offset


def test_nothing_from_the_first_open_transaction_on_is_touched(opened: Opened) -> None:
    log = opened.log
    fill(log)
    batch = keyed_batch([(b"key 0", b"open")])
    patch_producer(memoryview(batch), 7, 0, 0, transactional=True)
    first_open = append(log, batch)
    fill(log)
    opened.settle()
    clean(log, NOW)
    assert 0 < log.cleaned_offset <= first_open
    append(log, marker(7, 0))
    fill(log)
    opened.settle()
    clean(log, NOW)
    assert log.cleaned_offset > first_open + 30


def test_groups_are_as_large_as_a_segment_and_no_larger(opened: Opened) -> None:
    log = opened.log
    fill(log, 100)
    groups = grouped(log.segments[:-1], 1_600)
    assert [one for group in groups for one in group] == list(log.segments[:-1])
    sizes = [sum(segment.size for segment in group) for group in groups]
    assert max(sizes) <= 1_600
    assert all(size + group[0].size > 1_600 for size, group in zip(sizes, groups[1:], strict=False))


def test_the_memory_of_keys_is_bounded_and_what_has_no_room_is_cleaned_later(opened: Opened) -> None:
    opened.configure(**{**COMPACTED, "min.cleanable.dirty.ratio": "0"})
    log = opened.log
    for number in range(90):
        append(log, keyed_batch([(b"key %d" % (number % 45), b"value %d" % number)]))
    opened.settle()
    noted: list[int] = []
    note = LatestOffsets.add

    def noting(self: LatestOffsets, records: list[Any]) -> None:
        note(self, records)
        noted.append(len(self._offsets))

    with mock.patch.object(LatestOffsets, "add", noting):
        clean(log, NOW, map_bytes=2_000)
    # A key takes about 200 bytes.
    assert 5 <= max(noted) <= 11
    assert log.cleaned_offset == log.segments[-1].base_offset
    dirty = log.end_offset - log.cleaned_offset
    assert len(contents(log)) <= 45 + dirty


# Tombstones.


def test_a_tombstone_stays_for_its_time_after_the_first_cleaning(opened: Opened) -> None:
    log = opened.log
    append(log, keyed_batch([(b"a", b"1"), (b"b", b"1")]))
    append(log, keyed_batch([(b"a", None)]))
    fill(log)
    opened.settle()

    def tombstones() -> list[bytes | None]:
        return [key for _offset, key, value in contents(log) if value is None]

    for now, expected in ((NOW, [b"a"]), (NOW + 59, [b"a"]), (NOW + 61, [])):
        fill(log)
        opened.settle()
        clean(log, now)
        assert tombstones() == expected
        assert latest(log).get(b"a") is None
    assert latest(log)[b"b"] == b"1"


# What changes meanwhile.


def test_segments_that_were_removed_meanwhile_do_not_come_back(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened.log
    fill(log)
    opened.settle()
    before = contents(log)
    replace, cut = log.replace, log.segments[2].base_offset

    def removed_meanwhile(*arguments: Any) -> bool:
        log.delete_before(cut)
        return replace(*arguments)

    with mock.patch.object(log, "replace", removed_meanwhile):
        clean(log, NOW)
    assert contents(log) == [one for one in before if one[0] >= cut]
    assert log.cleaned_offset == 0
    assert files_of_swaps(log.directory) == []
    clean(log, NOW)
    assert log.cleaned_offset > cut


def test_a_log_that_was_deleted_meanwhile_leaves_nothing(opened: Opened, tmp_path: Path) -> None:
    log = opened.log
    fill(log)
    opened.settle()
    replace = log.replace

    def deleted_meanwhile(*arguments: Any) -> bool:
        log.delete(tmp_path / "grave")
        log.directory.mkdir()
        return replace(*arguments)

    with mock.patch.object(log, "replace", deleted_meanwhile):
        clean(log, NOW)
    assert list(log.directory.iterdir()) == []


def test_a_damaged_batch_stops_the_cleaning_and_nothing_is_changed(opened: Opened) -> None:
    log = opened.log
    fill(log)
    opened.settle()
    path = log.segments[1].path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    before = {path: path.read_bytes() for path in log.directory.glob("*.log")}
    clean(log, NOW)
    assert {path: path.read_bytes() for path in log.directory.glob("*.log")} == before
    assert log.cleaned_offset == 0
    assert files_of_swaps(log.directory) == []


def test_producers_go_on_where_they_were_after_all_their_records_went(opened: Opened) -> None:
    log = opened.log
    for number in range(3):
        append(log, numbered_of(b"mine", number))
    append(log, keyed_batch([(b"mine", b"later")]))
    fill(log)
    opened.settle()
    clean(log, NOW)
    assert [key for _offset, key, _value in contents(log)].count(b"mine") == 1
    for path in (*log.directory.glob("*.index"), *log.directory.glob("*.producers")):
        path.unlink()
    again = opened.again()
    assert [(one.producer_id, one.last_sequence) for one in again.producers] == [(9, 2)]
    assert append(again, numbered_of(b"mine", 3)) == log.end_offset


def numbered_of(key: bytes, sequence: int) -> bytearray:
    batch = keyed_batch([(key, b"numbered")])
    patch_producer(memoryview(batch), 9, 0, sequence)
    return batch


# Kills.


class Killed(Exception):
    """The process is gone: nothing more is changed on the disk."""


CHANGES = ("open", "rename", "replace", "unlink", "link")


def files_of_swaps(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if ".cleaned" in path.name or path.suffix == ".swap"]


def clean_until(log: PartitionLog, changes: int) -> bool:
    """Clean, and be killed after so many changes of names. Returns whether it was."""
    left = changes

    def counted(change: Callable[..., Any], creates: Callable[..., bool]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if creates(*arguments):
                left -= 1
                if left < 0:
                    raise Killed
            return change(*arguments, **named)

        return call

    patches = [
        mock.patch.object(os, name, counted(getattr(os, name), is_new if name == "open" else lambda *_arguments: True))
        for name in CHANGES
    ]
    for patch in patches:
        patch.start()
    try:
        clean(log, NOW)
    except Killed:
        return True
    finally:
        for patch in patches:
            patch.stop()
    return False


def is_new(_path: object, flags: int, *_arguments: object) -> bool:
    return bool(flags & os.O_CREAT)


def test_a_kill_between_any_two_changes_leaves_old_or_new_segments(tmp_path: Path) -> None:
    changes, killed = 0, True
    while killed:
        opened = Opened(tmp_path / str(changes), **COMPACTED)
        fill(opened.log, 24)
        opened.settle()
        written, expected = contents(opened.log), latest(opened.log)
        killed = clean_until(opened.log, changes)
        log = opened.again()
        assert set(contents(log)) <= set(written)
        assert latest(log) == expected
        assert log.end_offset == 24
        assert files_of_swaps(log.directory) == []
        opened.settle()
        clean(log, NOW)
        assert latest(log) == expected
        assert log.cleaned_offset == log.segments[-1].base_offset
        assert len(contents(log)) == 3 + log.end_offset - log.cleaned_offset
        opened.end()
        changes += 1
    assert changes > 30


def test_a_swap_of_an_empty_segment_is_finished(tmp_path: Path) -> None:
    """It has no offsets, and its file was in the way."""
    for name in (f"{0:020d}.log", f"{7:020d}.log", f"{0:020d}-{0:020d}.swap"):
        (tmp_path / name).touch()
    finish_swaps(tmp_path, ".log")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{0:020d}.log", f"{7:020d}.log"]


# The child process.


async def test_a_log_is_cleaned_by_a_process_of_its_own(opened: Opened) -> None:
    log = opened.log
    fill(log, 100)
    opened.settle()
    expected = latest(log)
    pids: list[int] = []
    start = CleaningProcess.start

    def started(self: CleaningProcess) -> None:
        start(self)
        assert self._process is not None
        pids.append(self._process.pid)

    cleaner = Cleaner(lambda: (log,), 15.0, 1 << 20, AtTime(NOW))
    with mock.patch.object(CleaningProcess, "start", started):
        await cleaner.clean()
    cleaner.close()
    assert latest(log) == expected
    assert log.cleaned_offset == log.segments[-1].base_offset
    assert len(contents(log)) == 3 + log.end_offset - log.cleaned_offset
    (pid,) = pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_cleaning_that_is_cancelled_leaves_no_process_and_no_file(opened: Opened) -> None:
    log = opened.log
    fill(log, 100)
    opened.settle()
    before = contents(log)
    cleaner = Cleaner(lambda: (log,), 15.0, 1 << 20, AtTime(NOW))
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    receive = CleaningProcess.receive
    processes: list[CleaningProcess] = []

    def received(self: CleaningProcess) -> Any:
        processes.append(self)
        os.kill(self._process.pid, 19)  # stopped: it answers nothing
        loop.call_soon_threadsafe(begun.set)
        return receive(self)

    with mock.patch.object(CleaningProcess, "receive", received):
        cleaning = asyncio.create_task(cleaner.clean())
        await begun.wait()
        cleaning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cleaning
    cleaner.close()
    assert processes[0]._process is not None
    assert processes[0]._process.returncode == -9
    assert contents(log) == before
    assert files_of_swaps(log.directory) == []


async def test_a_cleaning_process_that_dies_is_told_and_the_log_is_tried_again_later(opened: Opened) -> None:
    log = opened.log
    fill(log, 100)
    opened.settle()
    clock = AtTime(NOW)
    cleaner = Cleaner(lambda: (log,), 15.0, 1 << 20, clock)
    command = [sys.executable, "-c", "import sys; sys.exit(3)"]
    with mock.patch.object(cleaner_module.CleaningProcess, "start", lambda self: start_instead(self, command)):
        await cleaner.clean()
    assert log.cleaned_offset == 0
    await cleaner.clean()
    assert log.cleaned_offset == 0
    monotonic = clock.monotonic()
    with mock.patch.object(clock, "monotonic", return_value=monotonic + 301):
        await cleaner.clean()
    assert log.cleaned_offset == log.segments[-1].base_offset
    cleaner.close()


def start_instead(process: CleaningProcess, command: list[str]) -> None:
    process._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_cleaning_process_ends_with_its_broker() -> None:
    """It has been told what to clean, and has not begun."""
    command = [sys.executable, "-m", "ingestd.broker.cleaner.worker"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(20) != 0


# Other batches.


def test_records_of_an_aborted_transaction_go(opened: Opened) -> None:
    """Also where they are the latest of their keys, or of a key that has others."""
    log = opened.log
    append(log, keyed_batch([(b"key", b"counts")]))
    for number, key in enumerate((b"key", b"other")):
        batch = keyed_batch([(key, b"aborted")])
        patch_producer(memoryview(batch), 7, 0, number, transactional=True)
        append(log, batch)
    append(log, marker(7, 0, aborts=True))
    fill(log)
    opened.settle()
    clean(log, NOW)
    found = [record for batch in batches(log) for record in decode_records(batch) if not read_header(batch).control]
    assert next((one.key, one.value) for one in found) == (b"key", b"counts")
    assert b"aborted" not in [one.value for one in found]
    assert latest(log)[b"key"] == b"counts"


def batches(log: PartitionLog) -> list[memoryview]:
    return [batch for segment in log.segments for batch in split_batches(segment.path.read_bytes())]


def test_records_without_a_key_from_before_the_compaction_go(opened: Opened) -> None:
    log = opened.log
    append(log, batch_of([b"no key"]))
    fill(log)
    opened.settle()
    clean(log, NOW)
    assert None not in [key for _offset, key, _value in contents(log)]


def test_a_marker_goes_when_its_transaction_has_no_records_and_its_time_is_over(opened: Opened) -> None:
    log = opened.log
    for aborts in (True, False):
        batch = numbered_batch([b""], 7, 0, 0 if aborts else 1, transactional=True)
        append(log, batch)
        append(log, marker(7, 0, aborts=aborts))
    append(log, numbered_batch([b""], 7, 1, 0))
    kinds: list[list[bool]] = []
    for now in (NOW, NOW + 1, NOW + 62, NOW + 63):
        fill(log)
        opened.settle()
        clean(log, now)
        kinds.append([header.control for header in headers(log) if header.producer_id == 7])
    assert kinds == [[True, True, False], [True, True, False], [False], [False]]
    assert log.aborted(0, log.end_offset) == []


def test_a_marker_stays_as_long_as_a_batch_of_its_transaction_does(opened: Opened) -> None:
    """The batch stays without records, for its sequence. Without a marker a replay would find its transaction open."""
    log = opened.log
    batch = keyed_batch([(b"key 0", b"in a transaction")])
    patch_producer(memoryview(batch), 7, 0, 0, transactional=True)
    append(log, batch)
    append(log, marker(7, 0))
    for now in (NOW, NOW + 100, NOW + 200):
        fill(log)
        opened.settle()
        clean(log, now)
    kept = [(header.control, header.records) for header in headers(log) if header.producer_id == 7]
    assert kept == [(False, 0), (True, 1)]
    for path in (*log.directory.glob("*.index"), *log.directory.glob("*.producers")):
        path.unlink()
    again = opened.again()
    assert again.last_stable_offset == log.end_offset


def headers(log: PartitionLog) -> list[Any]:
    return [header for segment in log.segments for _position, header in segment.headers(segment.base_offset)]


def test_the_delete_horizon_is_in_the_header_as_kafka_has_it(opened: Opened) -> None:
    log = opened.log
    append(log, keyed_batch([(b"a", None), (b"b", b"1")], timestamp_ms=5_000))
    fill(log)
    opened.settle()
    clean(log, NOW)
    first = headers(log)[0]
    assert first.delete_horizon
    assert first.base_timestamp == int(NOW * 1000) + 60_000
    content = log.segments[0].path.read_bytes()
    assert read_header(content) == first
    assert [one.timestamp_ms for one in decode_records(memoryview(content)[: first.size])] == [5_000, 5_000]
