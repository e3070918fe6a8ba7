"""The Spark source and sink beside Spark's own Kafka connector, on one topic, one core, both warm.

Two sessions live side by side and take turns, query by query, so that both see the same machine. The connector runs
under PySpark 4.0.0, ingestd under its own. CPU is that of a session's whole process tree, with the JVM's compilers. It
is what counts where the machine has other work.

A third session reads the same rows from memory, as ingestd's source yields them: no source in Python can be faster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import pyarrow.parquet as pq
import results
from accesslog import parse_size
from consume import fill
from workload import BROKER_CORE, CLIENT_CORE, ROOT, delivered, input_log, kafka_jars, program, real_kafka, scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workload import KafkaCluster

PARTITIONS = 4
CONNECTOR = "Spark's connector"
READY = "rows in memory"
ENGINES = (CONNECTOR, "ingestd", READY)
CONSTANT = "constant"
FLOOR_BATCHES = 20
JOB = Path(__file__).with_name("spark_job.py")


@dataclass(frozen=True, slots=True)
class Case:
    """A query, and how many times the connector's speed it shall have."""

    name: str
    query: str
    mark: float | None
    limit: int | None = None
    """Rows of a micro-batch."""


CASES = (
    Case("read → noop", "noop", 3.0),
    Case("read → parquet", "parquet", 2.2),
    Case("topic → topic, rows", "rows", 2.5),
    Case("topic → topic, batches", "batches", 4.0),
    Case("stream, 1,000,000 a micro-batch", "stream", 2.0, 1_000_000),
    Case("stream, 250,000 a micro-batch", "stream", None, 250_000),
)


FLOOR = "floor"
PARTS = (*dict.fromkeys(case.query for case in CASES), FLOOR)


@dataclass(frozen=True, slots=True)
class Run:
    """One query."""

    case: str
    engine: str
    rows: int
    wall: float
    cpu_seconds: float
    python_seconds: float
    """Of them, those of Python."""
    batch_seconds: float | None
    """Median of the micro-batches that were full."""


class Cpu(NamedTuple):
    """CPU seconds of a session's processes. Those of the JVM's compilers and collectors are in `java`."""

    java: float
    python: float


