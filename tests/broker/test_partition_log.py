"""A partition's log: what is appended is found, by offset and by time, also after a restart."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from embedded.batches import batch_of, marker, numbered_batch

from ingestd.broker.log.files import OpenFiles
from ingestd.broker.log.index import SegmentIndex
from ingestd.broker.log.partition_log import PartitionLog
from ingestd.broker.log.recent import RecentlyUsed
from ingestd.broker.log.times import batches_from_timestamp
from ingestd.broker.settings import Flush
from ingestd.broker.topic_config import TopicConfig
from ingestd.errors import ErrorCode, KafkaError
from ingestd.records.batch import read_header, split_batches
from ingestd.records.decode import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXPIRY = 86_400.0


class Reopener:
    """Opens the log of one directory; again, as a new process would after a kill, without closing the old one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "topic-0"
        self.disk = ThreadPoolExecutor(max_workers=1)
        self.opened: list[OpenFiles] = []

    def __call__(self, leader_epoch: int = 0, files: OpenFiles | None = None, **config: str) -> PartitionLog:
        files = files or OpenFiles(8)
        self.opened.append(files)
        settings = {name.replace("_", "."): value for name, value in config.items()}
        log = PartitionLog(
            self.directory,
            TopicConfig.of(settings, {}),
            files,
            self.disk,
            leader_epoch=leader_epoch,
            producer_expiry=EXPIRY,
            flush=Flush.os,
        )
        log.open()
        return log

    def settle(self) -> None:
        """Wait for what the disk threads have to do."""
        self.disk.submit(int).result()


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Reopener]:
    reopener = Reopener(tmp_path)
    yield reopener
    reopener.disk.shutdown()
    for files in reopener.opened:
        files.close_all()


def append(log: PartitionLog, batch: bytearray) -> int:
    return log.append(memoryview(batch), read_header(batch)).base_offset


def read_all(log: PartitionLog, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    """Offset and value of every record, fetched `max_bytes` at a time."""
    found = []
    offset = log.start_offset
    while (piece := log.slice(offset, max_bytes)) is not None:
        for batch in split_batches(piece.read()):
            found += [(record.offset, record.value or b"") for record in decode_records(batch)]
        offset = found[-1][0] + 1
    return found


def values(start: int, count: int) -> list[bytes]:
    return [b"value %d " % number + b"." * (number % 70) for number in range(start, start + count)]


def fill(log: PartitionLog, batches: int, records: int = 5) -> list[tuple[int, bytes]]:
    expected = []
    for _ in range(batches):
        offset = log.end_offset
        content = values(offset, records)
        assert append(log, batch_of(content, timestamp_ms=1_000 + offset)) == offset
        expected += list(enumerate(content, offset))
    return expected


@pytest.mark.parametrize("max_bytes", [1, 700, 5_000, 1 << 20])
@pytest.mark.parametrize("segment_bytes", ["2000", "1073741824"])
def test_everything_appended_is_read_in_order_whatever_the_piece(
    reopen: Reopener, max_bytes: int, segment_bytes: str
) -> None:
    log = reopen(segment_bytes=segment_bytes, index_interval_bytes="600")
    expected = fill(log, 60)
    assert read_all(log, max_bytes) == expected


def test_a_read_from_the_middle_begins_with_the_batch_that_holds_the_offset(reopen: Reopener) -> None:
    log = reopen(segment_bytes="3000", index_interval_bytes="900")
    fill(log, 50)
    for offset in range(log.end_offset):
        piece = log.slice(offset, 1)
        assert piece is not None
        header = read_header(piece.read())
        assert header.base_offset <= offset <= header.last_offset
        assert piece.length == piece.first == header.size


def test_a_piece_is_never_larger_than_asked_but_for_its_first_batch(reopen: Reopener) -> None:
    log = reopen(index_interval_bytes="0")
    fill(log, 100)
    for max_bytes in range(0, 4000, 97):
        piece = log.slice(7, max_bytes)
        assert piece is not None
        assert piece.length == piece.first or piece.length <= max_bytes


def test_an_offset_outside_the_log_is_out_of_range(reopen: Reopener) -> None:
    log = reopen()
    fill(log, 2)
    assert log.slice(10, 100) is None
    for offset in (-1, 11):
        with pytest.raises(KafkaError) as refused:
            log.slice(offset, 100)
        assert refused.value.code is ErrorCode.offset_out_of_range


def test_a_batch_is_found_by_time_in_every_segment(reopen: Reopener) -> None:
    log = reopen(segment_bytes="1500", index_interval_bytes="500")
    fill(log, 60)
    for offset in range(log.end_offset):
        header, piece = next(batches_from_timestamp(log, 1_000 + offset))
        assert header.base_offset <= offset <= header.last_offset
        assert read_header(piece.read()) == header
    assert next(batches_from_timestamp(log, 1_000 + log.end_offset), None) is None


@pytest.mark.parametrize("closed", [True, False])
def test_a_restart_changes_nothing_that_a_reader_sees(reopen: Reopener, closed: bool) -> None:
    config = {"segment_bytes": "2500", "index_interval_bytes": "700"}
    log = reopen(**config)
    expected = fill(log, 40)
    if closed:
        reopen.settle()
        wait(log.close())
    log = reopen(**config)
    assert read_all(log) == expected
    expected += fill(log, 40)
    assert read_all(log) == expected
    for offset in range(0, log.end_offset, 13):
        assert next(batches_from_timestamp(log, 1_000 + offset))[0].last_offset >= offset


def test_a_closed_log_is_opened_by_its_indexes_without_reading_a_batch(reopen: Reopener) -> None:
    log = reopen(segment_bytes="2500")
    fill(log, 40)
    wait(log.close())
    names = {path.suffix for path in log.directory.iterdir()}
    assert names == {".log", ".index", ".producers"}
    for path in log.directory.glob("*.log"):
        path.write_bytes(bytes(path.stat().st_size))
    assert reopen(segment_bytes="2500").end_offset == 200


@pytest.mark.parametrize("damage", [b"", b"x" * 40, None])
def test_a_damaged_index_is_made_again_from_the_segment(reopen: Reopener, damage: bytes | None) -> None:
    log = reopen(segment_bytes="2500")
    expected = fill(log, 40)
    wait(log.close())
    for path in log.directory.glob("*.index"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content) if damage is None else damage)
    assert read_all(reopen(segment_bytes="2500")) == expected


