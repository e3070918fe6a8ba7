"""Cluster admin against real Apache Kafka: what it changes and what it says is what clients written elsewhere see."""

from __future__ import annotations

import asyncio
import itertools
import time
import warnings
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import confluent_kafka
import pytest
from confluent_kafka import admin as librdkafka
from harness.kafka_python import left_sockets

from ingestd.client.admin import (
    EARLIEST,
    Acl,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    AlterOperation,
    ClusterAdmin,
    ConfigChange,
    ConfigResource,
    ConfigSource,
    FeatureUpgrade,
    MemberToRemove,
    NewScramCredential,
    NewTopic,
    OffsetAt,
    QuotaComponent,
    QuotaMatch,
    ResourceType,
    ScramMechanism,
)
from ingestd.client.broker import Broker
from ingestd.client.client import Client
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import NO_LEADER, TopicPartition
from ingestd.errors import ErrorCode, IngestdError, KafkaError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, when it is imported
    from kafka import KafkaAdminClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from harness.cluster import KafkaCluster

    from ingestd.client.metadata import PartitionMetadata

PATIENT = 30.0
TOPIC = ResourceType.topic


def code(error: IngestdError | None) -> ErrorCode | None:
    assert error is None or isinstance(error, KafkaError)
    return None if error is None else error.code


async def until(holds: Callable[[], Any]) -> Any:
    """What `holds` gives, or awaits, once it is true: brokers hear of what the controller did a moment later."""
    deadline = time.monotonic() + PATIENT
    while True:
        found = holds()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, "it never held"
        await asyncio.sleep(0.05)


@pytest.fixture
async def admin(kafka: KafkaCluster) -> AsyncIterator[ClusterAdmin]:
    async with Client(kafka.bootstrap) as client:
        yield ClusterAdmin(client)


@pytest.fixture(scope="module")
def kafka_python(kafka: KafkaCluster) -> Iterator[KafkaAdminClient]:
    oracle = KafkaAdminClient(bootstrap_servers=kafka.servers)
    yield oracle
    with left_sockets():
        oracle.close()
        del oracle


def produce(kafka: KafkaCluster, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.servers})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENT) == 0


# The cluster


async def test_the_cluster_its_quorum_and_its_features_are_as_others_describe_them(
    kafka: KafkaCluster, admin: ClusterAdmin, kafka_python: KafkaAdminClient
) -> None:
    described = await admin.describe_cluster(include_fenced_brokers=True)
    oracle = kafka.admin.describe_cluster().result(PATIENT)
    assert described.cluster_id == oracle.cluster_id
    assert [(node.id, node.host, node.port) for node in described.nodes] == [
        (node.id, node.host, node.port) for node in oracle.nodes
    ]
    assert described.fenced == frozenset()
    assert (await admin.controller()).node.id == 1

    quorum = await admin.describe_quorum()
    told = kafka_python.describe_metadata_quorum()["topics"][0]["partitions"][0]
    assert (quorum.leader_id, quorum.leader_epoch) == (told["leader_id"], told["leader_epoch"])
    assert [voter.node_id for voter in quorum.voters] == [one["replica_id"] for one in told["current_voters"]]

    features = await admin.describe_features()
    known = kafka_python.describe_features()
    assert {name: (one.lowest, one.highest) for name, one in features.supported.items()} == {
        name: one["supported"] for name, one in known.items() if "supported" in one
    }
    assert features.finalized == {name: one["finalized"][1] for name, one in known.items() if "finalized" in one}
    levels = {"group.version": (features.finalized["group.version"], FeatureUpgrade.upgrade)}
    await admin.update_features(levels, validate_only=True)
    with pytest.raises(KafkaError, match="nonsense"):
        await admin.update_features({"nonsense": (1, FeatureUpgrade.upgrade)}, validate_only=True)
    with pytest.raises(KafkaError, match="BROKER_ID_NOT_REGISTERED"):
        await admin.unregister_broker(77)


