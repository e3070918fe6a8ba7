"""One executor of one core, and two of them, on a topic of eight partitions: how much faster two are.

Spark's `local-cluster` starts the executors, as processes of their own. Each is pinned to a core, with its Python
workers; the driver and the broker are on the last core. On a machine of two cores they so take time from the second
executor. With `--share 0.25` each executor may run on all cores, but has only a quarter of one, by a quota of Linux. So
there are cores to spare for all others, and two executors can be compared with one on a small machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow.parquet as pq
import results
from accesslog import parse_size
from consume import fill
from shares import Hierarchy, Share
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
MOST_PINNED = 2
"""How many executors there are at most. With more cores than that, the driver and the broker have one of their own."""
WARM_UPS = 12
UPKEEP = ("C1 CompilerThre", "C2 CompilerThre", "GC Thread", "G1 ", "VM Thread")


@dataclass(frozen=True, slots=True)
class Run:
    """One query."""

    query: str
    executors: int
    wall: float
    executor_seconds: float
    """CPU seconds of the executors, with their Python workers."""
    upkeep_seconds: float
    """Of them, those of Java's compilers and collectors."""
    other_seconds: float
    """CPU seconds of the driver and the broker."""

    def used(self, share: float) -> float:
        """How much of what they may take the executors took."""
        return self.executor_seconds / (self.wall * self.executors * share)


