"""A log whose last segment was torn or changed anywhere: recovery leaves what was written up to some batch."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from embedded.batches import batch_of, compacted, numbered_batch, with_header
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestd.broker.log.files import OpenFiles
from ingestd.broker.log.partition_log import Appended, PartitionLog
from ingestd.broker.log.swaps import expect_gaps
from ingestd.broker.settings import Flush
from ingestd.broker.topic_config import TopicConfig
from ingestd.records.batch import read_header, split_batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCHES = 60
RECORDS = 4


@pytest.fixture(scope="module")
def disk() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=1) as executor:
        yield executor


def open_log(directory: Path, disk: ThreadPoolExecutor, files: OpenFiles, policy: str = "delete") -> PartitionLog:
    config = TopicConfig.of({"segment.bytes": "1800", "index.interval.bytes": "400", "cleanup.policy": policy}, {})
    log = PartitionLog(directory, config, files, disk, leader_epoch=0, producer_expiry=1e9, flush=Flush.os)
    log.open()
    return log


def batches_of(log: PartitionLog) -> list[bytes]:
    found: list[bytes] = []
    offset = log.start_offset
    while (piece := log.slice(offset, 1 << 20)) is not None:
        found += [bytes(batch) for batch in split_batches(piece.read())]
        offset = read_header(found[-1]).last_offset + 1
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, disk: ThreadPoolExecutor) -> tuple[Path, list[bytes]]:
    """A log's directory as a kill leaves it, and the batches in it."""
    directory = tmp_path_factory.mktemp("killed") / "log"
    files = OpenFiles(8)
    log = open_log(directory, disk, files)
    sequence = 0
    for at in range(BATCHES):
        content = [b"%d-%d" % (at, record) * 5 for record in range(RECORDS)]
        batch = batch_of(content)
        if at % 2 == 0:
            batch = numbered_batch(content, 1, 0, sequence)
            sequence += RECORDS
        log.append(memoryview(batch), read_header(batch))
    disk.submit(int).result()
    written = batches_of(log)
    files.close_all()
    assert len(written) == BATCHES
    return directory, written


def recovered(directory: Path, written: list[bytes], disk: ThreadPoolExecutor, policy: str = "delete") -> None:
    """Opening gives a prefix, and the log goes on from there."""
    files = OpenFiles(8)
    try:
        log = open_log(directory, disk, files, policy)
        left = batches_of(log)
        assert left == written[: len(left)]
        assert log.end_offset == len(left) * RECORDS
        batch = batch_of([b"after"])
        assert log.append(memoryview(batch), read_header(batch)).base_offset == len(left) * RECORDS
        assert len(batches_of(log)) == len(left) + 1
        disk.submit(int).result()
    finally:
        files.close_all()


