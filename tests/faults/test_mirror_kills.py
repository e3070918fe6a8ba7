"""A mirror of two hosts under kills at random moments: workers, supervisors, brokers of both sides.

Whenever anybody looks, a partition of the target has, in order of their first times, the first records of the source:
no hole. At the end it has all of them. What came twice is counted, and is the only thing that kills may do.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, Producer
from harness.mirrors import caught_up, records
from harness.programs import ingestd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cluster import KafkaCluster
    from harness.daemon import ConfiguredDaemon

SEED = int(os.environ.get("INGESTD_MIRROR_SEED", str(random.randrange(1 << 32))))
PARTITIONS = 3
CODECS = ("none", "lz4", "zstd", "gzip", "snappy")
REVIVAL_SECONDS = 60
MOST_SECONDS_BETWEEN = 1.5


class Campaign:
    """Two hosts with one mirror between two clusters; what was committed at the source, by partition, in order."""

    def __init__(self, source: KafkaCluster, target: KafkaCluster, hosts: list[ConfiguredDaemon], topic: str) -> None:
        self.source, self.target, self.hosts, self.topic = source, target, hosts, topic
        self.random = random.Random(SEED)
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.numbers = iter(range(1 << 40))
        self.writing = threading.Lock()
        """Held while the source has records of which nobody knows yet whether they count."""

    @contextmanager
    def writer(self) -> Iterator[None]:
        """Write all the while."""
        enough = threading.Event()
        choices = random.Random(SEED + 1)

        def write() -> None:
            while not enough.is_set():
                with self.writing:
                    self._write(choices)
                enough.wait(choices.uniform(0, 0.2))

        with ThreadPoolExecutor(1) as thread:
            written = thread.submit(write)
            try:
                yield
            finally:
                enough.set()
        written.result()

    def _write(self, choices: random.Random) -> None:
        """Some records, by a producer of a random kind."""
        style = choices.choice(("batches", "batches", "singles", "committed", "aborted"))
        settings: dict[str, Any] = {
            "bootstrap.servers": self.source.servers,
            "enable.idempotence": True,
            "linger.ms": 0 if style == "singles" else 20,
            "compression.type": choices.choice(CODECS),
            "log_level": 2,
        }
        transactional = style in ("committed", "aborted")
        if transactional:
            settings |= {"transactional.id": f"writer-{SEED}", "transaction.timeout.ms": 120_000}
        producer = Producer(settings)
        if transactional:
            _insist(producer.init_transactions)
            producer.begin_transaction()
        done: list[tuple[int, bytes]] = []
        for _ in range(choices.randrange(1, 30 if style == "singles" else 4000)):
            partition, value = choices.randrange(PARTITIONS), b"%d" % next(self.numbers)
            producer.produce(self.topic, value, partition=partition, headers=[("h", value)])
            if style == "singles":
                producer.flush(60)
            done.append((partition, value))
        assert producer.flush(60) == 0
        if style == "aborted":
            _insist(producer.abort_transaction)
            return
        if style == "committed":
            _insist(producer.commit_transaction)
        for partition, value in done:
            self.written[partition].append(value)

    def kill(self) -> str:
        """Kill something, and have it run again; what it was."""
        victim = self.random.choice(("worker",) * 5 + ("supervisor",) * 3 + ("host stops", "source", "target"))
        host = self.random.choice(self.hosts)
        if victim == "worker":
            host.until(lambda: len(host.worker_pids()) == 2, "both workers run", REVIVAL_SECONDS)
            host.kill_worker(self.random.randrange(2))
        elif victim == "supervisor":
            os.kill(host.pid, signal.SIGKILL)
            host.wait(30)
            host.start()
        elif victim == "host stops":
            # Before Python runs, nobody can hear a signal: it ends a process that has only just begun.
            host.until(lambda: bool(host.worker_pids()), "it has begun", REVIVAL_SECONDS)
            assert host.stop() == 0
            host.start()
        else:
            cluster = self.source if victim == "source" else self.target
            cluster.kill(1)
            cluster.start(1)
        return victim

    def check_prefix(self) -> int:
        """Look at what the target has now; how many records came again. Raises `AssertionError` for a hole."""
        again = 0
        for partition in range(PARTITIONS):
            copied = [value for _, value, _, _ in records(self.target.servers, f"east.{self.topic}", partition)]
            first = list(dict.fromkeys(copied))
            again += len(copied) - len(first)
            with self.writing:
                expected = self.written[partition][: len(first)]
            assert first == expected, f"partition {partition}: not the first records, in order"
        return again


def _insist(ask: Callable[[float], None]) -> None:
    """Ask again while the broker is away."""
    deadline = time.monotonic() + 90
    while True:
        try:
            ask(10)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


@pytest.fixture
def campaign(kafka_cluster: Callable[..., KafkaCluster], mirror: Callable[..., ConfiguredDaemon]) -> Campaign:
    source, target = kafka_cluster(), kafka_cluster()
    topic = source.create_topic("killed", partitions=PARTITIONS)
    keys = {"topics": [topic], "source": source, "target": target, "daemon": {"workers": 2, "restart_backoff": 0.05}}
    hosts = [mirror("killed", **keys), mirror("killed", **keys)]
    print(f"INGESTD_MIRROR_SEED={SEED}")
    for host in hosts:
        host.start_ready()
    return Campaign(source, target, hosts, topic)


@pytest.mark.parametrize(
    "kills", [pytest.param(20, marks=pytest.mark.timeout(400)), pytest.param(200, marks=pytest.mark.long)]
)
def test_whatever_is_killed_there_is_no_hole_and_at_the_end_all_is_copied(campaign: Campaign, kills: int) -> None:
    with campaign.writer():
        for number in range(kills):
            time.sleep(campaign.random.uniform(0, MOST_SECONDS_BETWEEN))  # so that kills meet other stages
            print(number, campaign.kill())
            if number % 10 == 9:
                campaign.check_prefix()
    one, other = campaign.hosts

    def copied() -> bool:
        counts = [len(host.status()["routes"][0]["sources"]) for host in campaign.hosts]
        return sum(counts) == PARTITIONS and caught_up(one, counts[0]) and caught_up(other, counts[1])

    one.until(copied, "all is copied", 120)
    print("records", sum(map(len, campaign.written)), "came again", campaign.check_prefix())
    compared = subprocess.run(
        [*ingestd(), "mirror", "verify", "--to-end", str(one.file)], capture_output=True, timeout=60, check=False
    )
    assert compared.returncode == 0, compared.stdout.decode()
    for host in campaign.hosts:
        assert host.stop() == 0
    campaign.check_prefix()
    assert [len(expected) for expected in campaign.written] == [
        len({value for _, value, _, _ in records(campaign.target.servers, f"east.{campaign.topic}", partition)})
        for partition in range(PARTITIONS)
    ]