class Executors:
    """A session with so many executors, each on a core of its own, or with a share of one on all cores."""

    def __init__(self, count: int, directory: Path, share: float | None) -> None:
        self.count = count
        own = os.environ.get("INGESTD_PYTHON", sys.executable)
        place = Path(tempfile.mkdtemp(prefix="session-", dir=directory))
        master = f"local-cluster[{count},1,{MEMORY_MB}]"
        self.session = Session("ingestd", own, "ingestd", (), _cores(share), place, master)
        self._shares: list[Share] = []
        if share is not None:
            hierarchy = Hierarchy.find()
            self._shares = [Share(hierarchy, f"{count}-{number}", share) for number in range(count)]

    def pin(self) -> None:
        """Every executor that runs, with all of its threads and children, to the next core, or into its share."""
        if self._shares:
            for share, processes in zip(self._shares, self._found(), strict=True):
                share.take(process.pid for process in processes)
            return
        for core, processes in zip(CORES, self._found(), strict=False):
            for process in processes:
                command = [program("taskset"), "-acp", str(core), str(process.pid)]
                subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    def cpu_seconds(self) -> float:
        """What the executors and their Python workers have taken so far."""
        times = [process.cpu_times() for processes in self._found() for process in processes]
        return sum(each.user + each.system + each.children_user + each.children_system for each in times)

    def upkeep_seconds(self) -> float:
        """What Java's compilers and collectors have taken of it so far, by the names of threads."""
        ticks = 0
        for processes in self._found():
            for task in Path(f"/proc/{processes[0].pid}/task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                    name, _, rest = (task / "stat").read_text().partition(" (")[2].rpartition(") ")
                    if name.startswith(UPKEEP):
                        ticks += sum(map(int, rest.split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the session, and remove the shares."""
        self.session.close()
        for share in self._shares:
            share.close()

    def _found(self) -> list[list[psutil.Process]]:
        """The processes of each executor, the executor itself first."""
        children = [each for each in psutil.Process(self.session.pid).children(recursive=True) if _lives(each)]
        found = [each for each in children if any("ExecutorBackend" in word for word in each.cmdline())]
        if len(found) != self.count:
            raise RuntimeError(f"{len(found)} executors, expected {self.count}")
        return [[each, *filter(_lives, each.children(recursive=True))] for each in found]


def _cores(share: float | None) -> str:
    """Where the driver and the broker are."""
    return BROKER_CORE if share is None else ",".join(map(str, CORES))


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
    own, upkeep, broker = executors.cpu_seconds(), executors.upkeep_seconds(), _broker_seconds(cluster)
    found, cpu = executors.session.ask(query=query, servers=cluster.servers, topic=topic, path=str(place))
    own, upkeep = executors.cpu_seconds() - own, executors.upkeep_seconds() - upkeep
    broker = _broker_seconds(cluster) - broker
    if query == "parquet":
        rows = sum(pq.read_metadata(file).num_rows for file in place.glob("*.parquet"))
        shutil.rmtree(place)
        if rows != lines:
            raise RuntimeError(f"{executors.count} executors: {rows} rows, there are {lines}")
    return Run(query, executors.count, found["wall"], own, upkeep, sum(cpu) - own + broker)


def run_all(cluster: KafkaCluster, size: int, runs: int, directory: Path, share: float | None) -> tuple[list[Run], int]:
    """Every query, with one executor and with two in turns, after a round that warms them up; and how many rows."""
    log, lines = input_log(directory, size)
    topic = cluster.create_topic(partitions=PARTITIONS)
    fill(cluster.servers, topic, log, "lz4")
    log.unlink()
    if delivered(cluster, topic) != lines:
        raise RuntimeError(f"the topic has {delivered(cluster, topic)} records, the log {lines} lines")
    with ExitStack() as sessions:
        both = []
        for count in (1, 2):
            executors = Executors(count, directory, share)
            sessions.callback(executors.close)
            both.append(executors)
            found, _ = executors.session.ask(query="count", servers=cluster.servers, topic=topic)
            if found["rows"] != lines:
                raise RuntimeError(f"{executors.count} executors: {found['rows']} rows, there are {lines}")
        if share is not None or len(CORES) > MOST_PINNED:
            _warm_up(both, cluster, topic, lines, directory)
        return _in_turns(both, cluster, topic, lines, runs, directory), lines


def _warm_up(both: Sequence[Executors], cluster: KafkaCluster, topic: str, lines: int, directory: Path) -> None:
    """Before they have only their shares or cores, which Java's compilers would take, twice with two executors."""
    for query in QUERIES:
        for _ in range(WARM_UPS):
            for executors in both:
                run_once(executors, query, cluster, topic, lines, directory / "warm")


def _in_turns(
    both: Sequence[Executors], cluster: KafkaCluster, topic: str, lines: int, runs: int, directory: Path
) -> list[Run]:
    done = []
    for query in QUERIES:
        for number in range(runs + 1):
            for executors in both:
                executors.pin()
                run = run_once(executors, query, cluster, topic, lines, directory / f"{executors.count}-{number}")
                print(run, "" if number else "(warming up, not counted)", flush=True)
                if number:
                    done.append(run)
    return done


def report(runs: Sequence[Run], lines: int, size: int, share: float | None) -> dict[str, Any]:
    """Print the table; the figures."""
    rows = []
    for query in dict.fromkeys(run.query for run in runs):
        walls: dict[int, float] = {}
        for count in (1, 2):
            own = [run for run in runs if (run.query, run.executors) == (query, count)]
            walls[count] = statistics.median(run.wall for run in own)
            cpu, upkeep, other = (
                statistics.median(getattr(run, name) for run in own) / lines * 1e6
                for name in ("executor_seconds", "upkeep_seconds", "other_seconds")
            )
            used = statistics.median(run.used(share or 1.0) for run in own)
            gain = walls[1] / walls[count]
            rows.append([query, count, walls[count], lines / walls[count], gain, cpu, upkeep, other, used])
    columns = [
        "read →", "executors", "wall s", "rows/s", "times one", "CPU-s a million rows", "compilers' and collectors'",
        "driver's and broker's", "of their cores",
    ]  # fmt: skip
    where = f"each pinned to one; Kafka 4.3.1 and the driver on core {BROKER_CORE} of {len(CORES)}"
    if share is not None:
        where = f"each with {share} of a core by quota; Kafka 4.3.1 and the driver beside them on {len(CORES)} cores"
    caption = (
        f"{size / lines:.0f} bytes a record, {lines:,} records, lz4, {PARTITIONS} partitions; executors of one core, "
        f"{where}; medians; two executors shall be {GAIN} times one"
    )
    results.print_table("Spark's executors", columns, rows, caption)
    return {"summary": [dict(zip(columns, row, strict=True)) for row in rows], "runs": [asdict(run) for run in runs]}


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("2GB"), help="of the records' values")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where the broker's data go; default: the temporary directory")
    parser.add_argument(
        "--share", type=float, help="of a core, for each executor, such as 0.25; needs root and control groups"
    )
    given = parser.parse_args()
    if given.share is not None:
        try:
            Hierarchy.find().quota(given.share)
        except (OSError, ValueError) as error:
            parser.error(f"--share: {error}")
    with scratch(given.directory) as directory, real_kafka(directory, _cores(given.share)) as cluster:
        runs, lines = run_all(cluster, given.size, given.runs, directory, given.share)
    figures = report(runs, lines, given.size, given.share)
    settings = {"input_bytes": given.size, "runs": given.runs, "share": given.share}
    print(f"written: {results.save('spark_executors', settings, figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
