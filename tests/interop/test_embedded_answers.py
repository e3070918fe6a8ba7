"""Requests about groups that Kafka refuses, or answers in a way of its own: the embedded broker answers the same."""

from __future__ import annotations

import dataclasses
import re
import time
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient, NewTopic
from embedded.raw import RawClient

from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedded.process import BrokerProcess
    from harness.cluster import KafkaCluster

SECONDS = 20
TEN = timedelta(seconds=10)
TOPIC = "answers"


def of(api: Api, version: int, kind: str, /, **fields: Any) -> Any:
    """A part of a request, with those of `fields` that this version has."""
    entity = getattr(import_module(f"kio.schema.{api.name}.v{version}.request"), kind)
    known = {field.name for field in dataclasses.fields(entity)}
    return entity(**{name: value for name, value in fields.items() if name in known})


def join(version: int, **fields: Any) -> Any:
    protocol = of(Api.join_group, version, "JoinGroupRequestProtocol", name="range", metadata=b"m")
    usual = {"group_id": "a1", "session_timeout": TEN, "rebalance_timeout": TEN, "member_id": ""}
    usual |= {"protocol_type": "consumer", "protocols": (protocol,)}
    return of(Api.join_group, version, "JoinGroupRequest", **(usual | fields))


def sync(version: int, **fields: Any) -> Any:
    usual = {"group_id": "a1", "generation_id": 1, "member_id": "x", "assignments": ()}
    return of(Api.sync_group, version, "SyncGroupRequest", **(usual | fields))


def beat(version: int, **fields: Any) -> Any:
    usual = {"group_id": "a1", "generation_id": 1, "member_id": "x"}
    return of(Api.heartbeat, version, "HeartbeatRequest", **(usual | fields))


def leave(version: int, group_id: str, *members: tuple[str, str | None]) -> Any:
    going = ()
    if version >= 3:
        going = tuple(
            of(Api.leave_group, version, "MemberIdentity", member_id=member_id, group_instance_id=instance_id)
            for member_id, instance_id in members
        )
    return of(Api.leave_group, version, "LeaveGroupRequest", group_id=group_id, member_id="x", members=going)


def commit(version: int, *, topic: str = TOPIC, partition: int = 0, metadata: str = "", **fields: Any) -> Any:
    one = of(
        Api.offset_commit, version, "OffsetCommitRequestPartition",
        partition_index=partition, committed_offset=5, committed_metadata=metadata,
    )  # fmt: skip
    usual = {"group_id": "a1", "member_id": "", "retention_time": timedelta(milliseconds=-1)}
    usual["topics"] = (of(Api.offset_commit, version, "OffsetCommitRequestTopic", name=topic, partitions=(one,)),)
    return of(Api.offset_commit, version, "OffsetCommitRequest", **(usual | fields))


def fetch(version: int, group_id: str, *, everything: bool) -> Any:
    kind = "OffsetFetchRequestTopics" if version >= 8 else "OffsetFetchRequestTopic"
    topics = None
    if not everything:
        topics = tuple(
            of(Api.offset_fetch, version, kind, name=topic, partition_indexes=(0, 1, 77)) for topic in (TOPIC, "none")
        )
    if version < 8:
        return of(Api.offset_fetch, version, "OffsetFetchRequest", group_id=group_id, topics=topics)
    groups = (of(Api.offset_fetch, version, "OffsetFetchRequestGroup", group_id=group_id, topics=topics),)
    return of(Api.offset_fetch, version, "OffsetFetchRequest", groups=groups)


def delete_offsets(group_id: str, topic: str) -> Any:
    partitions = tuple(
        of(Api.offset_delete, 0, "OffsetDeleteRequestPartition", partition_index=number) for number in (0, 77)
    )
    topics = (of(Api.offset_delete, 0, "OffsetDeleteRequestTopic", name=topic, partitions=partitions),)
    return of(Api.offset_delete, 0, "OffsetDeleteRequest", group_id=group_id, topics=topics)


def without_a_group() -> Iterator[Any]:
    for version in (0, 3, 5, 7, 9):
        yield join(version, group_id="")
        yield join(version, session_timeout=timedelta(milliseconds=5))
        yield join(version, member_id="x")
        yield join(version, protocols=())
        yield join(version, protocol_type="")
    for version in (0, 3, 5):
        yield from (sync(version, group_id=""), sync(version), sync(version, protocol_type="c", protocol_name="r"))
        yield from (leave(version, "", ("x", None)), leave(version, "nowhere", ("x", None)))
    for version in (0, 4):
        yield from (beat(version, group_id=""), beat(version))
    yield join(4, group_id="told")


