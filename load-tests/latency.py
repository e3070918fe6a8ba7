"""From a line's write to its arrival: lines written at a steady rate, read by a librdkafka consumer from a real Kafka.

Each line carries the machine's monotonic clock at its write. A consumer gets a record only when all in-sync replicas
have acknowledged it, so that what is measured is the acknowledgement and the consumer's own fetch on top.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import results
from accesslog import AccessLog, parse_size
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from workload import BROKER_CORE, CLIENT_CORE, Daemon, real_kafka, scratch

if TYPE_CHECKING:
    from workload import KafkaCluster

PARTITIONS = 4
LINGER = 0.005
WRITE_SECONDS = 0.001
WARM_SECONDS = 5.0
"""Written before it counts: the broker's JVM compiles its hot paths meanwhile."""
PERCENTILE_99_MS = 50.0
"""What the 99th percentile must stay below."""
PATIENCE = 30.0


def write_steadily(path: Path, rate: int, seconds: float) -> None:
    """Append lines at `rate` bytes a second, every millisecond some, each ending in the time of its write."""
    lines = b"".join(AccessLog().blocks(1_000_000)).splitlines()
    started = time.monotonic()
    written = number = 0
    with path.open("ab", buffering=0) as log:
        while (now := time.monotonic()) - started < seconds:
            due = int((now - started) * rate)
            chunk = bytearray()
            while written + len(chunk) < due:
                chunk += b"%b at=%d\n" % (lines[number % len(lines)], time.monotonic_ns())
                number += 1
            written += log.write(chunk) if chunk else 0
            time.sleep(WRITE_SECONDS)
        log.write(b"end of %d lines\n" % number)


def read_latencies(cluster: KafkaCluster, topic: str, timeout: float) -> list[float]:
    """Milliseconds of each line, in order of arrival, until the last line and all others came."""
    reader = Consumer(
        {
            "bootstrap.servers": cluster.servers,
            "group.id": "latency",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "fetch.min.bytes": 1,
            "fetch.queue.backoff.ms": 1,
        }
    )
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    latencies: list[float] = []
    expected = None
    deadline = time.monotonic() + timeout
    try:
        while expected is None or len(latencies) < expected:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(latencies)} lines came, of {expected or 'an unknown number'}")
            # A small number: the consumer waits until it has so many, or for the time given.
            messages = reader.consume(200, timeout=0.002)
            now = time.monotonic_ns()
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                value = message.value() or b""
                _, found, at = value.rpartition(b" at=")
                if found:
                    latencies.append((now - int(at)) / 1e6)
                else:
                    expected = int(value.split()[2])
    finally:
        reader.close()
    return latencies


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=parse_size, default=parse_size("5MB"), help="bytes a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--codec", default="lz4", choices=["none", "gzip", "snappy", "lz4", "zstd"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--client-cores", default=CLIENT_CORE)
    parser.add_argument("--broker-cores", default=BROKER_CORE)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    with scratch(given.directory) as directory, real_kafka(directory, given.broker_cores) as cluster:
        topic = cluster.create_topic(partitions=PARTITIONS)
        log = directory / "live.log"
        log.touch()
        daemon = Daemon(
            directory / "daemon",
            servers=cluster.bootstrap,
            topic=topic,
            paths=[str(log)],
            daemon={"workers": given.workers},
            command=("taskset", "-c", given.client_cores),
            compression=given.codec,
            linger=LINGER,
        )
        with daemon:
            daemon.start_ready()
            writer = multiprocessing.get_context("spawn").Process(
                target=write_steadily, args=(log, given.rate, WARM_SECONDS + given.seconds)
            )
            writer.start()
            latencies = read_latencies(cluster, topic, WARM_SECONDS + given.seconds + PATIENCE)
            writer.join()
            status = daemon.stop()
    if status != 0:
        raise RuntimeError(f"ingestd ended with {status}")
    warm = int(len(latencies) * WARM_SECONDS / (WARM_SECONDS + given.seconds))
    _report(latencies[warm:], given.rate, given.codec)
    return 0


def _report(latencies: list[float], rate: int, codec: str) -> None:
    cuts = statistics.quantiles(latencies, n=1000)
    figures = {"median_ms": cuts[499], "p99_ms": cuts[989], "p999_ms": cuts[998], "maximum_ms": max(latencies)}
    reached = "reached" if figures["p99_ms"] < PERCENTILE_99_MS else "MISSED"
    verdict = f"p99 {figures['p99_ms']:.1f} ms, below {PERCENTILE_99_MS:.0f} ms: {reached}"
    caption = (
        f"{rate / 1e6:.0f} MB/s, {len(latencies):,} lines, linger {LINGER * 1000:.0f} ms, {codec}, {PARTITIONS} "
        "partitions, acks=all, at least once, one Kafka 4.3.1 without fsync; from the write to a librdkafka consumer"
    )
    row = [figures["median_ms"], figures["p99_ms"], figures["p999_ms"], figures["maximum_ms"]]
    results.print_table("Latency, ms", ["median", "p99", "p99.9", "maximum"], [row], f"{caption}\n{verdict}")
    settings = {
        "rate": rate,
        "linger": LINGER,
        "codec": codec,
        "partitions": PARTITIONS,
        "acks": "all",
        "delivery": "at least once",
        "fsync": "broker: none; ingestd: its positions",
    }
    saved = results.save("latency", settings, figures | {"lines": len(latencies), "verdicts": [verdict]})
    marks = {"median": figures["median_ms"], "p99": figures["p99_ms"]}
    plot = results.plot_histogram("latency", caption, "ms from write to arrival", latencies, marks)
    print(f"written: {saved}, {plot}")


if __name__ == "__main__":
    sys.exit(main())
