"""Requests of administrators: the embedded broker answers as a real Kafka of one node does, or says what it lacks."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from embedded.raw import RawClient

from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from embedded.process import BrokerProcess
    from harness.cluster import KafkaCluster

SECONDS = 20
LATEST = {
    Api.describe_log_dirs: 4,
    Api.alter_replica_log_dirs: 2,
    Api.elect_leaders: 2,
    Api.alter_partition_reassignments: 1,
    Api.list_partition_reassignments: 0,
    Api.describe_topic_partitions: 0,
    Api.describe_client_quotas: 1,
    Api.alter_client_quotas: 1,
    Api.list_config_resources: 1,
    Api.update_features: 2,
}


def of(api: Api, kind: str, /, **fields: Any) -> Any:
    """A part of a request in the newest version."""
    return getattr(import_module(f"kio.schema.{api.name}.v{LATEST[api]}.request"), kind)(**fields)


def elect(kind: int, partitions: dict[str, tuple[int, ...]] | None) -> Any:
    api = Api.elect_leaders
    asked = None
    if partitions is not None:
        asked = tuple(of(api, "TopicPartitions", topic=name, partitions=each) for name, each in partitions.items())
    return of(api, "ElectLeadersRequest", election_type=kind, topic_partitions=asked)


def reassign(*wanted: tuple[str, int, tuple[int, ...] | None]) -> Any:
    api = Api.alter_partition_reassignments
    topics = tuple(
        of(
            api, "ReassignableTopic", name=name,
            partitions=(of(api, "ReassignablePartition", partition_index=number, replicas=replicas),),
        )
        for name, number, replicas in wanted
    )  # fmt: skip
    return of(api, "AlterPartitionReassignmentsRequest", topics=topics)


def moves(topics: dict[str, tuple[int, ...]] | None) -> Any:
    api = Api.list_partition_reassignments
    asked = None
    if topics is not None:
        asked = tuple(
            of(api, "ListPartitionReassignmentsTopics", name=name, partition_indexes=numbers)
            for name, numbers in topics.items()
        )
    return of(api, "ListPartitionReassignmentsRequest", topics=asked)


def pages(names: tuple[str, ...], limit: int, cursor: tuple[str, int] | None = None) -> Any:
    api = Api.describe_topic_partitions
    at = None if cursor is None else of(api, "Cursor", topic_name=cursor[0], partition_index=cursor[1])
    topics = tuple(of(api, "TopicRequest", name=name) for name in names)
    return of(api, "DescribeTopicPartitionsRequest", topics=topics, response_partition_limit=limit, cursor=at)


def quotas(*components: tuple[str, int, str | None], strict: bool = False) -> Any:
    api = Api.describe_client_quotas
    asked = tuple(
        of(api, "ComponentData", entity_type=kind, match_type=match, match=name) for kind, match, name in components
    )
    return of(api, "DescribeClientQuotasRequest", components=asked, strict=strict)


def without_quota(name: str) -> Any:
    api = Api.alter_client_quotas
    entity = of(api, "EntityData", entity_type="client-id", entity_name=name)
    change = of(api, "OpData", key="producer_byte_rate", value=0.0, remove=True)
    entry = of(api, "EntryData", entity=(entity,), ops=(change,))
    return of(api, "AlterClientQuotasRequest", entries=(entry,), validate_only=False)


def feature(name: str, level: int) -> Any:
    api = Api.update_features
    update = of(api, "FeatureUpdateKey", feature=name, max_version_level=level, upgrade_type=1)
    return of(api, "UpdateFeaturesRequest", feature_updates=(update,), validate_only=True)


def resources(*kinds: int) -> Any:
    return of(Api.list_config_resources, "ListConfigResourcesRequest", resource_types=kinds)


def moved(path: str, topic: str, *partitions: int) -> Any:
    api = Api.alter_replica_log_dirs
    asked = of(api, "AlterReplicaLogDirTopic", name=topic, partitions=partitions)
    return of(api, "AlterReplicaLogDirsRequest", dirs=(of(api, "AlterReplicaLogDir", path=path, topics=(asked,)),))


def requests(first: str, second: str) -> Iterator[Any]:
    """`first` has one partition, `second` five, in the order of names."""
    for kind in (0, 1):
        yield elect(kind, {first: (0,), second: (0, 4, 5), "nowhere": (0,)})
        yield elect(kind, {})
    yield reassign((first, 0, (1,)), (second, 4, (1,)))
    yield reassign((first, 0, (2,)))
    yield reassign((first, 0, (1, 2)))
    yield reassign((first, 0, (1, 1)))
    yield reassign((first, 0, ()))
    yield reassign((first, 0, None))
    yield reassign((first, 7, (1,)), ("nowhere", 0, (1,)), ("nowhere", 0, None))
    for asked in (None, {}, {first: (0,), second: (0, 9)}, {"nowhere": (0,)}):
        yield moves(asked)
    yield pages((first, second), 2000)
    yield pages((second, first, second), 3)
    yield pages((first, second), 6)
    yield pages((first, second), 1)
    yield pages((first, second), 4, (second, 2))
    yield pages((second,), 4, (second, 4))
    yield pages((second,), 4, (second, 5))
    yield pages(("nowhere", first), 4)
    yield pages((first,), 0)
    yield quotas()
    yield quotas(("user", 0, "u"))
    yield quotas(("client-id", 1, None), strict=True)
    yield without_quota("nobody")
    yield from (feature("no.such.feature", 1), feature("metadata.version", 5))
    yield from (resources(kind) for kind in (4, 8, 16, 99))
    yield from (moved(path, first, 0, 7) for path in ("/nowhere", "relative"))


def answers(servers: str, first: str, second: str) -> list[tuple[Any, Any]]:
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(first, 1, 1), NewTopic(second, 5, 1)]).values():
        made.result(SECONDS)
    with RawClient(int(servers.rpartition(":")[2])) as client:
        said = [(request, alike(client.ask(request))) for request in requests(first, second)]
        described = client.ask(of(Api.describe_log_dirs, "DescribeLogDirsRequest", topics=None))
        (directory,) = described.results
        assert 0 < directory.usable_bytes <= directory.total_bytes
        kept = [topic for topic in directory.topics if topic.name in {first, second}]
        said.append(("log dirs", alike(tuple(kept))))
        elected = client.ask(elect(0, None)).replica_election_results
        said.append(("elected", alike(tuple(one for one in elected if one.topic in {first, second}))))
        for name, partition in ((first, 0), (first, 7), ("nowhere", 0)):
            said.append(("moved", alike(client.ask(moved(directory.log_dir, name, partition)))))
        return said


DIFFERENT = {"topic_id", "throttle_time", "error_message", "topic_authorized_operations", "eligible_leader_replicas"}
"""Ids, and texts for people. Kafka tells replicas that may lead as null where its feature for them is off."""


def alike(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(sorted((alike(one) for one in value), key=repr))
    if not dataclasses.is_dataclass(value):
        return value
    names = [field.name for field in dataclasses.fields(value) if field.name not in DIFFERENT]
    return (type(value).__name__, *((name, alike(getattr(value, name))) for name in names))


def test_the_embedded_broker_answers_administrators_as_kafka_does(
    kafka: KafkaCluster, embedded: BrokerProcess, new_topic: str
) -> None:
    theirs, ours = (answers(each.servers, f"{new_topic}-a", f"{new_topic}-b") for each in (kafka, embedded))
    assert [pair for pair in zip(theirs, ours, strict=True) if pair[0] != pair[1]] == []
    assert len(theirs) > 25


_NOT_YET = {"NOT_LEADER_FOR_PARTITION", "UNKNOWN_TOPIC_OR_PART", "_NOENT"}
"""The last one is librdkafka's own, by its metadata."""


