"""Input and surroundings that a daemon can not take: each is named; the rest is delivered, nothing hangs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING, BinaryIO

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.cluster import KafkaCluster
    from harness.daemon import Daemon

GIGABYTE = 1_000_000_000


def once(
    tmp_path: Path, servers: list[str], tails: dict[str, dict[str, object]], timeout: float = 100, **daemon: object
) -> tuple[int, str]:
    """`ingestd run --once` with these tails: its exit status and all that it said."""
    tables = {"daemon": {"workers": 1, "http": "", "state": str(tmp_path / "state"), "log_format": "json", **daemon}}
    tables |= {"clusters.target": {"bootstrap": servers}}
    tables |= {f"tails.{name}": {"cluster": "target", **table} for name, table in tails.items()}
    file = tmp_path / "ingestd.toml"
    file.write_text(
        "".join(
            f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
            for name, table in tables.items()
        )
    )
    ran = subprocess.run(
        [sys.executable, "-m", "ingestd", "run", "--once", str(file)],
        capture_output=True, timeout=timeout, check=False, text=True,
    )  # fmt: skip
    return ran.returncode, ran.stdout + ran.stderr


def fill(file: BinaryIO) -> None:
    """Write until there is no space."""
    while True:
        file.write(b"x" * 4096)


def test_files_that_can_not_be_taken_are_named_and_the_others_delivered(
    kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(partitions=1)
    logs = tmp_path / "logs"
    (logs / "directory.log").mkdir(parents=True)
    (logs / "good.log").write_bytes(b"one\ntwo\n")
    (logs / "empty.log").write_bytes(b"")
    (logs / "garbage.log").write_bytes(random.Random(7).randbytes(100_000))
    os.mkfifo(logs / "pipe.log")
    (logs / "dangling.log").symlink_to(logs / "nowhere")
    # A directory that a wildcard happens to match is nobody's wish; one that is named is.
    paths = [f"{logs}/*.log", f"{logs}/missing.txt", f"{logs}/directory.log"]
    status, said = once(tmp_path, kafka.bootstrap, {"logs": {"topic": name, "paths": paths}})
    assert status == 1
    for thing in ("directory.log", "garbage.log", "pipe.log", "missing.txt"):
        assert [line for line in said.splitlines() if line.startswith("failed: ") and thing in line], f"{thing}: {said}"
    assert not [line for line in said.splitlines() if line.startswith("failed: ") and "good.log" in line]
    assert kafka.read_back(name) == {0: [b"one", b"two"]}


def test_a_line_of_a_gigabyte_is_cut_in_bounded_memory_and_what_follows_arrives(
    kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(partitions=1)
    log = tmp_path / "long.log"
    with log.open("wb") as file:
        file.write(b"before\n")
        piece = b"x" * 10_000_000
        for _ in range(GIGABYTE // len(piece)):
            file.write(piece)
        file.write(b"\nafter\n")
    settings = {"topic": name, "paths": [str(log)], "max_line_bytes": 1000, "compression": "lz4"}
    status, said = once(tmp_path, kafka.bootstrap, {"long": settings}, timeout=120)
    log.unlink()
    assert status == 0, said
    before, cut, after = kafka.read_back(name)[0]
    assert (before, after) == (b"before", b"after")
    assert len(cut) == 1000
    assert cut.endswith(b"...[truncated]")


def test_a_topic_that_is_not_there_and_not_created_is_named(kafka: KafkaCluster, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"line\n")
    status, said = once(tmp_path, kafka.bootstrap, {"a": {"topic": "never-made", "paths": [str(log)]}})
    assert status == 1
    assert "failed: cluster target: tail a: topic never-made is missing" in said


def test_a_cluster_that_can_not_be_reached_is_named(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"line\n")
    status, said = once(tmp_path, ["127.0.0.1:9"], {"a": {"topic": "t", "paths": [str(log)]}})
    assert status == 1
    assert "failed: cluster target: " in said
    assert "127.0.0.1:9" in said


@pytest.fixture
def small_state(tmp_path: Path) -> Iterator[Path]:
    """The state directory, a disk of 256 KiB."""
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(state)], check=True)
    yield state
    subprocess.run(["umount", "--lazy", str(state)], check=True)


@pytest.mark.parametrize("free", [0, 24])
def test_a_state_without_space_is_named_by_check_and_by_a_run_with_an_end(
    small_state: Path, tmp_path: Path, free: int
) -> None:
    """With 24 KiB the positions' file can be made, and not be written to."""
    (small_state / "filler").write_bytes(bytes((256 - free) << 10))
    log = tmp_path / "a.log"
    log.write_bytes(b"line\n")
    status, said = once(
        tmp_path, ["127.0.0.1:9"], {"a": {"topic": "t", "paths": [str(log)]}}, once_patience=2, drain_timeout=1
    )
    assert status == 1, said
    assert f"{small_state}/positions.sqlite: positions can not be " in said
    assert f"make room in {small_state}" in said
    file = tmp_path / "ingestd.toml"
    checked = subprocess.run(
        [sys.executable, "-m", "ingestd", "check", str(file)], capture_output=True, timeout=60, check=True, text=True
    )
    assert f"{file}: daemon.state: not enough space in {small_state}: " in checked.stderr


