"""File to topic: ingestd beside kcat, rsyslog and Fluent Bit, on the same input and real Kafka, in alternation.

The client runs on one core, the broker on another. Each run writes to a topic of its own, whose offsets must count
every line; a run that lost one is no result.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from accesslog import parse_size
from contenders import LINGER_MS, Contender, Job, chosen
from meter import measure
from workload import BROKER_CORE, CLIENT_CORE, KafkaCluster, delivered, input_log, into_page_cache, real_kafka, scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTITIONS = 4
RUN_SECONDS = 600
LEVELS: dict[str, int | None] = {"zstd": 1}
"""The others have no level here: each program's default, which is the fastest of lz4."""
GATES = {"lz4": 0.5, "zstd": 0.35, "none": 0.35}
"""The most of kcat's CPU seconds per GB that ingestd may need."""
LEAST_SPEED = 2.0
"""The least multiple of kcat's throughput on one core."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one contender."""

    contender: str
    codec: str
    wall: float
    cpu_seconds: float
    cpu_seconds_per_gb: float
    megabytes_per_second: float
    peak_memory_mb: float
    delivered: int


def run_once(contender: Contender, cluster: KafkaCluster, job: Job, lines: int, cores: str) -> Run:
    """Run a contender over the job. Raises `RuntimeError` unless the topic then has exactly the lines of the file."""
    size = job.log.stat().st_size
    until = None if contender.ends_by_itself else lambda: delivered(cluster, job.topic) >= lines
    into_page_cache(job.log)  # Fluent Bit drops what it has read from there
    command = contender.command(job)
    usage, done = measure(command, cores=cores, log=job.directory / "output.log", timeout=RUN_SECONDS, until=until)
    count = delivered(cluster, job.topic)
    if count != lines:
        raise RuntimeError(f"{contender.name}: {count} records in the topic, {lines} lines in the file")
    wall = done - usage.started
    return Run(
        contender=contender.name,
        codec=job.codec,
        wall=wall,
        cpu_seconds=usage.cpu_seconds,
        cpu_seconds_per_gb=usage.cpu_seconds / (size / 1e9),
        megabytes_per_second=size / 1e6 / wall,
        peak_memory_mb=usage.peak_memory / 1e6,
        delivered=count,
    )