# Configurations


async def test_configurations_are_set_appended_subtracted_and_taken_back(
    kafka: KafkaCluster, admin: ClusterAdmin, topic: Callable[..., str]
) -> None:
    name = topic()
    resource = ConfigResource(TOPIC, name)

    def told() -> dict[str, str]:
        asked = librdkafka.ConfigResource(librdkafka.ConfigResource.Type.TOPIC, name)
        (described,) = kafka.admin.describe_configs([asked]).values()
        return {key: entry.value for key, entry in described.result(PATIENT).items()}

    async def change(*changes: ConfigChange, validate_only: bool = False) -> ErrorCode | None:
        (outcome,) = await admin.incremental_alter_configs({resource: changes}, validate_only=validate_only)
        return code(outcome.error)

    assert await change(ConfigChange("retention.ms", "7777"), validate_only=True) is None
    assert told()["retention.ms"] != "7777"
    assert await change(ConfigChange("retention.ms", "7777")) is None
    assert await change(ConfigChange("cleanup.policy", "compact", AlterOperation.append)) is None
    assert await until(lambda: told()["cleanup.policy"] == "delete,compact" and told()["retention.ms"] == "7777")
    assert await change(ConfigChange("cleanup.policy", "delete", AlterOperation.subtract)) is None
    assert await change(ConfigChange("retention.ms", operation=AlterOperation.delete)) is None
    await until(lambda: told()["cleanup.policy"] == "compact" and told()["retention.ms"] == "604800000")
    assert await change(ConfigChange("retention.ms", "a while")) is ErrorCode.invalid_config

    (outcome,) = await admin.alter_configs({resource: {"max.message.bytes": "12345"}})
    assert outcome.error is None
    await until(lambda: told()["max.message.bytes"] == "12345" and told()["cleanup.policy"] == "delete")
    (described,) = await admin.describe_configs([resource])
    assert {key: entry.value for key, entry in described.entries.items()} == told()


async def test_brokers_loggers_and_everything_about_a_configuration_are_described(admin: ClusterAdmin) -> None:
    broker, logger = ConfigResource(ResourceType.broker, "1"), ConfigResource(ResourceType.broker_logger, "1")
    changes = {
        broker: [ConfigChange("log.cleaner.backoff.ms", "14000")],
        logger: [ConfigChange("kafka.server.KafkaApis", "WARN")],
        ConfigResource(ResourceType.broker, "77"): [ConfigChange("log.cleaner.backoff.ms", "14000")],
    }
    outcomes = await admin.incremental_alter_configs(changes)
    assert [code(outcome.error) for outcome in outcomes] == [None, None, ErrorCode.broker_not_available]

    async def dynamic() -> bool:
        of_broker, of_logger = await admin.describe_configs(
            [broker, logger], include_synonyms=True, include_documentation=True
        )
        backoff = of_broker.entries["log.cleaner.backoff.ms"]
        level = of_logger.entries["kafka.server.KafkaApis"]
        assert len(of_broker.entries) > 200  # an answer of many pages
        assert "cleaning" in (of_broker.entries["log.cleaner.threads"].documentation or "")
        return (
            backoff.value == "14000"
            and [one.source for one in backoff.synonyms] == [ConfigSource.dynamic_broker, ConfigSource.default]
            and (level.value, level.source) == ("WARN", ConfigSource.dynamic_broker_logger)
        )

    await until(dynamic)
    back = ConfigChange("log.cleaner.backoff.ms", operation=AlterOperation.delete)
    assert [outcome.error for outcome in await admin.incremental_alter_configs({broker: [back]})] == [None]


async def test_resources_with_configurations_are_listed(admin: ClusterAdmin, topic: Callable[..., str]) -> None:
    name = topic()
    listed = await admin.list_config_resources([TOPIC, ResourceType.broker])
    assert {ConfigResource(TOPIC, name), ConfigResource(ResourceType.broker, "1")} <= set(listed)