class LetGo(SegmentIndex):
    """Its entries are let go behind every look at them, as a disk thread that has written them may do."""

    kept = SegmentIndex._entries  # type: ignore[misc]

    @property
    def _entries(self) -> Any:
        entries = LetGo.kept.__get__(self)
        if self._file is not None:
            LetGo.kept.__set__(self, None)
        return entries

    @_entries.setter
    def _entries(self, entries: Any) -> None:
        LetGo.kept.__set__(self, entries)


def test_entries_may_be_let_go_while_they_are_looked_at(tmp_path: Path) -> None:
    index = LetGo(0, RecentlyUsed(1 << 20))
    for number in range(10):
        index.add(number, 100 * number, 1000 + number)
    index.write(tmp_path / "0.index", 1000, 10)
    for number in range(10):
        assert index.position_of_offset(number) == 100 * number
        LetGo.kept.__set__(index, index._read_again())
        assert index.memory_bytes == 240


def index_memory(log: PartitionLog) -> int:
    return sum(segment.index.memory_bytes for segment in log._segments[:-1])


def test_the_indexes_of_a_large_log_take_bounded_memory(reopen: Reopener) -> None:
    log = reopen(files=OpenFiles(8, index_bytes=1_000), segment_bytes="2000", index_interval_bytes="0")
    expected = fill(log, 60)
    reopen.settle()
    assert len(log._segments) > 10
    for opened in (log, reopen(files=OpenFiles(8, index_bytes=1_000), segment_bytes="2000", index_interval_bytes="0")):
        assert index_memory(opened) == 0
        assert read_all(opened, 700) == expected
        assert 0 < index_memory(opened) <= 1_000
        for header, _ in batches_from_timestamp(opened, 1_000):
            assert next(batches_from_timestamp(opened, header.max_timestamp))[0] == header
        assert index_memory(opened) <= 1_000


@pytest.mark.parametrize("damage", [None, b"", b"ISI1 and nothing that follows from it, for longer than a head has"])
def test_everything_is_found_where_an_index_is_lost_while_the_log_is_open(
    reopen: Reopener, damage: bytes | None
) -> None:
    log = reopen(files=OpenFiles(8, index_bytes=1), segment_bytes="2000", index_interval_bytes="0")
    expected = fill(log, 60)
    reopen.settle()
    for path in log.directory.glob("*.index"):
        path.unlink() if damage is None else path.write_bytes(damage)
    assert read_all(log, 700) == expected
    header, _ = next(batches_from_timestamp(log, 1_101))
    assert header.base_offset == 100


