"""What following costs where files rotate all the time, and how soon a new file is read.

Logs that are written to and renamed once a second each, in turn, into a real Kafka: CPU of the whole daemon, by
process. Every line carries the time at which its file was made, so that a librdkafka consumer knows how old each new
file was when its first line arrived: while all of them rotate, and before, one file at a time in a quiet directory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from idle import cpu_seconds
from meter import descendants
from workload import Daemon, delivered, real_kafka, scratch

if TYPE_CHECKING:
    from workload import KafkaCluster

PARTITIONS = 4
MOST_CPU = 10.0
"""Per cent of one core."""
MOST_AGE = 0.3
"""Seconds from a file's creation to its first line in the broker, where inotify works."""
KEPT = 5
"""Rotated files of each log, as the kubelet keeps them."""
QUIET_FILES = 40
QUIET_PAUSE = 0.25
PATIENCE = 30.0


def make(path: Path, lines: int) -> None:
    """Make a file with so many lines, written at once."""
    text = b"a line of an ordinary log, some eighty bytes long, of a file made at=%d\n" % time.monotonic_ns()
    with path.open("wb", buffering=0) as log:
        log.write(b"".join(b"%d " % number + text for number in range(lines)))


def rotate(directory: Path, files: int, lines: int, seconds: float) -> None:
    """Rotate each of many logs once a second, one after the other: renamed, made anew, the oldest file deleted."""
    paths = [directory / f"app-{number:04}.log" for number in range(files)]
    started = time.monotonic()
    for count in range(int(files * seconds)):
        time.sleep(max(0.0, started + count / files - time.monotonic()))
        path, generation = paths[count % files], count // files
        if generation:
            path.rename(f"{path}.{generation}")
        make(path, lines)
        if generation > KEPT:
            Path(f"{path}.{generation - KEPT}").unlink()


class Ages(threading.Thread):
    """Reads the topic: how old each file was when its first line arrived, in seconds, in order of arrival."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        super().__init__(daemon=True)
        self.ages: list[float] = []
        self._ended = threading.Event()
        settings = {"fetch.wait.max.ms": 5, "fetch.min.bytes": 1, "fetch.queue.backoff.ms": 1}
        own = {"bootstrap.servers": cluster.servers, "group.id": "ages", "enable.auto.commit": False}
        self._reader = Consumer(own | settings)
        self._reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])

    def run(self) -> None:
        """Until told to end."""
        while not self._ended.is_set():
            for message in self._reader.consume(200, timeout=0.01):
                now = time.monotonic_ns()
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                value = message.value() or b""
                if value.startswith(b"0 "):
                    self.ages.append((now - int(value.rpartition(b"=")[2])) / 1e9)
        self._reader.close()

    def end(self) -> None:
        """End it."""
        self._ended.set()
        self.join()


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--lines", type=int, default=5, help="of each generation")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle", type=float, default=15.0, help="seconds that it rotates before it is measured")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    with scratch(given.directory) as directory, real_kafka(directory, None) as cluster:
        figures = _measure(directory, cluster, given)
    _report(given, figures)
    return 0


def _measure(directory: Path, cluster: KafkaCluster, given: argparse.Namespace) -> dict[str, Any]:
    topic = cluster.create_topic(partitions=PARTITIONS)
    logs = directory / "logs"
    logs.mkdir()
    paths = [f"{logs}/*.log"]
    own = {"workers": given.workers}
    ages = Ages(cluster, topic)
    ages.start()
    with Daemon(directory / "daemon", servers=cluster.bootstrap, topic=topic, paths=paths, daemon=own) as daemon:
        daemon.start_ready()
        time.sleep(2.0)
        for number in range(QUIET_FILES):
            make(logs / f"quiet-{number}.log", given.lines)
            time.sleep(QUIET_PAUSE)
        quiet = len(ages.ages)
        lasting = given.settle + given.seconds + 1.0
        rotator = multiprocessing.get_context("spawn").Process(
            target=rotate, args=(logs, given.files, given.lines, lasting)
        )
        rotator.start()
        time.sleep(given.settle)
        processes = descendants(daemon.pid)
        before, started = [cpu_seconds([pid]) for pid in processes], time.monotonic()
        time.sleep(given.seconds)
        took = time.monotonic() - started
        after = [cpu_seconds([pid]) for pid in processes]
        rotator.join()
        written = given.lines * (QUIET_FILES + int(given.files * lasting))
        deadline = time.monotonic() + PATIENCE
        while delivered(cluster, topic) < written and time.monotonic() < deadline:
            time.sleep(0.2)
        status = daemon.stop()
    if status != 0:
        raise RuntimeError(f"ingestd ended with {status}")
    ages.end()
    return {
        "cpu_percent": [(now - then) / took * 100 for now, then in zip(after, before, strict=True)],
        "written": written,
        "delivered": delivered(cluster, topic),
        "quiet": ages.ages[1:quiet],  # the very first waits for connections, too
        "rotating": ages.ages[quiet:],
    }


def _report(given: argparse.Namespace, figures: dict[str, Any]) -> None:
    percent = sum(figures["cpu_percent"])
    rows = [["supervisor, CPU, % of a core", figures["cpu_percent"][0]]]
    rows += [[f"process {number}, the same", each] for number, each in enumerate(figures["cpu_percent"][1:], 1)]
    verdicts = [
        f"{percent:.1f} % of a core, below {MOST_CPU:.0f} %: {'reached' if percent < MOST_CPU else 'MISSED'}",
        f"{figures['delivered']:,} records of {figures['written']:,} lines",
    ]
    for when in ("quiet", "rotating"):
        cuts = statistics.quantiles(figures[when], n=100)
        figures[f"{when}_median"], figures[f"{when}_p99"], figures[f"{when}_most"] = (
            cuts[49],
            cuts[98],
            max(figures[when]),
        )
        verdicts.append(
            f"{when}: a new file's first line there after {cuts[49]:.3f} s (p99 {cuts[98]:.3f}, most "
            f"{max(figures[when]):.3f}), below {MOST_AGE} s: {'reached' if max(figures[when]) < MOST_AGE else 'MISSED'}"
        )
    caption = f"{given.files} files, each renamed and made anew once a second with {given.lines} lines"
    caption += f"; {given.workers} workers, {given.seconds:.0f} s"
    results.print_table("Rotating", ["what", "figure"], rows, "\n".join([caption, *verdicts]))
    settings = {"files": given.files, "lines": given.lines, "workers": given.workers, "seconds": given.seconds}
    saved = results.save("rotating", settings, figures | {"verdicts": verdicts})
    marks = {"median": figures["rotating_median"] * 1000, "p99": figures["rotating_p99"] * 1000}
    ages = [age * 1000 for age in figures["rotating"]]
    plot = results.plot_histogram("rotating", caption, "ms from a file's creation to its first line", ages, marks)
    print(f"written: {saved}, {plot}")


if __name__ == "__main__":
    sys.exit(main())