# Access


async def test_access_is_granted_described_and_taken_away(kafka: KafkaCluster, admin: ClusterAdmin) -> None:
    name = f"acl-{uuid4()}"
    literal = Acl(AclResourceType.topic, name, "User:bob", AclOperation.read)
    prefixed = Acl(
        AclResourceType.group, name, "User:*", AclOperation.all, AclPermission.deny, "10.0.0.1", AclPatternType.prefixed
    )
    nonsense = Acl(AclResourceType.topic, "", "bob", AclOperation.read)
    outcomes = await admin.create_acls([literal, nonsense, prefixed])
    assert [code(outcome.error) for outcome in outcomes] == [None, ErrorCode.invalid_request, None]

    def told() -> set[tuple[Any, ...]]:
        anything = librdkafka.AclBindingFilter(
            librdkafka.ResourceType.ANY, name, librdkafka.ResourcePatternType.ANY, None, None,
            librdkafka.AclOperation.ANY, librdkafka.AclPermissionType.ANY,
        )  # fmt: skip
        return {
            (acl.restype.name, acl.principal, acl.host, acl.operation.name, acl.permission_type.name,
             acl.resource_pattern_type.name)
            for acl in kafka.admin.describe_acls(anything).result(PATIENT)
        }  # fmt: skip

    expected = {
        ("TOPIC", "User:bob", "*", "READ", "ALLOW", "LITERAL"),
        ("GROUP", "User:*", "10.0.0.1", "ALL", "DENY", "PREFIXED"),
    }
    await until(lambda: told() == expected)
    assert set(await admin.describe_acls(AclFilter(resource_name=name))) == {literal, prefixed}
    applies = AclFilter(AclResourceType.group, f"{name}-1", pattern_type=AclPatternType.match)
    assert await admin.describe_acls(applies) == [prefixed]

    by_user, by_name = await admin.delete_acls([AclFilter(principal="User:bob"), AclFilter(resource_name=name)])
    assert by_user.deleted == (literal,)
    assert prefixed in by_name.deleted
    await until(lambda: told() == set())


async def test_users_of_scram_are_made_described_and_unmade(kafka: KafkaCluster, admin: ClusterAdmin) -> None:
    user, absent = f"user-{uuid4()}", f"user-{uuid4()}"
    outcomes = await admin.upsert_scram_users(
        [
            NewScramCredential(user, "secret", ScramMechanism.scram_sha_256, 5000),
            NewScramCredential(user, "secret"),
            NewScramCredential(absent, "secret", iterations=1),
        ]
    )
    assert [code(outcome.error) for outcome in outcomes] == [None, None, ErrorCode.unacceptable_credential]

    def told() -> dict[str, int]:
        (described,) = kafka.admin.describe_user_scram_credentials([user]).values()
        infos = described.result(PATIENT).scram_credential_infos
        return {info.mechanism.name.lower(): info.iterations for info in infos}

    async def both() -> bool:
        (described,) = await admin.describe_scram_users([user])
        return len(described.iterations) == 2

    await until(both)
    (described, missing) = await admin.describe_scram_users([user, absent])
    assert {mechanism.name: iterations for mechanism, iterations in described.iterations.items()} == told()
    assert code(missing.error) is ErrorCode.resource_not_found
    assert user in {one.user for one in await admin.describe_scram_users()}
    mechanisms = [(user, mechanism) for mechanism in ScramMechanism]
    assert [outcome.error for outcome in await admin.delete_scram_users(mechanisms)] == [None, None]
    (again,) = await admin.delete_scram_users(mechanisms[:1])
    assert code(again.error) is ErrorCode.resource_not_found


