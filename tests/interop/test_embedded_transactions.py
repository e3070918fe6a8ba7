"""Transactions of clients written elsewhere on the embedded broker: whole or not there, also over a kill -9."""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from embedded.transactional import JavaFailureError, JavaProducer, LibrdkafkaProducer
from harness.java_programs import JavaProgram, java_program
from harness.reading import read_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from embedded.process import BrokerProcess

SECONDS = 30


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    """`tests/interop/java/Transactions.java`: one JVM for all producers."""
    with java_program("Transactions", tmp_path_factory.mktemp("java")) as running:
        yield running


@pytest.fixture(scope="module", params=[0, 1, 2])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of each `transaction.version`."""
    from embedded.process import BrokerProcess

    options = ("--no-auto-create-topics", "--transaction-version", str(request.param))
    with BrokerProcess(tmp_path_factory.mktemp("broker"), *options) as running:
        yield running


@pytest.fixture
def topic(broker: BrokerProcess, new_topic: str) -> str:
    return made(broker, new_topic)


def made(broker: BrokerProcess, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(SECONDS)
    return topic


def test_committed_transactions_are_read_whole_and_aborted_ones_never(
    broker: BrokerProcess, topic: str, java: JavaProgram, java_tool: Callable[..., str]
) -> None:
    """Three producers at the same time, of two clients. Who reads: librdkafka, and Java's console consumer."""
    rng = random.Random(7)
    producers = [
        LibrdkafkaProducer(broker.servers, f"{topic}-0"),
        JavaProducer(java, broker.servers, f"{topic}-1"),
        JavaProducer(java, broker.servers, f"{topic}-2"),
    ]
    expected: list[Counter[str]] = [Counter(), Counter()]
    open_ones: dict[int, list[tuple[int, str]]] = {}
    for number in range(90):
        which = rng.randrange(3)
        producer, sent = producers[which], open_ones.get(which)
        if sent is None:
            producer.begin()
            open_ones[which] = []
        elif len(sent) < rng.randrange(4):
            sent.append((rng.randrange(2), f"{which}-{number}"))
            producer.send(topic, *sent[-1])
        else:
            commits = rng.random() < 0.6
            (producer.commit if commits else producer.abort)()
            for partition, value in open_ones.pop(which):
                expected[partition][value] += commits
    for which in open_ones:
        producers[which].abort()
    expected = [+counted for counted in expected]
    read = read_back(broker.servers, topic, isolation="read_committed")
    assert [Counter(value.decode() for value in read[partition]) for partition in range(2)] == expected
    lines = java_tool(
        "consumer.ConsoleConsumer", "--bootstrap-server", broker.servers, "--topic", topic, "--from-beginning",
        "--isolation-level", "read_committed", "--max-messages", str(sum(expected, Counter()).total()),
    ).splitlines()  # fmt: skip
    assert Counter(lines) == sum(expected, Counter())


@pytest.mark.parametrize("first", ["librdkafka", "java"])
def test_the_next_producer_of_an_id_fences_the_one_before_and_aborts_what_it_left_open(
    broker: BrokerProcess, topic: str, java: JavaProgram, first: str
) -> None:
    def producer(of: str) -> LibrdkafkaProducer | JavaProducer:
        return (
            LibrdkafkaProducer(broker.servers, topic)
            if of == "librdkafka"
            else JavaProducer(java, broker.servers, topic)
        )

    zombie = producer(first)
    zombie.begin()
    zombie.send(topic, 0, "left open")
    successor = producer("java" if first == "librdkafka" else "librdkafka")
    with pytest.raises((KafkaException, JavaFailureError)) as refused:
        zombie.commit()
    error = refused.value.args[0]
    assert error in {"ProducerFencedException", "InvalidProducerEpochException"} or error.name() == "_FENCED"
    successor.begin()
    successor.send(topic, 0, "whole")
    successor.commit()
    assert read_back(broker.servers, topic, isolation="read_committed") == {0: [b"whole"], 1: []}
    assert read_back(broker.servers, topic)[0] == [b"left open", b"whole"]


