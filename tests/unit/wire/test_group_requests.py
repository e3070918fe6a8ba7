"""Requests of group members and about committed offsets, in every version that a broker may speak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kio.serial import entity_reader

from ingestd.errors import ErrorCode, UnsupportedVersion
from ingestd.wire.apis import Api
from ingestd.wire.codec import encode_entity
from ingestd.wire.requests import groups
from ingestd.wire.requests.groups import CommittedOffset, JoinedMember
from ingestd.wire.versions import ApiVersions

if TYPE_CHECKING:
    from ingestd.wire.requests import Build

MEMBER = {"member_id": "m", "group_instance_id": None}
STATIC = {"member_id": "m", "group_instance_id": "i"}
OFFSETS = [CommittedOffset("t", 0, 7, 3, "note"), CommittedOffset("u", 1, 8), CommittedOffset("t", 1, 9)]


def join(member: dict[str, Any]) -> Build:
    timeouts = {"session_timeout_ms": 6_000, "rebalance_timeout_ms": 9_000}
    return groups.join_group("g", [("range", b"r"), ("sticky", b"s")], **member, **timeouts, reason="why")


def sync(member: dict[str, Any]) -> Build:
    return groups.sync_group("g", generation=3, **member, protocol="range", assignments={"m": b"a"})


def commit(member: dict[str, Any]) -> Build:
    return groups.offset_commit("g", OFFSETS, generation=3, **member)


EVERYTHING = {
    "join": (Api.join_group, 1, 9, join(MEMBER)),
    "join, static": (Api.join_group, 5, 9, join(STATIC)),
    "sync": (Api.sync_group, 0, 5, sync(MEMBER)),
    "sync, static": (Api.sync_group, 3, 5, sync(STATIC)),
    "heartbeat": (Api.heartbeat, 0, 4, groups.heartbeat("g", generation=3, **MEMBER)),
    "heartbeat, static": (Api.heartbeat, 3, 4, groups.heartbeat("g", generation=3, **STATIC)),
    "leave": (Api.leave_group, 0, 5, groups.leave_group("g", [("m", None)], reason="why")),
    "leave, static": (Api.leave_group, 3, 5, groups.leave_group("g", [("", "i")], reason="why")),
    "commit": (Api.offset_commit, 2, 9, commit(MEMBER)),
    "commit, static": (Api.offset_commit, 7, 9, commit(STATIC)),
    "fetch": (Api.offset_fetch, 1, 9, groups.offset_fetch("g", [("t", 0), ("u", 1), ("t", 1)], require_stable=True)),
    "fetch all": (Api.offset_fetch, 2, 9, groups.offset_fetch("g", None)),
}


def built(build: Build, api: Api, version: int) -> Any:
    """The request for a broker that speaks this version only, written and read back."""
    request = build(ApiVersions({api: (version, version)}))
    read, size = entity_reader(type(request))(encode_entity(request), 0)
    assert size == len(encode_entity(request))
    assert read == request
    return read


@pytest.mark.parametrize("what", EVERYTHING)
def test_each_request_is_written_in_every_version_that_can_say_it_and_no_other(what: str) -> None:
    api, lowest, highest, build = EVERYTHING[what]
    for version in range(lowest, highest + 1):
        request = built(build, api, version)
        if api is not Api.offset_fetch or version < 8:
            assert request.group_id == "g"
        if "static" in what and api is not Api.leave_group:
            assert request.group_instance_id == "i"
    assert build(ApiVersions({api: (0, 99)})).__version__ == highest
    if lowest > 0:
        with pytest.raises(UnsupportedVersion, match=api.name):
            build(ApiVersions({api: (0, lowest - 1)}))


@pytest.mark.parametrize("version", range(2, 10))
def test_offsets_are_committed_with_what_the_version_knows(version: int) -> None:
    request = built(commit(MEMBER), Api.offset_commit, version)
    found = [
        (topic.name, one.partition_index, one.committed_offset, one.committed_metadata)
        for topic in request.topics
        for one in topic.partitions
    ]
    assert found == [("t", 0, 7, "note"), ("t", 1, 9, ""), ("u", 1, 8, "")]
    if version >= 6:
        assert request.topics[0].partitions[0].committed_leader_epoch == 3
    if version <= 4:
        assert request.retention_time.total_seconds() == -0.001


@pytest.mark.parametrize("version", range(1, 10))
def test_committed_offsets_are_asked_for_by_topic_and_read_the_same(version: int) -> None:
    from importlib import import_module

    request = built(EVERYTHING["fetch"][3], Api.offset_fetch, version)
    topics = request.groups[0].topics if version >= 8 else request.topics
    assert [(topic.name, topic.partition_indexes) for topic in topics] == [("t", (0, 1)), ("u", (1,))]
    module = import_module(f"kio.schema.offset_fetch.v{version}.response")
    plural = "s" if version >= 8 else ""
    epoch = {"committed_leader_epoch": 3} if version >= 5 else {}
    partition = getattr(module, f"OffsetFetchResponsePartition{plural}")(
        partition_index=0, committed_offset=7, metadata=None, error_code=ErrorCode.unstable_offset_commit, **epoch
    )
    answered = (getattr(module, f"OffsetFetchResponseTopic{plural}")(name="t", partitions=(partition,)),)
    fields: dict[str, Any] = {"topics": answered}
    if version >= 2:
        fields["error_code"] = ErrorCode.not_coordinator
    if version >= 8:
        fields = {"groups": (module.OffsetFetchResponseGroup(group_id="g", **fields),)}
    if version >= 3:
        from datetime import timedelta

        fields["throttle_time"] = timedelta(0)
    error, offsets = groups.read_offset_fetch(module.OffsetFetchResponse(**fields))
    assert error is (ErrorCode.not_coordinator if version >= 2 else ErrorCode.none)
    assert offsets == [CommittedOffset("t", 0, 7, 3 if version >= 5 else -1, "", ErrorCode.unstable_offset_commit)]


@pytest.mark.parametrize("version", range(1, 10))
def test_an_answer_to_a_join_is_read_the_same_in_every_version(version: int) -> None:
    from datetime import timedelta
    from importlib import import_module

    module = import_module(f"kio.schema.join_group.v{version}.response")
    instance = {"group_instance_id": "i"} if version >= 5 else {}
    fields: dict[str, Any] = {"throttle_time": timedelta(0)} if version >= 2 else {}
    if version >= 9:
        fields["skip_assignment"] = True
    joined = groups.read_joined(
        module.JoinGroupResponse(
            error_code=ErrorCode.none,
            generation_id=3,
            protocol_name="range",
            leader="m",
            member_id="m",
            members=(module.JoinGroupResponseMember(member_id="m", metadata=b"x", **instance),),
            **fields,
        )
    )
    assert (joined.generation, joined.protocol, joined.leader, joined.member_id) == (3, "range", "m", "m")
    assert joined.skip_assignment == (version >= 9)
    assert joined.members == (JoinedMember("m", "i" if version >= 5 else None, b"x"),)


def test_what_went_wrong_with_leaving_is_of_the_request_or_of_a_member() -> None:
    from datetime import timedelta

    from kio.schema.leave_group.v0.response import LeaveGroupResponse as Old
    from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse

    assert groups.read_leave_errors(Old(error_code=ErrorCode.unknown_member_id)) == [ErrorCode.unknown_member_id]
    member = MemberResponse(member_id="m", group_instance_id=None, error_code=ErrorCode.fenced_instance_id)
    answer = LeaveGroupResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, members=(member,))
    assert groups.read_leave_errors(answer) == [ErrorCode.fenced_instance_id]
