"""The embedded broker beside Apache Kafka, each on the same one core, the clients on another.

Produce and fetch of lz4 batches, single records over many connections, heartbeats of many groups (also as long as the
cleaner compacts a log of 400 MB), a large group, many partitions, the start, and the memory. The embedded broker runs
twice: with Kafka's fsync behaviour (none), and with `--flush always`.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import results
from accesslog import parse_size
from crowd import Crowd, frame_of, part, produce_frame, read_answer
from workload import BROKER_CORE, CLIENT_CORE, JAVA_FOR_MEASURING, KafkaCluster, input_log, scratch

from ingestd.records.batch import seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Callable

READY_SECONDS = 60
CLEANING_SECONDS = 600
CONNECTIONS = 100
GROUPS = 1_000
HEARTBEATS_PER_SECOND = 333
"""1,000 groups, each every 3 seconds, as clients do."""
MEMBERS = 500
PARTITIONS = 10_000
DIRTY_RECORDS = 2_000_000
DIRTY_KEYS = 100_000
HOUR_MS = 3_600_000
OFTEN = ("--cleaner-interval", "1")


class Embedded:
    """An embedded broker on one core. Context manager; `again` ends it and starts it on its data."""

    def __init__(self, directory: Path, core: str, *options: str) -> None:
        self.log = directory / "broker.log"
        self.data = directory / "data"
        self.servers = "127.0.0.1:0"
        self.ready = 0.0
        directory.mkdir()
        self._command = [
            "taskset", "-c", core, os.environ.get("INGESTD_PYTHON", sys.executable), "-P", "-m", "ingestd.broker",
            "--data", str(directory / "data"), *options,
        ]  # fmt: skip

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        started = time.perf_counter()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--listen", self.servers], stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        word, host, port = self._process.stdout.readline().decode().split()
        assert word == "ready", self.log.read_text()
        self.servers = f"{host}:{port}"
        first_answer(self.servers)
        self.ready = time.perf_counter() - started

    def again(self) -> float:
        """Seconds from a clean end to the first answer of the next one."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(READY_SECONDS) == 0
        self._start()
        return self.ready

    def cleaned(self, partition: str) -> bool:
        """Whether the log of TOPIC-NUMBER was compacted."""
        said = self.log.read_text().splitlines()
        return any("log compacted" in line and f'"{partition}"' in line for line in said)

    @property
    def pid(self) -> int:
        return self._process.pid


class Kafka:
    """Apache Kafka on one core, as `Embedded`."""

    def __init__(self, directory: Path, core: str) -> None:
        self._cluster = KafkaCluster(
            directory,
            java_options=JAVA_FOR_MEASURING,
            cores=core,
            settings={"num.partitions": "4", "log.cleaner.backoff.ms": "1000"},
        )
        self.data = self._cluster.nodes[1].data
        self.ready = 0.0

    def __enter__(self) -> Self:
        started = time.perf_counter()
        self._cluster.__enter__()
        first_answer(self.servers)
        self.ready = time.perf_counter() - started
        return self

    def __exit__(self, *exc: object) -> None:
        self._cluster.__exit__(None, None, None)

    @property
    def servers(self) -> str:
        return self._cluster.servers

    def again(self) -> float:
        """Seconds from a clean end to the first answer of the next one."""
        self._cluster.stop(1)
        started = time.perf_counter()
        self._cluster.start(1, wait=False)
        first_answer(self.servers)
        return time.perf_counter() - started

    def cleaned(self, partition: str) -> bool:
        """Whether the log of TOPIC-NUMBER was compacted."""
        checkpoint = self.data / "cleaner-offset-checkpoint"
        return checkpoint.exists() and partition.replace("-", " ") in checkpoint.read_text()

    @property
    def pid(self) -> int:
        return self._cluster.nodes[1].pid