async def test_quotas_are_set_described_and_removed(
    kafka: KafkaCluster, admin: ClusterAdmin, java_tool: Callable[..., str]
) -> None:
    user = f"user-{uuid4()}"
    of_user, of_default_client = (("user", user),), (("user", user), ("client-id", None))
    outcomes = await admin.alter_client_quotas(
        {
            of_user: {"producer_byte_rate": 1_000_000, "request_percentage": 12.5},
            of_default_client: {"consumer_byte_rate": 77},
            (("user", f"{user}-2"),): {"speed": 1},
        }
    )
    assert [code(outcome.error) for outcome in outcomes] == [None, None, ErrorCode.invalid_request]

    async def found(*, strict: bool) -> dict[frozenset[Any], Any]:
        asked = [QuotaComponent("user", QuotaMatch.exact, user)]
        return {frozenset(one.entity): one.values for one in await admin.describe_client_quotas(asked, strict=strict)}

    expected = {"producer_byte_rate": 1_000_000.0, "request_percentage": 12.5}
    await until(lambda: found(strict=True))
    assert await found(strict=True) == {frozenset(of_user): expected}
    assert await found(strict=False) == {
        frozenset(of_user): expected,
        frozenset(of_default_client): {"consumer_byte_rate": 77.0},
    }
    told = await asyncio.to_thread(
        java_tool, "kafka.admin.ConfigCommand", "--bootstrap-server", kafka.servers, "--describe",
        "--entity-type", "users", "--entity-name", user,
    )  # fmt: skip
    assert "producer_byte_rate=1000000.0" in told
    assert "request_percentage=12.5" in told
    await admin.alter_client_quotas({of_user: dict.fromkeys(expected), of_default_client: {"consumer_byte_rate": None}})
    await until(lambda: not_found(found))


async def not_found(found: Callable[..., Any]) -> bool:
    return not await found(strict=False)


# Logs


async def test_records_are_deleted_before_an_offset(
    kafka: KafkaCluster, admin: ClusterAdmin, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    produce(kafka, name, *[b"x"] * 10)
    produce(kafka, name, *[b"x"] * 5, partition=1)
    deleted = await admin.delete_records({(name, 0): 4, (name, 1): -1, (name, 7): 1, ("missing", 0): 1})
    assert [one.first_offset for one in deleted] == [4, 5, -1, -1]
    assert [code(one.error) for one in deleted] == [None, None] + [ErrorCode.unknown_topic_or_partition] * 2
    (beyond,) = await admin.delete_records({(name, 0): 99})
    assert code(beyond.error) is ErrorCode.offset_out_of_range
    partition = confluent_kafka.TopicPartition(name, 0)
    (listed,) = kafka.admin.list_offsets({partition: librdkafka.OffsetSpec.earliest()}).values()
    assert listed.result(PATIENT).offset == 4
    assert [one.offset for one in await admin.list_offsets([OffsetAt(name, 0, EARLIEST)])] == [4]


async def test_log_directories_hold_what_others_say_they_hold(
    kafka: KafkaCluster, admin: ClusterAdmin, kafka_python: KafkaAdminClient, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    produce(kafka, name, b"x" * 5000)
    produce(kafka, name, b"x", partition=1)
    (of_node,) = await admin.describe_log_dirs(partitions=[(name, 0), (name, 1)])
    (log_dir,) = of_node.log_dirs
    assert of_node.node_id == 1
    assert log_dir.total_bytes > log_dir.usable_bytes > 0
    (told,) = kafka_python.describe_log_dirs()
    sizes = {
        one["partition_index"]: one["partition_size"]
        for held in told["log_dirs"][0]["topics"]
        if held["name"] == name
        for one in held["partitions"]
    }
    assert log_dir.path == told["log_dirs"][0]["log_dir"]
    assert {one.partition: one.size for one in log_dir.replicas} == sizes
    assert sizes[0] > 5000
    (refused,) = await admin.alter_replica_log_dirs({(1, name, 0): "/nowhere"})
    assert code(refused.outcome.error) is ErrorCode.log_dir_not_found


async def test_transactions_and_producers_are_found_and_a_hanging_one_is_ended(
    kafka: KafkaCluster, admin: ClusterAdmin, kafka_python: KafkaAdminClient, topic: Callable[..., str]
) -> None:
    name, transactional_id = topic(), f"tx-{uuid4()}"
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.servers, "transactional.id": transactional_id})
    producer.init_transactions(PATIENT)
    (empty,) = await admin.describe_transactions([transactional_id])
    assert (empty.state, empty.start_ms, empty.partitions, empty.error) == ("Empty", -1, (), None)
    producer.begin_transaction()
    producer.produce(name, b"open")
    assert producer.flush(PATIENT) == 0

    listing = await admin.list_transactions(states=["Ongoing"], pattern=f"{transactional_id[:-1]}.")
    assert [one.transactional_id for one in listing.items] == [transactional_id]
    assert listing.errors == {}
    described, missing = await admin.describe_transactions([transactional_id, "missing"])
    assert (described.state, described.partitions) == ("Ongoing", (TopicPartition(name, 0),))
    assert abs(described.start_ms - time.time() * 1000) < 60_000
    assert code(missing.error) is ErrorCode.transactional_id_not_found
    told = kafka_python.describe_transactions([transactional_id])[transactional_id]
    assert (described.producer_id, described.producer_epoch) == (told.producer_id, told.producer_epoch)

    (of_partition,) = await admin.describe_producers([(name, 0)])
    (state,) = of_partition.producers
    assert (state.producer_id, state.transaction_start) == (described.producer_id, 0)
    await admin.abort_transaction(name, 0, state)
    (after,) = await admin.describe_producers([(name, 0)])
    assert [one.transaction_start for one in after.producers] == [-1]
    (committed,) = await admin.list_offsets([OffsetAt(name, 0, -1)], read_committed=True)
    assert committed.offset == 2  # the record and the marker: a reader of committed records goes on
    producer.abort_transaction(PATIENT)


