"""A broker killed again and again under librdkafka's load: numbers, transactions, and a group that commits offsets.

`INGESTD_KILLS_SEED` repeats the choice of what is killed when, as far as processes allow.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from embedded.process import BrokerProcess

SECONDS = 60
SEED = int(os.environ.get("INGESTD_KILLS_SEED", str(random.randrange(1 << 32))))
QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20, "log_level": 0}
PARTITIONS = 2


class Load:
    """A thread that works until `stop`. What it was told is in `done`, which counts; an error is raised by `end`."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.done = 0
        self.stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the test waits
            self._error = error

    def work(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        self.stop.set()
        self._thread.join(2 * SECONDS)
        self.check()
        assert not self._thread.is_alive()


class Numbers(Load):
    """An idempotent producer of 0, 1, 2 … in turn to each partition. `acknowledged`: by partition and offset."""

    def work(self) -> None:
        from confluent_kafka import Producer

        self.acknowledged: dict[tuple[int, int], int] = {}
        self.failed: list[Any] = []
        producer = Producer(
            {
                "bootstrap.servers": self.servers, "enable.idempotence": True, "linger.ms": 2, "batch.size": 20_000,
                "message.timeout.ms": SECONDS * 1000, "queue.buffering.max.messages": 5_000, **QUICK,
            }
        )  # fmt: skip
        number = 0
        while not self.stop.is_set():
            try:
                producer.produce("numbers", b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered)
                number += 1
            except BufferError:
                producer.poll(0.05)
            # The others shall have their share of the machine.
            producer.poll(0.005 if number % 50 == 0 else 0)
        assert producer.flush(SECONDS) == 0
        self.sent = number

    def _delivered(self, error: Any, message: Any) -> None:
        if error:
            self.failed.append(error)
        else:
            self.acknowledged[message.partition(), message.offset()] = int(message.value())
            self.done += 1


class Transactions(Load):
    """Transactions of a few records in both partitions. `committed`, `aborted`: those of which it was told so."""

    def work(self) -> None:
        from confluent_kafka import Producer

        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        producer = Producer(
            {
                "bootstrap.servers": self.servers, "transactional.id": "kills", "transaction.timeout.ms": 30_000,
                "message.timeout.ms": 25_000, **QUICK,
            }
        )  # fmt: skip
        self._again(producer.init_transactions)
        number = 0
        while not self.stop.is_set():
            producer.begin_transaction()
            for record in range(3 * PARTITIONS):
                producer.produce("transactions", b"%d" % number, partition=record % PARTITIONS)
            aborts = number % 3 == 2
            if aborts or not self._again(producer.commit_transaction):
                self._again(producer.abort_transaction)
                self.aborted.add(number)
            else:
                self.committed.add(number)
            self.done += 1
            number += 1

    def _again(self, call: Callable[[float], None]) -> bool:
        """Until it is done. False if the transaction must be aborted."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + SECONDS
        while True:
            try:
                call(SECONDS)
            except KafkaException as raised:
                error = raised.args[0]
                if error.txn_requires_abort():
                    return False
                if not error.retriable() or time.monotonic() > deadline:
                    raise
            else:
                return True


class Commits(Load):
    """A member of a group, which reads the numbers. `committed`: the offsets of which it was told so."""

    def work(self) -> None:
        from confluent_kafka import Consumer, KafkaException

        self.committed: dict[int, int] = {}
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers, "group.id": "kills", "enable.auto.commit": False,
                "auto.offset.reset": "earliest", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 300, **QUICK,
            }
        )  # fmt: skip
        consumer.subscribe(["numbers"])
        try:
            while not self.stop.is_set():
                if not [one for one in consumer.consume(500, timeout=0.2) if one.error() is None]:
                    continue
                try:
                    told = consumer.commit(asynchronous=False)
                except KafkaException:
                    continue  # the broker is being killed, or the group rebalances
                for one in told:
                    # Of a partition of which nothing was read yet, librdkafka commits nothing and says -1001.
                    if one.error is None and one.offset >= 0:
                        self.committed[one.partition] = max(self.committed.get(one.partition, 0), one.offset)
                self.done += 1
        finally:
            consumer.close()


def committed_offsets(servers: str) -> dict[int, int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "kills"})
    try:
        asked = [TopicPartition("numbers", number) for number in range(PARTITIONS)]
        return {one.partition: one.offset for one in consumer.committed(asked, timeout=SECONDS)}
    finally:
        consumer.close()


def read_all(servers: str, topic: str, partition: int) -> dict[int, int]:
    """The committed records by their offsets."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "enable.partition.eof": True})
    found: dict[int, int] = {}
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for message in consumer.consume(10_000, timeout=1):
                if message.error() is None:
                    found[message.offset()] = int(message.value())
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return found
        raise AssertionError(f"the end of {topic}-{partition} is not reached")
    finally:
        consumer.close()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.long)])
def test_whatever_was_acknowledged_is_there_after_many_kills(
    broker_process: Callable[..., BrokerProcess], kills: int
) -> None:
    print(f"INGESTD_KILLS_SEED={SEED}")
    chance = random.Random(SEED)
    broker = broker_process(
        "--default-partitions", str(PARTITIONS), "--flush", "always", "--topic-default",
        "internal.segment.bytes=300000", "--cleaner-interval", "0.5",
    )  # fmt: skip
    numbers, transactions, commits = loads = (
        Numbers(broker.servers),
        Transactions(broker.servers),
        Commits(broker.servers),
    )
    try:
        for kill in range(kills):
            # Each time another one has the least to do, so that kills come amid all of what they do.
            enough = [load.done + chance.randint(0, most) for load, most in zip(loads, (2_000, 3, 3), strict=True)]
            deadline = time.monotonic() + SECONDS
            while any(load.done < least for load, least in zip(loads, enough, strict=True)):
                for load in loads:
                    load.check()
                assert time.monotonic() < deadline, f"after kill {kill}: {[load.done for load in loads]}, not {enough}"
                time.sleep(0.001)
            broker.kill()
            before = dict(commits.committed)
            broker.start()
            now = committed_offsets(broker.servers)
            assert all(now[partition] >= offset for partition, offset in before.items()), (before, now)
    finally:
        for load in loads:
            load.stop.set()
        for load in loads:
            load.end()
    assert numbers.failed == []
    for partition in range(PARTITIONS):
        found = read_all(broker.servers, "numbers", partition)
        assert list(found) == list(range(len(found)))
        assert list(found.values()) == list(range(partition, numbers.sent, PARTITIONS))
        mine = {offset: number for (owner, offset), number in numbers.acknowledged.items() if owner == partition}
        assert mine == found
    there: dict[int, list[int]] = defaultdict(list)
    for partition in range(PARTITIONS):
        for number in read_all(broker.servers, "transactions", partition).values():
            there[number].append(partition)
    assert set(there) == transactions.committed, f"aborted: {len(transactions.aborted)}"
    assert {tuple(sorted(partitions)) for partitions in there.values()} == {(0, 0, 0, 1, 1, 1)}
    print(f"{kills} kills: {[load.done for load in loads]} done, {len(transactions.aborted)} transactions aborted")
