"""Transactions on real Apache Kafka, in each protocol that releases speak, seen by readers written elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer as TheirConsumer
from confluent_kafka import KafkaException
from confluent_kafka import Producer as TheirProducer
from confluent_kafka import TopicPartition as TheirPartition
from harness.cluster import java_tool

from ingestd.client.admin import ClusterAdmin
from ingestd.client.client import Client
from ingestd.client.group import GroupMember, OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import KafkaError, ProducerFenced, TransactionFailed, UnsupportedVersion
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.transaction_state import TransactionState
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from harness.cluster import KafkaCluster
    from harness.go_peers import GoPeer

EVERY_PROTOCOL = pytest.mark.parametrize("kafka_of_release", ["current", "3.9", "2.8"], indirect=True, scope="session")
"""transaction.version 2 (KIP-890), 1 or none with verification by leaders, none without."""


class ChangedMindError(Exception):
    """What a block that makes a transaction raises."""


@asynccontextmanager
async def producing(
    cluster: KafkaCluster, transactional_id: str, *, ready: bool = True, **settings: Any
) -> AsyncIterator[AsyncProducer]:
    """A transactional producer with a client of its own, initialized."""
    made = ProducerSettings(transactional_id=transactional_id, **settings)
    async with Client(cluster.bootstrap) as client, AsyncProducer(client, made) as producer:
        if ready:
            await producer.init_transactions()
        yield producer


async def transact(producer: AsyncProducer, topic: str, *values: bytes, partition: int = 0) -> None:
    """A transaction with these records."""
    async with producer.transaction():
        for value in values:
            producer.send(topic, value, partition=partition)


async def change_mind(producer: AsyncProducer, topic: str, *values: bytes) -> None:
    """A transaction whose records are in the log, and which is aborted."""
    with pytest.raises(ChangedMindError):
        await transact_and_raise(producer, topic, *values)


async def transact_and_raise(producer: AsyncProducer, topic: str, *values: bytes) -> None:
    async with producer.transaction():
        for value in values:
            producer.send(topic, value, partition=0)
        await producer.flush(20)
        raise ChangedMindError


async def committed(cluster: KafkaCluster, topic: str) -> dict[int, list[bytes]]:
    """What librdkafka reads as committed, once the markers of all that was answered are written."""
    await stable(cluster, topic)
    return await asyncio.to_thread(cluster.read_back, topic, isolation="read_committed")


async def stable(cluster: KafkaCluster, topic: str) -> None:
    """Until no transaction is open in the topic: the last stable offsets are the high watermarks."""
    from harness.reading import end_offsets

    async with asyncio.timeout(30):
        while await asyncio.to_thread(
            end_offsets, cluster.servers, topic, isolation="read_committed"
        ) != await asyncio.to_thread(end_offsets, cluster.servers, topic):
            await asyncio.sleep(0.05)


def group_offsets(cluster: KafkaCluster, group: str, topic: str, partitions: int = 1) -> list[int]:
    """A group's committed offsets as librdkafka is told them; below 0: none. It waits while a transaction is open."""
    reader = TheirConsumer({"bootstrap.servers": cluster.servers, "group.id": group, "log_level": 2})
    try:
        found = reader.committed([TheirPartition(topic, number) for number in range(partitions)], timeout=20)
    finally:
        reader.close()
    return [each.offset for each in found]