# Groups


@pytest.fixture
def consumers(kafka: KafkaCluster) -> Iterator[Callable[..., Any]]:
    """`consumers(group, topic, **settings)`: a librdkafka consumer that is a member of the group, reading."""
    opened: list[Any] = []

    def join(group: str, topic: str, **settings: str) -> Any:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": kafka.servers, "group.id": group, "auto.offset.reset": "earliest",
             "enable.auto.commit": False} | {name.replace("_", "."): value for name, value in settings.items()}
        )  # fmt: skip
        opened.append(consumer)
        consumer.subscribe([topic])
        deadline = time.monotonic() + PATIENT
        while not consumer.assignment():
            consumer.poll(0.1)
            assert time.monotonic() < deadline
        return consumer

    yield join
    for consumer in opened:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_groups_members_are_described_as_librdkafka_describes_them(
    kafka: KafkaCluster, admin: ClusterAdmin, topic: Callable[..., str], consumers: Callable[..., Any], protocol: str
) -> None:
    name, group = topic(partitions=3), f"group-{uuid4()}"
    consumer = await asyncio.to_thread(
        consumers, group, name, group_protocol=protocol, client_id="reader", group_instance_id="static-1"
    )
    # A member of the new protocol may begin a moment before the coordinator hears that it has.
    described, missing = await until(lambda: stable(admin, group))
    assert code(missing.error) is ErrorCode.group_id_not_found
    (told,) = kafka.admin.describe_consumer_groups([group]).values()
    oracle = told.result(PATIENT)
    assert (described.type, described.state, described.coordinator) == (protocol, "Stable", oracle.coordinator.id)
    assert described.state.upper() == oracle.state.name
    assert described.assignor == oracle.partition_assignor
    (member,), (other) = described.members, oracle.members[0]
    assert (member.member_id, member.group_instance_id) == (other.member_id, "static-1")
    assert (member.client_id, member.client_host) == ("reader", other.host)
    assert member.subscription == (name,)
    assert set(member.assignment) == {TopicPartition(name, number) for number in range(3)}
    assert {(one.topic, one.partition) for one in other.assignment.topic_partitions} == set(member.assignment)

    listing = await admin.list_groups(states=["Stable"], types=[protocol])
    (listed,) = [one for one in listing.items if one.group_id == group]
    assert (listed.protocol_type, listed.state, listed.type) == ("consumer", "Stable", protocol)
    states = {confluent_kafka.ConsumerGroupState.STABLE}
    listed_by_us = await until(lambda: all_listed(kafka, admin, protocol, states))
    assert group in listed_by_us

    (busy,) = await admin.delete_groups([group])
    assert code(busy.error) is ErrorCode.non_empty_group
    if protocol == "classic":
        (removed,) = await admin.remove_group_members(group, [MemberToRemove(group_instance_id="static-1")])
        assert removed.error is None
        (now,) = await admin.describe_groups([group])
        assert member.member_id not in {one.member_id for one in now.members}
    await asyncio.to_thread(consumer.close)
    await admin.remove_group_members(group)  # a static member stays when it closes
    (deleted,) = await until_deleted(admin, group)
    assert deleted.error is None