def deleted(admin: AdminClient, topic: str) -> int | str:
    """Where the log begins then, or the error. A new topic has no leader at first, or no broker knows it yet."""
    partition = TopicPartition(topic, 0, -1)
    end = time.monotonic() + SECONDS
    while True:
        try:
            low: int = admin.delete_records([partition])[partition].result(SECONDS).low_watermark
        except KafkaException as refused:
            name = str(refused.args[0].name())
            if name not in _NOT_YET or time.monotonic() > end:
                return name
            time.sleep(0.05)
        else:
            return low


def test_records_are_deleted_where_the_policy_allows_it(
    kafka: KafkaCluster, embedded: BrokerProcess, new_topic: str
) -> None:
    policies = ["delete", "compact", "compact,delete", ""]
    outcomes = []
    for servers in (kafka.servers, embedded.servers):
        admin = AdminClient({"bootstrap.servers": servers})
        topics = [
            NewTopic(f"{new_topic}-{at}", 1, 1, config={"cleanup.policy": policy}) for at, policy in enumerate(policies)
        ]
        for made in admin.create_topics(topics).values():
            made.result(SECONDS)
        outcomes.append([deleted(admin, topic.topic) for topic in topics])
    assert outcomes[0] == outcomes[1]
    assert "POLICY_VIOLATION" in outcomes[0]


def created(admin: AdminClient, *names: str) -> list[str]:
    """For each topic, in the order of the names: "created", or the error."""
    outcomes = admin.create_topics([NewTopic(name, 1, 1) for name in names])
    return [_outcome(outcomes[name].result) for name in names]


def _outcome(call: Callable[[float], object]) -> str:
    try:
        call(SECONDS)
    except KafkaException as refused:
        return str(refused.args[0].name())
    return "created"


def test_topics_whose_names_differ_only_in_dots_and_underscores_collide(
    kafka: KafkaCluster, embedded: BrokerProcess, new_topic: str
) -> None:
    """Two in one request are not compared, by Kafka neither."""
    outcomes = []
    for servers in (kafka.servers, embedded.servers):
        admin = AdminClient({"bootstrap.servers": servers})
        outcome = created(admin, f"{new_topic}.a.b")
        outcome += created(admin, f"{new_topic}_a.b", f"{new_topic}.a-b")
        outcome += created(admin, f"{new_topic}.a.b")
        admin.delete_topics([f"{new_topic}.a.b"])[f"{new_topic}.a.b"].result(SECONDS)
        outcome += created(admin, f"{new_topic}_a_b")
        outcome += created(admin, f"{new_topic}.c", f"{new_topic}_c")
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][:4] == ["created", "TOPIC_EXCEPTION", "created", "TOPIC_ALREADY_EXISTS"]
    assert outcomes[0][4:] == ["created"] * 3