def with_a_member(member_id: str, generation: int) -> Iterator[Any]:
    """`member_id` is instance "i" of group "a1"."""
    own = {"member_id": member_id, "generation_id_or_member_epoch": generation}
    yield from (commit(version, **own) for version in (2, 7, 9))
    assignment = of(Api.sync_group, 5, "SyncGroupRequestAssignment", member_id=member_id, assignment=b"all")
    synced = {"member_id": member_id, "generation_id": generation, "protocol_type": "consumer"}
    yield sync(5, protocol_name="other", **synced)
    yield sync(5, protocol_name="range", assignments=(assignment,), **synced)
    for version in (2, 7, 9):
        yield from (commit(version, **own), commit(version), commit(version, member_id=member_id))
        yield commit(version, **(own | {"generation_id_or_member_epoch": generation + 1}))
        yield commit(version, **(own | {"member_id": "x"}))
        yield from (commit(version, topic="none", **own), commit(version, partition=77, **own))
        yield commit(version, metadata="x" * 5000, **own)
        yield commit(version, group_id="a8", member_id="m", generation_id_or_member_epoch=3)
        yield from (commit(version, group_id="a7", member_id="m"), commit(version, group_id=""))
    yield commit(7, group_instance_id="i", **(own | {"member_id": "x"}))
    yield commit(7, group_instance_id="j", **own)
    yield beat(4, group_instance_id="i")
    yield beat(4, member_id=member_id, generation_id=generation + 1)
    yield beat(4, member_id=member_id, generation_id=generation, group_instance_id="i")
    yield join(5, protocols=(of(Api.join_group, 5, "JoinGroupRequestProtocol", name="other", metadata=b""),))
    yield from (join(5, protocol_type="connect"), join(5, member_id="x", group_instance_id="i"))
    yield join(9, group_instance_id="i")


def about_groups() -> Iterator[Any]:
    for version in (1, 2, 7, 8, 9):
        for group_id in ("a1", "nowhere", ""):
            yield fetch(version, group_id, everything=False)
            if version > 1:
                yield fetch(version, group_id, everything=True)
    named = {"groups": ("a1", "nowhere", "a7", ""), "include_authorized_operations": False}
    yield from (of(Api.describe_groups, version, "DescribeGroupsRequest", **named) for version in (0, 4, 5, 6))
    for group_id in ("a1", "nowhere", "a7", ""):
        yield from (delete_offsets(group_id, TOPIC), delete_offsets(group_id, "none"))
    yield of(Api.delete_groups, 2, "DeleteGroupsRequest", groups_names=("a1", "nowhere", "a7", "a7", ""))
    yield leave(5, "a1", ("x", "i"), ("", "j"), ("", "i"))
    yield of(Api.describe_groups, 5, "DescribeGroupsRequest", groups=("a1",), include_authorized_operations=False)


def answers(servers: str) -> list[tuple[Any, Any]]:
    """Each request with its answer, without ids and in one order."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(SECONDS)
    with RawClient(int(servers.rpartition(":")[2])) as client:
        for group_id in ("a1", "a7", "a8", "told", "nowhere", ""):
            until_there(client, group_id)
        said = [(request, client.ask(request)) for request in without_a_group()]
        joined = client.ask(join(5, group_instance_id="i"))
        said += [(request, client.ask(request)) for request in with_a_member(joined.member_id, joined.generation_id)]
        said += [(request, client.ask(request)) for request in about_groups()]
    return [(alike(request), alike(answer)) for request, answer in said]


def until_there(client: RawClient, group_id: str) -> None:
    """Kafka makes the topic of the groups in the background."""
    for _ in range(1000):
        client.ask(of(Api.find_coordinator, 2, "FindCoordinatorRequest", key=group_id, key_type=0))
        probe = client.ask(fetch(7, group_id, everything=True))
        if probe.error_code is ErrorCode.none:
            return
        time.sleep(0.02)
    raise AssertionError("the coordinator did not come")


def alike(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(sorted((alike(one) for one in value), key=repr))
    if dataclasses.is_dataclass(value):
        fields = {field.name: alike(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return (type(value).__name__, tuple(fields.items()))
    return re.sub(r"\w*-[0-9a-f]{8}-[0-9a-f-]{27}", "ID", value) if isinstance(value, str) else value


def test_the_embedded_broker_answers_about_groups_as_kafka_does(kafka: KafkaCluster, embedded: BrokerProcess) -> None:
    theirs, ours = answers(kafka.servers), answers(embedded.servers)
    assert len(theirs) > 120
    assert [pair for pair in zip(theirs, ours, strict=True) if pair[0] != pair[1]] == []