async def stable(admin: ClusterAdmin, group: str) -> list[Any]:
    """The description of a group that is in the state "Stable", and of one that is none."""
    described = await admin.describe_groups([group, "missing"])
    return list(described) if described[0].state == "Stable" else []


async def all_listed(kafka: KafkaCluster, admin: ClusterAdmin, protocol: str, states: set[Any]) -> set[str]:
    """The stable groups that we list where librdkafka lists them too: those of other tests may be ending."""
    listing = await admin.list_groups(states=["Stable"], types=[protocol])
    known = kafka.admin.list_consumer_groups(states=states).result(PATIENT).valid
    ours = {one.group_id for one in listing.items}
    return ours if ours <= {one.group_id for one in known} else set()


async def until_deleted(admin: ClusterAdmin, group: str) -> Any:
    """Delete the group, once its last member is out of it."""
    deadline = time.monotonic() + PATIENT
    while True:
        outcome = await admin.delete_groups([group])
        if outcome[0].error is None or time.monotonic() > deadline:
            return outcome
        await admin.remove_group_members(group)
        await asyncio.sleep(0.1)


async def test_a_groups_offsets_are_set_listed_and_forgotten(
    admin: ClusterAdmin, kafka_python: KafkaAdminClient, topic: Callable[..., str]
) -> None:
    name, group = topic(partitions=3), f"group-{uuid4()}"
    outcomes = await admin.alter_group_offsets(
        group, {(name, 0): 5, (name, 1): OffsetAndMetadata(7, 0, "note"), ("missing", 0): 1}
    )
    assert [code(outcome.error) for outcome in outcomes] == [None, None, ErrorCode.unknown_topic_or_partition]
    found, nothing = await admin.list_group_offsets({group: None, "missing": None})
    assert (dict(nothing.offsets), nothing.error) == ({}, None)
    told = kafka_python.list_group_offsets({group: None})[group]
    assert {tuple(partition): (one.offset, one.metadata) for partition, one in told.items()} == {
        partition: (offset.offset, offset.metadata) for partition, offset in found.offsets.items()
    }
    assert found.offsets[TopicPartition(name, 1)] == OffsetAndMetadata(7, 0, "note")
    (some,) = await admin.list_group_offsets({group: [(name, 1), (name, 2)]}, require_stable=True)
    assert set(some.offsets) == {TopicPartition(name, 1)}

    forgotten = await admin.delete_group_offsets(group, [(name, 0), (name, 2)])
    assert [outcome.error for outcome in forgotten] == [None, None]
    (left,) = await admin.list_group_offsets({group: None})
    assert set(left.offsets) == {TopicPartition(name, 1)}
    (missing,) = await admin.delete_group_offsets("missing", [(name, 0)])
    assert code(missing.error) is ErrorCode.group_id_not_found
    assert [code(one.error) for one in await admin.delete_groups([group, "missing"])] == [
        None,
        ErrorCode.group_id_not_found,
    ]


