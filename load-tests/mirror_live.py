"""Mirrors that stay: how late a record is, what nothing to copy costs, how soon thousands of partitions are ready."""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from idle import cpu_seconds
from meter import descendants, proportional_memory
from mirror_programs import SOURCE, TARGET, Copying, copied
from workload import ConfiguredDaemon, delivered, program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mirror_programs import MirrorProgram
    from workload import KafkaCluster

__all__ = ["Idle", "Lateness", "Pair", "Ready", "copied_records", "idle", "lateness", "start"]

TOPIC_PARTITIONS = 100
RATE = 1000
"""Records a second, into one partition."""
LINGER_MS = 5
"""Of the producer at the source. Without it, a broker that shares a core is busy with 1,000 requests a second alone."""
LIMIT_SECONDS = 180.0
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Pair:
    """Two clusters, and the cores of what copies between them."""

    source: KafkaCluster
    target: KafkaCluster
    client_cores: str
    settle_seconds: float
    """What comes first does not count: the brokers' JVMs compile their hot paths meanwhile."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """From a record's append at the source to its append on the target. Milliseconds, of whole ones."""

    since: str
    records: int
    median_ms: float
    p99_ms: float
    maximum_ms: float
    cpu_percent: float
    """Of one core, the mirror's processes."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A program with nothing to copy. Per cent of one core; its first process, and those below."""

    program: str
    partitions: int
    cpu_percent: float
    first_process_percent: float
    memory_mb: float


@dataclass(frozen=True, slots=True)
class Ready:
    """One start until it is ready."""

    what: str
    partitions: int
    seconds: float
    cpu_seconds: float


def copied_records(cluster: KafkaCluster, topics: Sequence[str]) -> int:
    """How many records these topics have; 0 while one is missing."""
    try:
        return sum(delivered(cluster, topic) for topic in topics)
    except KafkaException:
        return 0


def _daemon(pair: Pair, directory: Path, topics: str, name: str) -> ConfiguredDaemon:
    tables = {
        f"clusters.{SOURCE}": {"bootstrap": pair.source.bootstrap},
        f"clusters.{TARGET}": {"bootstrap": pair.target.bootstrap},
        f"mirrors.{name}": {"source": SOURCE, "target": TARGET, "topics": [topics]},
    }
    bound = ("taskset", "-c", pair.client_cores)
    return ConfiguredDaemon(directory, tables, daemon={"workers": 1}, command=bound)


def lateness(pair: Pair, directory: Path, seconds: float, *, broker_times: bool) -> Lateness:
    """Copy records that come at `RATE`, and compare when they came into both logs.

    The target's times are those of its broker. Those of the source are when the producer had the acknowledgement,
    which is a little late; with `broker_times` those of its broker, and then every batch is made anew.
    """
    name = "appended" if broker_times else "acknowledged"
    times = {"message_timestamp_type": "LogAppendTime"}
    topic = pair.source.create_topic(f"late-{name}", **(times if broker_times else {}))
    copy = pair.target.create_topic(copied(topic), **times)
    count = round((pair.settle_seconds + seconds) * RATE)
    with _daemon(pair, directory / name, topic, f"late-{name}") as daemon:
        daemon.start_ready()
        processes = descendants(daemon.pid)
        before, began = cpu_seconds(processes), time.monotonic()
        acknowledged = _send(pair.source.servers, topic, count)
        percent = (cpu_seconds(processes) - before) / (time.monotonic() - began) * 100
        daemon.until(lambda: copied_records(pair.target, [copy]) == count, "all is copied", LIMIT_SECONDS)
        daemon.stop()
    source = _times(pair.source.servers, topic) if broker_times else acknowledged
    pairs = list(zip(source, _times(pair.target.servers, copy), strict=True))[round(pair.settle_seconds * RATE) :]
    late = [theirs - ours for ours, theirs in pairs]
    since = "append at the source; made anew" if broker_times else "acknowledgement at the source; passed on"
    cuts = statistics.quantiles(late, n=100)
    return Lateness(since, len(late), statistics.median(late), cuts[98], max(late), percent)


