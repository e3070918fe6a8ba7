"""How much faster more workers are than one, against a sink that only acknowledges.

By default one file into one partition, with one worker and with two: what is shared then is the encoding. With `--files
16` sixteen files, each into its own partition, which the workers share. No broker, no disk: what is measured is
reading, encoding, compressing and sending, with order kept. With as many cores as workers for everything, the sink
included; `--sink-cores 12-15`: the sink has its own; `--unbound`: all may use every core, so that one worker has the
sink's and the kernel's work done beside it, and two must share.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import results
from accesslog import parse_size, write_log
from workload import Daemon, program, scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

GAIN = 0.85
"""What each worker must add, at least, as a part of what one does alone: two are 1.7 times one."""
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
    cpu_seconds_per_gb: float
    """Of the daemon, start-up included."""
    helped_share: float
    """The part of the bytes that was encoded by a worker that does not own the file."""


@dataclass(frozen=True, slots=True)
class Input:
    """What is shipped."""

    logs: list[Path]
    lines: int
    size: int
    """Bytes of all logs."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Who may use which."""

    unbound: bool
    sink: str | None
    """As taskset writes them; None: those of the daemon."""

    def of_daemon(self, workers: int) -> str | None:
        """None: all."""
        return None if self.unbound else f"0-{workers - 1}"

    def of_sink(self, workers: int) -> str | None:
        """None: all."""
        return self.sink or self.of_daemon(workers)

    def __str__(self) -> str:
        """As the caption has it."""
        if self.unbound:
            return "all"
        return f"as many as workers, sink on {self.sink}" if self.sink else "as many as workers, sink included"


