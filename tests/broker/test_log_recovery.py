"""A log whose last segment was torn or changed anywhere: recovery leaves what was written up to some batch."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from embedded.batches import batch_of, numbered_batch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestd.broker.log.files import OpenFiles
from ingestd.broker.log.partition_log import PartitionLog
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


def open_log(directory: Path, disk: ThreadPoolExecutor, files: OpenFiles) -> PartitionLog:
    config = TopicConfig.of({"segment.bytes": "1800", "index.interval.bytes": "400"}, {})
    log = PartitionLog(directory, config, files, disk, leader_epoch=0, producer_expiry=1e9)
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


def recovered(directory: Path, written: list[bytes], disk: ThreadPoolExecutor) -> None:
    """Opening gives a prefix, and the log goes on from there."""
    files = OpenFiles(8)
    try:
        log = open_log(directory, disk, files)
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


def test_a_segment_that_is_missing_in_the_middle_ends_the_log_before_it(
    killed: tuple[Path, list[bytes]], disk: ThreadPoolExecutor, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(killed[0], copy)
    segments = sorted(copy.glob("*.log"))
    assert len(segments) > 3
    segments[2].unlink()
    recovered(copy, killed[1], disk)
