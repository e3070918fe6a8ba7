"""One file into one partition, against a sink that only acknowledges: how much faster two workers are than one.

No broker, no disk: what is measured is reading, encoding, compressing and sending, with order kept. With as many cores
as workers for everything, the sink included; `--unbound`: all may use every core, so that one worker has the sink's and
the kernel's work done beside it, and two must share.
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


def run_once(log: Path, lines: int, workers: int, codec: str, directory: Path, *, unbound: bool) -> Run:
    """Ship the file once. Raises `RuntimeError` unless the sink counted every line."""
    cores = None if unbound else f"0-{workers - 1}"
    with running_sink(cores) as (address, sink):
        daemon = Daemon(
            directory,
            command=("taskset", "-c", cores) if cores else (),
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
            status = daemon.wait(RUN_SECONDS)
            wall = time.monotonic() - started
        if status != 0:
            raise RuntimeError(f"ingestd ended with {status}:\n{daemon.log.read_text()}")
        sink.terminate()
        counted = json.loads(sink.communicate(timeout=10)[0])
    if counted["records"] != lines:
        raise RuntimeError(f"{counted['records']} records reached the sink, {lines} lines in the file")
    moving = counted["last_acknowledgement"] - counted["first_request"]
    return Run(workers, codec, log.stat().st_size / 1e6 / moving, wall, _helped(daemon.log.read_text()))


def _helped(log: str) -> float:
    """The part of the bytes that helpers encoded, as the daemon's summary says; nothing is said of none."""
    found = re.search(r"(\d+)% encoded by idle workers", log)
    return int(found[1]) / 100 if found else 0.0


def main() -> int:
    """Measure one worker and two, in alternation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("2GB"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--codec", default="lz4", choices=["none", "gzip", "snappy", "lz4", "zstd"])
    parser.add_argument("--unbound", action="store_true", help="all cores for everything")
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    runs: list[Run] = []
    with scratch(given.directory) as directory:
        log, lines = input_log(directory, given.size)
        for number in range(given.runs):
            for workers in (1, 2):
                place = directory / f"run-{number}-{workers}"
                run = run_once(log, lines, workers, given.codec, place, unbound=given.unbound)
                print(
                    f"{workers} workers: {run.megabytes_per_second:.0f} MB/s, helped {run.helped_share:.0%}", flush=True
                )
                runs.append(run)
    _report(runs, given.size, given.codec, unbound=given.unbound)
    return 0


def _report(runs: list[Run], size: int, codec: str, *, unbound: bool) -> None:
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
        "cores": "all" if unbound else "as many as workers, sink included",
    }
    caption = (
        f"{size / 1e9:.2f} GB, one file, one partition, {codec}, linger {LINGER} s, sink without disk, "
        f"cores: {settings['cores']}; medians; "
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
