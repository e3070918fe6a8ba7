"""Requests in every version a broker may speak, flexible headers and version choice; kio's schemas are the oracle."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader

from ingestd.errors import UnsupportedVersion
from ingestd.wire import requests
from ingestd.wire.apis import Api, api_name, is_flexible
from ingestd.wire.codec import encode_entity
from ingestd.wire.requests import EARLIEST, LATEST, NewPartitions, NewTopic, OffsetAt
from ingestd.wire.versions import ApiVersions

EVERYTHING = {
    Api.metadata: (1, 13, requests.metadata(["a", "b"])),
    Api.create_topics: (2, 7, requests.create_topics([NewTopic("t", 3, 2, {"k": "v"})], timeout_ms=1000)),
    Api.delete_topics: (1, 6, requests.delete_topics(["a", "b"], timeout_ms=1000)),
    Api.create_partitions: (0, 3, requests.create_partitions([NewPartitions("a", 5, [[1], [2]])], timeout_ms=1000)),
    Api.list_offsets: (1, 10, requests.list_offsets([OffsetAt("a", 0, LATEST, 4), OffsetAt("a", 1, EARLIEST)])),
    Api.init_producer_id: (0, 5, requests.init_producer_id("tx", transaction_timeout_ms=5000)),
    Api.find_coordinator: (0, 5, requests.find_coordinators(["group"], 0)),
    Api.describe_configs: (1, 4, requests.describe_configs([(2, "a", ["k"]), (4, "1", None)])),
    Api.describe_cluster: (0, 2, requests.describe_cluster()),
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
        " or name in ('kio.schema.index', 'pydantic', 'aiohttp')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