def run_all(
    contenders: Sequence[Contender],
    codecs: Sequence[str],
    *,
    size: int,
    runs: int,
    cores: tuple[str, str],
    parent: Path | None,
) -> list[Run]:
    """Every contender with every codec, `runs` times, in alternation, after a round to warm up that does not count."""
    client_cores, broker_cores = cores
    done: list[Run] = []
    with scratch(parent) as directory, real_kafka(directory, broker_cores) as cluster:
        log, lines = input_log(directory, size)
        rounds = [(0, codecs[0])] + [(number, codec) for codec in codecs for number in range(1, runs + 1)]
        for number, codec in rounds:
            for contender in contenders:
                topic = cluster.create_topic(partitions=PARTITIONS)
                place = directory / topic
                place.mkdir()
                job = Job(log, cluster.servers, topic, codec, LEVELS.get(codec), place)
                run = run_once(contender, cluster, job, lines, client_cores)
                cluster.delete_topic(topic)
                warm = "" if number else " (warming up, not counted)"
                print(
                    f"{codec} {contender.name}: {run.wall:.2f} s, {run.cpu_seconds_per_gb:.2f} CPU-s per GB{warm}",
                    flush=True,
                )
                if number:
                    done.append(run)
    return done


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Medians by codec and contender, beside kcat's."""
    rows: list[dict[str, Any]] = []
    for codec, contender in dict.fromkeys((run.codec, run.contender) for run in runs):
        own = [run for run in runs if (run.codec, run.contender) == (codec, contender)]
        rows.append(
            {
                "codec": codec,
                "contender": contender,
                "runs": len(own),
                "wall": statistics.median(run.wall for run in own),
                "megabytes_per_second": statistics.median(run.megabytes_per_second for run in own),
                "cpu_seconds_per_gb": statistics.median(run.cpu_seconds_per_gb for run in own),
                "peak_memory_mb": max(run.peak_memory_mb for run in own),
                "delivered": own[0].delivered,
            }
        )
    kcats = {row["codec"]: row for row in rows if row["contender"] == "kcat"}
    for row in rows:
        kcat = kcats.get(row["codec"])
        row["cpu_of_kcat"] = row["cpu_seconds_per_gb"] / kcat["cpu_seconds_per_gb"] if kcat else None
        row["speed_of_kcat"] = row["megabytes_per_second"] / kcat["megabytes_per_second"] if kcat else None
    return rows


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What was to be reached, and whether it was."""
    said = []
    for row in rows:
        if row["contender"] != "ingestd" or row["cpu_of_kcat"] is None or row["codec"] not in GATES:
            continue
        gate = GATES[row["codec"]]
        reached = "reached" if row["cpu_of_kcat"] <= gate else "MISSED"
        said.append(f"{row['codec']}: {row['cpu_of_kcat']:.2f} of kcat's CPU, at most {gate}: {reached}")
        reached = "reached" if row["speed_of_kcat"] >= LEAST_SPEED else "MISSED"
        speed = f"{row['speed_of_kcat']:.2f} times kcat's throughput"
        said.append(f"{row['codec']}: {speed}, at least {LEAST_SPEED}: {reached}")
    return said


def report(runs: Sequence[Run], contenders: Sequence[Contender], size: int, cores: tuple[str, str]) -> None:
    """Print the table and write JSON and plot."""
    rows = summarise(runs)
    delivery = {contender.name: contender.delivery for contender in contenders}
    settings = {
        "input_bytes": size,
        "lines": runs[0].delivered,
        "partitions": PARTITIONS,
        "acks": "all",
        "linger_ms": LINGER_MS,
        "levels": {codec: LEVELS.get(codec, "default") for codec in {run.codec for run in runs}},
        "delivery": delivery,
        "fsync": "broker: none (Kafka's default); ingestd: its positions",
        "client_cores": cores[0],
        "broker_cores": cores[1],
        "runs": "in alternation; medians, memory: largest",
    }
    conditions = (
        f"{size / 1e9:.2f} GB, {runs[0].delivered:,} lines, {PARTITIONS} partitions, acks=all, linger {LINGER_MS} ms, "
        f"zstd level 1, Kafka 4.3.1 without fsync on core {cores[1]}, client on core {cores[0]}; "
        "CPU and memory (PSS) of the whole process tree, start-up included; medians"
    )
    caption = "\n".join([conditions, *(f"{name}: {text}" for name, text in delivery.items()), *verdicts(rows)])
    columns = ["codec", "program", "runs", "wall s", "MB/s", "CPU-s/GB", "of kcat", "peak MB", "delivered"]
    kept = ["codec", "contender", "runs", "wall", "megabytes_per_second", "cpu_seconds_per_gb", "cpu_of_kcat"]
    kept += ["peak_memory_mb", "delivered"]
    cells = [["-" if row[name] is None else row[name] for name in kept] for row in rows]
    results.print_table("A log file into a topic", columns, cells, caption)
    saved = results.save(
        "compare", settings, {"summary": rows, "runs": [asdict(run) for run in runs], "verdicts": verdicts(rows)}
    )
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(row["codec"], {})[row["contender"]] = row["cpu_seconds_per_gb"]
    title = f"{size / 1e9:.2f} GB file to topic, 4 partitions, acks=all, linger {LINGER_MS} ms, no fsync by the broker"
    plot = results.plot_bars("compare", title, "CPU seconds per GB, whole process tree", groups)
    print(f"written: {saved}, {plot}")


def main() -> int:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", type=parse_size, default=parse_size("2GB"), help="of the input; the official size is 2GB"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", default=["ingestd", "kcat", "rsyslog"])
    parser.add_argument("--fluent-bit", type=Path, help="path of a fluent-bit binary; adds it")
    parser.add_argument(
        "--codecs", nargs="+", default=["lz4", "zstd", "none"], choices=["none", "gzip", "snappy", "lz4", "zstd"]
    )
    parser.add_argument("--client-cores", default=CLIENT_CORE)
    parser.add_argument("--broker-cores", default=BROKER_CORE)
    parser.add_argument(
        "--directory", type=Path, help="where input and broker data go; default: the temporary directory"
    )
    given = parser.parse_args()
    names = [*given.contenders, *(["fluent-bit"] if given.fluent_bit else [])]
    contenders = chosen(names, given.fluent_bit)
    cores = (given.client_cores, given.broker_cores)
    runs = run_all(contenders, given.codecs, size=given.size, runs=given.runs, cores=cores, parent=given.directory)
    report(runs, contenders, given.size, cores)
    return 0


if __name__ == "__main__":
    sys.exit(main())
