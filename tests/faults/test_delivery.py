"""Files that grow and rotate while a daemon ships them to real Kafka and nothing fails: every line, once, in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from harness.written import LogWriter, Written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cluster import KafkaCluster
    from harness.daemon import Daemon
    from harness.written import Delivered

WRITE_SECONDS = 3.0


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_line_of_a_growing_file_arrives_once_and_in_order(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
    codec: str,
) -> None:
    name, written = topic(partitions=4), Written()
    daemon = shipping(kafka, name, compression=codec)
    with LogWriter(logs / "access.log", written):
        daemon.start_ready()
        time.sleep(1.0 if codec != "lz4" else WRITE_SECONDS)
    all_there(kafka, name, written).check(duplicates=False)
    assert daemon.stop() == 0


def test_a_file_larger_than_all_memory_of_the_workers_arrives_whole(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    tmp_path: Path,
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    name, written = topic(partitions=1), Written()
    with LogWriter(logs / "access.log", written, rate=60_000_000):
        time.sleep(1.0)
    daemon = shipping(kafka, name)
    daemon.start("--once")
    assert daemon.wait(90) == 0
    all_there(kafka, name, written).check(duplicates=False)


def test_lines_written_across_renaming_rotations_arrive_once(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    name, written = topic(partitions=2), Written()
    daemon = shipping(kafka, name)
    daemon.start_ready()
    with (
        LogWriter(logs / "one.log", written, seed=1) as one,
        LogWriter(logs / "two.log", written, seed=2) as two,
    ):
        for number in range(4):
            time.sleep(WRITE_SECONDS / 4)
            one.rotate(logs / f"one.log.{number}")
            two.rotate(logs / f"two.log.{number}")
        time.sleep(WRITE_SECONDS / 4)
    delivered = all_there(kafka, name, written)
    assert not delivered.missing
    assert not delivered.foreign
    assert delivered.duplicates == 0
    assert daemon.stop() == 0


def test_a_file_that_is_copied_and_truncated_is_read_from_its_new_beginning(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    tmp_path: Path,
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    name, written = topic(partitions=1), Written()
    daemon = shipping(kafka, name)
    daemon.start_ready()
    with LogWriter(logs / "access.log", written):
        time.sleep(1.0)
    all_there(kafka, name, written).check(duplicates=False)
    writer = LogWriter(logs / "access.log", written, seed=2)
    writer.truncate(tmp_path / "access.copy")  # before it writes: lines that nobody had read yet would be lost with it
    with writer:
        time.sleep(1.0)
    all_there(kafka, name, written).check(duplicates=False)
    assert daemon.stop() == 0


def test_a_daemon_that_is_stopped_and_started_goes_on_where_it_was(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    name, written = topic(partitions=1), Written()
    daemon = shipping(kafka, name)
    with LogWriter(logs / "access.log", written) as writer:
        for number in range(3):
            daemon.start_ready()
            time.sleep(0.5)
            assert daemon.stop() == 0
            if number == 1:
                # What is rotated while nobody looks is still to be read to its end.
                writer.rotate(logs / "access.log.1")
        daemon.start_ready()
    delivered = all_there(kafka, name, written)
    assert not delivered.missing
    assert not delivered.foreign
    assert delivered.duplicates == 0
    assert daemon.stop() == 0


def test_a_file_that_is_empty_when_found_is_followed_from_its_first_line_at_once(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
) -> None:
    name, written = topic(partitions=1), Written()
    (logs / "access.log").touch()
    daemon = shipping(kafka, name, rescan_interval=600.0)
    daemon.start_ready()
    with LogWriter(logs / "access.log", written):
        time.sleep(0.2)
    all_there(kafka, name, written).check(duplicates=False)  # long before the next rescan
    assert daemon.stop() == 0