def test_readers_of_committed_records_wait_for_the_end_of_a_transaction_and_others_do_not(
    broker: BrokerProcess, topic: str
) -> None:
    producer = LibrdkafkaProducer(broker.servers, topic)
    plain = Producer({"bootstrap.servers": broker.servers, "log_level": 0})
    plain.produce(topic, b"before", partition=0)
    assert plain.flush(SECONDS) == 0
    producer.begin()
    producer.send(topic, 0, "within")
    plain.produce(topic, b"behind", partition=0)
    assert plain.flush(SECONDS) == 0
    admin = AdminClient({"bootstrap.servers": broker.servers, "log_level": 0})
    where = TopicPartition(topic, 0)

    def end(level: IsolationLevel) -> int:
        found = admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=level)[where].result(SECONDS)
        return int(found.offset)

    assert (end(IsolationLevel.READ_COMMITTED), end(IsolationLevel.READ_UNCOMMITTED)) == (1, 3)
    assert read_back(broker.servers, topic, isolation="read_committed")[0] == [b"before"]
    producer.abort()
    assert (end(IsolationLevel.READ_COMMITTED), end(IsolationLevel.READ_UNCOMMITTED)) == (4, 4)
    assert read_back(broker.servers, topic, isolation="read_committed")[0] == [b"before", b"behind"]


def test_a_transaction_past_its_timeout_is_aborted(broker: BrokerProcess, topic: str, java: JavaProgram) -> None:
    settings = {"transaction.timeout.ms": 1000, "delivery.timeout.ms": 1000, "request.timeout.ms": 500, "linger.ms": 0}
    producer = JavaProducer(java, broker.servers, topic, **settings)
    producer.begin()
    producer.send(topic, 0, "too slow")
    reader = threading.Event()
    while read_back(broker.servers, topic, isolation="read_committed") == {0: [], 1: []}:
        plain = Producer({"bootstrap.servers": broker.servers, "log_level": 0})
        plain.produce(topic, b"plain", partition=0)
        assert plain.flush(SECONDS) == 0
        reader.wait(0.05)
    with pytest.raises(JavaFailureError):
        producer.commit()
    assert b"too slow" not in read_back(broker.servers, topic, isolation="read_committed")[0]


@pytest.mark.parametrize("client", ["librdkafka", "java"])
def test_offsets_are_there_after_the_commit_and_never_after_an_abort(
    broker: BrokerProcess, topic: str, java: JavaProgram, client: str
) -> None:
    """Who reads: librdkafka, which asks for stable offsets alone and again while a transaction is open."""
    made_by = LibrdkafkaProducer if client == "librdkafka" else partial(JavaProducer, java)
    producer = made_by(broker.servers, topic)
    for number, end in enumerate(["commit", "abort", "commit"], 1):
        producer.begin()
        producer.send(topic, 0, str(number))
        producer.add_offset(topic, topic, number)
        if end == "abort":
            assert stable_offset(broker, topic, seconds=0.5) is None
        getattr(producer, end)()
        assert stable_offset(broker, topic) == (1 if number < 3 else 3)


def stable_offset(broker: BrokerProcess, group: str, topic: str | None = None, seconds: float = SECONDS) -> int | None:
    """What the group has committed of a topic, or of the one that is named like it; None: not stable for so long."""
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": group, "log_level": 0})
    try:
        (found,) = consumer.committed([TopicPartition(topic or group, 0)], seconds)
    except KafkaException as error:
        assert error.args[0].name() in {"_TIMED_OUT", "UNSTABLE_OFFSET_COMMIT"}  # noqa: PT017 - one of two outcomes
        return None
    finally:
        consumer.close()
    return int(found.offset)


def test_kafkas_tool_reads_the_log_of_transactions(
    broker: BrokerProcess, topic: str, java_tool: Callable[..., str]
) -> None:
    producer = LibrdkafkaProducer(broker.servers, topic)
    for ends in (producer.commit, producer.abort):
        producer.begin()
        producer.send(topic, 1, "x")
        ends()
    logs = [path for path in broker.data.glob("__transaction_state-*/*.log") if topic.encode() in path.read_bytes()]
    assert len(logs) == 1
    dumped = java_tool("DumpLogSegments", "--transaction-log-decoder", "--files", str(logs[0]))
    found = [json.loads(payload) for payload in re.findall(r"payload: (\{.*\})", dumped)]
    newest = [one["data"] for one in found[-7:]]
    assert [one["transactionStatus"] for one in newest] == [0, 1, 2, 4, 1, 3, 5]
    assert newest[1]["transactionPartitions"] == [{"topic": topic, "partitionIds": [1]}]


