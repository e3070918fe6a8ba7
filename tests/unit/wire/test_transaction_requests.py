"""Requests of transactions, in every version; kio's schemas are the oracle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kio.serial import entity_reader

from ingestd.errors import ErrorCode, UnsupportedVersion
from ingestd.wire.apis import Api
from ingestd.wire.codec import encode_entity
from ingestd.wire.requests.groups import CommittedOffset
from ingestd.wire.requests.transactions import (
    add_offsets_to_transaction,
    add_partitions_to_transaction,
    end_transaction,
    init_producer_id,
    read_added_partitions,
    read_transaction_offsets,
    transaction_offset_commit,
)
from ingestd.wire.versions import ApiVersions

if TYPE_CHECKING:
    from ingestd.wire.requests import Build

OFFSETS = [CommittedOffset("a", 0, 17, 3, "note"), CommittedOffset("b", 2, 0), CommittedOffset("a", 1, 5)]
EVERYTHING = [
    (Api.init_producer_id, 0, 5, init_producer_id("t", transaction_timeout_ms=5000)),
    (Api.add_partitions_to_txn, 0, 3, add_partitions_to_transaction("t", 7, 2, [("a", 0), ("b", 4), ("a", 1)])),
    (Api.add_offsets_to_txn, 0, 4, add_offsets_to_transaction("t", 7, 2, "group")),
    (Api.end_txn, 0, 4, end_transaction("t", 7, 2, commit=True, implicit=False)),
    (Api.end_txn, 5, 5, end_transaction("t", 7, 2, commit=False, implicit=True)),
    (Api.txn_offset_commit, 0, 4, transaction_offset_commit("t", 7, 2, "group", OFFSETS, implicit=False)),
    (Api.txn_offset_commit, 5, 5, transaction_offset_commit("t", 7, 2, "group", OFFSETS, implicit=True)),
    (
        Api.txn_offset_commit,
        3,
        4,
        transaction_offset_commit("t", 7, 2, "group", OFFSETS, generation=3, member_id="m", implicit=False),
    ),
]


def built(build: Build, api: Api, version: int) -> Any:
    """The request for a broker that speaks this version only, written and read back."""
    request = build(ApiVersions({api: (version, version)}))
    read, size = entity_reader(type(request))(encode_entity(request), 0)
    assert size == len(encode_entity(request))
    assert (request.__api_key__, request.__version__) == (api, version)
    assert read == request
    return read


@pytest.mark.parametrize(("api", "lowest", "highest", "build"), EVERYTHING)
def test_each_request_is_written_in_each_version_and_in_no_other(
    api: Api, lowest: int, highest: int, build: Build
) -> None:
    for version in range(lowest, highest + 1):
        built(build, api, version)
    assert build(ApiVersions({api: (0, 99)})).__version__ == highest
    with pytest.raises(UnsupportedVersion, match=api.name):
        build(ApiVersions({api: (highest + 1, 99)}))
    if lowest:
        with pytest.raises(UnsupportedVersion, match=api.name):
            build(ApiVersions({api: (0, lowest - 1)}))


def test_partitions_and_offsets_are_grouped_by_topic() -> None:
    added = built(EVERYTHING[1][3], Api.add_partitions_to_txn, 3)
    assert [(topic.name, topic.partitions) for topic in added.v3_and_below_topics] == [("a", (0, 1)), ("b", (4,))]
    committed = built(EVERYTHING[6][3], Api.txn_offset_commit, 5)
    assert [
        (topic.name, each.partition_index, each.committed_offset, each.committed_leader_epoch, each.committed_metadata)
        for topic in committed.topics
        for each in topic.partitions
    ] == [("a", 0, 17, 3, "note"), ("a", 1, 5, -1, ""), ("b", 2, 0, -1, "")]


def test_a_members_offsets_carry_its_generation_so_that_a_coordinator_can_refuse_it() -> None:
    build = transaction_offset_commit(
        "t", 7, 2, "group", OFFSETS, generation=3, member_id="m", group_instance_id="i", implicit=False
    )
    request = built(build, Api.txn_offset_commit, 3)
    assert (request.generation_id, request.member_id, request.group_instance_id) == (3, "m", "i")


def test_answers_are_read_as_one_error_for_each_partition() -> None:
    added = SimpleNamespace(
        results_by_topic_v3_and_below=[
            SimpleNamespace(
                name="a",
                results_by_partition=[
                    SimpleNamespace(partition_index=0, partition_error_code=ErrorCode.none),
                    SimpleNamespace(partition_index=1, partition_error_code=ErrorCode.operation_not_attempted),
                ],
            )
        ]
    )
    assert list(read_added_partitions(added)) == [
        ("a", 0, ErrorCode.none),
        ("a", 1, ErrorCode.operation_not_attempted),
    ]
    committed = SimpleNamespace(
        topics=[
            SimpleNamespace(
                name="a", partitions=[SimpleNamespace(partition_index=1, error_code=ErrorCode.illegal_generation)]
            )
        ]
    )
    assert list(read_transaction_offsets(committed)) == [("a", 1, ErrorCode.illegal_generation)]
