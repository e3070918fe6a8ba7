"""One file into one partition, against a sink that only acknowledges: how much faster two workers are than one.

No broker, no disk: what is measured is reading, encoding, compressing and sending, with order kept.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import results
from accesslog import parse_size
from workload import Daemon, input_log, scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

GAIN = 1.7
"""What two workers must be, at least, as a multiple of one."""
LEAST_SHARE = 0.3
"""What each of them must encode, at least, of all bytes."""
LINGER = 0.05
RUN_SECONDS = 300
SINK = Path(__file__).resolve().parent / "sink.py"


@dataclass(frozen=True, slots=True)
class Run:
    """One run over the whole file."""

    workers: int
    codec: str
    megabytes_per_second: float
    """Of input, from the first produce request to the last acknowledgement: start-up is not in it."""
    wall: float
    """Seconds, start-up included."""
    helped_share: float
    """The part of the bytes that was encoded by a worker that does not own the file."""


@contextmanager
def running_sink(cores: str | None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A sink in a process of its own; its address."""
    bound = ["taskset", "-c", cores] if cores else []
    sink = subprocess.Popen([*bound, sys.executable, str(SINK)], stdout=subprocess.PIPE, text=True)
    try:
        assert sink.stdout is not None
        yield f"127.0.0.1:{int(sink.stdout.readline())}", sink
    finally:
        sink.kill()
        sink.wait()


def run_once(log: Path, lines: int, workers: int, codec: str, cores: str | None, directory: Path) -> Run:
    """Ship the file once. Raises `RuntimeError` unless the sink counted every line."""
    with running_sink(cores) as (address, sink):
        daemon = Daemon(
            directory,
            servers=[address],
            topic="scaling",
            paths=[str(log)],
            daemon={"workers": workers},
            compression=codec,
            linger=LINGER,
        )
        with daemon:
            started = time.monotonic()
            daemon.start("--once")
            helped = _watch(daemon)
            status = daemon.wait(RUN_SECONDS)
            wall = time.monotonic() - started
        if status != 0:
            raise RuntimeError(f"ingestd ended with {status}:\n{daemon.log.read_text()}")
        sink.terminate()
        counted = json.loads(sink.communicate(timeout=10)[0])
    if counted["records"] != lines:
        raise RuntimeError(f"{counted['records']} records reached the sink, {lines} lines in the file")
    moving = counted["last_acknowledgement"] - counted["first_request"]
    return Run(workers, codec, log.stat().st_size / 1e6 / moving, wall, helped)


def _watch(daemon: Daemon) -> float:
    """Until the daemon's end: the part of bytes encoded by helpers, as it last said."""
    share = 0.0
    deadline = time.monotonic() + RUN_SECONDS
    while daemon.running and time.monotonic() < deadline:
        metrics = daemon.metrics()
        read, helped = _value(metrics, "ingestd_read_bytes_total"), _value(metrics, "ingestd_helped_bytes_total")
        share = helped / read if read else share
        time.sleep(0.5)
    return share


def _value(metrics: str, name: str) -> float:
    return sum(float(found[1]) for found in re.finditer(rf"^{name}{{[^}}]*}} (\S+)$", metrics, re.MULTILINE))


def main() -> int:
    """Measure one worker and two, in alternation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("2GB"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--codec", default="lz4", choices=["none", "gzip", "snappy", "lz4", "zstd"])
    parser.add_argument("--sink-cores", help="cores of the sink; default: any")
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    runs: list[Run] = []
    with scratch(given.directory) as directory:
        log, lines = input_log(directory, given.size)
        for number in range(given.runs):
            for workers in (1, 2):
                place = directory / f"run-{number}-{workers}"
                run = run_once(log, lines, workers, given.codec, given.sink_cores, place)
                print(
                    f"{workers} workers: {run.megabytes_per_second:.0f} MB/s, helped {run.helped_share:.0%}", flush=True
                )
                runs.append(run)
    _report(runs, given.size, given.codec)
    return 0


def _report(runs: list[Run], size: int, codec: str) -> None:
    speeds = {n: statistics.median(run.megabytes_per_second for run in runs if run.workers == n) for n in (1, 2)}
    shares = [run.helped_share for run in runs if run.workers == 2]
    gain, share = speeds[2] / speeds[1], statistics.median(shares)
    verdicts = [
        f"two workers are {gain:.2f} times one, at least {GAIN}: {'reached' if gain >= GAIN else 'MISSED'}",
        f"helper encodes {share:.0%}, owner {1 - share:.0%}, each at least {LEAST_SHARE:.0%}: "
        + ("reached" if LEAST_SHARE <= share <= 1 - LEAST_SHARE else "MISSED"),
    ]
    settings = {
        "input_bytes": size,
        "codec": codec,
        "linger": LINGER,
        "delivery": "at least once, acks from a sink that keeps nothing",
        "fsync": "positions only",
        "partitions": 1,
    }
    caption = (
        f"{size / 1e9:.2f} GB, one file, one partition, {codec}, linger {LINGER} s, sink without disk; medians; "
        "MB/s from the first request to the last acknowledgement\n" + "\n".join(verdicts)
    )
    rows = [[n, speeds[n], statistics.median(run.wall for run in runs if run.workers == n)] for n in (1, 2)]
    results.print_table("Workers", ["workers", "MB/s", "wall s"], rows, caption)
    figures = {"runs": [asdict(run) for run in runs], "gain": gain, "helped_share": share, "verdicts": verdicts}
    saved = results.save("scaling", settings, figures)
    plot = results.plot_bars(
        "scaling", caption.splitlines()[0], "MB/s", {codec: {f"{n} workers": speeds[n] for n in (1, 2)}}
    )
    print(f"written: {saved}, {plot}")


if __name__ == "__main__":
    sys.exit(main())