async def test_a_running_groups_offsets_are_not_touched(
    admin: ClusterAdmin, topic: Callable[..., str], consumers: Callable[..., Any]
) -> None:
    name, group = topic(), f"group-{uuid4()}"
    await asyncio.to_thread(consumers, group, name)
    (outcome,) = await admin.alter_group_offsets(group, {(name, 0): 5})
    assert code(outcome.error) is ErrorCode.unknown_member_id
    (outcome,) = await admin.delete_group_offsets(group, [(name, 0)])
    assert code(outcome.error) is ErrorCode.group_subscribed_to_topic


async def test_many_groups_are_asked_for_by_a_few_requests(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    groups = [f"many-{number}-{uuid4()}" for number in range(50)]
    async with Client(kafka.bootstrap) as client:
        admin = ClusterAdmin(client)
        await asyncio.gather(*(admin.alter_group_offsets(group, {(name, 0): 1}) for group in groups))
    async with Client(kafka.bootstrap) as client:
        asked = itertools.count()
        original = Broker.request

        async def counted(self: Any, build: Any, timeout: float) -> Any:
            next(asked)
            return await original(self, build, timeout)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Broker, "request", counted)
            admin = ClusterAdmin(client)
            described = await admin.describe_groups(groups)
            assert all(one.error is None for one in described)
            listed = await admin.list_group_offsets(dict.fromkeys(groups))
            assert [one.offsets[TopicPartition(name, 0)].offset for one in listed] == [1] * 50
        assert next(asked) < 10  # metadata and one FindCoordinator for all of them
        deleted = await admin.delete_groups(groups)
        assert all(one.error is None for one in deleted)


# Several nodes


@pytest.mark.timeout(300)
async def test_partitions_are_moved_and_led_by_others_as_told(
    kafka3: KafkaCluster, java_tool: Callable[..., str]
) -> None:
    name = f"moved-{uuid4()}"
    async with Client(kafka3.bootstrap) as client:
        admin = ClusterAdmin(client)
        (created,) = await admin.create_topics([NewTopic(name, assignments=[[1, 2], [1, 2], [3, 2]])])
        assert created.error is None
        await asyncio.to_thread(kafka3.wait_in_sync, name)  # whichever node is asked from now on has heard of it
        outcomes = await admin.alter_partition_reassignments({(name, 0): [2, 3], (name, 9): [1], (name, 1): None})
        assert [code(outcome.error) for outcome in outcomes] == [
            None,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.no_reassignment_in_progress,
        ]
        await until(lambda: none_left(admin, name))
        await until(lambda: kafka3.admin.list_topics(name).topics[name].partitions[0].replicas == [2, 3])
        await until(lambda: prefers(client, name, 2))

        # With a node that is down a move does not end, and the node's partitions are led by others.
        await asyncio.to_thread(kafka3.stop, 3)
        (outcome,) = await admin.alter_partition_reassignments({(name, 1): [1, 3]})
        assert outcome.error is None
        (ongoing,) = await admin.list_partition_reassignments([(name, 0), (name, 1)])
        assert (ongoing.partition, ongoing.adding, ongoing.removing) == (1, (3,), (2,))
        told = await asyncio.to_thread(
            java_tool, "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
            "--bootstrap-server", kafka3.nodes[1].address, "--list",
        )  # fmt: skip
        assert f"{name}-1: replicas: 1,3,2. adding: 3. removing: 2." in told
        (cancelled,) = await admin.alter_partition_reassignments({(name, 1): None})
        assert cancelled.error is None
        assert await admin.list_partition_reassignments() == []
        await until(lambda: led_by_another(client, name))
        (refused,) = await admin.elect_leaders([(name, 2)])
        assert code(refused.error) is ErrorCode.preferred_leader_not_available

        await asyncio.to_thread(kafka3.start, 3)
        await asyncio.to_thread(kafka3.wait_in_sync, name)
        await admin.elect_leaders([(name, 1)])  # a node that stood still for two seconds has lost what it led
        elected, unneeded = await admin.elect_leaders([(name, 2), (name, 1)])
        assert [code(one.error) for one in (elected, unneeded)] == [None, ErrorCode.election_not_needed]
        await until(lambda: led_by_preferred(client, name))