class Writer(threading.Thread):
    """Transactions of one producer, each with its number in both partitions, until it is told to stop."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__()
        self._servers = servers
        self._topic = topic
        self.stopping = threading.Event()
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.last = 0

    def run(self) -> None:
        producer = LibrdkafkaProducer(self._servers, self._topic)
        while not self.stopping.is_set():
            self.last += 1
            try:
                producer.begin()
                for partition in range(2):
                    producer.send(self._topic, partition, str(self.last))
                if self.last % 4 == 3:
                    producer.abort()
                    self.aborted.append(self.last)
                else:
                    producer.commit()
                    self.committed.append(self.last)
            except (KafkaException, AssertionError):
                # What became of it is not known: it must be whole all the same.
                producer = LibrdkafkaProducer(self._servers, self._topic)


class Transformer(threading.Thread):
    """Copies records of a topic into another, each with its offset in one transaction, until it is told to stop."""

    def __init__(self, java: JavaProgram, servers: str, source: str, target: str) -> None:
        super().__init__()
        self._java = java
        self._servers = servers
        self._source = source
        self._target = target
        self.stopping = threading.Event()
        self.done = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            consumer = Consumer(
                {
                    "bootstrap.servers": self._servers,
                    "group.id": "transformer",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                    "log_level": 0,
                    "reconnect.backoff.ms": 10,
                    "reconnect.backoff.max.ms": 50,
                }
            )
            try:
                self._transform(consumer)
            except (KafkaException, JavaFailureError):
                continue  # What became of the last one is not known: the next one begins where the group is.
            finally:
                consumer.close()

    def _transform(self, consumer: Consumer) -> None:
        settings = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10, "linger.ms": 0}
        producer = JavaProducer(self._java, self._servers, "transformer", **settings)
        consumer.assign(consumer.committed([TopicPartition(self._source, 0)], SECONDS))
        while not self.stopping.is_set():
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            producer.begin()
            producer.send(self._target, 0, message.value().decode())
            producer.add_offset("transformer", self._source, message.offset() + 1)
            producer.commit()
            self.done += 1


def test_what_is_consumed_transformed_and_produced_is_there_once_though_the_broker_is_killed(
    broker_process: Callable[..., BrokerProcess], java: JavaProgram
) -> None:
    """By Java's producer: librdkafka 2.16 was seen to send no more offsets after its only broker had come back."""
    rng = random.Random(1)
    broker = broker_process("--no-auto-create-topics")
    source, target = made(broker, "source"), made(broker, "target")
    plain = Producer({"bootstrap.servers": broker.servers, "enable.idempotence": True, "log_level": 0})
    values = [b"%d" % number for number in range(60)]
    for value in values:
        plain.produce(source, value, partition=0)
    assert plain.flush(SECONDS) == 0
    transformer = Transformer(java, broker.servers, source, target)
    transformer.start()
    try:
        for kill in range(1, 5):
            while transformer.done < kill * 8 and transformer.is_alive():
                transformer.stopping.wait(0.002)
            transformer.stopping.wait(rng.random() * 0.05)
            broker.kill()
            broker.start()
        while len(read_back(broker.servers, target, isolation="read_committed")[0]) < len(values):
            transformer.stopping.wait(0.2)
    finally:
        transformer.stopping.set()
        transformer.join(SECONDS)
    assert not transformer.is_alive()
    assert read_back(broker.servers, target, isolation="read_committed")[0] == values
    assert stable_offset(broker, "transformer", topic=source) == len(values)


@pytest.mark.parametrize("flush", ["os", "always"])
def test_whenever_the_broker_is_killed_each_transaction_is_whole_and_what_was_committed_is_there(
    broker_process: Callable[..., BrokerProcess], flush: str
) -> None:
    rng = random.Random(flush)
    broker = broker_process("--no-auto-create-topics", "--flush", flush)
    topic = made(broker, "whole")
    writer = Writer(broker.servers, topic)
    writer.start()
    try:
        for kill in range(1, 9):
            while len(writer.committed) < kill * 5 and writer.is_alive():
                writer.stopping.wait(0.002)
            writer.stopping.wait(rng.random() * 0.02)
            broker.kill()
            broker.start()
    finally:
        writer.stopping.set()
        writer.join(SECONDS)
    assert not writer.is_alive()
    read = read_back(broker.servers, topic, isolation="read_committed")
    found = [[int(value) for value in read[partition]] for partition in range(2)]
    assert found[0] == found[1], "each is whole, once, and in order"
    assert found[0] == sorted(set(found[0]))
    assert set(writer.committed) <= set(found[0])
    assert not set(writer.aborted) & set(found[0])
    assert len(writer.committed) >= 40
