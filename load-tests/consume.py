"""Topic to program: ingestd's ways of reading beside kcat and confluent-kafka-python, on the same topic of real Kafka.

The client runs on one core, the broker on another. Every run reads the whole topic; one that misses a record is no
result. Records are lines of an access log of about 200 bytes, written by kcat.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from accesslog import parse_size
from meter import measure
from workload import BROKER_CORE, CLIENT_CORE, ROOT, delivered, ingestd, input_log, program, real_kafka, scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PARTITIONS = 4
RUN_SECONDS = 600
GATES = {"ingestd-records": ("confluent", 1.0), "ingestd-columns": ("kcat", 0.55)}
"""The most of a peer's CPU seconds per GB that a way of reading may need."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one reader."""

    reader: str
    codec: str
    wall: float
    cpu_seconds: float
    cpu_seconds_per_gb: float
    megabytes_per_second: float
    peak_memory_mb: float


def kcat(servers: str, topic: str) -> list[str]:
    """The command line of kcat, up to the end of the topic. What it writes goes nowhere, where it costs least."""
    quiet = [program("kcat"), "-C", "-q", "-e", "-o", "beginning", "-b", servers, "-t", topic]
    return ["sh", "-c", f"exec {' '.join(quiet)} > /dev/null"]


def reader(way: str) -> Callable[[str, str], list[str]]:
    """The command line of one of `readers.py`; ingestd's own with the interpreter of a user's installation."""
    python = ingestd()[0] if way.startswith("ingestd") else sys.executable
    return lambda servers, topic: [python, str(ROOT / "load-tests" / "readers.py"), way, servers, topic]


READERS: dict[str, Callable[[str, str], list[str]]] = {
    "kcat": kcat,
    **{way: reader(way) for way in ("confluent", "aiokafka", "ingestd-records", "ingestd-chunks", "ingestd-columns")},
}


def fill(servers: str, topic: str, log: Path, codec: str) -> None:
    """Write every line of `log` to the topic with kcat, in large batches."""
    subprocess.run(
        [
            program("kcat"), "-P", "-l", "-b", servers, "-t", topic, "-z", codec,
            "-X", "acks=all", "-X", "enable.idempotence=true", "-X", "linger.ms=50", str(log),
        ],
        check=True,
    )  # fmt: skip


def run_once(name: str, servers: str, topic: str, codec: str, log: Path, lines: int, output: Path, cores: str) -> Run:
    """Read the topic once. Raises `RuntimeError` unless every record came."""
    size = log.stat().st_size
    usage, _ = measure(READERS[name](servers, topic), cores=cores, log=output, timeout=RUN_SECONDS)
    if name != "kcat":
        seen = output.read_text().split()
        if seen[-2:] != [str(lines), str(size - lines)]:
            raise RuntimeError(f"{name}: saw {seen[-2:]}, expected {lines} records of {size - lines} bytes")
    return Run(
        reader=name,
        codec=codec,
        wall=usage.wall,
        cpu_seconds=usage.cpu_seconds,
        cpu_seconds_per_gb=usage.cpu_seconds / (size / 1e9),
        megabytes_per_second=size / 1e6 / usage.wall,
        peak_memory_mb=usage.peak_memory / 1e6,
    )