async def none_left(admin: ClusterAdmin, topic: str) -> bool:
    return not [one for one in await admin.list_partition_reassignments() if one.topic == topic]


async def prefers(client: Client, topic: str, node: int) -> bool:
    await client.metadata.refresh([topic], PATIENT)
    return (await client.preferred_leader(topic, 0)).node.id == node


async def led_by_another(client: Client, topic: str) -> bool:
    leader = (await client.metadata.refresh([topic], PATIENT)).leader(topic, 2)
    return leader is not None and leader.id != 3


async def led_by_preferred(client: Client, topic: str) -> bool:
    leader = (await client.metadata.refresh([topic], PATIENT)).leader(topic, 2)
    return leader is not None and leader.id == 3


@pytest.mark.timeout(300)
async def test_administration_goes_on_when_coordinator_and_controller_are_killed(kafka3: KafkaCluster) -> None:
    names = [f"killed-{uuid4()}" for _ in range(2)]
    group = f"killed-{uuid4()}"
    async with Client(kafka3.bootstrap) as client:
        admin = ClusterAdmin(client)
        (created,) = await admin.create_topics([NewTopic(names[0], 1, 3)])
        assert created.error is None
        await asyncio.to_thread(kafka3.wait_in_sync, names[0])
        await admin.alter_group_offsets(group, {(names[0], 0): 1})
        (described,) = await admin.describe_groups([group])
        await asyncio.to_thread(kafka3.kill, described.coordinator)
        (outcome,) = await admin.alter_group_offsets(group, {(names[0], 0): 2}, timeout=60)
        assert outcome.error is None
        (offsets,) = await admin.list_group_offsets({group: None}, timeout=60)
        assert offsets.offsets[TopicPartition(names[0], 0)].offset == 2
        await asyncio.to_thread(kafka3.start, described.coordinator)

        await asyncio.to_thread(kafka3.kill, (await admin.describe_quorum()).leader_id)
        (created,) = await admin.create_topics([NewTopic(names[1], 1, 2)], timeout=60)
        assert created.error is None
        deleted = await admin.delete_topics(names, timeout=60)
        assert [one.error for one in deleted] == [None] * 2


@pytest.mark.timeout(300)
async def test_a_partition_without_replicas_in_sync_is_led_by_another_one_only_when_told(kafka3: KafkaCluster) -> None:
    name = f"unclean-{uuid4()}"
    async with Client(kafka3.bootstrap) as client:
        admin = ClusterAdmin(client)
        await admin.create_topics([NewTopic(name, assignments=[[1, 3]], configs={"min.insync.replicas": "1"})])
        await asyncio.to_thread(kafka3.wait_in_sync, name)  # whichever node is asked from now on has heard of it

        async def partition() -> PartitionMetadata:
            return (await client.metadata.refresh([name], PATIENT)).topics[name].partitions[0]

        async def is_followed_by_nobody() -> bool:
            return (await partition()).in_sync_replicas == (3,)

        async def is_led_by_nobody() -> bool:
            return (await partition()).leader == NO_LEADER

        async def is_led_by_the_other() -> bool:
            return (await partition()).leader == 1

        await asyncio.to_thread(kafka3.stop, 1)
        await until(is_followed_by_nobody)
        await asyncio.to_thread(kafka3.kill, 3)
        await asyncio.to_thread(kafka3.start, 1)
        await until(is_led_by_nobody)
        (clean,) = await admin.elect_leaders([(name, 0)])
        assert clean.error is not None
        (unclean,) = await admin.elect_leaders([(name, 0)], unclean=True)
        assert unclean.error is None
        await until(is_led_by_the_other)