@contextmanager
def running_sink(cores: str | None, partitions: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A sink in a process of its own; its address."""
    command = [*bound(cores), sys.executable, str(SINK), "--partitions", str(partitions)]
    sink = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert sink.stdout is not None
        yield f"127.0.0.1:{int(sink.stdout.readline())}", sink
    finally:
        sink.kill()
        sink.wait()


def bound(cores: str | None) -> tuple[str, ...]:
    """What is put before a command, so that it runs on `cores` alone."""
    return (program("taskset"), "-c", cores) if cores else ()


def run_once(given: Input, workers: int, codec: str, directory: Path, cores: Cores) -> Run:
    """Ship the files once. Raises `RuntimeError` unless the sink counted every line."""
    with running_sink(cores.of_sink(workers), len(given.logs)) as (address, sink):
        daemon = Daemon(
            directory,
            command=bound(cores.of_daemon(workers)),
            servers=[address],
            topic="scaling",
            paths=[str(log) for log in given.logs],
            daemon={"workers": workers},
            compression=codec,
            linger=LINGER,
            partition="sticky" if len(given.logs) == 1 else "file",
        )
        with daemon:
            before = _spent()
            started = time.monotonic()
            daemon.start("--once")
            status = daemon.wait(RUN_SECONDS)
            wall = time.monotonic() - started
            spent = _spent() - before
        if status != 0:
            raise RuntimeError(f"ingestd ended with {status}:\n{daemon.log.read_text()}")
        sink.terminate()
        counted = json.loads(sink.communicate(timeout=10)[0])
    if counted["records"] != given.lines:
        raise RuntimeError(f"{counted['records']} records reached the sink, {given.lines} lines in the files")
    moving = counted["last_acknowledgement"] - counted["first_request"]
    helped = _helped(daemon.log.read_text())
    return Run(workers, codec, given.size / 1e6 / moving, wall, spent / (given.size / 1e9), helped)


def _spent() -> float:
    """CPU seconds of all programs that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _helped(log: str) -> float:
    """The part of the bytes that helpers encoded, as the daemon's summary says; nothing is said of none."""
    found = re.search(r"(\d+)% encoded by idle workers", log)
    return int(found[1]) / 100 if found else 0.0


def written(directory: Path, files: int, size: int) -> Input:
    """`files` logs of `size` bytes together, no two alike, in the page cache."""
    logs = [directory / f"access-{number}.log" for number in range(files)]
    with ProcessPoolExecutor() as cores:
        lines = sum(cores.map(write_log, logs, [size // files] * files, range(files)))
    return Input(logs, lines, sum(log.stat().st_size for log in logs))


def main() -> int:
    """Measure every number of workers, in alternation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("2GB"), help="of all files together")
    parser.add_argument("--files", type=int, default=1, help="each with a partition")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers; the first is 1")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--codec", default="lz4", choices=["none", "gzip", "snappy", "lz4", "zstd"])
    parser.add_argument("--unbound", action="store_true", help="all cores for everything")
    parser.add_argument("--sink-cores", help="cores that the sink has for itself, such as 12-15")
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    if given.workers[0] != 1:
        parser.error(f"--workers begins with {given.workers[0]}; expected 1, which the others are compared with")
    cores = Cores(given.unbound, given.sink_cores)
    runs: list[Run] = []
    with scratch(given.directory) as directory:
        files = written(directory, given.files, given.size)
        for number in range(given.runs):
            for workers in given.workers:
                run = run_once(files, workers, given.codec, directory / f"run-{number}-{workers}", cores)
                cost = f"{run.cpu_seconds_per_gb:.2f} CPU-s per GB, helped {run.helped_share:.0%}"
                print(f"{workers} workers: {run.megabytes_per_second:.0f} MB/s, {cost}", flush=True)
                runs.append(run)
    _report(runs, files, given.codec, given.workers, cores)
    return 0


def _report(runs: list[Run], files: Input, codec: str, numbers: list[int], cores: Cores) -> None:
    def median(workers: int, what: str) -> float:
        return statistics.median(getattr(run, what) for run in runs if run.workers == workers)

    speeds = {workers: median(workers, "megabytes_per_second") for workers in numbers}
    gains = {workers: speeds[workers] / speeds[1] for workers in numbers if workers > 1}
    verdicts = [
        f"{workers} workers are {gain:.2f} times one, at least {GAIN * workers:.2f}: "
        + ("reached" if gain >= GAIN * workers else "MISSED")
        for workers, gain in gains.items()
    ]
    if len(files.logs) == 1 and 2 in numbers:
        share = median(2, "helped_share")
        verdicts.append(
            f"of two, the helper encodes {share:.0%}, the owner {1 - share:.0%}, each at least {LEAST_SHARE:.0%}: "
            + ("reached" if LEAST_SHARE <= share <= 1 - LEAST_SHARE else "MISSED")
        )
    settings = {
        "input_bytes": files.size,
        "files": len(files.logs),
        "codec": codec,
        "linger": LINGER,
        "delivery": "at least once, acks from a sink that keeps nothing",
        "fsync": "positions only",
        "partitions": len(files.logs),
        "cores": str(cores),
    }
    caption = (
        f"{files.size / 1e9:.2f} GB, files, each into its partition: {len(files.logs)}; {codec}, linger {LINGER} s, "
        f"sink without disk, cores: {cores}; medians; MB/s from the first request to the last acknowledgement\n"
        + "\n".join(verdicts)
    )
    rows = [
        [workers, speeds[workers], median(workers, "wall"), median(workers, "cpu_seconds_per_gb")]
        for workers in numbers
    ]
    results.print_table("Workers", ["workers", "MB/s", "wall s", "CPU-s per GB"], rows, caption)
    figures = {"runs": [asdict(run) for run in runs], "gains": gains, "verdicts": verdicts}
    saved = results.save("scaling", settings, figures)
    bars = {f"{workers} workers": speeds[workers] for workers in numbers}
    plot = results.plot_bars("scaling", caption.splitlines()[0], "MB/s", {codec: bars})
    print(f"written: {saved}, {plot}")


if __name__ == "__main__":
    sys.exit(main())
