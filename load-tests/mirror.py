"""Topic to topic of another cluster: ingestd beside MirrorMaker 2, franz-go and kcat, on two real Kafka clusters.

The programs run on one core, both clusters on another. The source is written once, by kcat, with lz4. Each run copies
all of it to a topic of its own, whose offsets must count every record; a run that lost one is no result. Then, for
ingestd alone: how late a single record is, how soon thousands of partitions are ready, what idling costs, and what is
left of the throughput when one cluster is far away.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mirror_distance
import mirror_live
import results
from accesslog import parse_size
from meter import measure
from mirror_live import Pair, copied_records
from mirror_programs import LINGER_MS, NAMES, Copying, IngestdMirror, MirrorMaker, chosen, copied
from workload import BROKER_CORE, CLIENT_CORE, delivered, input_log, program, real_kafka, scratch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mirror_programs import MirrorProgram

PARTITIONS = 4
RUN_SECONDS = 900
PARTS = ("copy", "latency", "idle", "start", "distance")
MANY = {"broker.session.timeout.ms": "60000", "broker.heartbeat.interval.ms": "2000"}
"""A node that makes thousands of partitions says nothing for a while, and shall not be taken for dead."""


@dataclass(frozen=True, slots=True)
class Case:
    """A topic at the source."""

    name: str
    share: float
    """Of the size asked for."""
    batch_bytes: int
    """Of a batch, before compression."""
    times: str = "CreateTime"
    programs: tuple[str, ...] = NAMES


CASES = (
    Case("large batches", 1.0, 1_000_000),
    Case("batches of 1 kB", 0.1, 1000),
    Case("times of the broker", 1.0, 1_000_000, "LogAppendTime", ("ingestd",)),
)
"""A batch with times of the broker can not be passed on: ingestd makes each anew. The others always do so."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one program."""

    case: str
    program: str
    bytes: int
    records: int
    wall: float
    cpu_seconds: float
    cpu_seconds_per_gb: float
    megabytes_per_second: float
    peak_memory_mb: float


def fill(pair: Pair, case: Case, log: Path) -> str:
    """Write every line of `log` to a new topic; its name."""
    topic = pair.source.create_topic(partitions=PARTITIONS, message_timestamp_type=case.times)
    subprocess.run(
        [
            program("kcat"), "-P", "-l", "-b", pair.source.servers, "-t", topic, "-z", "lz4",
            "-X", "acks=all", "-X", f"linger.ms={LINGER_MS}", "-X", f"batch.size={case.batch_bytes}", str(log),
        ],
        check=True,
    )  # fmt: skip
    return topic


def run_once(one: MirrorProgram, pair: Pair, case: str, topic: str, size: int, lines: int, place: Path) -> Run:
    """Copy the topic. Raises `RuntimeError` unless the copy then has exactly its records."""
    place.mkdir()
    copy = copied(topic)
    if not one.creates_topics:
        pair.target.create_topic(copy, partitions=PARTITIONS)
    job = Copying(pair.source.servers, pair.target.servers, topic, PARTITIONS, lines, place)
    until = None if one.ends_by_itself else lambda: copied_records(pair.target, [copy]) >= lines
    log = place / "output.log"
    usage, done = measure(one.command(job), cores=pair.client_cores, log=log, timeout=RUN_SECONDS, until=until)
    if (count := delivered(pair.target, copy)) != lines:
        raise RuntimeError(f"{one.name}: {count} records were copied, there are {lines}")
    pair.target.clear()
    wall = done - usage.started
    per_gb, speed = usage.cpu_seconds / (size / 1e9), size / 1e6 / wall
    return Run(case, one.name, size, lines, wall, usage.cpu_seconds, per_gb, speed, usage.peak_memory / 1e6)


def copy_all(pair: Pair, programs: Sequence[MirrorProgram], size: int, runs: int, directory: Path) -> list[Run]:
    """Every case and program, `runs` times, in alternation, after a round that warms up the brokers."""
    done: list[Run] = []
    for case in CASES:
        log, lines = input_log(directory, int(size * case.share))
        topic = fill(pair, case, log)
        bytes_ = log.stat().st_size
        log.unlink()
        taking_part = [one for one in programs if one.name in case.programs]
        for number in range(runs + 1):
            for place, one in enumerate(taking_part if number else taking_part[:1]):
                job = directory / f"{topic}-{number}-{place}"
                run = run_once(one, pair, case.name, topic, bytes_, lines, job)
                warm = "" if number else " (warming up, not counted)"
                print(
                    f"{case.name}, {one.name}: {run.wall:.2f} s, {run.cpu_seconds_per_gb:.2f} CPU-s per GB{warm}",
                    flush=True,
                )
                if number:
                    done.append(run)
        pair.source.clear()
    return done


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Medians by case and program, beside ingestd's."""
    rows: list[dict[str, Any]] = []
    for case, name in dict.fromkeys((run.case, run.program) for run in runs):
        own = [run for run in runs if (run.case, run.program) == (case, name)]
        rows.append(
            {
                "case": case,
                "program": name,
                "gigabytes": own[0].bytes / 1e9,
                "wall": statistics.median(run.wall for run in own),
                "megabytes_per_second": statistics.median(run.megabytes_per_second for run in own),
                "cpu_seconds_per_gb": statistics.median(run.cpu_seconds_per_gb for run in own),
                "peak_memory_mb": max(run.peak_memory_mb for run in own),
            }
        )
    ours = {row["case"]: row["cpu_seconds_per_gb"] for row in rows if row["program"] == "ingestd"}
    for row in rows:
        row["times_ingestd"] = row["cpu_seconds_per_gb"] / ours[row["case"]] if row["case"] in ours else None
    return rows