def first_answer(servers: str) -> None:
    """Until the broker has answered a request."""
    asked = part(Api.list_groups, 3, "ListGroupsRequest")
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with Crowd(servers, 1) as one:
                one.ask([frame_of(asked)])
                return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_memory(pid: int) -> int:
    """Bytes that only this process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def create(servers: str, topic: str, partitions: int, **config: str) -> None:
    """Create a topic. `config`: with underscores for dots."""
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415 - its import takes long

    settings = {name.replace("_", "."): value for name, value in config.items()}
    new = NewTopic(topic, partitions, 1, config=settings)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([new])[topic].result(READY_SECONDS)


def metered(pid: int, work: Callable[[], None]) -> tuple[float, float]:
    """CPU seconds of the broker, and seconds, that some work took."""
    before, started = cpu_seconds(pid), time.perf_counter()
    work()
    return cpu_seconds(pid) - before, time.perf_counter() - started


def produce_all(servers: str, topic: str, log: Path) -> None:
    """All lines of a file, lz4, acks=all, by librdkafka."""
    from confluent_kafka import Producer  # noqa: PLC0415

    producer = Producer(
        {
            "bootstrap.servers": servers, "compression.type": "lz4", "linger.ms": 20, "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000, "acks": "all",
        }
    )  # fmt: skip
    with log.open("rb") as file:
        for number, line in enumerate(file):
            while True:
                try:
                    producer.produce(topic, line, partition=number // 1000 % 4)
                    break
                except BufferError:
                    producer.poll(0.1)
    left = producer.flush(600)
    if left:
        raise RuntimeError(f"{left} records were not delivered")


def fetch_all(servers: str, topic: str, lines: int) -> None:
    """Read a topic to its end, by librdkafka."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition  # noqa: PLC0415

    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "queued.max.messages.kbytes": 200_000,
         "fetch.message.max.bytes": 4 << 20}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(4)])
    found = 0
    while found < lines:
        # Not more than there are: it waits for so many.
        got = consumer.consume(min(10_000, lines - found), timeout=30)
        if not got:
            raise RuntimeError(f"{found} of {lines} records")
        found += len(got)
    consumer.close()


def throughput(target: Embedded | Kafka, log: Path, lines: int) -> dict[str, float]:
    """Produce a file and fetch it back."""
    gigabytes = log.stat().st_size / 1e9
    create(target.servers, "lines", 4)
    cpu, wall = metered(target.pid, lambda: produce_all(target.servers, "lines", log))
    fetch_cpu, fetch_wall = metered(target.pid, lambda: fetch_all(target.servers, "lines", lines))
    return {
        "produce, CPU-s per GB": cpu / gigabytes,
        "produce, MB/s": 1000 * gigabytes / wall,
        "fetch, CPU-s per GB": fetch_cpu / gigabytes,
        "fetch, MB/s": 1000 * gigabytes / fetch_wall,
        "private memory, MB": private_memory(target.pid) / 1e6,
    }


def batch_of(key: bytes | None, value: bytes) -> bytes:
    """A sealed batch of one record, without compression."""
    builder = BatchBuilder(limit=1 << 20)
    builder.append(key, value, (), int(time.time() * 1000))
    batch = bytearray(builder.build(Compression(Codec.none)))
    seal(memoryview(batch))
    return bytes(batch)


def single_records(target: Embedded | Kafka, seconds: float) -> dict[str, float]:
    """Records of 200 bytes, one a request, acks=all, from 100 connections."""
    create(target.servers, "single", 4)
    frames = [produce_frame("single", number % 4, batch_of(None, b"x" * 200)) for number in range(CONNECTIONS)]
    with Crowd(target.servers, CONNECTIONS) as crowd:
        crowd.repeat(frames, seconds / 4)
        before = cpu_seconds(target.pid)
        answered, wall = crowd.repeat(frames, seconds)
        cpu = cpu_seconds(target.pid) - before
    return {"single records, 1/s": answered / wall, "single records, CPU-s per million": cpu / answered * 1e6}


def join_request(group: str, member_id: str) -> Any:
    """JoinGroup of a version that needs no member id."""
    protocol = part(Api.join_group, 3, "JoinGroupRequestProtocol", name="range", metadata=b"")
    return part(
        Api.join_group, 3, "JoinGroupRequest", group_id=group, session_timeout=timedelta(seconds=60),
        rebalance_timeout=timedelta(seconds=60), member_id=member_id, protocol_type="consumer", protocols=(protocol,),
    )  # fmt: skip


def sync_request(group: str, joined: Any) -> Any:
    """SyncGroup behind a join; the leader's has an assignment for each member."""
    assignments = tuple(
        part(Api.sync_group, 2, "SyncGroupRequestAssignment", member_id=member.member_id, assignment=b"x" * 20)
        for member in joined.members
    )
    return part(
        Api.sync_group, 2, "SyncGroupRequest", group_id=group, generation_id=joined.generation_id,
        member_id=joined.member_id, assignments=assignments,
    )  # fmt: skip


def beat_request(group: str, joined: Any) -> Any:
    """A heartbeat of a member."""
    return part(
        Api.heartbeat, 2, "HeartbeatRequest", group_id=group, generation_id=joined.generation_id,
        member_id=joined.member_id,
    )  # fmt: skip


