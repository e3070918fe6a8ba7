"""What a start costs where many files are known and many more rotated ones lie beside them.

Seconds until it is ready, how long HTTP is silent meanwhile, CPU, and how soon SIGTERM is obeyed.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import results
from idle import cpu_seconds
from meter import descendants
from workload import Daemon, scratch

MOST_READY_SECONDS = 3.0
MOST_GAP_SECONDS = 0.05
LOOK_SECONDS = 0.02


class Pulse:
    """Asks /healthz again and again from a thread; the longest time between two answers, whatever they said."""

    def __init__(self, address: str) -> None:
        self.longest = 0.0
        self.answers = 0
        self._address = address
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=600)
        last = 0.0
        while not self._ended.wait(LOOK_SECONDS):
            try:
                connection.request("GET", "/healthz")
                connection.getresponse().read()
            except OSError:
                connection.close()
                continue
            now = time.monotonic()
            self.longest = max(self.longest, now - last - LOOK_SECONDS) if self.answers else 0.0
            self.answers += 1
            last = now


@dataclass(frozen=True, slots=True)
class Started:
    """One start, measured. Seconds."""

    ready: float
    longest_gap: float
    cpu: float
    stop: float


def make_logs(logs: Path, files: int, rotated: int) -> None:
    """`files` logs of one line, with rotated ones beside each, under names that begin at .2."""
    logs.mkdir()
    for number in range(files):
        for age in range(2, rotated + 1):
            (logs / f"app-{number:05}.log.{age}").write_bytes(b"%d rotated %d times\n" % (number, age))
        (logs / f"app-{number:05}.log").write_bytes(b"%d first\n" % number)


def rotate_all(logs: Path, files: int) -> None:
    """Every log once: what is known now has another name, which no glob matches."""
    for number in range(files):
        log = logs / f"app-{number:05}.log"
        log.rename(f"{log}.1")
        log.write_bytes(b"%d second\n" % number)


def know_them(daemon: Daemon, logs: Path, files: int, limit: float) -> None:
    """Run the daemon until it has delivered all, before and after a rotation."""
    size = sum(log.stat().st_size for log in logs.glob("*.log"))
    daemon.start_ready()
    daemon.until(lambda: daemon.acknowledged() >= size, "what was there is acknowledged", limit)
    rotate_all(logs, files)
    size += sum(log.stat().st_size for log in logs.glob("*.log"))
    daemon.until(lambda: daemon.acknowledged() >= size, "what came after the rotation is acknowledged", limit)
    daemon.stop(limit)


def measure_start(daemon: Daemon, limit: float) -> Started:
    """Start it, with its files known; stop it as soon as it is ready."""
    began = time.monotonic()
    with Pulse(daemon.address) as pulse:
        daemon.start()
        daemon.until(lambda: daemon.page("/readyz") is not None, "it is ready", limit)
        ready = time.monotonic() - began
        cpu = cpu_seconds(descendants(daemon.pid))
        time.sleep(1.0)
    told = time.monotonic()
    daemon.stop(limit)
    return Started(ready, pulse.longest, cpu, time.monotonic() - told)


def stop_amid_start(daemon: Daemon, limit: float) -> float:
    """Seconds from SIGTERM to the end of a daemon that has only just begun to answer."""
    daemon.start()
    daemon.until(lambda: answers(daemon.address), "it answers", limit)
    told = time.monotonic()
    daemon.stop(limit)
    return time.monotonic() - told


def answers(address: str) -> bool:
    """Whether /healthz says anything."""
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()
    return True


def main() -> int:
    """Measure and report; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rotated", type=int, default=10, help="rotated files beside each")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds until a start is given up")
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    with scratch(given.directory) as directory:
        logs = directory / "logs"
        make_logs(logs, given.files, given.rotated)
        daemon = Daemon(
            directory / "daemon",
            servers=[],
            topic="lines",
            paths=[f"{logs}/*.log"],
            daemon={"workers": given.workers},
            tables={"clusters.target": {"embedded": True, "partitions": 2}},
            leave_after=3600.0,  # the rotated files stay known
        )
        with daemon:
            know_them(daemon, logs, given.files, given.limit)
            started = measure_start(daemon, given.limit)
            amid = stop_amid_start(daemon, given.limit)
    reached = started.ready <= MOST_READY_SECONDS and started.longest_gap <= MOST_GAP_SECONDS
    rows = [
        ["ready, s", started.ready],
        ["longest silence of HTTP, s", started.longest_gap],
        ["CPU until ready, s", started.cpu],
        ["SIGTERM when ready to end, s", started.stop],
        ["SIGTERM amid the start to end, s", amid],
    ]
    caption = f"{given.files} known files, {given.rotated} rotated ones beside each, {given.workers} workers"
    verdict = f"ready in {MOST_READY_SECONDS:g} s, no silence beyond {MOST_GAP_SECONDS:g} s: "
    results.print_table("Start", ["what", "figure"], rows, f"{caption}\n{verdict}{'reached' if reached else 'MISSED'}")
    settings = {"files": given.files, "rotated": given.rotated, "workers": given.workers}
    print(f"written: {results.save('start', settings, asdict(started) | {'stop_amid_start': amid})}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