class Session:
    """A Spark session in a process of its own."""

    def __init__(
        self,
        engine: str,
        python: str,
        form: str,
        jars: Sequence[Path],
        cores: str,
        directory: Path,
        master: str = "local[1]",
    ) -> None:
        self.engine = engine
        command = ["taskset", "-c", cores, program("setpriv"), "--pdeathsig", "KILL", python, "-P", str(JOB)]
        command += [form, ",".join(map(str, jars)), master]
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
        with (directory / "log").open("w") as log:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=clean | {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._log = directory / "log"
        self.version = self._answer()["ready"]

    @property
    def pid(self) -> int:
        """The process that asks Spark; the JVM of the driver is its child."""
        return self._process.pid

    def ask(self, **asked: Any) -> tuple[dict[str, Any], Cpu]:
        """What a query has found out, and the CPU seconds that it took."""
        assert self._process.stdin is not None
        before = self._cpu_seconds()
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        found, after = self._answer(), self._cpu_seconds()
        return found, Cpu(after.java - before.java, after.python - before.python)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"{self.engine} ended:\n{self._log.read_text()[-3000:]}")

    def _cpu_seconds(self) -> Cpu:
        own = psutil.Process(self._process.pid)
        taken = Counter[str]()
        for each in (own, *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile, and is among its parent's
                times = each.cpu_times()
                name = "java" if each.name() == "java" else "python"
                taken[name] += times.user + times.system
                taken["python"] += times.children_user + times.children_system
        return Cpu(taken["java"], taken["python"])


def run_once(session: Session, case: Case, cluster: KafkaCluster, topic: str, lines: int, place: Path) -> Run:
    """One query. Raises `RuntimeError` unless it has taken, and written, every row."""
    # The connector has no raw batches: its rows are what a user would take instead.
    query = "rows" if case.query == "batches" and session.engine == CONNECTOR else case.query
    target = cluster.create_topic(partitions=PARTITIONS) if query in ("rows", "batches") else None
    limit = {} if case.limit is None else {"limit": case.limit}
    asked = {"query": query, "servers": cluster.servers, "topic": topic, "target": target, "path": str(place)} | limit
    if session.engine == READY:
        asked["ready"] = str(_ready(place.parent))
    found, cpu = session.ask(**asked)
    rows = found.get("rows", lines)
    if query == "parquet":
        rows = sum(pq.read_metadata(file).num_rows for file in place.glob("*.parquet"))
    if target is not None:
        rows = delivered(cluster, target)
        cluster.delete_topic(target)
    shutil.rmtree(place, ignore_errors=True)
    if rows != lines:
        raise RuntimeError(f"{session.engine}, {case.name}: {rows} rows, there are {lines}")
    # Each partition has a share, rounded down: a full one may lack a record of each.
    full = [seconds for rows, seconds in found.get("batches", ()) if rows > (case.limit or rows) - PARTITIONS]
    median = statistics.median(full) if full else None
    return Run(case.name, session.engine, lines, found["wall"], sum(cpu), cpu.python, median)


def _ready(directory: Path) -> Path:
    """Where the rows lie that nobody has to fetch."""
    return directory / "ready"


def run_all(
    sessions: Sequence[Session], cases: Sequence[Case], cluster: KafkaCluster, size: int, runs: int, directory: Path
) -> list[Run]:
    """Every case, in turns, after a round that warms both up."""
    log, lines = input_log(directory, size)
    topic = cluster.create_topic(partitions=PARTITIONS)
    fill(cluster.servers, topic, log, "lz4")
    log.unlink()
    for session in sessions:
        asked = {"servers": cluster.servers, "topic": topic}
        if session.engine == READY:
            _ready(directory).mkdir()
            session.ask(query="keep", path=str(_ready(directory)), **asked)
            asked["ready"] = str(_ready(directory))
        found, _ = session.ask(query="count", **asked)
        if found["rows"] != lines:
            raise RuntimeError(f"{session.engine}: {found['rows']} rows, there are {lines}")
    done = []
    for case in cases:
        for number in range(runs + 1):
            for session in sessions:
                if session.engine == READY and case.query in ("rows", "batches"):
                    continue  # it only reads; rows are written to a topic by ingestd's sink, which has its own line
                run = run_once(session, case, cluster, topic, lines, directory / f"{session.engine}-{number}")
                warm = "" if number else " (warming up, not counted)"
                cpu = f"{run.cpu_seconds:.2f} CPU-s, {run.python_seconds:.2f} of them Python's"
                print(f"{case.name}, {session.engine}: {run.wall:.2f} s, {cpu}{warm}", flush=True)
                if number:
                    done.append(run)
    return done


def _medians(runs: Sequence[Run]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    return statistics.median(run.wall for run in runs), statistics.median(run.cpu_seconds for run in runs)


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Medians by case and engine, and how many times the connector's they are."""
    rows: list[dict[str, Any]] = []
    marks = {case.name: case.mark for case in CASES}
    for case in dict.fromkeys(run.case for run in runs):
        beside = [run for run in runs if (run.case, run.engine) == (case, CONNECTOR)]
        connector = _medians(beside) if beside else None
        for engine in dict.fromkeys(run.engine for run in runs if run.case == case):
            own = [run for run in runs if (run.case, run.engine) == (case, engine)]
            wall, cpu = _medians(own)
            batches = [run.batch_seconds for run in own if run.batch_seconds is not None]
            rows.append(
                {
                    "case": case,
                    "engine": engine,
                    "wall": wall,
                    "rows_per_second": own[0].rows / wall,
                    "cpu_seconds": cpu,
                    "python_seconds": statistics.median(run.python_seconds for run in own),
                    "batch_seconds": statistics.median(batches) if batches else None,
                    "times_by_wall": connector[0] / wall if connector else None,
                    "times_by_cpu": connector[1] / cpu if connector else None,
                    "mark": marks[case] if engine == "ingestd" else None,
                }
            )
    return rows


def _session(engine: str, given: argparse.Namespace, directory: Path) -> Session:
    place = Path(tempfile.mkdtemp(prefix="session-", dir=directory))
    if engine == CONNECTOR:
        jars = sorted(kafka_jars(JOB.parent / "connector" / "pom.xml").glob("*.jar"))
        return Session(engine, given.connector, "kafka", jars, given.client_cores, place)
    own = os.environ.get("INGESTD_PYTHON", sys.executable)
    return Session(engine, own, "ready" if engine == READY else engine, (), given.client_cores, place)


@dataclass(frozen=True, slots=True)
class Floor:
    """What a query costs that has next to nothing to read."""

    engine: str
    first_seconds: float
    """Of the first query of a session."""
    next_seconds: float
    batch_seconds: float
    """Median of micro-batches of four rows."""
    batch_cpu_seconds: float


def floors(cluster: KafkaCluster, given: argparse.Namespace, directory: Path) -> list[Floor]:
    """New sessions in turns, each with a query, another one, and a stream of four rows a micro-batch."""
    topic = cluster.create_topic(partitions=1)
    few = directory / "few.log"
    few.write_text("".join(f"line {number}\n" for number in range(4 * FLOOR_BATCHES)))
    fill(cluster.servers, topic, few, "lz4")
    found = []
    for number in range(given.runs):
        for engine in (CONSTANT, "ingestd"):
            session = _session(engine, given, directory)
            own = {"most": 4 * FLOOR_BATCHES} if engine == CONSTANT else {}
            asked = {"servers": cluster.servers, "topic": topic, **own}
            first, after = (session.ask(query="noop", **asked)[0]["wall"] for _ in range(2))
            told, cpu = session.ask(query="stream", limit=4, path=str(directory / f"{engine}-floor-{number}"), **asked)
            session.close()
            batches = [seconds for rows, seconds in told["batches"] if rows == 4]
            if len(batches) != FLOOR_BATCHES:
                raise RuntimeError(f"{engine}: {len(batches)} micro-batches, expected {FLOOR_BATCHES}")
            found.append(Floor(engine, first, after, statistics.median(batches[2:]), sum(cpu) / len(batches)))
            print(found[-1], flush=True)
    return found


def report_floors(found: Sequence[Floor]) -> list[dict[str, Any]]:
    """Medians by engine."""
    rows: list[dict[str, Any]] = []
    for engine in (CONSTANT, "ingestd"):
        own = [each for each in found if each.engine == engine]
        names = ("first_seconds", "next_seconds", "batch_seconds", "batch_cpu_seconds")
        rows.append({"engine": engine} | {name: statistics.median(getattr(one, name) for one in own) for name in names})
    columns = ["source", "first query s", "next one s", "s a micro-batch", "CPU-s a micro-batch"]
    caption = "constant: a Python source that yields one record batch and asks nobody; micro-batches of four rows"
    results.print_table("Spark: next to nothing to read", columns, [list(row.values()) for row in rows], caption)
    return rows


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("498MB"), help="of the records' values")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--cases", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--connector", default=str(ROOT / ".venv-connector" / "bin" / "python"), help="a Python with PySpark 4.0.0"
    )
    parser.add_argument("--client-cores", default=CLIENT_CORE)
    parser.add_argument("--broker-cores", default=BROKER_CORE)
    parser.add_argument("--directory", type=Path, help="where the broker's data go; default: the temporary directory")
    given = parser.parse_args()
    cases = [case for case in CASES if case.query in given.cases]
    with scratch(given.directory) as directory, real_kafka(directory, given.broker_cores) as cluster:
        sessions = [_session(engine, given, directory) for engine in given.engines]
        versions = {session.engine: session.version for session in sessions}
        runs = run_all(sessions, cases, cluster, given.size, given.runs, directory)
        for session in sessions:
            session.close()
        small = floors(cluster, given, directory) if FLOOR in given.cases else []
    rows = summarise(runs)
    caption = (
        f"{given.size / runs[0].rows:.0f} bytes a record, {runs[0].rows:,} records, lz4, {PARTITIONS} partitions, "
        f"Kafka 4.3.1 on core {given.broker_cores}, Spark (local[1]) on core {given.client_cores}; PySpark {versions}; "
        f"medians of {given.runs}; the mark is that of rows a second"
    )
    columns = [
        "case",
        "engine",
        "wall s",
        "rows/s",
        "CPU-s",
        "Python's",
        "s a micro-batch",
        "times, wall",
        "times, CPU",
        "mark",
    ]
    cells = [["-" if cell is None else cell for cell in row.values()] for row in rows]
    results.print_table("Spark", columns, cells, caption)
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(row["case"], {})[row["engine"]] = row["cpu_seconds"]
    results.plot_bars("spark", "Spark", "CPU seconds, whole process tree", groups)
    settings = {name: value for name, value in vars(given).items() if name != "directory"} | {"pyspark": versions}
    figures = {"summary": rows, "runs": [asdict(run) for run in runs], "floors": report_floors(small) if small else []}
    print(f"written: {results.save('spark', settings, figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