@EVERY_PROTOCOL
async def test_committed_transactions_are_read_whole_and_aborted_ones_never(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic(partitions=3)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    async with producing(kafka_of_release, f"tx-{topic}", linger=0.0) as producer:
        for number in range(30):
            if number % 5 == 4:
                await change_mind(producer, topic, b"aborted-%d" % number)
                continue
            async with producer.transaction():
                for partition in range(3):
                    values = [b"%d-%d-%d" % (number, partition, index) for index in range(10)]
                    expected[partition] += values
                    for value in values:
                        producer.send(topic, value, partition=partition)
    assert await committed(kafka_of_release, topic) == expected
    everything = await asyncio.to_thread(kafka_of_release.read_back, topic)
    assert sum(value.startswith(b"aborted") for value in everything[0]) == 6


@EVERY_PROTOCOL
async def test_ready_batches_belong_to_the_transaction_too(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic(retention_ms="-1")  # the records are old
    builder = BatchBuilder(1 << 20)
    for number in range(100):
        builder.append(None, b"%d" % number, (), 1_700_000_000_000)
    batch = memoryview(builder.build(Compression(Codec.lz4)))
    async with producing(kafka_of_release, f"tx-{topic}") as producer, producer.transaction():
        producer.send_batch(topic, 0, batch, 100, lambda _: None)
        await producer.flush(20)
        assert await asyncio.to_thread(kafka_of_release.read_back, topic, isolation="read_committed") == {0: []}
    assert await committed(kafka_of_release, topic) == {0: [b"%d" % number for number in range(100)]}


async def test_javas_console_consumer_sees_committed_records_only(
    kafka: KafkaCluster, topic: Callable[..., str], java_tool: Callable[..., str]
) -> None:
    name = topic()
    async with producing(kafka, f"tx-{name}") as producer:
        await transact(producer, name, b"one", b"two")
        await change_mind(producer, name, b"aborted")
        await transact(producer, name, b"three")
    await stable(kafka, name)
    said = await asyncio.to_thread(
        java_tool,
        *("ConsoleConsumer", "--bootstrap-server", kafka.servers, "--topic", name, "--from-beginning"),
        *("--isolation-level", "read_committed", "--max-messages", "3", "--timeout-ms", "20000"),
    )
    assert said.split() == ["one", "two", "three"]


@pytest.mark.peers
async def test_franz_go_sees_committed_records_only(
    kafka: KafkaCluster, topic: Callable[..., str], go_peers: dict[str, GoPeer]
) -> None:
    import base64

    name = topic()
    async with producing(kafka, f"tx-{name}") as producer:
        await change_mind(producer, name, b"aborted")
        await transact(producer, name, b"one", b"two")
    read = await asyncio.to_thread(go_peers["franz"].consume, kafka.servers, name, 2, "-isolation", "read_committed")
    assert [base64.b64decode(record["value"]) for record in read] == [b"one", b"two"]


@EVERY_PROTOCOL
async def test_offsets_of_a_group_are_there_for_others_after_the_commit_and_never_after_an_abort(
    kafka_of_release: KafkaCluster,
) -> None:
    topic = kafka_of_release.create_topic(partitions=2)
    group = f"group-{topic}"
    member = GroupMember(group)
    async with producing(kafka_of_release, f"tx-{topic}") as producer:
        async with producer.transaction() as transaction:
            producer.send(topic, b"a", partition=0)
            await transaction.add_offsets({TopicPartition(topic, 0): OffsetAndMetadata(17, metadata="note")}, member)
            await transaction.add_offsets({TopicPartition(topic, 1): OffsetAndMetadata(4)}, member)
            # kafka-python does not ask for stable offsets alone: it is told what was committed before.
            assert await asyncio.to_thread(_kafka_pythons_offset, kafka_of_release, group, topic) is None
        assert await asyncio.to_thread(group_offsets, kafka_of_release, group, topic, 2) == [17, 4]
        await producer.begin()
        await producer.add_offsets({TopicPartition(topic, 0): OffsetAndMetadata(99)}, member)
        await producer.abort()
        assert await asyncio.to_thread(group_offsets, kafka_of_release, group, topic, 2) == [17, 4]


def _kafka_pythons_offset(cluster: KafkaCluster, group: str, topic: str) -> int | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own affair
        from kafka import KafkaConsumer
        from kafka import TopicPartition as Partition

    reader = KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=group, enable_auto_commit=False)
    try:
        found: int | None = reader.committed(Partition(topic, 0))
    finally:
        reader.close()
    return found


@EVERY_PROTOCOL
async def test_offsets_of_a_member_that_is_none_are_refused_and_the_transaction_aborted(
    kafka_of_release: KafkaCluster,
) -> None:
    topic = kafka_of_release.create_topic()
    stranger = GroupMember(f"group-{topic}", 3, "a-member-that-never-was")
    async with producing(kafka_of_release, f"tx-{topic}") as producer:
        await producer.begin()
        producer.send(topic, b"a", partition=0)
        with pytest.raises(KafkaError, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION"):
            await producer.add_offsets({TopicPartition(topic, 0): OffsetAndMetadata(1)}, stranger)
        assert producer.transaction_state is TransactionState.ABORTABLE_ERROR
        await producer.abort()
        await transact(producer, topic, b"b")
    assert await committed(kafka_of_release, topic) == {0: [b"b"]}


@EVERY_PROTOCOL
async def test_a_second_producer_fences_a_zombie_and_aborts_what_it_left_open(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic()
    async with (
        producing(kafka_of_release, f"tx-{topic}", linger=0.0) as zombie,
        producing(kafka_of_release, f"other-{topic}") as bystander,
    ):
        await zombie.begin()
        zombie.send(topic, b"zombie", partition=0)
        await zombie.flush(20)
        async with producing(kafka_of_release, f"tx-{topic}") as successor:
            await transact(successor, topic, b"successor")
            with pytest.raises(ProducerFenced):
                await zombie.commit()
            assert zombie.transaction_state is TransactionState.FATAL_ERROR
            with pytest.raises(ProducerFenced):
                zombie.send(topic, b"more", partition=0)
            await transact(successor, topic, b"goes on")
            await transact(bystander, topic, b"bystander")
    assert await committed(kafka_of_release, topic) == {0: [b"successor", b"goes on", b"bystander"]}


@EVERY_PROTOCOL
async def test_a_zombie_that_writes_is_fenced_by_the_leaders_too(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic()
    async with producing(kafka_of_release, f"tx-{topic}", linger=0.0) as zombie:
        await transact(zombie, topic, b"a")
        await zombie.begin()
        zombie.send(topic, b"open", partition=0)
        await zombie.flush(20)
        async with producing(kafka_of_release, f"tx-{topic}") as successor:
            await transact(successor, topic, b"b")
        zombie.send(topic, b"zombie", partition=0)
        await zombie.flush(20)
        with pytest.raises((ProducerFenced, TransactionFailed)):
            await zombie.commit()
    assert await committed(kafka_of_release, topic) == {0: [b"a", b"b"]}


@EVERY_PROTOCOL
async def test_librdkafka_and_we_fence_each_other(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic()
    settings = {"bootstrap.servers": kafka_of_release.servers, "transactional.id": f"tx-{topic}", "log_level": 2}
    async with producing(kafka_of_release, f"tx-{topic}") as ours:
        await ours.begin()
        ours.send(topic, b"ours, open", partition=0)
        await ours.flush(20)
        theirs = TheirProducer(settings)
        await asyncio.to_thread(theirs.init_transactions, 20)
        await asyncio.to_thread(theirs.begin_transaction)
        theirs.produce(topic, b"theirs", partition=0)
        await asyncio.to_thread(theirs.commit_transaction, 20)
        with pytest.raises(ProducerFenced):
            await ours.commit()
    async with producing(kafka_of_release, f"tx-{topic}") as again:
        await asyncio.to_thread(theirs.begin_transaction)
        theirs.produce(topic, b"theirs, late", partition=0)
        with pytest.raises(KafkaException):
            await asyncio.to_thread(theirs.commit_transaction, 20)
        await transact(again, topic, b"ours")
    assert await committed(kafka_of_release, topic) == {0: [b"theirs", b"ours"]}


CRASHES = """
import asyncio, sys
from ingestd.client.client import Client
from ingestd.client.group import GroupMember, OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings

async def main(servers, topic):
    settings = ProducerSettings(transactional_id=f"tx-{topic}", transaction_timeout=600.0, linger=0.0)
    async with Client(servers.split(",")) as client, AsyncProducer(client, settings) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            producer.send(topic, b"committed", partition=0)
        async with producer.transaction() as transaction:
            producer.send(topic, b"crashed", partition=0)
            await transaction.add_offsets(
                {TopicPartition(topic, 0): OffsetAndMetadata(99)}, GroupMember(f"group-{topic}")
            )
            await producer.flush(20)
            print("open", flush=True)
            await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@EVERY_PROTOCOL
async def test_a_successor_cleans_up_after_a_process_killed_in_its_transaction(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CRASHES, kafka_of_release.servers, topic, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert (await process.stdout.readline()).strip() == b"open"
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        # The transaction's own timeout is ten minutes away: what frees its readers is the successor.
        async with producing(kafka_of_release, f"tx-{topic}") as successor:
            await transact(successor, topic, b"successor")
    assert await committed(kafka_of_release, topic) == {0: [b"committed", b"successor"]}
    assert await asyncio.to_thread(group_offsets, kafka_of_release, f"group-{topic}", topic) == [-1001]


@EVERY_PROTOCOL
async def test_closing_within_a_transaction_aborts_it_at_once(kafka_of_release: KafkaCluster) -> None:
    topic = kafka_of_release.create_topic()
    async with producing(kafka_of_release, f"tx-{topic}", transaction_timeout=600.0) as producer:
        await producer.begin()
        producer.send(topic, b"a", partition=0)
        await producer.flush(20)
    assert await committed(kafka_of_release, topic) == {0: []}


@EVERY_PROTOCOL
async def test_records_too_large_are_split_or_fail_their_transaction_and_the_next_is_not_harmed(
    kafka_of_release: KafkaCluster,
) -> None:
    topic = kafka_of_release.create_topic(max_message_bytes="20000")
    values = [b"%04d" % number + b"x" * 4000 for number in range(20)]
    async with producing(kafka_of_release, f"tx-{topic}") as producer:
        await transact(producer, topic, *values)
        with pytest.raises(TransactionFailed, match="MESSAGE_TOO_LARGE"):
            await transact(producer, topic, b"small", b"y" * 30_000)
        await transact(producer, topic, b"next")
    assert await committed(kafka_of_release, topic) == {0: [*values, b"next"]}


@pytest.mark.parametrize("kafka_of_release", ["0.10"], indirect=True, scope="session")
async def test_a_broker_without_transactions_is_said_to_be_so(kafka_of_release: KafkaCluster) -> None:
    async with producing(kafka_of_release, "tx", ready=False) as producer:
        with pytest.raises(UnsupportedVersion):
            await producer.init_transactions(20)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A node that looks for transactions past their timeout every 0.2 s, not every 10 s."""
    from harness.cluster import KafkaCluster as Cluster

    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with Cluster(tmp_path_factory.mktemp("impatient") / "cluster", settings=settings) as cluster:
        yield cluster


async def set_level(cluster: KafkaCluster, verb: str, level: int) -> None:
    """Have the cluster's `transaction.version` raised ("upgrade") or lowered ("downgrade"), and its node know of it."""
    tool = ("FeatureCommand", "--bootstrap-server", cluster.servers, verb, "--feature", f"transaction.version={level}")
    await asyncio.to_thread(java_tool, *tool)
    async with asyncio.timeout(30), Client(cluster.bootstrap) as client:
        while (await ClusterAdmin(client).describe_features()).finalized["transaction.version"] != level:
            await asyncio.sleep(0.05)


async def too_slow(cluster: KafkaCluster, producer: AsyncProducer, topic: str) -> None:
    """A transaction that the broker has aborted by now."""
    await producer.begin()
    producer.send(topic, b"too slow", partition=0)
    await producer.flush(20)
    await stable(cluster, topic)


async def test_a_transaction_past_its_timeout_is_not_committed_and_with_kip_890_the_producer_goes_on(
    impatient: KafkaCluster,
) -> None:
    topic = impatient.create_topic()
    async with producing(impatient, f"tx-{topic}", transaction_timeout=3.0) as producer:
        await too_slow(impatient, producer, topic)
        with pytest.raises(TransactionFailed, match="INVALID_TXN_STATE"):
            await producer.commit()
        await producer.abort()
        await transact(producer, topic, b"in time")
    assert await committed(impatient, topic) == {0: [b"in time"]}


async def test_a_transaction_past_its_timeout_fences_its_producer_without_kip_890(impatient: KafkaCluster) -> None:
    topic = impatient.create_topic()
    await set_level(impatient, "downgrade", 1)
    async with producing(impatient, f"tx-{topic}", transaction_timeout=3.0) as producer:
        await too_slow(impatient, producer, topic)
        with pytest.raises(ProducerFenced, match="longer than its timeout"):
            await producer.commit()
    async with producing(impatient, f"tx-{topic}") as successor:
        await transact(successor, topic, b"in time")
    await set_level(impatient, "upgrade", 2)
    assert await committed(impatient, topic) == {0: [b"in time"]}


async def test_a_clusters_transaction_version_may_change_while_a_producer_lives(impatient: KafkaCluster) -> None:
    topic = impatient.create_topic(partitions=2)
    async with producing(impatient, f"tx-{topic}") as living:
        await transact(living, topic, b"2: living")
        await set_level(impatient, "downgrade", 1)
        await transact(living, topic, b"1: living")
        async with producing(impatient, f"other-{topic}") as explicit:
            await transact(explicit, topic, b"1: new")
            await change_mind(explicit, topic, b"aborted")
            await transact(explicit, topic, b"1: new again")
            await set_level(impatient, "upgrade", 2)
            await transact(explicit, topic, b"2: new", partition=1)
        await transact(living, topic, b"2: living again", partition=1)
    assert await committed(impatient, topic) == {
        0: [b"2: living", b"1: living", b"1: new", b"1: new again"],
        1: [b"2: new", b"2: living again"],
    }
