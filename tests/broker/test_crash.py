"""Kills, restarts and full disks: what was acknowledged is there, where it was said to be, once."""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from embedded.batches import batch_of, numbered_batch
from embedded.raw import RawClient

from ingestd.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from embedded.process import BrokerProcess

SECONDS = 60
ONE_SECOND = timedelta(seconds=1)


def read_values(servers: str, topic: str, partition: int) -> list[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "enable.partition.eof": False})
    try:
        end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=SECONDS)[1]
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[Any] = []
        while len(found) < end:
            got = consumer.consume(min(10_000, end - len(found)), timeout=SECONDS)
            assert got, f"{len(found)} of {end} records"
            assert [message.error() for message in got if message.error()] == []
            found += got
        assert [message.offset() for message in found] == list(range(end))
        return [message.value() for message in found]
    finally:
        consumer.close()


@pytest.mark.parametrize("options", [(), ("--flush", "always"), ("--topic-default", "internal.segment.bytes=300000")])
def test_a_broker_killed_again_and_again_keeps_what_it_acknowledged_once_and_in_order(
    broker_process: Callable[..., BrokerProcess], options: tuple[str, ...]
) -> None:
    """An idempotent producer writes without a pause while the broker is killed and started five times."""
    from confluent_kafka import Producer

    broker = broker_process("--default-partitions", "2", *options)
    producer = Producer(
        {
            "bootstrap.servers": broker.servers, "enable.idempotence": True, "linger.ms": 2, "batch.size": 20_000,
            "message.timeout.ms": SECONDS * 1000, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20, "queue.buffering.max.messages": 20_000, "compression.type": "lz4",
        }
    )  # fmt: skip
    acknowledged: dict[tuple[int, int], bytes] = {}
    failed: list[Any] = []
    stop = threading.Event()

    def delivered(error: Any, message: Any) -> None:
        if error:
            failed.append(error)
        else:
            acknowledged[message.partition(), message.offset()] = message.value()

    def write() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            while True:
                try:
                    producer.produce("killed", b"%d" % number, partition=number % 2, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for kill in range(5):
            enough = len(acknowledged) + 5_000
            deadline = time.monotonic() + SECONDS
            while len(acknowledged) < enough:
                assert time.monotonic() < deadline, f"nothing acknowledged after kill {kill}: {failed[:3]}"
                time.sleep(0.01)
            broker.kill()
            broker.start()
    finally:
        stop.set()
        writer.join()
    assert producer.flush(SECONDS) == 0
    assert failed == []
    for partition in (0, 1):
        values = read_values(broker.servers, "killed", partition)
        numbers = [int(value) for value in values]
        assert numbers == list(range(partition, 2 * len(numbers), 2))
        mine = {offset: value for (owner, offset), value in acknowledged.items() if owner == partition}
        assert mine == dict(enumerate(values))


def test_producer_ids_are_given_once_also_across_kills(broker_process: Callable[..., BrokerProcess]) -> None:
    from kio.schema.init_producer_id.v4.request import InitProducerIdRequest

    broker = broker_process()
    given = []
    for _ in range(3):
        with RawClient(broker.port) as client:
            for _ in range(5):
                asked: Any = InitProducerIdRequest(transactional_id=None, transaction_timeout=ONE_SECOND)
                answer = client.ask(asked)
                assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, 0)
                given.append(answer.producer_id)
        broker.kill()
        broker.start()
    assert len(set(given)) == len(given)


def test_a_topic_that_was_created_or_deleted_stays_so_after_a_kill(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    broker = broker_process()
    admin = AdminClient({"bootstrap.servers": broker.servers})
    for name in ("kept", "gone", "again"):
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(SECONDS)
        with RawClient(broker.port) as client:
            assert client.produce(name, 0, batch_of([b"x"])).base_offset == 0
    for name in ("gone", "again"):
        admin.delete_topics([name])[name].result(SECONDS)
    admin.create_topics([NewTopic("again", 3, 1)])["again"].result(SECONDS)
    with RawClient(broker.port) as client:
        ids = {topic.name: topic.topic_id for topic in client.metadata("kept", "again").topics}
    broker.kill()
    broker.start()
    with RawClient(broker.port) as client:
        topics = {topic.name: topic for topic in client.metadata("kept", "gone", "again", create=False).topics}
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {"kept": 2, "gone": 0, "again": 3}
        assert {name: topics[name].topic_id for name in ids} == ids
        assert client.produce("kept", 0, batch_of([b"x"])).base_offset == 1
        assert client.produce("again", 0, batch_of([b"x"])).base_offset == 0


def test_sequences_are_remembered_after_a_kill_and_after_a_stop(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process()
    with RawClient(broker.port) as client:
        client.metadata("t")
        for number in range(8):
            assert client.produce("t", 0, numbered_batch([b"x"], 5, 0, number)).base_offset == number
    for end in (broker.kill, broker.stop):
        end()
        broker.start()
        with RawClient(broker.port) as client:
            for number in range(3, 8):
                again = client.produce("t", 0, numbered_batch([b"x"], 5, 0, number))
                assert (again.error, again.base_offset) == (ErrorCode.none, number)
            gap = client.produce("t", 0, numbered_batch([b"x"], 5, 0, 9))
            assert gap.error is ErrorCode.out_of_order_sequence_number


def test_a_stop_is_clean_and_the_next_start_reads_no_log(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process()
    with RawClient(broker.port) as client:
        client.metadata("t")
        client.produce("t", 0, batch_of([b"x" * 1000]))
    assert broker.stop() == 0
    broker.start()
    broker.until_logged('"last_end":"clean"')
    with RawClient(broker.port) as client:
        assert client.produce("t", 0, batch_of([b"x"])).base_offset == 1


def test_a_broker_ends_with_its_parent(broker_process: Callable[..., BrokerProcess]) -> None:
    assert broker_process().orphan() == 0


def test_a_second_broker_on_the_same_data_says_so_and_ends(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process()
    command = [sys.executable, "-m", "ingestd.broker", "--data", str(broker.data), "--listen", "127.0.0.1:0"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert second.returncode == 2
    assert f"{broker.data}: in use by another broker (process {broker.pid})" in second.stderr


def test_an_address_in_use_is_named(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process()
    data = broker.data.with_name("other")
    command = [sys.executable, "-m", "ingestd.broker", "--data", str(data), "--listen", broker.servers]
    second = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert second.returncode == 2
    assert f"can not listen on {broker.servers}" in second.stderr


def test_a_full_disk_refuses_batches_and_harms_nothing_until_there_is_room_again(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    broker = broker_process()
    batch = batch_of([os.urandom(40_000)])
    with RawClient(broker.port) as client:
        client.metadata("t")
        assert client.produce("t", 0, batch).error is ErrorCode.none
        # No file may grow beyond this size: to the broker, a disk that is full.
        _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (250_000, hard))
        errors = [client.produce("t", 0, batch).error for _ in range(10)]
        written = errors.index(ErrorCode.kafka_storage_error)
        assert errors == [ErrorCode.none] * written + [ErrorCode.kafka_storage_error] * (10 - written)
        assert len(read_values(broker.servers, "t", 0)) == written + 1
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert client.produce("t", 0, batch).base_offset == written + 1
    broker.kill()
    broker.start()
    assert len(read_values(broker.servers, "t", 0)) == written + 2


def test_what_is_not_a_topic_list_is_refused_by_name(tmp_path: Any) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "topics.json").write_text("{}")
    command = [sys.executable, "-m", "ingestd.broker", "--data", str(data), "--listen", "127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 2
    assert f"{data / 'topics.json'}: not a list of topics" in ended.stderr