def test_duplicates_of_the_last_five_batches_are_told_their_offset_also_after_a_restart(reopen: Reopener) -> None:
    log = reopen(segment_bytes="600")
    batches = [numbered_batch(values(5 * number, 5), 7, 0, 5 * number) for number in range(12)]
    for number, batch in enumerate(batches):
        assert append(log, bytearray(batch)) == 5 * number
    for now in (log, reopen(segment_bytes="600")):
        for number in range(7, 12):
            header = read_header(batches[number])
            again = now.append(memoryview(bytearray(batches[number])), header)
            assert (again.base_offset, again.duplicate) == (5 * number, True)
        with pytest.raises(KafkaError) as refused:
            append(now, bytearray(batches[6]))
        assert refused.value.code is ErrorCode.out_of_order_sequence_number
        assert now.end_offset == 60


def test_a_producer_must_go_on_where_it_was_and_in_its_newest_epoch(reopen: Reopener) -> None:
    log = reopen()
    append(log, numbered_batch(values(0, 3), 7, 1, 0))

    def refused(epoch: int, sequence: int) -> ErrorCode:
        with pytest.raises(KafkaError) as error:
            append(log, numbered_batch(values(0, 3), 7, epoch, sequence))
        return error.value.code

    assert refused(1, 4) is ErrorCode.out_of_order_sequence_number
    assert refused(0, 3) is ErrorCode.invalid_producer_epoch
    assert refused(2, 3) is ErrorCode.out_of_order_sequence_number
    assert append(log, numbered_batch(values(0, 3), 7, 1, 3)) == 3
    assert append(log, numbered_batch(values(0, 3), 7, 2, 0)) == 6
    assert refused(1, 6) is ErrorCode.invalid_producer_epoch


def test_a_snapshot_from_before_the_first_segment_holds_no_producer_to_its_sequences(reopen: Reopener) -> None:
    """The newest is damaged by a loss of power; what the one before it needs to catch up is beyond retention."""
    log = reopen(segment_bytes="1000", retention_bytes="0")
    sequence = 0
    while len(log._segments) < 4:
        append(log, numbered_batch(values(sequence, 3), 7, 0, sequence))
        sequence += 3
    # The producer's last batch went into the newest segment: have that go, too.
    while len(log._segments) < 5:
        fill(log, 1)
    reopen.settle()
    log.enforce_retention(0.0)
    *_, older, newest = sorted(log.directory.glob("*.producers"))
    assert int(older.stem) < log.start_offset == int(newest.stem)
    newest.write_bytes(b"")
    again = reopen(segment_bytes="1000")
    assert append(again, numbered_batch(values(0, 3), 7, 0, sequence)) == log.end_offset