def run_all(
    readers: Sequence[str], codecs: Sequence[str], *, size: int, runs: int, cores: tuple[str, str], parent: Path | None
) -> tuple[list[Run], int]:
    """Every reader on a topic of each codec, `runs` times, in alternation, after a round that warms up the broker."""
    done: list[Run] = []
    with scratch(parent) as directory, real_kafka(directory, cores[1]) as cluster:
        log, lines = input_log(directory, size)
        for codec in codecs:
            topic = cluster.create_topic(partitions=PARTITIONS)
            fill(cluster.servers, topic, log, codec)
            if (count := delivered(cluster, topic)) != lines:
                raise RuntimeError(f"{count} records in the topic, {lines} lines in the file")
            for number in range(runs + 1):
                for name in readers if number else readers[:1]:
                    output = directory / f"{name}.log"
                    run = run_once(name, cluster.servers, topic, codec, log, lines, output, cores[0])
                    warm = "" if number else " (warming up, not counted)"
                    print(
                        f"{codec} {name}: {run.wall:.2f} s, {run.cpu_seconds_per_gb:.2f} CPU-s per GB{warm}",
                        flush=True,
                    )
                    if number:
                        done.append(run)
            cluster.delete_topic(topic)
    return done, lines


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Medians by codec and reader."""
    rows: list[dict[str, Any]] = []
    for codec, name in dict.fromkeys((run.codec, run.reader) for run in runs):
        own = [run for run in runs if (run.codec, run.reader) == (codec, name)]
        rows.append(
            {
                "codec": codec,
                "reader": name,
                "runs": len(own),
                "wall": statistics.median(run.wall for run in own),
                "megabytes_per_second": statistics.median(run.megabytes_per_second for run in own),
                "cpu_seconds_per_gb": statistics.median(run.cpu_seconds_per_gb for run in own),
                "peak_memory_mb": max(run.peak_memory_mb for run in own),
            }
        )
    return rows


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What was to be reached, and whether it was."""
    cost = {(row["codec"], row["reader"]): row["cpu_seconds_per_gb"] for row in rows}
    said = []
    for (codec, name), own in cost.items():
        peer, most = GATES.get(name, ("", 0.0))
        if (codec, peer) in cost:
            share = own / cost[codec, peer]
            reached = "reached" if share <= most else "MISSED"
            said.append(f"{codec} {name}: {share:.2f} of {peer}'s CPU, at most {most}: {reached}")
    return said


def report(runs: Sequence[Run], size: int, lines: int, cores: tuple[str, str]) -> None:
    """Print the table and write JSON and plot."""
    rows = summarise(runs)
    settings = {
        "input_bytes": size,
        "records": lines,
        "partitions": PARTITIONS,
        "client_cores": cores[0],
        "broker_cores": cores[1],
        "runs": "in alternation; medians, memory: largest",
    }
    conditions = (
        f"{size / 1e9:.2f} GB of values, {lines:,} records, {PARTITIONS} partitions, Kafka 4.3.1 on core {cores[1]}, "
        f"client on core {cores[0]}; CPU and memory (PSS) of the whole process tree, start-up included; medians"
    )
    columns = ["codec", "reader", "runs", "wall s", "MB/s", "CPU-s/GB", "peak MB"]
    kept = ["codec", "reader", "runs", "wall", "megabytes_per_second", "cpu_seconds_per_gb", "peak_memory_mb"]
    caption = "\n".join([conditions, *verdicts(rows)])
    results.print_table("A topic read to its end", columns, [[row[name] for name in kept] for row in rows], caption)
    saved = results.save(
        "consume", settings, {"summary": rows, "runs": [asdict(run) for run in runs], "verdicts": verdicts(rows)}
    )
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(row["codec"], {})[row["reader"]] = row["cpu_seconds_per_gb"]
    title = f"{size / 1e9:.2f} GB in {PARTITIONS} partitions read to the end, {size / lines:.0f} bytes a record"
    plot = results.plot_bars("consume", title, "CPU seconds per GB, whole process tree", groups)
    print(f"written: {saved}, {plot}")


def main() -> int:
    """Compare; 1 when a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("2GB"), help="of the records' values")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--readers", nargs="+", choices=READERS, default=["kcat", "confluent", "ingestd-records", "ingestd-columns"]
    )
    parser.add_argument(
        "--codecs", nargs="+", default=["lz4", "none"], choices=["none", "gzip", "snappy", "lz4", "zstd"]
    )
    parser.add_argument("--client-cores", default=CLIENT_CORE)
    parser.add_argument("--broker-cores", default=BROKER_CORE)
    parser.add_argument(
        "--directory", type=Path, help="where input and broker data go; default: the temporary directory"
    )
    given = parser.parse_args()
    cores = (given.client_cores, given.broker_cores)
    runs, lines = run_all(
        given.readers, given.codecs, size=given.size, runs=given.runs, cores=cores, parent=given.directory
    )
    report(runs, given.size, lines, cores)
    return 1 if any("MISSED" in verdict for verdict in verdicts(summarise(runs))) else 0


if __name__ == "__main__":
    sys.exit(main())
