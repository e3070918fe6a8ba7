"""Workers and supervisors killed (SIGKILL) at random moments: every line arrives, first occurrences in order.

What was on its way when a process died is sent again, so duplicates are allowed; each file has one partition, in which
the order of first occurrences is that of the file.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.written import LogWriter, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster
    from harness.daemon import Daemon
    from harness.written import Delivered

FILES = 4
KILLS = 4
STOPS = 4
GONE_SECONDS = 30.0


def write_all(stack: ExitStack, logs: Path, written: Written) -> list[LogWriter]:
    return [
        stack.enter_context(LogWriter(logs / f"file-{number}.log", written, seed=number, rate=500_000))
        for number in range(FILES)
    ]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_fresh(pid: int) -> bool:
    """Whether a worker is an interpreter of its own, and no copy of the supervisor."""
    return b"ingestd.daemon.worker_main" in Path(f"/proc/{pid}/cmdline").read_bytes()


def replaced(daemon: Daemon, killed: int, workers: int) -> bool:
    """Whether the supervisor has seen the death, and there are as many workers as before."""
    pids = daemon.worker_pids()
    return killed not in pids and len(pids) == workers


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_workers_killed_at_random_moments_lose_nothing(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
    seed: int,
) -> None:
    choose = random.Random(seed)
    name, written = topic(partitions=3), Written()
    daemon = shipping(kafka, name, workers=3, partition="file")
    daemon.start_ready()
    assert not any(map(is_fresh, daemon.worker_pids()))
    with ExitStack() as stack:
        write_all(stack, logs, written)
        for _ in range(KILLS):
            time.sleep(choose.uniform(0.1, 0.8))
            victim = choose.choice(daemon.worker_pids())
            os.kill(victim, 9)
            daemon.until(lambda killed=victim: replaced(daemon, killed, 3), "the killed worker is back", 60)
    assert any(map(is_fresh, daemon.worker_pids()))
    all_there(kafka, name, written).check(duplicates=True)
    assert sum(worker["restarts"] for worker in daemon.status()["workers"]) == KILLS
    assert daemon.stop() == 0


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_a_supervisor_killed_at_random_moments_takes_its_workers_down_and_its_successor_goes_on(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
    seed: int,
) -> None:
    choose = random.Random(seed)
    name, written = topic(partitions=3), Written()
    daemon = shipping(kafka, name, partition="file")
    with ExitStack() as stack:
        write_all(stack, logs, written)
        for _ in range(KILLS):
            daemon.start_ready()
            time.sleep(choose.uniform(0.05, 0.8))
            workers = daemon.worker_pids()
            daemon.kill()
            deadline = time.monotonic() + GONE_SECONDS
            while any(alive(pid) for pid in workers):
                assert time.monotonic() < deadline, "workers outlive their supervisor"
                time.sleep(0.05)
        daemon.start_ready()
    all_there(kafka, name, written).check(duplicates=True)
    assert daemon.stop() == 0


def test_workers_supervisor_and_leader_killed_while_files_rotate_lose_nothing(
    kafka3: KafkaCluster, logs: Path, shipping: Callable[..., Daemon], all_there: Callable[..., Delivered]
) -> None:
    choose = random.Random(7)
    name, written = kafka3.create_topic(partitions=3), Written()
    daemon = shipping(kafka3, name)
    daemon.start_ready()
    with ExitStack() as stack:
        writers = write_all(stack, logs, written)
        for number in range(3):
            time.sleep(choose.uniform(0.2, 0.6))
            for writer in writers:
                writer.rotate(writer.path.with_name(f"{writer.path.name}.{number}"))
            daemon.until(lambda: len(daemon.worker_pids()) == 2, "both workers run", 60)
            daemon.kill_worker(choose.randrange(2))
            leader = kafka3.leader(name, number)
            kafka3.kill(leader)
            time.sleep(choose.uniform(0.2, 0.6))
            daemon.kill()
            daemon.start_ready()
            kafka3.start(leader)
            kafka3.wait_in_sync(name)
    delivered = all_there(kafka3, name, written)
    assert not delivered.missing
    assert not delivered.foreign
    assert daemon.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_is_a_stop_like_any_other(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    logs: Path,
    shipping: Callable[..., Daemon],
    all_there: Callable[..., Delivered],
    number: signal.Signals,
) -> None:
    """`pkill`, and a shutdown without systemd, send it to the workers too. They died: what was under way came twice."""
    name, written = topic(partitions=2), Written()
    daemon = shipping(kafka, name, partition="file")
    with ExitStack() as stack:
        write_all(stack, logs, written)
        for _ in range(STOPS):
            daemon.start_ready()
            before = daemon.acknowledged()
            daemon.until(lambda before=before: daemon.acknowledged() > before, "lines are delivered", 60)
            for pid in (*daemon.worker_pids(), daemon.pid):
                os.kill(pid, number)
            assert daemon.wait(40) == 0
    daemon.start_ready()
    all_there(kafka, name, written).check(duplicates=False)
    assert daemon.stop() == 0