def coordinated(servers: str, group: str) -> float:
    """Find a group's coordinator until there is one, which makes the topic. Seconds until a member has joined."""
    started = time.perf_counter()
    asked = part(Api.find_coordinator, 3, "FindCoordinatorRequest", key=group, key_type=0)
    join = join_request(group, "")
    with Crowd(servers, 1) as one:
        while read_answer(asked, one.ask([frame_of(asked)])[0]).error_code:
            time.sleep(0.01)
        while read_answer(join, one.ask([frame_of(join)])[0]).error_code:
            time.sleep(0.01)
    return time.perf_counter() - started


def percentile(values: list[float], share: float) -> float:
    """The value that so many are not above."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def heartbeats(target: Embedded | Kafka, seconds: float, dirty_records: int) -> dict[str, float]:
    """1,000 groups of one member and a connection each: in peace, and as long as a log is being compacted."""
    make_dirty(target.servers, dirty_records)
    with Crowd(target.servers, GROUPS) as crowd:
        names = [f"group-{number}" for number in range(GROUPS)]
        joins = [join_request(name, "") for name in names]
        joined = [
            read_answer(join, answer)
            for join, answer in zip(joins, crowd.ask([frame_of(join) for join in joins]), strict=True)
        ]
        crowd.ask([frame_of(sync_request(name, one)) for name, one in zip(names, joined, strict=True)])
        beats = [frame_of(beat_request(name, one)) for name, one in zip(names, joined, strict=True)]
        crowd.ask(beats)
        ends = time.monotonic() + seconds
        quiet = crowd.paced(beats, HEARTBEATS_PER_SECOND, lambda: time.monotonic() < ends)
        size = sum(path.stat().st_size for path in (target.data / "dirty-0").glob("*.log"))
        let_clean(target.servers)
        begun = Until(lambda: any((target.data / "dirty-0").glob("*.cleaned")) or target.cleaned("dirty-0"))
        before = crowd.paced(beats, HEARTBEATS_PER_SECOND, begun)
        started, cpu = time.monotonic(), cpu_seconds(target.pid)
        busy = crowd.paced(beats, HEARTBEATS_PER_SECOND, Until(lambda: target.cleaned("dirty-0")))
    busy = busy or before[-1:]  # a small log may be compacted between two looks: this one was under way, or just over
    return {
        "heartbeat p50, ms": 1000 * statistics.median(quiet),
        "heartbeat p99, ms": 1000 * percentile(quiet, 0.99),
        "while cleaning, heartbeat p50, ms": 1000 * statistics.median(busy),
        "while cleaning, heartbeat p99, ms": 1000 * percentile(busy, 0.99),
        "while cleaning, longest heartbeat, ms": 1000 * max(busy),
        "while cleaning, heartbeats": len(busy),
        "cleaning, s": time.monotonic() - started,
        "cleaning, CPU-s of the broker": cpu_seconds(target.pid) - cpu,
        "log to clean, MB": size / 1e6,
    }


class Until:
    """Goes on until something holds. It is looked at every 50 ms, so that the looking costs little."""

    def __init__(self, holds: Callable[[], bool]) -> None:
        self._holds = holds
        self._look = 0.0
        self._deadline = time.monotonic() + CLEANING_SECONDS

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self._look:
            return True
        self._look = now + 0.05
        if now > self._deadline:
            raise TimeoutError(f"no cleaning has ended within {CLEANING_SECONDS} s")
        return not self._holds()


def make_dirty(servers: str, records: int) -> None:
    """A log of records of 200 bytes that is to be compacted, but not within the hour."""
    from confluent_kafka import Producer  # noqa: PLC0415

    create(
        servers, "dirty", 1, cleanup_policy="compact", segment_bytes=str(max(1 << 20, 10 * records)),
        min_cleanable_dirty_ratio="0.01",
        min_compaction_lag_ms=str(HOUR_MS), max_compaction_lag_ms=str(HOUR_MS),
    )  # fmt: skip
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    for number in range(records):
        while True:
            try:
                producer.produce("dirty", b"v" * 180, key=b"%d" % (number % DIRTY_KEYS), partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    if left := producer.flush(600):
        raise RuntimeError(f"{left} records were not delivered")


def let_clean(servers: str) -> None:
    """Have what `make_dirty` wrote compacted now."""
    from confluent_kafka.admin import (  # noqa: PLC0415
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "dirty", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})  # its calls end with it
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(READY_SECONDS)


def large_group(servers: str) -> float:
    """Seconds until all members of one group are in the same generation and have their assignment."""
    group = "large"
    states: list[Any] = [None] * MEMBERS
    asked: list[Any] = [join_request(group, "") for _ in range(MEMBERS)]
    settled: dict[int, int] = {}
    with Crowd(servers, MEMBERS) as crowd:
        started = time.perf_counter()
        for number, request in enumerate(asked):
            crowd.send(number, frame_of(request))
        while len(settled) < MEMBERS or len(set(settled.values())) > 1:
            for number, answer, _seconds in crowd.answers(READY_SECONDS):
                response = read_answer(asked[number], answer)
                kind = asked[number].__api_key__
                if kind == Api.join_group and not response.error_code:
                    states[number] = response
                    asked[number] = sync_request(group, response)
                elif response.error_code:
                    settled.pop(number, None)
                    member_id = states[number].member_id if states[number] is not None else ""
                    asked[number] = join_request(group, member_id)
                else:
                    settled[number] = states[number].generation_id
                    asked[number] = beat_request(group, states[number])
                crowd.send(number, frame_of(asked[number]))
        return time.perf_counter() - started


def many_partitions(directory: Path, core: str) -> dict[str, float]:
    """A broker of 10,000 partitions with a record each: its start after a clean end."""
    with Embedded(directory, core, "--flush", "os") as broker:
        create(broker.servers, "many", PARTITIONS)
        batch = batch_of(None, b"x" * 200)
        with Crowd(broker.servers, CONNECTIONS) as crowd:
            for first in range(0, PARTITIONS, CONNECTIONS):
                crowd.ask([produce_frame("many", number, batch) for number in range(first, first + CONNECTIONS)])
        before = time.perf_counter()
        ready = broker.again()
        return {
            "10,000 partitions, start, s": ready,
            "10,000 partitions, end and start, s": time.perf_counter() - before,
        }


def measure(target: Embedded | Kafka, log: Path, lines: int, seconds: float) -> dict[str, float]:
    """All figures of one broker."""
    with target:
        figures = {"start to first answer, s": target.ready, "start, CPU-s": cpu_seconds(target.pid)}
        print(f"  {figures}", flush=True)
        for step in (
            lambda: {"first join on a fresh directory, s": coordinated(target.servers, "first")},
            lambda: throughput(target, log, lines),
            lambda: single_records(target, seconds),
            lambda: {"500 members settle, s": large_group(target.servers)},
            lambda: heartbeats(target, seconds, min(max(lines, DIRTY_KEYS * 2), DIRTY_RECORDS)),
            lambda: {"start after all of it, s": target.again()},
        ):
            found = step()
            print(f"  {found}", flush=True)
            figures |= found
    return figures


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", type=parse_size, default=parse_size("1GB"), help="of what is produced; official: 10GB"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement of a rate or a latency")
    parser.add_argument("--only", action="append", help="of: ingestd, fsync, kafka, partitions; default: all")
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    os.sched_setaffinity(0, {int(CLIENT_CORE)})
    figures: dict[str, dict[str, float]] = {}
    with scratch(given.directory) as directory:
        log, lines = input_log(directory, given.size)
        targets: dict[str, Callable[[], Embedded | Kafka]] = {
            "ingestd": lambda: Embedded(directory / "os", BROKER_CORE, *OFTEN, "--flush", "os"),
            "fsync": lambda: Embedded(directory / "always", BROKER_CORE, *OFTEN, "--flush", "always"),
            "kafka": lambda: Kafka(directory / "kafka", BROKER_CORE),
        }
        for name in given.only or (*targets, "partitions"):
            print(name, flush=True)
            if name in targets:
                figures[name] = measure(targets[name](), log, lines, given.seconds)
            else:
                figures[name] = many_partitions(directory / "many", BROKER_CORE)
                print(f"  {figures[name]}", flush=True)
    names = list(dict.fromkeys(what for each in figures.values() for what in each))
    rows = [[what, *(figures[name].get(what, float("nan")) for name in figures)] for what in names]
    caption = (
        f"{given.size / 1e9:g} GB, broker on core {BROKER_CORE}, clients on core {CLIENT_CORE}; Kafka without fsync"
    )
    results.print_table("Broker", ["what", *figures], rows, caption)
    print(f"written: {results.save('broker', {'bytes': given.size, 'lines': lines}, figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
