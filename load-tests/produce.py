"""One call per record: `AsyncProducer.send` beside confluent-kafka-python, aiokafka and kcat, on the same input.

The programs lie in `senders/`: each reads the lines of a file and gives each line to its client by itself. The client
runs on one core, a real Kafka on another, in alternation; a run after which the topic lacks a line is no result.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from accesslog import parse_size
from compare import LEVELS, PARTITIONS, run_once
from contenders import LINGER_MS, Contender, Job, Kcat
from workload import BROKER_CORE, CLIENT_CORE, input_log, real_kafka, scratch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from compare import Run

SENDERS = Path(__file__).resolve().parent / "senders"
KCAT = "kcat"
CONFLUENT = "confluent-kafka-python"
AIOKAFKA = "aiokafka"
ASYNC = "ingestd"
SYNC = "ingestd, send_many"
PLAIN = "plain"
CASES = (
    ("lz4", PLAIN), ("lz4", "keys"), ("lz4", "headers"), ("lz4", "callbacks"), ("none", PLAIN), ("zstd", PLAIN),
)  # fmt: skip
"""Codec, and what `send` gets beside a value."""
GATES = {CONFLUENT: 0.4, AIOKAFKA: 0.15, KCAT: 1.0}
"""The most of each one's CPU seconds per GB that ingestd may need, with lz4 and values alone."""


@dataclass(frozen=True, slots=True)
class Sender:
    """A program of `senders/`."""

    name: str
    script: str
    way: str
    delivery: str
    python: str = sys.executable
    ends_by_itself: bool = True

    def command(self, job: Job) -> list[str]:
        """Its command line. -P: what is installed counts, not what lies beside it."""
        script = str(SENDERS / self.script)
        return [self.python, "-P", script, str(job.log), job.servers, job.topic, job.codec, self.way]


def contenders(codec: str, way: str, names: Sequence[str]) -> Iterator[Contender]:
    """Those that take part in a case."""
    own = os.environ.get("INGESTD_PYTHON", sys.executable)
    first = (codec, way) == CASES[0]
    if ASYNC in names:
        yield Sender(ASYNC, "ingestd_async.py", way, "idempotent, acks=all", own)
    if SYNC in names and first:
        yield Sender(
            SYNC, "ingestd_sync.py", way, "idempotent, acks=all, no linger, each record's offset comes back", own
        )
    if KCAT in names and way == PLAIN:
        yield Kcat()
    if CONFLUENT in names:
        yield Sender(CONFLUENT, "confluent.py", way, "acks=all, not idempotent")
    if AIOKAFKA in names and first:
        yield Sender(AIOKAFKA, "aiokafka_send.py", way, "acks=all, not idempotent")


def run_all(given: argparse.Namespace) -> list[tuple[str, Run]]:
    """Every case, every contender, in alternation, after a round to warm up that does not count."""
    done: list[tuple[str, Run]] = []
    with scratch(given.directory) as directory, real_kafka(directory, given.broker_cores) as cluster:
        log, lines = input_log(directory, given.size)
        cases = [case for case in CASES if case[0] in given.codecs and case[1] in given.ways]
        for number, (codec, way) in [(0, cases[0]), *((number + 1, c) for c in cases for number in range(given.runs))]:
            for contender in contenders(codec, way, given.contenders):
                if number == 0 and contender.name == AIOKAFKA:
                    continue
                topic = cluster.create_topic(partitions=PARTITIONS)
                place = directory / topic
                place.mkdir()
                job = Job(log, cluster.servers, topic, codec, LEVELS.get(codec), place)
                run = run_once(contender, cluster, job, lines, given.client_cores)
                cluster.delete_topic(topic)
                warm = "" if number else " (warming up, not counted)"
                case = codec if way == PLAIN else f"{codec}, {way}"
                cost = f"{run.wall:.2f} s, {run.cpu_seconds_per_gb:.2f} CPU-s per GB"
                print(f"{case}: {run.contender}: {cost}{warm}", flush=True)
                if number:
                    done.append((case, run))
    return done


