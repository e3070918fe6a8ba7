"""Kafka Streams on the embedded broker: its word count is right, whoever is killed."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from embedded.cluster import EmbeddedCluster
from harness.jars import kafka_jars
from harness.java_programs import SOURCES
from harness.node import JAVA_FOR_TESTS, java
from harness.programs import program
from harness.releases import POMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from embedded.process import BrokerProcess

APPLICATION, FROM, INTO = "word-count", "lines", "counts"
FROM_PARTITIONS, INTO_PARTITIONS = 3, 2
WORDS: Final = [f"word-{number}" for number in range(50)]
SECONDS = 120


class Lines:
    """Writes lines of random words, and knows how often each word came."""

    def __init__(self, servers: str) -> None:
        self.words: Counter[str] = Counter()
        self._rng = random.Random(14)
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0})

    def write(self, count: int) -> None:
        for _ in range(count):
            words = self._rng.choices(WORDS, k=5)
            self.words.update(words)
            self._producer.produce(FROM, " ".join(words), partition=self._rng.randrange(FROM_PARTITIONS))
        assert self._producer.flush(SECONDS) == 0


class Counts:
    """Reads what was counted. `told` has every count of a word in the order in which it came."""

    def __init__(self, servers: str, isolation: str = "read_committed") -> None:
        self.told: dict[str, list[int]] = {}
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "unused", "isolation.level": isolation, "log_level": 0}
        )
        self._consumer.assign([TopicPartition(INTO, partition, 0) for partition in range(INTO_PARTITIONS)])

    @property
    def total(self) -> int:
        return sum(map(len, self.told.values()))

    def until(self, total: int, counter: subprocess.Popen[bytes]) -> None:
        """Read until so many counts are known; the counter must live."""
        end = time.monotonic() + SECONDS
        while self.total < total:
            assert counter.poll() is None, "Kafka Streams gave up"
            assert time.monotonic() < end, f"{self.total} of {total}"
            self._read(0.2)

    def to_the_end(self) -> None:
        """Read on until a second brings nothing."""
        while self._read(1.0):
            pass

    def _read(self, seconds: float) -> bool:
        messages = self._consumer.consume(500, seconds)
        for message in messages:
            if message.error() is None:
                self.told.setdefault(message.key().decode(), []).append(int(message.value()))
        return bool(messages)

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def word_count(servers: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`tests/interop/java/WordCount.java` with its state in `directory`/state. Killed at the end."""
    program("javac")  # `java` alone does not run sources
    command = java(
        kafka_jars(POMS / "streams.xml"), ("-Dlog4j2.level=WARN", *JAVA_FOR_TESTS), str(SOURCES / "WordCount.java"),
        servers, APPLICATION, FROM, INTO, str(directory / "state"),
    )  # fmt: skip
    with (directory / "streams.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_each_word_is_counted_once_though_the_counter_and_the_broker_are_killed(
    broker_process: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """A record for each word: the counts of a word are 1, 2, 3 …, in that order. One more or one less is a fault.

    The first counter has a successor that finds its state and its transactional ids. The second one's successor finds
    nothing on the disk: it waits until the open transactions time out, and reads the state from the changelog.
    """
    broker = broker_process("--no-auto-create-topics")
    cluster = EmbeddedCluster(broker)
    cluster.create_topic(FROM, partitions=FROM_PARTITIONS)
    cluster.create_topic(INTO, partitions=INTO_PARTITIONS)
    lines, counts = Lines(broker.servers), Counts(broker.servers)
    everything = Counts(broker.servers, "read_uncommitted")

    def until_amid_a_transaction(counter: subprocess.Popen[bytes]) -> None:
        counts.until(lines.words.total(), counter)
        everything.to_the_end()
        lines.write(4_000)
        everything.until(everything.total + 1, counter)

    for state_is_lost in (False, True):
        with word_count(broker.servers, tmp_path) as counter:
            until_amid_a_transaction(counter)
        if state_is_lost:
            shutil.rmtree(tmp_path / "state")
    with word_count(broker.servers, tmp_path) as counter:
        until_amid_a_transaction(counter)
        broker.kill()
        broker.start()
        lines.write(100)
        counts.until(lines.words.total(), counter)
    for reader in (counts, everything):
        reader.to_the_end()
        reader.close()
    assert counts.told == {word: list(range(1, count + 1)) for word, count in lines.words.items()}
    assert everything.total > counts.total, "no kill came amid a transaction"
