"""One executor of one core, and two of them, on a topic of eight partitions: how much faster two are.

Spark's `local-cluster` starts the executors, as processes of their own. Each is pinned to a core, with its Python
workers; the driver and the broker are on the last core. On a machine of two cores they so take time from the second
executor. The CPU seconds of each row say what that is, and what two executors would do with a core each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow.parquet as pq
import results
from accesslog import parse_size
from consume import fill
from spark import Session
from workload import BROKER_CORE, CORES, delivered, input_log, program, real_kafka, scratch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from workload import KafkaCluster

PARTITIONS = 8
GAIN = 1.8
"""What two executors must be, at least, as a multiple of one."""
QUERIES = ("noop", "parquet")
MEMORY_MB = 2048


@dataclass(frozen=True, slots=True)
class Run:
    """One query."""

    query: str
    executors: int
    wall: float
    executor_seconds: float
    """CPU seconds of the executors, with their Python workers."""
    other_seconds: float
    """CPU seconds of the driver and the broker."""


class Executors:
    """A session with so many executors, each on a core of its own."""

    def __init__(self, count: int, directory: Path) -> None:
        self.count = count
        own = os.environ.get("INGESTD_PYTHON", sys.executable)
        place = Path(tempfile.mkdtemp(prefix="session-", dir=directory))
        master = f"local-cluster[{count},1,{MEMORY_MB}]"
        self.session = Session("ingestd", own, "ingestd", (), BROKER_CORE, place, master)

    def pin(self) -> None:
        """Every executor that runs, with all of its threads and children, to the next core."""
        for core, processes in zip(CORES, self._found(), strict=False):
            for process in processes:
                command = [program("taskset"), "-acp", str(core), str(process.pid)]
                subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    def cpu_seconds(self) -> float:
        """What the executors and their Python workers have taken so far."""
        times = [process.cpu_times() for processes in self._found() for process in processes]
        return sum(each.user + each.system + each.children_user + each.children_system for each in times)

    def _found(self) -> list[list[psutil.Process]]:
        """The processes of each executor, the executor itself first."""
        children = [each for each in psutil.Process(self.session.pid).children(recursive=True) if _lives(each)]
        found = [each for each in children if any("ExecutorBackend" in word for word in each.cmdline())]
        if len(found) != self.count:
            raise RuntimeError(f"{len(found)} executors, expected {self.count}")
        return [[each, *filter(_lives, each.children(recursive=True))] for each in found]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _broker_seconds(cluster: KafkaCluster) -> float:
    times = psutil.Process(next(iter(cluster.nodes.values())).pid).cpu_times()
    return times.user + times.system


def run_once(executors: Executors, query: str, cluster: KafkaCluster, topic: str, lines: int, place: Path) -> Run:
    """One query. Raises `RuntimeError` unless it has taken every row."""
    own, broker = executors.cpu_seconds(), _broker_seconds(cluster)
    found, cpu = executors.session.ask(query=query, servers=cluster.servers, topic=topic, path=str(place))
    own, broker = executors.cpu_seconds() - own, _broker_seconds(cluster) - broker
    if query == "parquet":
        rows = sum(pq.read_metadata(file).num_rows for file in place.glob("*.parquet"))
        shutil.rmtree(place)
        if rows != lines:
            raise RuntimeError(f"{executors.count} executors: {rows} rows, there are {lines}")
    return Run(query, executors.count, found["wall"], own, sum(cpu) - own + broker)


def run_all(cluster: KafkaCluster, size: int, runs: int, directory: Path) -> tuple[list[Run], int]:
    """Every query, with one executor and with two in turns, after a round that warms them up; and how many rows."""
    log, lines = input_log(directory, size)
    topic = cluster.create_topic(partitions=PARTITIONS)
    fill(cluster.servers, topic, log, "lz4")
    log.unlink()
    if delivered(cluster, topic) != lines:
        raise RuntimeError(f"the topic has {delivered(cluster, topic)} records, the log {lines} lines")
    both = [Executors(count, directory) for count in (1, 2)]
    for executors in both:
        found, _ = executors.session.ask(query="count", servers=cluster.servers, topic=topic)
        if found["rows"] != lines:
            raise RuntimeError(f"{executors.count} executors: {found['rows']} rows, there are {lines}")
    done = []
    for query in QUERIES:
        for number in range(runs + 1):
            for executors in both:
                executors.pin()
                run = run_once(executors, query, cluster, topic, lines, directory / f"{executors.count}-{number}")
                print(run, "" if number else "(warming up, not counted)", flush=True)
                if number:
                    done.append(run)
    for executors in both:
        executors.session.close()
    return done, lines


def report(runs: Sequence[Run], lines: int, size: int) -> dict[str, Any]:
    """Print the table; the figures."""
    rows = []
    for query in dict.fromkeys(run.query for run in runs):
        walls: dict[int, float] = {}
        for count in (1, 2):
            own = [run for run in runs if (run.query, run.executors) == (query, count)]
            walls[count] = statistics.median(run.wall for run in own)
            cpu, other = (
                statistics.median(getattr(run, name) for run in own) for name in ("executor_seconds", "other_seconds")
            )
            gain = walls[1] / walls[count]
            rows.append(
                [query, count, walls[count], lines / walls[count], gain, cpu / lines * 1e6, other / lines * 1e6]
            )
    columns = ["read →", "executors", "wall s", "rows/s", "times one", "CPU-s a million rows", "driver's and broker's"]
    caption = (
        f"{size / lines:.0f} bytes a record, {lines:,} records, lz4, {PARTITIONS} partitions; executors of one core, "
        f"each pinned to one; Kafka 4.3.1 and the driver on core {BROKER_CORE} of {len(CORES)}; medians; two executors "
        f"shall be {GAIN} times one"
    )
    results.print_table("Spark's executors", columns, rows, caption)
    return {"summary": [dict(zip(columns, row, strict=True)) for row in rows], "runs": [asdict(run) for run in runs]}


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("2GB"), help="of the records' values")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where the broker's data go; default: the temporary directory")
    given = parser.parse_args()
    with scratch(given.directory) as directory, real_kafka(directory, BROKER_CORE) as cluster:
        runs, lines = run_all(cluster, given.size, given.runs, directory)
    figures = report(runs, lines, given.size)
    print(f"written: {results.save('spark_executors', {'input_bytes': given.size, 'runs': given.runs}, figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
