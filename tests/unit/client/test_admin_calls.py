"""Administrative calls where something moves, is lost or is refused: what becomes of each item, and who is asked."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from ingestd.client.admin import (
    AclFilter,
    ClusterAdmin,
    ConfigChange,
    ConfigResource,
    MemberToRemove,
    NewPartitions,
    NewScramCredential,
    NewTopic,
    ResourceType,
    ScramMechanism,
    calls,
)
from ingestd.client.client import Client
from ingestd.errors import (
    Closed,
    ConfigurationError,
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    IngestdError,
    KafkaError,
    ProtocolError,
    UnsupportedVersion,
)
from ingestd.wire.apis import Api

NO_TIME = dt.timedelta(0)
NONE = ErrorCode.none


def code(error: IngestdError | None) -> ErrorCode | None:
    assert error is None or isinstance(error, KafkaError)
    return None if error is None else error.code


class Script:
    """Answers one API: `answers` by attempt, the last one for all further ones; ConnectionLost is a lost connection."""

    def __init__(self, cluster: Any, name: str, make: Any, *answers: Any) -> None:
        self.asked: list[tuple[int, Any]] = []
        self._make = make
        self._answers = list(answers)
        cluster.scripts[f"{name}Request"] = self

    def __call__(self, module: Any, node: int, request: Any) -> Any:
        answer = self._answers[min(len(self.asked), len(self._answers) - 1)]
        self.asked.append((node, request))
        if answer is ConnectionLost:
            raise ConnectionLost(f"node {node}: the broker closed the connection")
        return self._make(module, request, answer)


def created(module: Any, request: Any, errors: dict[str, ErrorCode]) -> Any:
    return module.CreateTopicsResponse(
        throttle_time=NO_TIME,
        topics=tuple(
            module.CreatableTopicResult(
                name=topic.name,
                topic_id=None,
                error_code=errors.get(topic.name, NONE),
                error_message=None,
                configs=None,
            )
            for topic in request.topics
        ),
    )


def deleted(module: Any, request: Any, errors: dict[str, ErrorCode]) -> Any:
    return module.DeleteTopicsResponse(
        throttle_time=NO_TIME,
        responses=tuple(
            module.DeletableTopicResult(
                name=topic.name, topic_id=None, error_code=errors.get(topic.name, NONE), error_message=None
            )
            for topic in request.topics
        ),
    )


def grown(module: Any, request: Any, error: ErrorCode) -> Any:
    results = tuple(
        module.CreatePartitionsTopicResult(name=topic.name, error_code=error, error_message=None)
        for topic in request.topics
    )
    return module.CreatePartitionsResponse(throttle_time=NO_TIME, results=results)


# A change whose outcome nobody knows


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (NewTopic("t", 3, 3), None),
        (NewTopic("t"), None),
        (NewTopic("t", assignments=[[1, 2, 3]] * 3), None),
        (NewTopic("t", 4, 3), ErrorCode.topic_already_exists),
        (NewTopic("t", 3, 2), ErrorCode.topic_already_exists),
        (NewTopic("t", assignments=[[3, 2, 1]] * 3), ErrorCode.topic_already_exists),
    ],
)
async def test_a_topic_that_is_there_after_a_lost_answer_is_ours_if_it_is_as_asked(
    cluster: Any, settings: Any, wanted: NewTopic, expected: ErrorCode | None
) -> None:
    Script(cluster, "CreateTopics", created, ConnectionLost, {"t": ErrorCode.topic_already_exists})
    async with Client(["one:1"], settings()) as client:
        (outcome,) = await ClusterAdmin(client).create_topics([wanted], timeout=5)
    assert code(outcome.error) is expected
    assert outcome.partitions == (3 if expected is None else -1)


async def test_what_is_only_validated_is_never_ours(cluster: Any, settings: Any) -> None:
    """The first attempt is lost, and made nothing in any case: a topic of that shape was there before."""
    Script(cluster, "CreateTopics", created, ConnectionLost, {"t": ErrorCode.topic_already_exists})
    Script(cluster, "CreatePartitions", grown, ConnectionLost, ErrorCode.invalid_partitions)
    async with Client(["one:1"], settings()) as client:
        admin = ClusterAdmin(client)
        (topic,) = await admin.create_topics([NewTopic("t", 3, 3)], validate_only=True, timeout=5)
        (partitions,) = await admin.create_partitions([NewPartitions("t", 3)], validate_only=True, timeout=5)
    assert code(topic.error) is ErrorCode.topic_already_exists
    assert code(partitions.error) is ErrorCode.invalid_partitions


async def test_a_topic_that_not_every_broker_knows_after_a_lost_answer_is_not_taken_as_ours(
    cluster: Any, settings: Any
) -> None:
    """Who is asked what the topic is like has not heard of it: there is nothing to compare, and nothing to count."""
    Script(cluster, "CreateTopics", created, ConnectionLost, {"late": ErrorCode.topic_already_exists})
    async with Client(["one:1"], settings()) as client:
        (outcome,) = await ClusterAdmin(client).create_topics([NewTopic("late")], timeout=5)
    assert code(outcome.error) is ErrorCode.topic_already_exists


async def test_a_broker_that_hears_of_a_change_after_its_lost_answer_is_asked_again(
    cluster: Any, settings: Any
) -> None:
    """The controller has made the topic, and its answer is lost; then the broker says twice that there is none."""
    Script(cluster, "CreateTopics", created, ConnectionLost, {"t": ErrorCode.topic_already_exists})
    Script(cluster, "CreatePartitions", grown, ConnectionLost, ErrorCode.invalid_partitions)
    async with Client(["one:1"], settings()) as client:
        admin = ClusterAdmin(client)
        cluster.errors["t"] = [ErrorCode.unknown_topic_or_partition] * 2
        (topic,) = await admin.create_topics([NewTopic("t", 3, 3)], timeout=5)
        assert (topic.error, topic.partitions) == (None, 3)
        cluster.errors["t"] = [ErrorCode.unknown_topic_or_partition] * 2
        (partitions,) = await admin.create_partitions([NewPartitions("t", 3)], timeout=5)
        assert partitions.error is None
    assert cluster.errors["t"] == []


async def test_a_broker_that_waited_in_vain_for_the_controller_is_asked_again(cluster: Any, settings: Any) -> None:
    late = {"t": ErrorCode.request_timed_out}
    Script(cluster, "CreateTopics", created, late, {"t": ErrorCode.topic_already_exists})
    async with Client(["one:1"], settings()) as client:
        (outcome,) = await ClusterAdmin(client).create_topics([NewTopic("t", 3, 3)], timeout=5)
    assert outcome.error is None


async def test_a_call_that_is_answered_waits_for_no_backoff(cluster: Any, settings: Any) -> None:
    Script(cluster, "CreateTopics", created, {})
    async with Client(["one:1"], settings(retry_initial=60.0, retry_maximum=60.0)) as client:
        creating = ClusterAdmin(client).create_topics([NewTopic("n", 1, 1)], timeout=600)
        (outcome,) = await asyncio.wait_for(creating, 30)
    assert outcome.error is None


async def test_a_broker_is_told_to_answer_before_its_connection_is_given_up(cluster: Any, settings: Any) -> None:
    """An attempt ends after half of the time that is left, or the request timeout, and its connection with it."""
    script = Script(cluster, "CreateTopics", created, {})
    for request_timeout, attempt in ((60.0, 20.0), (10.0, 10.0)):
        async with Client(["one:1"], settings(request_timeout=request_timeout)) as client:
            await ClusterAdmin(client).create_topics([NewTopic("t", 3, 3)], timeout=40)
        told = script.asked[-1][1].timeout.total_seconds()
        assert attempt / 2 < told < attempt


async def test_a_topic_that_was_there_before_is_not_ours(cluster: Any, settings: Any) -> None:
    Script(cluster, "CreateTopics", created, {"t": ErrorCode.topic_already_exists})
    async with Client(["one:1"], settings()) as client:
        (outcome,) = await ClusterAdmin(client).create_topics([NewTopic("t", 3, 3)], timeout=5)
    assert code(outcome.error) is ErrorCode.topic_already_exists


async def test_a_topic_that_is_gone_after_a_lost_answer_counts_as_deleted(cluster: Any, settings: Any) -> None:
    gone = {"t": ErrorCode.unknown_topic_or_partition}
    Script(cluster, "DeleteTopics", deleted, ConnectionLost, gone)
    async with Client(["one:1"], settings()) as client:
        (outcome,) = await ClusterAdmin(client).delete_topics(["t"], timeout=5)
    assert outcome.error is None


async def test_a_topic_is_deleted_by_its_id_so_that_a_late_attempt_harms_no_other_of_its_name(
    cluster: Any, settings: Any
) -> None:
    cluster.ranges[Api.metadata] = (0, 12)
    cluster.topic_ids["t"] = UUID(int=1)
    asked: list[tuple[str | None, UUID | None]] = []

    def answer(module: Any, node: int, request: Any) -> Any:
        (topic,) = request.topics
        asked.append((topic.name, topic.topic_id))
        stale = topic.topic_id == UUID(int=1)  # the name is another topic's by now
        result = module.DeletableTopicResult(
            name=None if stale else topic.name,
            topic_id=topic.topic_id,
            error_code=ErrorCode.unknown_topic_id if stale else NONE,
            error_message=None,
        )
        return module.DeleteTopicsResponse(throttle_time=NO_TIME, responses=(result,))

    cluster.scripts["DeleteTopicsRequest"] = answer
    async with Client(["one:1"], settings()) as client:
        (outcome,) = await ClusterAdmin(client).delete_topics(["t"], timeout=5)
    assert (outcome.topic, outcome.error) == ("t", None)
    assert asked == [(None, UUID(int=1)), ("t", None)]


async def test_a_topic_that_never_was_there_is_an_error_though_a_connection_was_refused_before(
    cluster: Any, settings: Any
) -> None:
    Script(cluster, "DeleteTopics", deleted, {"nix": ErrorCode.unknown_topic_or_partition})
    async with Client(["two:2"], settings()) as client:
        await client.metadata.refresh((), 5)
        cluster.down = {"one:1"}
        deleting = asyncio.create_task(ClusterAdmin(client).delete_topics(["nix"], timeout=5))
        while "one:1" not in cluster.connects:
            await asyncio.sleep(0)
        cluster.controller = 2
        (outcome,) = await deleting
    assert code(outcome.error) is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize(("total", "expected"), [(3, None), (2, ErrorCode.invalid_partitions)])
async def test_partitions_that_are_there_after_a_lost_answer_count_as_added(
    cluster: Any, settings: Any, total: int, expected: ErrorCode | None
) -> None:
    Script(cluster, "CreatePartitions", grown, ConnectionLost, ErrorCode.invalid_partitions)
    async with Client(["one:1"], settings()) as client:
        (outcome,) = await ClusterAdmin(client).create_partitions([NewPartitions("t", total)], timeout=5)
    assert code(outcome.error) is expected


@pytest.mark.parametrize("call", ["create_topics", "create_partitions"])
async def test_where_nobody_says_what_became_of_a_topic_the_others_outcomes_are_told_all_the_same(
    cluster: Any, settings: Any, call: str
) -> None:
    def then_all_fall_silent(module: Any, request: Any, error: ErrorCode) -> Any:
        Script(cluster, "Metadata", None, ConnectionLost)
        if call == "create_topics":
            return created(module, request, {"t": error})
        whole = grown(module, request, error)
        first, second = whole.results
        return replace(whole, results=(first, replace(second, error_code=NONE)))

    async with Client(["one:1"], settings()) as client:
        admin = ClusterAdmin(client)
        if call == "create_topics":
            Script(cluster, "CreateTopics", then_all_fall_silent, ConnectionLost, ErrorCode.topic_already_exists)
            outcomes: Any = await admin.create_topics([NewTopic("t"), NewTopic("other")], timeout=1)
        else:
            Script(cluster, "CreatePartitions", then_all_fall_silent, ConnectionLost, ErrorCode.invalid_partitions)
            outcomes = await admin.create_partitions([NewPartitions("t", 3), NewPartitions("other", 3)], timeout=1)
    unsure, other = outcomes
    assert isinstance(unsure.error, (ConnectionLost, DeadlineExceeded))
    assert other.error is None


async def test_a_broker_that_is_gone_after_a_lost_answer_counts_as_unregistered(cluster: Any, settings: Any) -> None:
    def unregistered(module: Any, _: Any, error: ErrorCode) -> Any:
        return module.UnregisterBrokerResponse(throttle_time=NO_TIME, error_code=error, error_message=None)

    Script(cluster, "UnregisterBroker", unregistered, ConnectionLost, ErrorCode.broker_id_not_registered)
    async with Client(["one:1"], settings()) as client:
        admin = ClusterAdmin(client)
        await admin.unregister_broker(9, timeout=5)
        with pytest.raises(KafkaError, match="BROKER_ID_NOT_REGISTERED"):
            await admin.unregister_broker(9, timeout=5)


async def test_a_change_that_is_never_answered_says_that_its_outcome_is_not_known(cluster: Any, settings: Any) -> None:
    Script(cluster, "DeleteTopics", deleted, ConnectionLost)
    async with Client(["one:1"], settings()) as client:
        with pytest.raises(ConnectionLost, match="closed the connection"):
            await ClusterAdmin(client).delete_topics(["t"], timeout=0.1)


# Items of one call


async def test_only_the_items_that_were_not_looked_at_are_asked_for_again(cluster: Any, settings: Any) -> None:
    moved = {"b": ErrorCode.not_controller, "c": ErrorCode.policy_violation, "d": ErrorCode.throttling_quota_exceeded}
    script = Script(cluster, "CreateTopics", created, moved, {})
    async with Client(["one:1"], settings()) as client:
        outcomes = await ClusterAdmin(client).create_topics([NewTopic(name, 1, 1) for name in "abcd"], timeout=5)
    assert [(outcome.topic, code(outcome.error)) for outcome in outcomes] == [
        ("a", None),
        ("b", None),
        ("c", ErrorCode.policy_violation),
        ("d", None),
    ]
    assert [[topic.name for topic in request.topics] for _, request in script.asked] == [list("abcd"), list("bd")]


async def test_nothing_to_do_asks_nobody(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        admin = ClusterAdmin(client)
        assert await admin.create_topics([]) == []
        assert await admin.delete_groups([]) == []
        assert await admin.describe_groups([]) == []
        assert await admin.delete_records({}) == []
    assert cluster.connects == []


async def test_an_answer_that_makes_no_sense_is_a_protocol_error(cluster: Any, settings: Any) -> None:
    cluster.ranges[Api.describe_quorum] = (0, 1)
    cluster.scripts["DescribeQuorumRequest"] = lambda module, _, request: module.DescribeQuorumResponse(
        error_code=NONE, topics=()
    )
    async with Client(["one:1"], settings()) as client:
        with pytest.raises(ProtocolError, match="DescribeQuorumResponse"):
            await ClusterAdmin(client).describe_quorum(timeout=5)


async def test_a_closed_client_is_said_to_be_closed(cluster: Any, settings: Any) -> None:
    client = Client(["one:1"], settings())
    await client.close()
    with pytest.raises(Closed):
        await ClusterAdmin(client).delete_topics(["t"])


async def test_a_controller_that_is_silent_and_gone_is_given_up_before_its_time(
    cluster: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_PATIENCE", 0.02)
    Script(cluster, "CreateTopics", created, {})
    async with Client(["two:2"], settings(metadata_hedge=0.01)) as client:
        await client.metadata.refresh((), 5)
        cluster.hanging = {"one:1"}
        # Nobody else is asked before: what any broker can answer may be asked of the silent one, again and again.
        creating = asyncio.create_task(ClusterAdmin(client).create_topics([NewTopic("n", 1, 1)], timeout=60))
        while not cluster.asked_of("CreateTopics"):
            await asyncio.sleep(0.001)
        del cluster.nodes[1]
        cluster.controller = 2
        (outcome,) = await asyncio.wait_for(creating, 5)
    assert outcome.error is None


async def test_a_node_that_was_silent_is_not_asked_in_the_controllers_stead_again(
    cluster: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_PATIENCE", 600)  # else the metadata is asked for meanwhile, which uses its answers up
    script = Script(cluster, "CreateTopics", created, {})
    async with Client(["two:2"], settings()) as client:
        cluster.controllers = [1, 1, 1, 3]
        cluster.hanging = {"one:1"}
        (outcome,) = await ClusterAdmin(client).create_topics([NewTopic("n", 1, 1)], timeout=60)
    assert outcome.error is None
    assert len(cluster.asked_of("CreateTopics")) == 2
    assert [node for node, _ in script.asked] == [3]


# Groups and their coordinators


def listed(module: Any, request: Any, groups: Any) -> Any:
    names = groups if isinstance(groups, tuple) else ()
    return module.ListGroupsResponse(
        throttle_time=NO_TIME,
        error_code=groups if isinstance(groups, ErrorCode) else NONE,
        groups=tuple(
            module.ListedGroup(group_id=name, protocol_type="consumer", group_state="Stable", group_type="Classic")
            for name in names
        ),
    )


async def test_every_node_lists_its_groups_and_one_that_does_not_is_named(cluster: Any, settings: Any) -> None:
    cluster.scripts["ListGroupsRequest"] = lambda module, node, request: listed(module, request, (f"of-{node}",))
    async with Client(["one:1"], settings()) as client:
        cluster.down = {"two:2"}
        listing = await ClusterAdmin(client).list_groups(timeout=0.1)
    assert [(group.group_id, group.state, group.type) for group in listing.items] == [
        ("of-1", "Stable", "classic"),
        ("of-3", "Stable", "classic"),
    ]
    assert list(listing.errors) == [2]
    assert isinstance(listing.errors[2], ConnectionLost)


async def test_a_coordinator_that_still_loads_is_asked_again_and_the_others_are_not(
    cluster: Any, settings: Any
) -> None:
    asked: list[int] = []

    def answer(module: Any, node: int, request: Any) -> Any:
        asked.append(node)
        loading = node == 3 and asked.count(3) < 3
        return listed(module, request, ErrorCode.coordinator_load_in_progress if loading else (f"of-{node}",))

    cluster.scripts["ListGroupsRequest"] = answer
    async with Client(["one:1"], settings()) as client:
        listing = await ClusterAdmin(client).list_groups(timeout=5)
    assert [group.group_id for group in listing.items] == ["of-1", "of-2", "of-3"]
    assert sorted(asked) == [1, 2, 3, 3, 3]


async def test_filters_that_no_broker_knows_are_refused(cluster: Any, settings: Any) -> None:
    cluster.ranges[Api.list_groups] = (0, 3)
    async with Client(["one:1"], settings()) as client:
        with pytest.raises(UnsupportedVersion, match="list_groups"):
            await ClusterAdmin(client).list_groups(states=["Empty"], timeout=5)


def groups_deleted(module: Any, request: Any, error: ErrorCode) -> Any:
    return module.DeleteGroupsResponse(
        throttle_time=NO_TIME,
        results=tuple(
            module.DeletableGroupResult(group_id=group, error_code=error if group == "b" else NONE)
            for group in request.groups_names
        ),
    )


async def test_a_group_whose_coordinator_moved_is_asked_for_at_the_new_one(cluster: Any, settings: Any) -> None:
    cluster.coordinator_of = {"a": 1, "b": 1, "c": 2}
    asked: list[tuple[int, tuple[str, ...]]] = []

    def answer(module: Any, node: int, request: Any) -> Any:
        asked.append((node, request.groups_names))
        cluster.coordinator_of["b"] = 3
        return groups_deleted(module, request, ErrorCode.not_coordinator if node == 1 else NONE)

    cluster.scripts["DeleteGroupsRequest"] = answer
    async with Client(["one:1"], settings()) as client:
        outcomes = await ClusterAdmin(client).delete_groups(["a", "b", "c"], timeout=5)
    assert [(outcome.group_id, outcome.error) for outcome in outcomes] == [("a", None), ("b", None), ("c", None)]
    assert sorted(asked) == [(1, ("a", "b")), (2, ("c",)), (3, ("b",))]
    keys = [request.coordinator_keys for request in cluster.asked_of("FindCoordinator")]
    assert keys == [("a", "b", "c"), ("b",)]


async def test_a_group_without_a_coordinator_holds_up_no_other(cluster: Any, settings: Any) -> None:
    cluster.coordinator_of = {"a": 1, "homeless": ErrorCode.coordinator_not_available}
    script = Script(cluster, "DeleteGroups", groups_deleted, NONE)
    async with Client(["one:1"], settings()) as client:
        deleting = asyncio.create_task(ClusterAdmin(client).delete_groups(["homeless", "a"], timeout=0.2))
        while not script.asked:
            await asyncio.sleep(0.001)
        assert not deleting.done()
        homeless, fine = await deleting
    assert (code(homeless.error), fine.error) == (ErrorCode.coordinator_not_available, None)


async def test_a_group_that_is_gone_after_a_lost_answer_counts_as_deleted(cluster: Any, settings: Any) -> None:
    cluster.coordinator_of = {"b": 1}
    Script(cluster, "DeleteGroups", groups_deleted, ConnectionLost, ErrorCode.group_id_not_found)
    async with Client(["one:1"], settings()) as client:
        (outcome,) = await ClusterAdmin(client).delete_groups(["b"], timeout=5)
    assert outcome.error is None


def consumer_described(module: Any, request: Any, _: Any) -> Any:
    return module.ConsumerGroupDescribeResponse(
        throttle_time=NO_TIME,
        groups=tuple(
            module.DescribedGroup(
                error_code=NONE if group == "new" else ErrorCode.group_id_not_found,
                error_message=None,
                group_id=group,
                group_state="Stable",
                group_epoch=4,
                assignment_epoch=4,
                assignor_name="uniform",
                members=(),
            )
            for group in request.group_ids
        ),
    )


def classic_described(module: Any, request: Any, metadata: bytes = b"") -> Any:
    return module.DescribeGroupsResponse(
        throttle_time=NO_TIME,
        groups=tuple(
            module.DescribedGroup(
                error_code=NONE if group == "old" else ErrorCode.group_id_not_found,
                error_message=None,
                group_id=group,
                group_state="Stable" if group == "old" else "Dead",
                protocol_type="consumer",
                protocol_data="range",
                members=(
                    module.DescribedGroupMember(
                        member_id="m",
                        client_id="c",
                        client_host="/h",
                        member_metadata=metadata,
                        member_assignment=metadata,
                    ),
                )
                if group == "old"
                else (),
            )
            for group in request.groups
        ),
    )


async def test_groups_of_both_protocols_are_described_by_one_call(cluster: Any, settings: Any) -> None:
    cluster.ranges |= {Api.describe_groups: (0, 6), Api.consumer_group_describe: (0, 1)}
    cluster.coordinator_of = {"old": 2, "new": 3, "nix": 1}
    Script(cluster, "ConsumerGroupDescribe", consumer_described, None)
    script = Script(cluster, "DescribeGroups", classic_described, b"")
    async with Client(["one:1"], settings()) as client:
        old, new, nix = await ClusterAdmin(client).describe_groups(["old", "new", "nix"], timeout=5)
    assert (old.type, old.state, old.assignor, old.coordinator) == ("classic", "Stable", "range", 2)
    assert (new.type, new.assignor, new.epoch, new.coordinator) == ("consumer", "uniform", 4, 3)
    assert code(nix.error) is ErrorCode.group_id_not_found
    assert sorted(group for _, request in script.asked for group in request.groups) == ["nix", "old"]


async def test_brokers_without_the_new_protocol_describe_classic_groups(cluster: Any, settings: Any) -> None:
    del cluster.ranges[Api.consumer_group_describe]
    cluster.ranges[Api.describe_groups] = (0, 5)
    cluster.coordinator_of = {"old": 2, "nix": 1}
    garbage = b"\x00\x03\x7f\xff\xff\xff"  # what a member sends is for its group's leader, and nobody checks it
    Script(cluster, "DescribeGroups", without_message(classic_described), garbage)
    async with Client(["one:1"], settings()) as client:
        old, nix = await ClusterAdmin(client).describe_groups(["old", "nix"], timeout=5)
    assert [(member.member_id, member.assignment) for member in old.members] == [("m", ())]
    assert code(nix.error) is ErrorCode.group_id_not_found


def without_message(make: Any) -> Any:
    """Version 5 has no error message."""

    class Older:
        def __init__(self, module: Any) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            made = getattr(self._module, name)
            if name != "DescribedGroup":
                return made
            return lambda error_message, **fields: made(**fields)

    return lambda module, request, answer: make(Older(module), request, answer)


def offsets_fetched(module: Any, request: Any, error: ErrorCode) -> Any:
    return module.OffsetFetchResponse(
        throttle_time=NO_TIME,
        groups=tuple(
            module.OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=(
                    module.OffsetFetchResponseTopics(
                        name="t",
                        partitions=(
                            module.OffsetFetchResponsePartitions(
                                partition_index=0, committed_offset=7, metadata="m", error_code=NONE
                            ),
                            module.OffsetFetchResponsePartitions(
                                partition_index=1, committed_offset=-1, metadata="", error_code=NONE
                            ),
                            module.OffsetFetchResponsePartitions(
                                partition_index=2, committed_offset=-1, metadata="", error_code=error
                            ),
                        ),
                    ),
                ),
            )
            for group in request.groups
        ),
    )


async def test_offsets_that_an_open_transaction_may_change_are_waited_for(cluster: Any, settings: Any) -> None:
    cluster.coordinator_of = {"g": 1}
    script = Script(
        cluster, "OffsetFetch", offsets_fetched, ErrorCode.unstable_offset_commit, ErrorCode.topic_authorization_failed
    )
    async with Client(["one:1"], settings()) as client:
        (found,) = await ClusterAdmin(client).list_group_offsets({"g": None}, require_stable=True, timeout=5)
    assert {partition.partition: offset.offset for partition, offset in found.offsets.items()} == {0: 7}
    assert [code(error) for error in found.errors.values()] == [ErrorCode.topic_authorization_failed]
    assert all(request.require_stable for _, request in script.asked)
    assert len(script.asked) == 2


async def test_members_are_removed_each_with_its_outcome(cluster: Any, settings: Any) -> None:
    cluster.ranges[Api.leave_group] = (0, 5)
    cluster.coordinator_of = {"g": 2}

    def left(module: Any, request: Any, _: Any) -> Any:
        return module.LeaveGroupResponse(
            throttle_time=NO_TIME,
            error_code=NONE,
            members=tuple(
                module.MemberResponse(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=ErrorCode.unknown_member_id if member.member_id == "gone" else NONE,
                )
                for member in request.members
            ),
        )

    Script(cluster, "LeaveGroup", left, None)
    async with Client(["one:1"], settings()) as client:
        outcomes = await ClusterAdmin(client).remove_group_members(
            "g", [MemberToRemove("here"), MemberToRemove("gone"), MemberToRemove(group_instance_id="static")], timeout=5
        )
    assert [code(outcome.error) for outcome in outcomes] == [None, ErrorCode.unknown_member_id, None]


# Leaders, nodes, anybody


async def test_records_are_deleted_by_each_partitions_leader_and_a_moved_one_is_followed(
    cluster: Any, settings: Any
) -> None:
    asked: list[tuple[int, int]] = []

    def answer(module: Any, node: int, request: Any) -> Any:
        numbers = [one.partition_index for topic in request.topics for one in topic.partitions]
        asked.extend((node, number) for number in numbers)
        cluster.topics["t"][0] = (3, 6)
        partitions = tuple(
            module.DeleteRecordsPartitionResult(
                partition_index=number,
                low_watermark=-1 if node == 1 else 10 * node + number,
                error_code=ErrorCode.not_leader_or_follower if node == 1 else NONE,
            )
            for number in numbers
        )
        topics = (module.DeleteRecordsTopicResult(name="t", partitions=partitions),)
        return module.DeleteRecordsResponse(throttle_time=NO_TIME, topics=topics)

    cluster.scripts["DeleteRecordsRequest"] = answer
    async with Client(["one:1"], settings()) as client:
        deleted = await ClusterAdmin(client).delete_records({("t", 0): -1, ("t", 1): 5, ("nix", 0): 1}, timeout=5)
    assert [(one.topic, one.partition, one.first_offset) for one in deleted] == [
        ("t", 0, 30),
        ("t", 1, 21),
        ("nix", 0, -1),
    ]
    assert code(deleted[2].error) is ErrorCode.unknown_topic_or_partition
    assert sorted(asked) == [(1, 0), (2, 1), (3, 0)]


async def test_a_brokers_configuration_is_changed_at_itself_and_one_that_is_not_there_is_its_own_error(
    cluster: Any, settings: Any
) -> None:
    asked: list[int] = []

    def answer(module: Any, node: int, request: Any) -> Any:
        asked.append(node)
        return module.IncrementalAlterConfigsResponse(
            throttle_time=NO_TIME,
            responses=tuple(
                module.AlterConfigsResourceResponse(
                    error_code=NONE,
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in request.resources
            ),
        )

    cluster.ranges[Api.incremental_alter_configs] = (0, 1)
    cluster.scripts["IncrementalAlterConfigsRequest"] = answer
    changes = [ConfigChange("k", "v")]
    async with Client(["one:1"], settings()) as client:
        outcomes = await ClusterAdmin(client).incremental_alter_configs(
            {
                ConfigResource(ResourceType.broker, "77"): changes,
                ConfigResource(ResourceType.broker, "3"): changes,
                ConfigResource(ResourceType.broker_logger, "2"): changes,
            },
            timeout=5,
        )
    assert [(outcome.resource.name, code(outcome.error)) for outcome in outcomes] == [
        ("77", ErrorCode.broker_not_available),
        ("3", None),
        ("2", None),
    ]
    assert sorted(asked) == [2, 3]


async def test_with_no_broker_that_has_an_api_the_call_as_a_whole_is_refused(cluster: Any, settings: Any) -> None:
    del cluster.ranges[Api.describe_acls]
    async with Client(["one:1"], settings()) as client:
        with pytest.raises(UnsupportedVersion, match="describe_acls"):
            await ClusterAdmin(client).describe_acls(AclFilter(), timeout=5)


async def test_with_nobody_there_the_call_ends_at_its_deadline(cluster: Any, settings: Any) -> None:
    cluster.down = {"one:1"}
    async with Client(["one:1"], settings()) as client:
        for call in (
            ClusterAdmin(client).list_groups(timeout=0.05),
            ClusterAdmin(client).list_topics(timeout=0.05),
            ClusterAdmin(client).delete_groups(["g"], timeout=0.05),
            ClusterAdmin(client).delete_records({("t", 0): 1}, timeout=0.05),
        ):
            with pytest.raises((ConnectionLost, DeadlineExceeded), match="refused"):
                await call


async def test_a_password_is_sent_salted_and_never_as_it_is(cluster: Any, settings: Any) -> None:
    def altered(module: Any, request: Any, _: Any) -> Any:
        users = [one.name for one in (*request.upsertions, *request.deletions)]
        assert len(set(users)) == len(users)  # Kafka refuses a request that names a user twice
        results = tuple(
            module.AlterUserScramCredentialsResult(user=user, error_code=NONE, error_message=None) for user in users
        )
        return module.AlterUserScramCredentialsResponse(throttle_time=NO_TIME, results=results)

    for api in (Api.alter_user_scram_credentials, Api.describe_user_scram_credentials):
        cluster.ranges[api] = (0, 0)
    script = Script(cluster, "AlterUserScramCredentials", altered, None)
    credentials = [NewScramCredential("u", "open sesame", mechanism) for mechanism in ScramMechanism]
    async with Client(["one:1"], settings()) as client:
        outcomes = await ClusterAdmin(client).upsert_scram_users(credentials, timeout=5)
    assert [(one.user, one.mechanism, one.error) for one in outcomes] == [
        ("u", mechanism, None) for mechanism in ScramMechanism
    ]
    assert not any("open sesame" in repr(request) or b"open sesame" in bytes(one.salted_password)
                   for _, request in script.asked for one in request.upsertions)  # fmt: skip
    assert "open sesame" not in repr(credentials)


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.create_topics(["t"]),
        lambda admin: admin.create_topics(NewTopic("t")),
        lambda admin: admin.create_partitions(["t"]),
        lambda admin: admin.describe_configs(["t"]),
        lambda admin: admin.list_offsets([("t", 0)]),
        lambda admin: admin.create_acls(["t"]),
        lambda admin: admin.delete_acls(["t"]),
        lambda admin: admin.upsert_scram_users(["me"]),
        lambda admin: admin.remove_group_members("g", ["m"]),
    ],
)
async def test_what_no_request_takes_is_refused_at_once_and_the_client_goes_on(
    cluster: Any, settings: Any, call: Any
) -> None:
    Script(cluster, "CreateTopics", created, {})
    async with Client(["one:1"], settings()) as client:
        admin = ClusterAdmin(client)
        with pytest.raises(ConfigurationError, match="expected"):
            await call(admin)
        (outcome,) = await admin.create_topics([NewTopic("good")], timeout=5)
        assert outcome.error is None