def summarise(runs: Sequence[tuple[str, Run]]) -> list[dict[str, Any]]:
    """Medians by case and contender, beside confluent-kafka-python's."""
    rows: list[dict[str, Any]] = []
    for case, contender in dict.fromkeys((case, run.contender) for case, run in runs):
        own = [run for of, run in runs if (of, run.contender) == (case, contender)]
        rows.append(
            {
                "case": case,
                "contender": contender,
                "runs": len(own),
                "wall": statistics.median(run.wall for run in own),
                "megabytes_per_second": statistics.median(run.megabytes_per_second for run in own),
                "cpu_seconds_per_gb": statistics.median(run.cpu_seconds_per_gb for run in own),
                "microseconds_per_record": statistics.median(run.cpu_seconds / run.delivered * 1e6 for run in own),
                "peak_memory_mb": max(run.peak_memory_mb for run in own),
                "delivered": own[0].delivered,
            }
        )
    theirs = {row["case"]: row["cpu_seconds_per_gb"] for row in rows if row["contender"] == CONFLUENT}
    for row in rows:
        row["cpu_of_confluent"] = row["cpu_seconds_per_gb"] / theirs[row["case"]] if row["case"] in theirs else None
    return rows


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What was to be reached, and whether it was."""
    costs = {row["contender"]: row["cpu_seconds_per_gb"] for row in rows if row["case"] == CASES[0][0]}
    said = []
    for name, gate in GATES.items():
        if name in costs and ASYNC in costs:
            share = costs[ASYNC] / costs[name]
            said.append(f"{share:.3f} of {name}'s CPU, at most {gate}: {'reached' if share <= gate else 'MISSED'}")
    return said


def report(runs: Sequence[tuple[str, Run]], given: argparse.Namespace) -> None:
    """Print the table and write JSON and plot."""
    rows = summarise(runs)
    delivery = {each.name: each.delivery for case in CASES for each in contenders(*case, given.contenders)}
    settings = {
        "input_bytes": given.size,
        "lines": runs[0][1].delivered,
        "partitions": PARTITIONS,
        "acks": "all",
        "linger_ms": LINGER_MS,
        "levels": {codec: LEVELS.get(codec, "default") for codec in given.codecs},
        "delivery": delivery,
        "fsync": "broker: none (Kafka's default)",
        "client_cores": given.client_cores,
        "broker_cores": given.broker_cores,
        "runs": "in alternation; medians, memory: largest",
    }
    conditions = (
        f"{given.size / 1e9:.2f} GB, {runs[0][1].delivered:,} records, {PARTITIONS} partitions, acks=all, "
        f"linger {LINGER_MS} ms, "
        f"zstd level 1, Kafka 4.3.1 without fsync on core {given.broker_cores}, client on core {given.client_cores}; "
        "CPU and memory (PSS) of the whole process tree, start-up included; medians"
    )
    caption = "\n".join([conditions, *(f"{name}: {text}" for name, text in delivery.items()), *verdicts(rows)])
    columns = ["case", "program", "runs", "wall s", "MB/s", "CPU-s/GB", "of confluent", "us/record", "peak MB"]
    kept = ["case", "contender", "runs", "wall", "megabytes_per_second", "cpu_seconds_per_gb", "cpu_of_confluent"]
    kept += ["microseconds_per_record", "peak_memory_mb"]
    cells = [["-" if row[name] is None else row[name] for name in kept] for row in rows]
    results.print_table("One call per record", columns, cells, caption)
    every = [{"case": case} | asdict(run) for case, run in runs]
    saved = results.save("produce", settings, {"summary": rows, "runs": every, "verdicts": verdicts(rows)})
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(row["case"], {})[row["contender"]] = row["cpu_seconds_per_gb"]
    title = f"{given.size / 1e9:.2f} GB in records of about 200 bytes, one call each, acks=all, linger {LINGER_MS} ms"
    plot = results.plot_bars("produce", title, "CPU seconds per GB, whole process tree", groups)
    print(f"written: {saved}, {plot}")


def main() -> int:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", type=parse_size, default=parse_size("2GB"), help="of the input; the official size is 2GB"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", default=[ASYNC, SYNC, KCAT, CONFLUENT, AIOKAFKA])
    parser.add_argument("--codecs", nargs="+", default=["lz4", "none", "zstd"], choices=["lz4", "none", "zstd"])
    parser.add_argument("--ways", nargs="+", default=[PLAIN, "keys", "headers", "callbacks"])
    parser.add_argument("--client-cores", default=CLIENT_CORE)
    parser.add_argument("--broker-cores", default=BROKER_CORE)
    parser.add_argument(
        "--directory", type=Path, help="where input and broker data go; default: the temporary directory"
    )
    given = parser.parse_args()
    report(run_all(given), given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