def _send(servers: str, topic: str, count: int) -> list[float]:
    """Send records one by one; when each was acknowledged. Milliseconds since 1970, whole ones as brokers have them."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": LINGER_MS, "acks": "all", "log_level": 2})
    acknowledged: list[float] = []
    began = time.monotonic()

    def done(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        acknowledged.append(math.floor(message.timestamp()[1] + (message.latency() or 0.0) * 1000))

    for number in range(count):
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        producer.produce(topic, b"%0200d" % number, on_delivery=done)
        producer.poll(0)
    if producer.flush(30):
        raise RuntimeError("records were not sent in 30 s")
    return acknowledged


def _times(servers: str, topic: str) -> list[int]:
    """The times of the records of a topic's only partition, in order. Milliseconds since 1970."""
    settings = {"bootstrap.servers": servers, "group.id": "times", "enable.partition.eof": True}
    reader = Consumer(settings | {"enable.auto.commit": False, "log_level": 2})
    times: list[int] = []
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while time.monotonic() < deadline:
            for message in reader.consume(5000, 0.2):
                if (error := message.error()) is None:
                    times.append(message.timestamp()[1])
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name for it
                    return times
                else:
                    raise KafkaException(error)
        raise TimeoutError(f"{topic}: not read in {LIMIT_SECONDS:g} s")
    finally:
        reader.close()


def _topics(cluster: KafkaCluster, name: str, partitions: int) -> list[str]:
    """Topics with so many partitions together, and one record in each."""
    numbers = range(-(-partitions // TOPIC_PARTITIONS))
    topics = [
        cluster.create_topic(f"{name}-{number}", partitions=min(TOPIC_PARTITIONS, partitions)) for number in numbers
    ]
    producer = Producer({"bootstrap.servers": cluster.servers, "acks": "all", "log_level": 2})
    for topic in topics:
        for number in range(min(TOPIC_PARTITIONS, partitions)):
            producer.produce(topic, b"one record", partition=number)
    if producer.flush(60):
        raise RuntimeError("records were not sent in 60 s")
    return topics


def idle(pair: Pair, programs: Sequence[MirrorProgram], directory: Path, partitions: int, seconds: float) -> list[Idle]:
    """What each program costs while all is copied and nothing comes."""
    topics = _topics(pair.source, "idle", partitions)
    copies = [copied(topic) for topic in topics]
    found = []
    for number, one in enumerate(programs):
        place = directory / f"idle-{number}"
        place.mkdir()
        job = Copying(pair.source.servers, pair.target.servers, "idle-.*", partitions, partitions, place)
        with _running(one.command(job), pair.client_cores, place / "output.log") as process:
            deadline = time.monotonic() + LIMIT_SECONDS
            while copied_records(pair.target, copies) < partitions:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{one.name} did not copy: {(place / 'output.log').read_text()[-2000:]}")
                time.sleep(POLL_SECONDS)
            time.sleep(pair.settle_seconds)
            processes = descendants(process.pid)
            before, before_first, began = cpu_seconds(processes), cpu_seconds(processes[:1]), time.monotonic()
            time.sleep(seconds)
            share = 100 / (time.monotonic() - began)
            first = (cpu_seconds(processes[:1]) - before_first) * share
            all_of_them = (cpu_seconds(processes) - before) * share
            memory = sum(proportional_memory(pid) for pid in processes) / 1e6
            found.append(Idle(one.name, partitions, all_of_them, first, memory))
        pair.target.clear()
    pair.source.clear()
    return found


@contextmanager
def _running(command: list[str], cores: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until the block is left."""
    bound = [program("setpriv"), "--pdeathsig", "KILL", program("taskset"), "-c", cores, *command]
    with log.open("wb") as output:
        process = subprocess.Popen(bound, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def start(pair: Pair, directory: Path, partitions: int) -> list[Ready]:
    """Seconds until ingestd is ready: first with nothing known of many partitions, then with all known and copied."""
    copies = [copied(topic) for topic in _topics(pair.source, "many", partitions)]
    found = []
    with _daemon(pair, directory / "start", "many-.*", "start") as daemon:
        for what in ("first start: topics are made", "second start"):
            began = time.monotonic()
            daemon.start()
            daemon.until(lambda: daemon.page("/readyz") is not None, "it is ready", LIMIT_SECONDS)
            seconds = time.monotonic() - began
            found.append(Ready(what, partitions, seconds, cpu_seconds(descendants(daemon.pid))))
            daemon.until(lambda: copied_records(pair.target, copies) >= partitions, "all is copied", LIMIT_SECONDS)
            daemon.stop()
    pair.target.clear()
    pair.source.clear()
    return found
