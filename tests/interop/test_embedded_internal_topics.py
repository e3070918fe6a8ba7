"""The embedded broker compacts its internal topics, and other clients find there what they left, after restarts too."""

from __future__ import annotations

import itertools
import time
import warnings
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from embedded.cluster import EmbeddedCluster
from harness.kafka_python import left_sockets
from harness.mirrors import records

from ingestd.broker.coordinator.placement import coordinating_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from embedded.process import BrokerProcess

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, when it is imported
    from kafka import KafkaAdminClient
    from kafka.errors import CoordinatorLoadInProgressError

SECONDS = 30
INTERNAL_PARTITIONS, PARTITIONS = 50, 20
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
COMPACTING = (
    "--cleaner-interval", "0.1", "--topic-default", "internal.segment.bytes=16384", "--topic-default",
    "min.cleanable.dirty.ratio=0.01", "--topic-default", "delete.retention.ms=0",
)  # fmt: skip


def names(prefix: str) -> Iterator[str]:
    """Names of groups and transactional ids that are all in partition 0 of the internal topics."""
    numbered = (f"{prefix}-{number}" for number in itertools.count())
    return (name for name in numbered if coordinating_partition(name, INTERNAL_PARTITIONS) == 0)


class Groups:
    """Offsets of groups without members, by an administrator of librdkafka's.

    Make a new one after a restart: it does not come back to a coordinator that was killed, nor does it on Kafka.
    """

    def __init__(self, broker: BrokerProcess) -> None:
        self._admin = EmbeddedCluster(broker).admin

    def commit(self, group: str, first: int) -> None:
        offsets = [TopicPartition("t", partition, first + partition) for partition in range(PARTITIONS)]
        asked = ConsumerGroupTopicPartitions(group, offsets)
        self._admin.alter_consumer_group_offsets([asked])[group].result(SECONDS)

    def delete(self, group: str) -> None:
        self._admin.delete_consumer_groups([group])[group].result(SECONDS)

    def all(self) -> dict[str, list[int]]:
        """Each group's offsets, once all groups are loaded: until then the broker lists what it has, with an error."""
        end = time.monotonic() + SECONDS
        while (listed := self._admin.list_consumer_groups().result(SECONDS)).errors:
            assert time.monotonic() < end, f"the groups can not be listed: {listed.errors}"
            time.sleep(0.05)
        found = {}
        for group in (one.group_id for one in listed.valid):
            asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
            partitions = asked[group].result(SECONDS).topic_partitions
            found[group] = [one.offset for one in sorted(partitions, key=lambda one: one.partition)]
        return found


def producer(servers: str, transactional_id: str) -> Producer:
    settings = {"bootstrap.servers": servers, "transactional.id": transactional_id, "log_level": 0}
    made = Producer({**settings, "transaction.timeout.ms": 300_000})
    made.init_transactions(SECONDS)
    return made


def begin(writer: Producer, value: str) -> None:
    writer.begin_transaction()
    writer.produce("t", value, partition=0)
    assert writer.flush(SECONDS) == 0


def until_compacted(broker: BrokerProcess, topic: str, written: int) -> None:
    """Until partition 0 has lost most of so many records."""
    end = time.monotonic() + SECONDS
    while len(found := records(broker.servers, topic)) > written // 2:
        assert time.monotonic() < end, f"{topic}: {len(found)} of {written} records are still there"
        time.sleep(0.05)
    assert broker.data.joinpath(f"{topic}-0", "cleaned-offset").exists()


@left_sockets()
def transactional_ids(broker: BrokerProcess, *ids: str) -> dict[str, tuple[str, int, int]]:
    """What kafka-python is told of each, when the broker has loaded them: state, producer id, epoch."""
    admin = KafkaAdminClient(bootstrap_servers=broker.servers)
    end = time.monotonic() + SECONDS
    try:
        while True:
            try:
                found = admin.describe_transactions(list(ids))
            except CoordinatorLoadInProgressError:
                assert time.monotonic() < end, "the transactional ids are not loaded"
                time.sleep(0.05)
            else:
                return {name: (one.state, one.producer_id, one.producer_epoch) for name, one in found.items()}
    finally:
        admin.close()


def test_offsets_and_transactional_ids_are_known_after_compaction_and_restarts(
    broker_process: Callable[..., BrokerProcess], java_tool: Callable[..., str]
) -> None:
    """The early group and id are written once, at the start of logs that the busy ones then fill and have compacted."""
    broker = broker_process("--no-auto-create-topics", *COMPACTING)
    EmbeddedCluster(broker).create_topic("t", partitions=PARTITIONS)
    groups = Groups(broker)
    early_group, gone_group, busy_group = itertools.islice(names("group"), 3)
    early_id, open_id, busy_id = itertools.islice(names("id"), 3)

    groups.commit(early_group, 1)
    groups.commit(gone_group, 1)
    groups.delete(gone_group)
    early, opened = producer(broker.servers, early_id), producer(broker.servers, open_id)
    begin(early, "early")
    early.commit_transaction(SECONDS)
    begin(opened, "open")
    busy = producer(broker.servers, busy_id)
    for number in range(1, 201):
        groups.commit(busy_group, number)
        begin(busy, "busy")
        busy.commit_transaction(SECONDS)
    until_compacted(broker, OFFSETS, 200 * PARTITIONS)
    until_compacted(broker, TRANSACTIONS, 200 * 3)
    expected = {early_group: list(range(1, 1 + PARTITIONS)), busy_group: list(range(200, 200 + PARTITIONS))}
    before = transactional_ids(broker, early_id, open_id, busy_id)
    assert [state for state, _id, _epoch in before.values()] == ["CompleteCommit", "Ongoing", "CompleteCommit"]

    for end in (broker.kill, broker.stop):
        end()
        broker.start()
        assert Groups(broker).all() == expected
        assert transactional_ids(broker, early_id, open_id, busy_id) == before
    broker.stop()  # else it compacts what is dumped
    for topic, decoder in ((OFFSETS, "--offsets-decoder"), (TRANSACTIONS, "--transaction-log-decoder")):
        segments = ",".join(str(path) for path in sorted(broker.data.glob(f"{topic}-0/*.log")))
        dumped = java_tool("DumpLogSegments", decoder, "--deep-iteration", "--files", segments)
        assert "isvalid: false" not in dumped
        assert (early_group if topic == OFFSETS else early_id) in dumped
    broker.start()

    opened.commit_transaction(SECONDS)
    begin(early, "early again")
    early.commit_transaction(SECONDS)
    assert {value for _key, value, _headers, _time in records(broker.servers, "t")} == {
        b"early", b"open", b"busy", b"early again"
    }  # fmt: skip
    producer(broker.servers, busy_id)
    with pytest.raises(KafkaException, match="fenced"):  # noqa: PT012 - either may be told
        begin(busy, "late")
        busy.commit_transaction(SECONDS)
