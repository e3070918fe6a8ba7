"""Requests in every version a broker may speak, flexible headers and version choice; kio's schemas are the oracle."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader

from ingestd.errors import ConfigurationError, UnsupportedVersion
from ingestd.wire import requests
from ingestd.wire.apis import Api, api_name, is_flexible
from ingestd.wire.codec import encode_entity, encode_request
from ingestd.wire.requests import (
    EARLIEST,
    LATEST,
    NewPartitions,
    NewTopic,
    OffsetAt,
    acls,
    cluster,
    configs,
    group_admin,
    log_dirs,
    offsets,
    quotas,
    reassignments,
    topics,
    transaction_admin,
    users,
)
from ingestd.wire.versions import ApiVersions

ANY_ACL = acls.AclFields(1, None, 1, None, None, 1, 1)
EVERYTHING = {
    Api.metadata: (1, 13, requests.metadata(["a", "b"])),
    Api.create_topics: (2, 7, requests.create_topics([NewTopic("t", 3, 2, {"k": "v"})], timeout_ms=1000)),
    Api.delete_topics: (1, 6, requests.delete_topics(["a", "b"], timeout_ms=1000)),
    Api.create_partitions: (0, 3, requests.create_partitions([NewPartitions("a", 5, [[1], [2]])], timeout_ms=1000)),
    Api.list_offsets: (1, 10, requests.list_offsets([OffsetAt("a", 0, LATEST, 4), OffsetAt("a", 1, EARLIEST)])),
    Api.offset_for_leader_epoch: (
        3,
        4,
        offsets.offsets_for_leader_epochs([offsets.EpochEndOf("a", 0, 4, 5), offsets.EpochEndOf("b", 1, 4)]),
    ),
    Api.init_producer_id: (0, 5, requests.init_producer_id("tx", transaction_timeout_ms=5000)),
    Api.find_coordinator: (0, 5, requests.find_coordinators(["group"], 0)),
    Api.describe_configs: (1, 4, requests.describe_configs([(2, "a", ["k"]), (4, "1", None)])),
    Api.describe_cluster: (0, 2, requests.describe_cluster()),
    Api.delete_records: (0, 2, topics.delete_records({("a", 0): 5, ("a", 1): -1, ("b", 0): 1}, timeout_ms=1000)),
    Api.alter_configs: (0, 2, configs.alter_configs([(2, "a", {"k": "v", "l": None})], validate_only=True)),
    Api.incremental_alter_configs: (
        0,
        1,
        configs.incremental_alter_configs([(2, "a", [("k", 0, "v"), ("l", 1, None)])], validate_only=True),
    ),
    Api.list_config_resources: (0, 1, configs.list_config_resources([16])),
    Api.describe_acls: (1, 3, acls.describe_acls(ANY_ACL)),
    Api.create_acls: (1, 3, acls.create_acls([acls.AclFields(2, "a", 3, "User:u", "*", 3, 3)])),
    Api.delete_acls: (1, 3, acls.delete_acls([ANY_ACL])),
    Api.describe_client_quotas: (0, 1, quotas.describe_client_quotas([("user", 2, None)], strict=True)),
    Api.alter_client_quotas: (0, 1, quotas.alter_client_quotas([({"user": "u"}, {"a": 1.5, "b": None})])),
    Api.describe_user_scram_credentials: (0, 0, users.describe_user_scram_credentials(["u"])),
    Api.alter_user_scram_credentials: (
        0,
        0,
        users.alter_user_scram_credentials([("u", 1)], [users.ScramUpsertion("v", 2, 4096, b"salt", b"hash")]),
    ),
    Api.alter_partition_reassignments: (
        0,
        1,
        reassignments.alter_partition_reassignments({("a", 0): [1, 2], ("a", 1): None}, timeout_ms=1000),
    ),
    Api.list_partition_reassignments: (
        0,
        0,
        reassignments.list_partition_reassignments([("a", 0)], timeout_ms=1000),
    ),
    Api.elect_leaders: (0, 2, reassignments.elect_leaders([("a", 0)], timeout_ms=1000)),
    Api.describe_log_dirs: (1, 5, log_dirs.describe_log_dirs([("a", 0)])),
    Api.alter_replica_log_dirs: (1, 2, log_dirs.alter_replica_log_dirs({("a", 0): "/one", ("b", 1): "/two"})),
    Api.list_groups: (0, 5, group_admin.list_groups()),
    Api.describe_groups: (0, 6, group_admin.describe_classic_groups(["g"])),
    Api.consumer_group_describe: (0, 1, group_admin.describe_consumer_groups(["g"])),
    Api.delete_groups: (0, 2, group_admin.delete_groups(["g"])),
    Api.offset_delete: (0, 0, group_admin.offset_delete("g", [("a", 0), ("a", 1)])),
    Api.list_transactions: (0, 2, transaction_admin.list_transactions(states=["Ongoing"], producer_ids=[7])),
    Api.describe_transactions: (0, 0, transaction_admin.describe_transactions(["tx"])),
    Api.describe_producers: (0, 0, transaction_admin.describe_producers([("a", 0)])),
    Api.write_txn_markers: (
        1,
        2,
        transaction_admin.abort_transaction("a", 0, producer_id=7, producer_epoch=1, coordinator_epoch=2),
    ),
    Api.describe_quorum: (0, 2, cluster.describe_quorum("__cluster_metadata", 0)),
    Api.api_versions: (3, 4, cluster.describe_features()),
    Api.update_features: (1, 2, cluster.update_features({"metadata.version": (20, 1)}, timeout_ms=1000)),
    Api.unregister_broker: (0, 0, cluster.unregister_broker(3)),
}
EVERY_VERSION = [
    (api, version) for api, (lowest, highest, _) in EVERYTHING.items() for version in range(lowest, highest + 1)
]


def built(build: requests.Build, api: Api, version: int) -> Any:
    """The request for a broker that speaks this version only, written and read back."""
    request = build(ApiVersions({api: (version, version)}))
    read, size = entity_reader(type(request))(encode_entity(request), 0)
    assert size == len(encode_entity(request))
    assert (request.__api_key__, request.__version__) == (api, version)
    assert read == request
    return read


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_each_request_is_written_in_each_version(api: Api, version: int) -> None:
    built(EVERYTHING[api][2], api, version)


@pytest.mark.parametrize("api", EVERYTHING)
def test_the_highest_common_version_is_used_and_none_in_common_is_an_error(api: Api) -> None:
    lowest, highest, build = EVERYTHING[api]
    assert build(ApiVersions({api: (0, 99)})).__version__ == highest
    assert build(ApiVersions({api: (0, lowest)})).__version__ == lowest
    with pytest.raises(UnsupportedVersion, match=rf"{api.name}.*{highest + 1} to 99"):
        build(ApiVersions({api: (highest + 1, 99)}))
    with pytest.raises(UnsupportedVersion, match=api.name):
        build(ApiVersions({}))


@pytest.mark.parametrize("version", range(1, 14))
def test_metadata_of_every_topic_and_of_no_topic_are_different_questions(version: int) -> None:
    assert built(requests.metadata(None), Api.metadata, version).topics is None
    assert built(requests.metadata([]), Api.metadata, version).topics == ()


@pytest.mark.parametrize("version", range(4, 14))
def test_metadata_creates_topics_only_when_told_to(version: int) -> None:
    assert not built(requests.metadata(["a"]), Api.metadata, version).allow_auto_topic_creation
    allowed = requests.metadata(["a"], allow_auto_topic_creation=True)
    assert built(allowed, Api.metadata, version).allow_auto_topic_creation


def test_metadata_by_topic_id_needs_a_version_that_has_them() -> None:
    topic_id = UUID(int=7)
    build = requests.metadata([], topic_ids=[topic_id])
    assert built(build, Api.metadata, 12).topics[0].topic_id == topic_id
    with pytest.raises(UnsupportedVersion):
        build(ApiVersions({Api.metadata: (0, 11)}))


def test_topics_with_the_brokers_defaults_need_a_version_that_has_them() -> None:
    build = requests.create_topics([NewTopic("t")], timeout_ms=1)
    assert built(build, Api.create_topics, 4).topics[0].num_partitions == -1
    with pytest.raises(UnsupportedVersion):
        build(ApiVersions({Api.create_topics: (0, 3)}))


def test_assigned_replicas_stand_in_for_counts() -> None:
    build = requests.create_topics([NewTopic("t", 2, 2, assignments=[[1, 2], [2, 3]])], timeout_ms=1)
    topic = built(build, Api.create_topics, 2).topics[0]
    assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
    assert [assigned.broker_ids for assigned in topic.assignments] == [(1, 2), (2, 3)]


def test_reading_committed_offsets_needs_a_version_that_has_isolation() -> None:
    build = requests.list_offsets([OffsetAt("a", 0, LATEST)], read_committed=True)
    assert built(build, Api.list_offsets, 2).isolation_level == 1
    with pytest.raises(UnsupportedVersion):
        build(ApiVersions({Api.list_offsets: (0, 1)}))


@pytest.mark.parametrize(
    ("api", "lowest", "build"),
    [
        (Api.list_groups, 4, group_admin.list_groups(["Empty"])),
        (Api.list_groups, 5, group_admin.list_groups(types=["consumer"])),
        (Api.list_transactions, 1, transaction_admin.list_transactions(longer_than_ms=1000)),
        (Api.list_transactions, 2, transaction_admin.list_transactions(pattern="tx.*")),
        (Api.list_config_resources, 1, configs.list_config_resources()),
        (Api.elect_leaders, 1, reassignments.elect_leaders(None, timeout_ms=1, unclean=True)),
        (
            Api.alter_partition_reassignments,
            1,
            reassignments.alter_partition_reassignments({}, timeout_ms=1, allow_replication_factor_change=False),
        ),
        (Api.describe_acls, 3, acls.describe_acls(acls.AclFields(7, None, 1, None, None, 1, 1))),
    ],
)
def test_what_only_newer_versions_can_say_is_refused_to_older_brokers(
    api: Api, lowest: int, build: requests.Build
) -> None:
    built(build, api, lowest)
    with pytest.raises(UnsupportedVersion):
        build(ApiVersions({api: (0, lowest - 1)}))


def test_topics_are_deleted_by_the_ids_that_are_known() -> None:
    build = requests.delete_topics(["a", "b"], ids={"a": UUID(int=5)}, timeout_ms=1)
    states = built(build, Api.delete_topics, 6).topics
    assert [(state.name, state.topic_id) for state in states] == [(None, UUID(int=5)), ("b", None)]
    assert built(build, Api.delete_topics, 5).topic_names == ("a", "b")


def test_an_unclean_election_is_said_to_be_one() -> None:
    for unclean in (False, True):
        build = reassignments.elect_leaders([("a", 0)], timeout_ms=1, unclean=unclean)
        assert built(build, Api.elect_leaders, 2).election_type == int(unclean)


def test_a_password_is_in_no_representation_of_a_credential() -> None:
    assert "hash" not in repr(users.ScramUpsertion("v", 2, 4096, b"salt", b"hash"))


def test_bumping_an_epoch_needs_a_version_that_can() -> None:
    build = requests.init_producer_id(producer_id=5, producer_epoch=2)
    assert built(build, Api.init_producer_id, 3).producer_epoch == 2
    with pytest.raises(UnsupportedVersion):
        build(ApiVersions({Api.init_producer_id: (0, 2)}))


def test_a_transaction_coordinator_needs_a_version_that_knows_kinds() -> None:
    build = requests.find_coordinators(["tx"], 1)
    assert built(build, Api.find_coordinator, 4).coordinator_keys == ("tx",)
    with pytest.raises(UnsupportedVersion):
        build(ApiVersions({Api.find_coordinator: (0, 0)}))


def test_several_coordinators_at_once_need_a_version_that_takes_them() -> None:
    build = requests.find_coordinators(["a", "b"], 0)
    assert built(build, Api.find_coordinator, 4).coordinator_keys == ("a", "b")
    with pytest.raises(UnsupportedVersion):
        build(ApiVersions({Api.find_coordinator: (0, 3)}))


@pytest.mark.parametrize("api", Api)
def test_flexible_versions_are_those_of_kafkas_message_definitions(api: Api) -> None:
    assert api_key_map[api] == api.name
    for version in schema_name_map[api.name]:
        schema = load_request_schema(int(api), version)
        assert is_flexible(api, version) == schema.__flexible__
        header = "v2" if schema.__flexible__ else "v1"
        assert header in schema.__header_schema__.__module__


def test_an_unknown_api_is_named_by_its_number() -> None:
    assert (api_name(3), api_name(999)) == ("metadata", "api 999")


def test_features_have_level_0_where_the_cluster_has_none() -> None:
    versions = ApiVersions(features={"transaction.version": 2})
    assert (versions.feature("transaction.version"), versions.feature("group.version")) == (2, 0)


def test_importing_the_wire_imports_no_message_of_any_api() -> None:
    import subprocess
    import sys

    program = (
        "import sys, ingestd.client.client, ingestd.client.admin, ingestd.wire.produce, ingestd.wire.fetch;"
        "print([name for name in sys.modules if name.endswith(('.request', '.response'))"
        " or name in ('kio.schema.index', 'aiohttp')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "wrong", [{"partitions": "three"}, {"partitions": 3, "replication_factor": 1 << 20}, {"configs": {"k": 1}}]
)
def test_values_that_the_format_does_not_take_are_refused_by_the_name_of_the_request(wrong: Any) -> None:
    request = requests.create_topics([NewTopic("t", **wrong)], timeout_ms=1000)(
        ApiVersions({Api.create_topics: (7, 7)})
    )
    with pytest.raises(ConfigurationError, match="CreateTopicsRequest"):
        encode_request(request)