def test_nothing_takes_the_place_of_a_producers_first_batch_that_the_disk_refused(
    reopen: Reopener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has no room for it, but for the small one that was sent behind it; the first is then sent again."""
    log = reopen()
    write = os.pwrite

    def little_room(descriptor: int, content: memoryview, position: int) -> int:
        if len(content) > 1_000:
            raise OSError(28, "No space left on device")
        return write(descriptor, content, position)

    monkeypatch.setattr(os, "pwrite", little_room)
    with pytest.raises(KafkaError) as full:
        append(log, numbered_batch([b"x" * 2_000], 7, 0, 0))
    assert full.value.code is ErrorCode.kafka_storage_error
    with pytest.raises(KafkaError) as early:
        append(log, numbered_batch([b"y"], 7, 0, 1))
    assert early.value.code is ErrorCode.out_of_order_sequence_number
    assert append(log, numbered_batch([b"other"], 8, 0, 5)) == 0
    with pytest.raises(KafkaError):
        append(log, numbered_batch([b"x" * 2_000], 9, 0, 0))
    now = time.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: now + 61)
        # Its producer has given up the first.
        assert append(log, numbered_batch([b"y"], 9, 0, 1)) == 1
    monkeypatch.setattr(os, "pwrite", write)
    assert append(log, numbered_batch([b"x" * 2_000], 7, 0, 0)) == 2
    assert append(log, numbered_batch([b"y"], 7, 0, 1)) == 3


def test_sequences_wrap_to_zero(reopen: Reopener) -> None:
    log = reopen()
    last = (1 << 31) - 1
    append(log, numbered_batch(values(0, 3), 7, 0, last - 4))
    append(log, numbered_batch(values(0, 3), 7, 0, last - 1))
    assert append(log, numbered_batch(values(0, 3), 7, 0, 1)) == 6
    assert append(log, numbered_batch(values(0, 3), 7, 0, last - 1)) == 3


def test_segments_beyond_the_bytes_to_keep_are_removed(reopen: Reopener) -> None:
    log = reopen(segment_bytes="2000", retention_bytes="6000")
    expected = fill(log, 60)
    reopen.settle()
    log.enforce_retention(0.0)
    assert 6000 <= log.size < 6000 + 2000
    left = read_all(log)
    assert left == expected[-len(left) :]
    assert log.start_offset == left[0][0]
    assert len(list(log.directory.glob("*.log"))) <= 5
    assert reopen(segment_bytes="2000").start_offset == log.start_offset


@pytest.mark.parametrize("expired", [False, True])
def test_retention_makes_room_on_a_disk_that_is_full(
    reopen: Reopener, monkeypatch: pytest.MonkeyPatch, expired: bool
) -> None:
    log = reopen(segment_bytes="2000", retention_bytes="6000", retention_ms="1000")
    expected = fill(log, 60)
    reopen.settle()
    opened = os.open

    def full(path: Path, flags: int, *arguments: int) -> int:
        if flags & os.O_CREAT and not Path(path).exists():
            raise OSError(28, "No space left on device")
        return opened(path, flags, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        patched.setattr(Path, "touch", lambda path, mode: full(path, os.O_CREAT, mode))
        log.enforce_retention(100.0 if expired else 0.0)
    assert log.size < 2000 if expired else 6000 <= log.size < 8000
    left = read_all(log)
    assert left == expected[-len(left) :]
    assert log.start_offset == left[0][0]
    again = reopen(segment_bytes="2000")
    assert again.start_offset == log.start_offset
    assert read_all(again) == left


def test_everything_older_than_the_time_to_keep_is_removed_and_the_end_is_not_forgotten(reopen: Reopener) -> None:
    log = reopen(segment_bytes="2000", retention_ms="1000")
    fill(log, 60)
    log.enforce_retention(1_000 / 1000)
    assert log.start_offset == 0
    log.enforce_retention(100.0)
    assert (log.start_offset, log.end_offset) == (300, 300)
    again = reopen(segment_bytes="2000")
    assert (again.start_offset, again.end_offset) == (300, 300)
    assert fill(again, 1)[0][0] == 300


def test_deleted_records_stay_deleted_after_a_restart(reopen: Reopener) -> None:
    log = reopen(segment_bytes="2000")
    fill(log, 60)
    log.delete_before(123)
    for now in (log, reopen(segment_bytes="2000")):
        assert now.start_offset == 123
        with pytest.raises(KafkaError):
            now.slice(122, 100)
        assert now.slice(123, 100) is not None


def test_deleted_segments_of_which_a_loss_of_power_brought_back_some_are_no_damage(reopen: Reopener) -> None:
    log = reopen(segment_bytes="2000")
    fill(log, 60)
    reopen.settle()
    first = log.segments[0].path
    content = first.read_bytes()
    log.delete_before(log.segments[3].base_offset)
    left = read_all(log)
    first.write_bytes(content)
    again = reopen(segment_bytes="2000")
    assert (again.start_offset, again.end_offset) == (log.start_offset, log.end_offset)
    assert read_all(again) == left
    assert not first.exists()


def test_each_leader_epoch_ends_where_the_next_begins(reopen: Reopener) -> None:
    log = reopen(leader_epoch=0)
    fill(log, 2)
    log = reopen(leader_epoch=3)
    fill(log, 1)
    log = reopen(leader_epoch=4)
    assert log.end_of_epoch(0) == (0, 10)
    assert log.end_of_epoch(2) == (0, 10)
    assert log.end_of_epoch(3) == (3, 15)
    assert log.end_of_epoch(4) == (4, 15)
    assert log.end_of_epoch(5) == (-1, -1)
    assert [log.epoch_at(offset) for offset in (0, 9, 10, 14, 15)] == [0, 0, 3, 3, 4]
    piece = log.slice(10, 1)
    assert piece is not None
    assert read_header(piece.read()).leader_epoch == 3


def test_a_log_is_opened_and_goes_on_where_no_descriptor_is_left_to_seal_a_segment_with(
    reopen: Reopener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many segments without an index wait for that at once: a full disk took none of the indexes."""

    def none_left(descriptor: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "dup", none_left)
        log = reopen(segment_bytes="2000")
        expected = fill(log, 60)
        log = reopen(segment_bytes="2000")
        assert read_all(log) == expected
        expected += fill(log, 60)
    for future in log.close():
        future.result()
    assert log.sealed
    assert read_all(reopen(segment_bytes="2000")) == expected


def test_a_failed_write_leaves_the_log_as_it_was(reopen: Reopener, monkeypatch: pytest.MonkeyPatch) -> None:
    log = reopen()
    expected = fill(log, 3)

    def part_of(write: Callable[..., int]) -> Callable[..., int]:
        def failing(descriptor: int, content: memoryview, position: int) -> int:
            write(descriptor, content[: len(content) // 2], position)
            raise OSError(28, "No space left on device")

        return failing

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", part_of(os.pwrite))
        with pytest.raises(KafkaError) as refused:
            append(log, batch_of(values(0, 50)))
    assert refused.value.code is ErrorCode.kafka_storage_error
    # On a full disk, the part that was written would keep room from others.
    assert sum(path.stat().st_size for path in log.directory.glob("*.log")) == log.size
    assert read_all(log) == expected
    expected += fill(log, 1)
    assert read_all(log) == expected
    assert read_all(reopen()) == expected


def test_a_deleted_log_lets_go_of_nothing_more(reopen: Reopener) -> None:
    """Retention goes through the logs; one of them is deleted and made again under its name before its turn."""
    old = reopen(segment_bytes="2000", retention_bytes="4000", retention_ms="1000")
    fill(old, 60)
    reopen.settle()
    old.delete(reopen.directory.with_name("grave"))
    new = reopen(segment_bytes="2000")
    expected = fill(new, 60)
    old.enforce_retention(time.time())
    assert read_all(new) == expected
    again = reopen(segment_bytes="2000")
    assert again.start_offset == 0
    assert read_all(again) == expected


def test_a_seal_that_comes_late_leaves_no_index_in_the_log_that_has_the_name_now(reopen: Reopener) -> None:
    """A topic is deleted while a segment of it is being brought to the disk, and made again with the same bytes."""
    go_on = threading.Event()
    reopen.disk.submit(go_on.wait)
    old = reopen(segment_bytes="2000")
    while len(old._segments) == 1:
        append(old, batch_of([b"x" * 100, b"y" * 100]))
    size = old._segments[0].size
    old.delete(reopen.directory.with_name("grave"))
    new = reopen()
    while new.size < size:
        append(new, batch_of([b"x" * (200 + 7)]))
    go_on.set()
    reopen.settle()
    assert list(new.directory.glob("*.index")) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_marker_has_no_sequence_and_may_bring_a_newer_epoch(reopen: Reopener, restarted: bool) -> None:
    """Sequences go on behind a marker of the same epoch, and begin again behind one that raised it (KIP-890)."""
    log = reopen()

    def refused(batch: bytearray) -> ErrorCode:
        with pytest.raises(KafkaError) as error:
            append(log, batch)
        return error.value.code

    append(log, numbered_batch([b"a", b"b"], 7, 0, 0))
    append(log, marker(7, 0))
    log = reopen() if restarted else log
    assert append(log, numbered_batch([b"a", b"b"], 7, 0, 0)) == 0
    assert append(log, numbered_batch([b"c"], 7, 0, 2)) == 3
    append(log, marker(7, 1))
    log = reopen() if restarted else log
    assert refused(numbered_batch([b"d"], 7, 0, 3)) is ErrorCode.invalid_producer_epoch
    assert refused(numbered_batch([b"d"], 7, 1, 3)) is ErrorCode.out_of_order_sequence_number
    assert append(log, numbered_batch([b"d"], 7, 1, 0)) == 5


@pytest.mark.parametrize(
    ("known", "code"), [(2, ErrorCode.fenced_leader_epoch), (4, ErrorCode.unknown_leader_epoch), (3, None), (-1, None)]
)
def test_a_client_that_gives_another_leader_epoch_than_the_partitions_is_refused(
    reopen: Reopener, known: int, code: ErrorCode | None
) -> None:
    log = reopen(leader_epoch=3)
    if code is None:
        log.check_leader_epoch(known)
        return
    with pytest.raises(KafkaError) as refused:
        log.check_leader_epoch(known)
    assert refused.value.code is code