def last_segment(directory: Path) -> Path:
    return max(path for path in directory.glob("*.log") if path.stat().st_size)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_tail_torn_at_any_byte_leaves_a_prefix(
    killed: tuple[Path, list[bytes]], disk: ThreadPoolExecutor, tmp_path: Path, data: st.DataObject
) -> None:
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(killed[0], copy)
    segment = last_segment(copy)
    content = segment.read_bytes()
    cut = data.draw(st.integers(0, len(content)), label="cut")
    garbage = data.draw(st.binary(max_size=200), label="garbage")
    segment.write_bytes(content[:cut] + garbage)
    recovered(copy, killed[1], disk)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_byte_changed_anywhere_in_the_last_segment_leaves_a_prefix(
    killed: tuple[Path, list[bytes]], disk: ThreadPoolExecutor, tmp_path: Path, data: st.DataObject
) -> None:
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(killed[0], copy)
    segment = last_segment(copy)
    content = bytearray(segment.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1), label="at")
    content[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    segment.write_bytes(content)
    files = OpenFiles(8)
    try:
        log = open_log(copy, disk, files)
        left = batches_of(log)
        expected = killed[1][: len(left)]
        # Bytes 12 to 16 are the leader epoch, which no CRC covers: nothing of a record is in it.
        assert [batch[:12] + batch[16:] for batch in left] == [batch[:12] + batch[16:] for batch in expected]
        disk.submit(int).result()
    finally:
        files.close_all()


def test_the_last_batch_torn_at_every_byte_takes_nothing_before_it(
    killed: tuple[Path, list[bytes]], disk: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """What is missing was not written, or is zeros: the file's length may be on the disk before its bytes."""
    written = killed[1]
    copy = tmp_path / "copy"
    shutil.copytree(killed[0], copy)
    kept = {path.name: path.read_bytes() for path in copy.iterdir()}
    segment = last_segment(copy)
    whole = kept[segment.name]
    size = len(written[-1])
    for left in range(size):
        for filling in (b"", bytes(size - left)):
            torn = whole[: len(whole) - size + left] + filling
            if torn == whole:
                continue  # its last bytes are zeros
            restore(copy, kept)
            segment.write_bytes(torn)
            files = OpenFiles(8)
            log = open_log(copy, disk, files)
            assert batches_of(log) == written[:-1]
            assert log.end_offset == (BATCHES - 1) * RECORDS
            files.close_all()


def restore(directory: Path, content: dict[str, bytes]) -> None:
    for path in directory.iterdir():
        if path.name not in content:
            path.unlink()
    for name, each in content.items():
        (directory / name).write_bytes(each)


@pytest.mark.parametrize("pattern", ["*.index", "*.producers", "leader-epochs.json"])
def test_a_file_beside_the_segments_torn_at_every_byte_takes_no_record(
    killed: tuple[Path, list[bytes]], disk: ThreadPoolExecutor, tmp_path: Path, pattern: str
) -> None:
    """Cut off, or zeros from there on. Sequences are known all the same: a batch sent again is not written."""
    copy = tmp_path / "copy"
    shutil.copytree(killed[0], copy)
    (copy / "leader-epochs.json").write_bytes(b"[[0,0],[3,20]]")
    kept = {path.name: path.read_bytes() for path in copy.iterdir()}
    torn = max(path for path in copy.glob(pattern))
    again = next(batch for batch in reversed(killed[1]) if read_header(batch).producer_id == 1)
    whole = kept[torn.name]
    for left in range(len(whole)):
        for filling in (b"", bytes(len(whole) - left)):
            restore(copy, kept)
            torn.write_bytes(whole[:left] + filling)
            files = OpenFiles(8)
            log = open_log(copy, disk, files)
            assert batches_of(log) == killed[1]
            appended = log.append(memoryview(bytearray(again)), read_header(again))
            assert appended == Appended(read_header(again).base_offset, duplicate=True)
            disk.submit(int).result()
            files.close_all()


def test_after_a_segment_that_was_cut_nothing_of_the_log_is_left(
    killed: tuple[Path, list[bytes]], disk: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """A byte changed in the middle: what is behind it would seem to follow it."""
    copy = tmp_path / "copy"
    shutil.copytree(killed[0], copy)
    for path in copy.glob("*.index"):
        path.unlink()
    damaged = sorted(copy.glob("*.log"))[2]
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    recovered(copy, killed[1], disk)


def test_a_segment_that_is_missing_in_the_middle_ends_the_log_and_the_later_ones_are_kept_aside(
    killed: tuple[Path, list[bytes]], disk: ThreadPoolExecutor, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(killed[0], copy)
    segments = sorted(copy.glob("*.log"))
    assert len(segments) > 3
    later = {f"{path.name}.damaged": path.read_bytes() for path in segments[3:]}
    segments[2].unlink()
    recovered(copy, killed[1], disk)
    assert {path.name: path.read_bytes() for path in copy.glob("*.damaged")} == later


@pytest.mark.parametrize("indexed", [True, False])
def test_what_the_cleaner_removed_is_no_damage(
    killed: tuple[Path, list[bytes]], disk: ThreadPoolExecutor, tmp_path: Path, indexed: bool
) -> None:
    """Batches at the start, in the middle and at the end of segments are gone, and one whole segment."""
    copy = tmp_path / "copy"
    shutil.copytree(killed[0], copy)
    segments = sorted(path for path in copy.glob("*.log") if path.stat().st_size)
    assert len(segments) > 5
    left = []
    for number, path in enumerate(segments):
        batches = [bytes(batch) for batch in split_batches(path.read_bytes())]
        assert len(batches) > 3
        if number == 1:
            batches = batches[1:]
        elif number == 2:
            del batches[1]
        elif number == 3:
            batches = batches[:-2]
        elif number == 4:
            batches = []
        left += batches
        if 1 <= number <= 4:
            path.write_bytes(b"".join(batches))
            path.with_suffix(".index").unlink()
        if number == 4:
            path.unlink()
    if not indexed:
        for path in copy.glob("*.index"):
            path.unlink()
    expect_gaps(copy, int(segments[5].stem))
    files = OpenFiles(8)
    try:
        log = open_log(copy, disk, files, "compact")
        assert log.end_offset == BATCHES * RECORDS
        assert batches_of(log) == left
        for offset in range(log.end_offset):
            piece = log.slice(offset, 1)
            expected = next(batch for batch in left if read_header(batch).last_offset >= offset)
            assert piece is not None
            assert piece.read() == expected
            assert piece.last == (expected == left[-1])
        disk.submit(int).result()
    finally:
        files.close_all()


def test_a_gap_behind_what_was_cleaned_is_damage(
    killed: tuple[Path, list[bytes]], disk: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """A loss of power took a segment that was not synced, and left the one behind it."""
    copy = tmp_path / "copy"
    shutil.copytree(killed[0], copy)
    segments = sorted(copy.glob("*.log"))
    segments[2].write_bytes(b"")
    segments[2].with_suffix(".index").unlink()
    expect_gaps(copy, int(segments[2].stem))
    recovered(copy, killed[1], disk, "compact")


def test_a_batch_that_the_cleaner_thinned_out_is_whole(disk: ThreadPoolExecutor, tmp_path: Path) -> None:
    """Fewer records than offsets, and an empty batch that keeps a producer's last sequence."""
    files = OpenFiles(8)
    directory = tmp_path / "log"
    log = open_log(directory, disk, files, "compact")
    for batch in (compacted([b"a", b"b"], 5), with_header(compacted([b"c"], 3), 57, bytes(4)), batch_of([b"d"])):
        log.append(memoryview(batch), read_header(batch))
    assert log.end_offset == 9
    expect_gaps(directory, 9)
    files.close_all()
    files = OpenFiles(8)
    try:
        log = open_log(directory, disk, files, "compact")
        assert [read_header(batch).base_offset for batch in batches_of(log)] == [0, 5, 8]
        assert log.end_offset == 9
    finally:
        files.close_all()