def report_copies(runs: Sequence[Run], programs: Sequence[MirrorProgram], cores: tuple[str, str]) -> dict[str, Any]:
    """Print the table, draw the plot; the figures."""
    rows = summarise(runs)
    conditions = (
        f"{runs[0].bytes / runs[0].records:.0f} bytes a record, lz4, {PARTITIONS} partitions, acks=all, two Kafka "
        f"4.3.1 without fsync on core {cores[1]}, the program on core {cores[0]}; CPU and memory (PSS) of the whole "
        "process tree, start-up included; medians"
    )
    caption = "\n".join([conditions, *(f"{one.name}: {one.delivery}" for one in programs)])
    columns = ["case", "program", "GB", "wall s", "MB/s", "CPU-s/GB", "peak MB", "CPU of ingestd's"]
    cells = [["-" if cell is None else cell for cell in row.values()] for row in rows]
    results.print_table("A topic into another cluster", columns, cells, caption)
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(row["case"], {})[row["program"]] = row["cpu_seconds_per_gb"]
    results.plot_bars("mirror", "A topic into another cluster", "CPU seconds per GB, whole process tree", groups)
    return {"summary": rows, "runs": [asdict(run) for run in runs]}


def report_live(figures: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Print a table for each question; the figures."""
    titles = {
        "latency": (
            f"How late a record is at {mirror_live.RATE:,} records a second, ms",
            ["since", "records", "median", "p99", "maximum", "CPU %"],
        ),
        "idle": ("Nothing to copy", ["program", "partitions", "CPU %", "of it: first process", "MB"]),
        "start": ("From start to ready", ["start", "partitions", "seconds", "CPU-s"]),
        "distance": ("100 ms to a cluster and back", ["case", "far", "GB", "seconds", "MB/s"]),
    }
    for part, found in figures.items():
        title, columns = titles[part]
        results.print_table(title, columns, [astuple(one) for one in found], "ingestd: one worker; CPU: % of a core")
    return {part: [asdict(one) for one in found] for part, found in figures.items()}


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("500MB"), help="of the records' values")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--programs", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--latency-seconds", type=float, default=20.0)
    parser.add_argument("--settle-seconds", type=float, default=10.0, help="before latency and idling count")
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    parser.add_argument("--idle-partitions", type=int, default=1000)
    parser.add_argument("--start-partitions", type=int, default=2000)
    parser.add_argument("--client-cores", default=CLIENT_CORE)
    parser.add_argument("--broker-cores", default=BROKER_CORE)
    parser.add_argument("--directory", type=Path, help="where brokers' data go; default: the temporary directory")
    given = parser.parse_args()
    with (
        scratch(given.directory) as directory,
        real_kafka(directory, given.broker_cores, "source", MANY, proxied=True) as source,
        real_kafka(directory, given.broker_cores, "target", MANY, proxied=True) as target,
    ):
        pair = Pair(source, target, given.client_cores, given.settle_seconds)
        figures = measure_parts(pair, given, directory)
    settings = {name: value for name, value in vars(given).items() if name != "directory"}
    print(f"written: {results.save('mirror', settings, figures)}")
    return 0


def measure_parts(pair: Pair, given: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """What was asked for, one part after the other."""
    figures: dict[str, Any] = {}
    if "copy" in given.parts:
        programs = chosen(given.programs, directory / "go")
        runs = copy_all(pair, programs, given.size, given.runs, directory)
        figures |= report_copies(runs, programs, (given.client_cores, given.broker_cores))
    live: dict[str, Sequence[Any]] = {}
    if "latency" in given.parts:
        live["latency"] = [
            mirror_live.lateness(pair, directory, given.latency_seconds, broker_times=broker_times)
            for broker_times in (False, True)
        ]
    if "idle" in given.parts:
        staying: list[MirrorProgram] = [IngestdMirror(once=False), MirrorMaker()]
        taking_part = [one for one in staying if one.name in given.programs]
        live["idle"] = mirror_live.idle(pair, taking_part, directory, given.idle_partitions, given.idle_seconds)
    if "start" in given.parts:
        live["start"] = mirror_live.start(pair, directory, given.start_partitions)
    if "distance" in given.parts:
        live["distance"] = [one for case in CASES[:2] for one in _distant(pair, case, given, directory)]
    return figures | report_live(live)


def _distant(pair: Pair, case: Case, given: argparse.Namespace, directory: Path) -> list[mirror_distance.Distant]:
    log, _ = input_log(directory, int(given.size * case.share))
    topic, size = fill(pair, case, log), log.stat().st_size
    log.unlink()
    cores = (given.client_cores, given.broker_cores)
    return mirror_distance.distant(pair.source, pair.target, topic, case.name, size, cores, directory / "distance")


if __name__ == "__main__":
    sys.exit(main())