def test_a_topic_whose_name_collides_is_not_created_on_demand(embedded: BrokerProcess, new_topic: str) -> None:
    """Kafka says UNKNOWN_TOPIC_OR_PARTITION there, as long as the client asks. Here it is told why, and at once."""
    admin = AdminClient({"bootstrap.servers": embedded.servers})
    created(admin, f"{new_topic}.a")
    producer = Producer({"bootstrap.servers": embedded.servers, "log_level": 0})
    told: list[str] = []
    producer.produce(f"{new_topic}_a", b"one", on_delivery=lambda error, _message: told.append(error and error.name()))
    producer.flush(SECONDS)
    assert told == ["TOPIC_EXCEPTION"]


def test_the_length_of_metadata_counts_as_in_java(kafka: KafkaCluster, embedded: BrokerProcess, new_topic: str) -> None:
    """librdkafka sends one character more: the end of a string in C. In UTF-8 an ü has 2 bytes, a 😀 4."""
    lengths = [(letter, length) for letter in "mü" for length in (4095, 4096)] + [("😀", 2047), ("😀", 2048)]
    outcomes = []
    for servers in (kafka.servers, embedded.servers):
        created(AdminClient({"bootstrap.servers": servers}), new_topic)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": new_topic, "log_level": 0})
        outcomes.append([committed(consumer, new_topic, letter * length) for letter, length in lengths])
        consumer.close()
    assert outcomes[0] == outcomes[1]
    assert outcomes[0] == ["committed", "OFFSET_METADATA_TOO_LARGE"] * 3


def committed(consumer: Consumer, topic: str, metadata: str) -> str:
    """What becomes of a commit: "committed", or the error. A new group may have no coordinator at first."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, 1, metadata=metadata)], asynchronous=False)
        except KafkaException as refused:
            error = refused.args[0]
            if not error.retriable() or time.monotonic() > end:
                return str(error.name())
        else:
            return "committed"


def epochs_and_offsets(port: int, topic: str) -> Iterator[tuple[object, ...]]:
    """What is answered about leader epochs, and about each number that stands in place of a timestamp."""
    with RawClient(port) as client:
        for epoch in (-1, 0, 1, 100):
            asked = part(Api.offset_for_leader_epoch, 4, "OffsetForLeaderPartition",
                         partition=0, current_leader_epoch=-1, leader_epoch=epoch)  # fmt: skip
            topics = (part(Api.offset_for_leader_epoch, 4, "OffsetForLeaderTopic", topic=topic, partitions=(asked,)),)
            request = part(Api.offset_for_leader_epoch, 4, "OffsetForLeaderEpochRequest", replica_id=-1, topics=topics)
            told = client.ask(request).topics[0].partitions[0]
            yield "epoch", epoch, told.error_code, told.leader_epoch, told.end_offset
        for version, timestamp in itertools.product((6, 7, 8, 9, 11), range(-8, 0)):
            asked = part(Api.list_offsets, version, "ListOffsetsPartition",
                         partition_index=0, current_leader_epoch=-1, timestamp=timestamp)  # fmt: skip
            topics = (part(Api.list_offsets, version, "ListOffsetsTopic", name=topic, partitions=(asked,)),)
            more = {"timeout": dt.timedelta(seconds=SECONDS)} if version > 9 else {}
            request = part(
                Api.list_offsets, version, "ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=topics, **more
            )
            told = client.ask(request).topics[0].partitions[0]
            yield version, timestamp, told.error_code, told.offset, told.leader_epoch


def part(api: Api, version: int, kind: str, /, **fields: Any) -> Any:
    return getattr(import_module(f"kio.schema.{api.name}.v{version}.request"), kind)(**fields)


def test_leader_epochs_and_offsets_are_told_as_by_kafka(
    kafka: KafkaCluster, embedded: BrokerProcess, new_topic: str
) -> None:
    """Of an empty log, and of one with a record."""
    told: list[list[tuple[object, ...]]] = [[], []]
    for servers, answered in zip((kafka.servers, embedded.servers), told, strict=True):
        port = int(servers.rpartition(":")[2])
        admin = AdminClient({"bootstrap.servers": servers})
        created(admin, new_topic)
        # A new topic has no leader at first.
        deleted(admin, new_topic)
        answered.extend(epochs_and_offsets(port, new_topic))
        producer = Producer({"bootstrap.servers": servers})
        producer.produce(new_topic, b"one")
        assert producer.flush(SECONDS) == 0
        answered.extend(epochs_and_offsets(port, new_topic))
    assert [pair for pair in zip(*told, strict=True) if pair[0] != pair[1]] == []
    assert len(told[0]) == 2 * (4 + 5 * 8)