def test_a_record_too_large_for_its_topic_stops_the_tail_and_is_met_again(
    kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(partitions=1, max_message_bytes=2000)
    log = tmp_path / "a.log"
    small = [b"small %d" % number for number in range(500)]
    large = random.Random(1).randbytes(5000).hex().encode()
    log.write_bytes(b"\n".join([*small, large, b"behind"]) + b"\n")
    tails = {"a": {"topic": name, "paths": [str(log)], "compression": "none"}}
    for _ in range(2):  # The position stays before what could not be delivered, so the next run meets it again.
        status, said = once(tmp_path, kafka.bootstrap, tails)
        assert status == 1
        assert "stopped: " in said
        assert "MESSAGE_TOO_LARGE" in said
        assert name in said
    assert set(small) <= set(kafka.read_back(name)[0])


def test_a_file_that_two_tails_claim_is_taken_by_the_first(
    kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    first, second = topic(partitions=1), topic(partitions=1)
    log = tmp_path / "a.log"
    log.write_bytes(b"line\n")
    tails = {
        "first": {"topic": first, "paths": [str(log)]},
        "second": {"topic": second, "paths": [f"{tmp_path}/*.log"]},
    }
    status, said = once(tmp_path, kafka.bootstrap, tails)
    assert status == 0, said
    assert "second  0 files" in said
    assert kafka.read_back(first) == {0: [b"line"]}
    assert sum(map(len, kafka.read_back(second).values())) == 0


def test_a_state_directory_in_use_is_named(kafka: KafkaCluster, logs: Path, shipping: Callable[..., Daemon]) -> None:
    name = kafka.create_topic(partitions=1)
    daemon = shipping(kafka, name)
    daemon.start_ready()
    other = subprocess.run(
        [sys.executable, "-m", "ingestd", "run", "--once", str(daemon.file)],
        capture_output=True, timeout=60, check=False, text=True,
    )  # fmt: skip
    assert other.returncode != 0
    assert "is in use by another ingestd" in other.stderr
    assert daemon.stop() == 0


def test_positions_that_do_not_fit_on_the_disk_are_said_and_stored_when_there_is_room(
    kafka: KafkaCluster, tmp_path: Path, logs: Path, shipping: Callable[..., Daemon]
) -> None:
    state = tmp_path / "daemon-0" / "state"
    state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(state)], check=True)
    try:
        name = kafka.create_topic(partitions=1)
        daemon = shipping(kafka, name)
        daemon.start_ready()
        filler = state / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            fill(file)
        count = 0
        with (logs / "a.log").open("ab", buffering=0) as log:

            def grow() -> bool:
                nonlocal count
                log.write(b"line %d\n" % count)
                count += 1
                return "positions can not be written" in daemon.log.read_text()

            daemon.until(grow, "the full disk is said", 60)
            assert "positions" in daemon.metrics()
            filler.unlink()
            daemon.until(lambda: "positions are stored again" in daemon.log.read_text(), "positions are stored", 60)
        daemon.until(lambda: sum(kafka.end_offsets(name).values()) == count, "every line is there", 60)
        assert daemon.stop() == 0
        daemon.start("--once")
        assert daemon.wait(60) == 0
        assert kafka.read_back(name)[0] == [b"line %d" % number for number in range(count)]
    finally:
        subprocess.run(["umount", "--lazy", str(state)], check=True)
