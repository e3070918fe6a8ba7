"""The classic membership against a coordinator in memory: every state, every error, every way to end."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from group_coordinator import Groups
from next_generation_coordinator import FAST, CutAfterwards, Silence

from ingestd.client import broker as broker_module
from ingestd.client.client import Client
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.assignors.consumer_protocol import decode_subscription
from ingestd.consumer.group.classic import ClassicMembership
from ingestd.consumer.group.coordinator import GroupCoordinator
from ingestd.consumer.group.membership import EndReason, PollIntervalExceeded
from ingestd.consumer.group.settings import GroupSettings
from ingestd.errors import Closed, DeadlineExceeded, ErrorCode, IngestdError, KafkaError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

SETTINGS = GroupSettings(
    assignors=("range",), heartbeat_interval=0.02, session_timeout=5.0, rebalance_timeout=5.0, request_timeout=5.0
)
ALL = [TopicPartition("t", number) for number in range(4)]


class Owner:
    """Remembers what it is told; a test can hold each call up, or make it raise."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.failures: dict[str, Exception] = {}
        self.cancelled: list[str] = []
        self._changed = asyncio.Event()

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await self._hear("assigned", partitions)

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._hear("revoked", partitions)

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self._hear("lost", partitions)

    async def _hear(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        self.told.append((what, list(partitions)))
        self._changed.set()
        if what in self.failures:
            raise self.failures[what]
        if what in self.gates:
            try:
                await self.gates[what].wait()
            except asyncio.CancelledError:
                self.cancelled.append(what)
                raise

    async def until(self, *told: tuple[str, list[TopicPartition]]) -> None:
        """Wait until it was told this, in this order, after what was waited for before."""
        async with asyncio.timeout(20):
            for one in told:
                while one not in self.told:
                    self._changed.clear()
                    await self._changed.wait()
                del self.told[: self.told.index(one) + 1]

    @property
    def words(self) -> list[str]:
        return [what for what, _ in self.told]


class Events:
    """Remembers what was tried again, and why the group rebalanced."""

    def __init__(self) -> None:
        self.retries: list[tuple[str, IngestdError]] = []
        self.reasons: list[str] = []
        self.others: list[tuple[Any, ...]] = []

    def retried(self, group_id: str, doing: str, error: IngestdError) -> None:
        self.retries.append((doing, error))

    def rebalancing(self, group_id: str, reason: str) -> None:
        self.reasons.append(reason)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *told: self.others.append((name, *told))


class Started:
    """A membership, its owner and what it reported."""

    def __init__(self, client: Client, topics: Any, settings: GroupSettings) -> None:
        self.client = client
        self.owner = Owner()
        self.events = Events()
        self.membership = ClassicMembership(client, "g", settings, self.owner, events=self.events)
        self.membership.start(topics)

    async def ended(self) -> Any:
        async with asyncio.timeout(20):
            return await self.membership.wait_ended()


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    scripted = Groups()
    monkeypatch.setattr(broker_module.Connection, "open", scripted.open)
    return scripted


@pytest.fixture
async def join(groups: Groups) -> AsyncIterator[Callable[..., Started]]:
    """`join(topics, **settings)`: a membership that was started, with a client of its own."""
    started: list[Started] = []
    clients: list[Client] = []

    def start(topics: Any = ("t",), **changes: Any) -> Started:
        client = Client(["one:1"], replace(FAST, metadata_max_age=changes.pop("metadata_max_age", 300.0)))
        clients.append(client)
        started.append(Started(client, topics, replace(SETTINGS, **changes)))
        return started[-1]

    yield start
    for one in started:
        for gate in one.owner.gates.values():
            gate.set()
        await one.membership.close(5.0)
    for client in clients:
        await client.close()


# Joining


async def test_a_member_joins_with_the_id_it_is_given_and_is_told_its_partitions(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    assert [request.member_id for request in groups.requests("JoinGroup")] == ["", "m1"]
    assert member.membership.member.member_id == "m1"
    assert member.membership.member.generation == 1
    assert member.membership.assignment == set(ALL)
    assert member.membership.end is None


PASSING = [
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    CutAfterwards,
]
FATAL = [
    ErrorCode.group_authorization_failed,
    ErrorCode.fenced_instance_id,
    ErrorCode.inconsistent_group_protocol,
    ErrorCode.unknown_server_error,
]
LOOKED_UP_AGAIN = {ErrorCode.coordinator_not_available, ErrorCode.not_coordinator, CutAfterwards}


@pytest.mark.parametrize("error", [*PASSING, ErrorCode.rebalance_in_progress, ErrorCode.unknown_member_id])
async def test_a_join_that_is_refused_for_now_is_repeated(
    groups: Groups, join: Callable[..., Started], error: Any
) -> None:
    groups.script["JoinGroup"].extend([None, error])
    member = join()
    await member.owner.until(("assigned", ALL))
    assert member.owner.told == []
    assert (groups.counts["FindCoordinator"] > 1) == (error in LOOKED_UP_AGAIN)
    assert (member.membership.member.member_id == "m1") == (error is not ErrorCode.unknown_member_id)


@pytest.mark.parametrize(
    "error", [*FATAL, ErrorCode.invalid_session_timeout, ErrorCode.group_max_size_reached, ErrorCode.invalid_group_id]
)
async def test_a_join_that_is_refused_for_good_ends_the_membership(
    groups: Groups, join: Callable[..., Started], error: ErrorCode
) -> None:
    groups.script["JoinGroup"].append(error)
    member = join()
    end = await member.ended()
    assert end.reason is EndReason.failed
    assert isinstance(end.error, KafkaError)
    assert end.error.code is error
    assert groups.counts["JoinGroup"] == 1
    assert member.owner.told == []


@pytest.mark.parametrize(
    "error",
    [*PASSING, ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation, ErrorCode.unknown_member_id],
)
async def test_a_sync_that_is_refused_for_now_makes_the_member_join_again(
    groups: Groups, join: Callable[..., Started], error: Any
) -> None:
    groups.script["SyncGroup"].append(error)
    member = join()
    await member.owner.until(("assigned", ALL))
    assert member.owner.told == []
    joins = [request.member_id for request in groups.requests("JoinGroup")]
    assert joins[2] == ("" if error is ErrorCode.unknown_member_id else "m1")


@pytest.mark.parametrize("error", FATAL)
async def test_a_sync_that_is_refused_for_good_ends_the_membership(
    groups: Groups, join: Callable[..., Started], error: ErrorCode
) -> None:
    groups.script["SyncGroup"].append(error)
    end = await join().ended()
    assert end.reason is EndReason.failed
    assert isinstance(end.error, KafkaError)
    assert end.error.code is error


async def test_no_broker_at_all_is_waited_out(groups: Groups, join: Callable[..., Started]) -> None:
    groups.down = True
    member = join(request_timeout=0.05)
    async with asyncio.timeout(20):
        while len(member.events.retries) < 3:
            await asyncio.sleep(0.01)
    groups.down = False
    await member.owner.until(("assigned", ALL))


async def test_a_group_that_chose_an_assignor_we_do_not_have_is_an_error(
    groups: Groups, join: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = groups._joined

    def joined(*arguments: Any, **options: Any) -> Any:
        return replace(real(*arguments, **options), protocol_name="theirs")

    monkeypatch.setattr(groups, "_joined", joined)
    end = await join().ended()
    assert isinstance(end.error, KafkaError)
    assert end.error.code is ErrorCode.inconsistent_group_protocol


# Rebalances


async def test_with_the_eager_protocol_everything_is_revoked_before_the_join(
    groups: Groups, join: Callable[..., Started]
) -> None:
    first = join()
    await first.owner.until(("assigned", ALL))
    first.owner.gates["revoked"] = asyncio.Event()
    second = join()
    await first.owner.until(("revoked", ALL))
    joins = groups.counts["JoinGroup"]
    await groups.more("Heartbeat", 3)  # though the owner takes its time
    assert groups.counts["JoinGroup"] == joins
    first.owner.gates["revoked"].set()
    await groups.stable(2)
    await second.owner.until(("assigned", ALL[2:]))
    await first.owner.until(("assigned", ALL[:2]))
    assert groups.generation == 2
    await groups.more("Heartbeat", 4)
    assert groups.generation == 2  # what heartbeats said meanwhile causes no rebalance of its own


async def test_with_the_cooperative_protocol_only_what_goes_is_revoked(
    groups: Groups, join: Callable[..., Started]
) -> None:
    first = join(assignors=("cooperative-sticky",))
    await first.owner.until(("assigned", ALL))
    second = join(assignors=("cooperative-sticky",))
    await second.owner.until(("assigned", []), ("assigned", ALL[2:]))
    assert first.membership.assignment == set(ALL[:2])
    assert first.owner.told[0] == ("revoked", ALL[2:])
    assert {what for what, partitions in first.owner.told[1:] if partitions} == set()
    subscription = decode_subscription(groups.requests("JoinGroup")[-1].protocols[0].metadata)
    assert subscription.generation >= 1


async def test_revoking_ends_at_the_rebalance_timeout(groups: Groups, join: Callable[..., Started]) -> None:
    member = join(rebalance_timeout=0.1)
    await member.owner.until(("assigned", ALL))
    member.owner.gates["revoked"] = asyncio.Event()
    member.membership.rejoin("the test wants it")
    await member.owner.until(("revoked", ALL), ("assigned", ALL))
    assert member.owner.cancelled == ["revoked"]
    assert "the test wants it" in member.events.reasons
    assert groups.requests("JoinGroup")[-1].reason == "the test wants it"


async def test_a_subscription_that_changes_is_told_and_one_that_does_not_is_not(
    groups: Groups, join: Callable[..., Started]
) -> None:
    groups.topics["u"] = 1
    member = join(assignors=("cooperative-sticky",))
    await member.owner.until(("assigned", ALL))
    member.membership.subscribe(["t"])
    await groups.more("Heartbeat", 2)
    assert groups.counts["SyncGroup"] == 1
    member.membership.subscribe(["u"])
    await member.owner.until(("revoked", ALL), ("assigned", [TopicPartition("u", 0)]))


async def test_a_subscription_that_changes_during_a_rebalance_is_not_forgotten(
    groups: Groups, join: Callable[..., Started]
) -> None:
    groups.topics["u"] = 1
    member = join()
    await member.owner.until(("assigned", ALL))
    member.owner.gates["revoked"] = asyncio.Event()
    member.membership.rejoin("the test wants it")
    await member.owner.until(("revoked", ALL))
    member.membership.subscribe(["u"])
    member.owner.gates.pop("revoked").set()
    await member.owner.until(("assigned", [TopicPartition("u", 0)]))


async def test_the_leader_notices_partitions_that_are_added(groups: Groups, join: Callable[..., Started]) -> None:
    member = join(metadata_max_age=0.05)
    await member.owner.until(("assigned", ALL))
    groups.topics["t"] = 5
    await member.owner.until(("revoked", ALL), ("assigned", [*ALL, TopicPartition("t", 4)]))


async def test_partitions_that_are_added_while_the_leader_joins_are_noticed_as_soon_as_it_has(
    groups: Groups, join: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The news came between the leader's look at the topics and the answer to its sync; the next is minutes away."""
    held, go_on = asyncio.Event(), asyncio.Event()
    original = GroupCoordinator.request_held

    async def request_held(coordinator: GroupCoordinator, build: Any, timeout: float) -> Any:
        answer = await original(coordinator, build, timeout)
        if groups.counts["SyncGroup"]:
            held.set()
            await go_on.wait()
        return answer

    monkeypatch.setattr(GroupCoordinator, "request_held", request_held)
    member = join()
    await held.wait()
    groups.topics["t"] = 5
    await member.client.metadata.refresh(["t"], 5.0)
    go_on.set()
    await member.owner.until(("assigned", ALL), ("revoked", ALL), ("assigned", [*ALL, TopicPartition("t", 4)]))


async def test_a_topic_that_is_made_after_its_readers_is_soon_shared(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join(["t", "later"])
    await member.owner.until(("assigned", ALL))
    groups.topics["later"] = 1
    await member.owner.until(("revoked", ALL), ("assigned", [TopicPartition("later", 0), *ALL]))


async def test_a_pattern_is_looked_up_before_the_first_join_and_now_and_then(
    groups: Groups, join: Callable[..., Started]
) -> None:
    groups.topics |= {"x": 1, "__t": 1, "tt": 1}
    member = join(re.compile("t+|__.*"), pattern_interval=0.05)
    await member.owner.until(("assigned", [*ALL, TopicPartition("tt", 0)]))
    subscription = decode_subscription(groups.requests("JoinGroup")[0].protocols[0].metadata)
    assert list(subscription.topics) == ["t", "tt"]  # internal topics are not matched
    groups.topics["ttt"] = 1
    await member.owner.until(("assigned", [*ALL, TopicPartition("tt", 0), TopicPartition("ttt", 0)]))


async def test_a_static_member_that_restarts_causes_no_rebalance(groups: Groups, join: Callable[..., Started]) -> None:
    other = join(group_instance_id="b")
    first = join(group_instance_id="a")
    await groups.stable(2)
    await first.owner.until(("assigned", ALL[:2]))
    generation = groups.generation
    await first.membership.close(5.0, leave=False)
    assert groups.left == []
    again = join(group_instance_id="a")
    await again.owner.until(("assigned", ALL[:2]))
    assert groups.generation == generation
    assert other.membership.assignment == set(ALL[2:])


async def test_a_static_leader_that_restarts_still_watches_the_topics(
    groups: Groups, join: Callable[..., Started]
) -> None:
    first = join(group_instance_id="a")
    await first.owner.until(("assigned", ALL))
    await first.membership.close(5.0, leave=False)
    again = join(group_instance_id="a", metadata_max_age=0.05)
    await again.owner.until(("assigned", ALL))
    assert groups.generation == 1
    groups.topics["t"] = 5
    await again.owner.until(("revoked", ALL), ("assigned", [*ALL, TopicPartition("t", 4)]))


@pytest.mark.parametrize("error", [None, ErrorCode.coordinator_load_in_progress], ids=["looked up", "not known"])
async def test_a_static_member_that_comes_back_asks_for_what_nobody_has(
    groups: Groups, join: Callable[..., Started], error: ErrorCode | None
) -> None:
    first = join(group_instance_id="a")
    await first.owner.until(("assigned", ALL))
    await first.membership.close(5.0, leave=False)
    groups.topics["t"] = 5
    groups.script["DescribeGroups"].append(error)
    again = join(group_instance_id="a")
    await again.owner.until(("revoked", ALL), ("assigned", [*ALL, TopicPartition("t", 4)]))
    assert groups.generation == 2


# Heartbeats


@pytest.mark.parametrize("error", [*PASSING, ErrorCode.request_timed_out])
async def test_a_heartbeat_that_fails_for_now_is_repeated_and_nothing_is_lost(
    groups: Groups, join: Callable[..., Started], error: Any
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["Heartbeat"].extend([error, error])
    await groups.more("Heartbeat", 4)
    assert member.owner.told == []
    assert groups.counts["SyncGroup"] == 1
    assert "heartbeat" in [doing for doing, _ in member.events.retries]


@pytest.mark.parametrize(
    ("error", "joins_as"), [(ErrorCode.illegal_generation, "m1"), (ErrorCode.unknown_member_id, "")]
)
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_a_member_that_the_coordinator_forgot_loses_its_partitions_and_joins_again(
    groups: Groups, join: Callable[..., Started], error: ErrorCode, joins_as: str, assignor: str
) -> None:
    member = join(assignors=(assignor,))
    await member.owner.until(("assigned", ALL))
    joins = groups.counts["JoinGroup"]
    groups.script["Heartbeat"].append(error)
    await member.owner.until(("lost", ALL), ("assigned", ALL))
    again = groups.requests("JoinGroup")[joins]
    assert again.member_id == joins_as
    assert list(decode_subscription(again.protocols[0].metadata).owned) == []


@pytest.mark.parametrize("error", FATAL)
async def test_a_heartbeat_that_is_refused_for_good_ends_the_membership(
    groups: Groups, join: Callable[..., Started], error: ErrorCode
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["Heartbeat"].append(error)
    end = await member.ended()
    assert end.reason is EndReason.failed
    assert isinstance(end.error, KafkaError)
    assert end.error.code is error
    assert member.owner.words == ["lost"]


async def test_a_member_that_is_forgotten_while_it_revokes_loses_what_it_had(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join(assignors=("cooperative-sticky",))
    await member.owner.until(("assigned", ALL))
    groups.topics["u"] = 1
    member.owner.gates["revoked"] = asyncio.Event()
    member.membership.subscribe(["u"])
    await member.owner.until(("revoked", ALL))
    groups.script["Heartbeat"].append(ErrorCode.unknown_member_id)
    async with asyncio.timeout(5):
        while member.membership.member.member_id:
            await asyncio.sleep(0.001)
    member.owner.gates.pop("revoked").set()
    await member.owner.until(("assigned", [TopicPartition("u", 0)]))
    assert member.membership.member.member_id != "m1"


# Commits

ONE = {ALL[0]: OffsetAndMetadata(7, 3, "note")}


async def test_offsets_are_committed_in_the_members_name_with_epoch_and_metadata(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    await member.membership.commit(ONE)
    request = groups.requests("OffsetCommit")[-1]
    assert (request.member_id, request.generation_id_or_member_epoch) == ("m1", 1)
    assert groups.offsets == {("t", 0): (7, 3, "note")}
    found = await member.membership.committed(ALL[:2])
    assert found == {ALL[0]: OffsetAndMetadata(7, 3, "note"), ALL[1]: None}


@pytest.mark.parametrize("error", [*PASSING, ErrorCode.request_timed_out, ErrorCode.unknown_topic_or_partition])
async def test_a_commit_that_is_refused_for_now_is_repeated(
    groups: Groups, join: Callable[..., Started], error: Any
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].append(error)
    await member.membership.commit(ONE)
    assert groups.offsets == {("t", 0): (7, 3, "note")}
    assert groups.counts["OffsetCommit"] == 2
    assert member.owner.told == []


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.group_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.offset_metadata_too_large,
        ErrorCode.invalid_commit_offset_size,
    ],
)
async def test_a_commit_that_is_refused_for_good_is_an_error_and_the_membership_lives(
    groups: Groups, join: Callable[..., Started], error: ErrorCode
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].append(error)
    with pytest.raises(KafkaError) as refused:
        await member.membership.commit(ONE)
    assert refused.value.code is error
    assert groups.counts["OffsetCommit"] == 1
    await groups.more("Heartbeat", 2)
    assert member.owner.told == []


async def test_a_topic_that_stays_unknown_is_an_error_soon(groups: Groups, join: Callable[..., Started]) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].extend([ErrorCode.unknown_topic_or_partition] * 10)
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC"):
        await member.membership.commit(ONE)


@pytest.mark.parametrize("error", [ErrorCode.illegal_generation, ErrorCode.unknown_member_id])
async def test_a_commit_of_a_generation_that_ended_is_an_error_and_the_member_joins_again(
    groups: Groups, join: Callable[..., Started], error: ErrorCode
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].append(error)
    with pytest.raises(KafkaError) as refused:
        await member.membership.commit(ONE)
    assert refused.value.code is error
    assert groups.counts["OffsetCommit"] == 1
    await member.owner.until(("lost", ALL), ("assigned", ALL))


async def test_a_commit_between_a_join_and_its_repeated_sync_goes_in_the_name_of_the_new_generation(
    groups: Groups, join: Callable[..., Started]
) -> None:
    # The coordinator is a generation ahead: a commit in the name of the one before was refused, and with it the
    # member took partitions for lost that were still its own.
    member = join(assignors=("cooperative-sticky",))
    await member.owner.until(("assigned", ALL))
    groups.script["SyncGroup"].append(CutAfterwards)
    failed = asyncio.Event()
    member.events.retried = lambda *_: failed.set()  # type: ignore[method-assign]
    member.membership.rejoin("the test wants it")
    await asyncio.wait_for(failed.wait(), 20)
    assert groups.generation == 2
    await member.membership.commit(ONE)
    await groups.until(lambda: member.membership.member.generation == 3)
    assert groups.offsets == {("t", 0): (7, 3, "note")}
    assert "lost" not in member.owner.words
    assert member.membership.assignment == set(ALL)
    claims = [decode_subscription(each.protocols[0].metadata) for each in groups.requests("JoinGroup")]
    assert [claim.generation for claim in claims[-2:]] == [1, 1]  # what we have is of that one


async def test_a_commit_of_a_fenced_member_ends_the_membership(groups: Groups, join: Callable[..., Started]) -> None:
    member = join(group_instance_id="a")
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].append(ErrorCode.fenced_instance_id)
    with pytest.raises(KafkaError, match="FENCED"):
        await member.membership.commit(ONE)
    assert (await member.ended()).reason is EndReason.failed
    assert groups.left == []


async def test_a_commit_that_meets_a_rebalance_waits_for_it_where_the_partition_stays_ours(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join(assignors=("cooperative-sticky",))
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].extend([ErrorCode.rebalance_in_progress] * 2)
    await member.membership.commit(ONE)
    assert groups.offsets == {("t", 0): (7, 3, "note")}
    assert groups.requests("OffsetCommit")[-1].generation_id_or_member_epoch == groups.generation > 1


async def test_a_commit_that_meets_a_rebalance_is_an_error_where_the_partition_goes(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join(assignors=("cooperative-sticky",))
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].extend([ErrorCode.rebalance_in_progress] * 1000)
    other = join(assignors=("cooperative-sticky",))
    with pytest.raises(KafkaError, match="REBALANCE_IN_PROGRESS"):
        await member.membership.commit({ALL[3]: OffsetAndMetadata(7)})
    assert ALL[3] not in member.membership.assignment
    await other.owner.until(("assigned", ALL[2:]))


async def test_a_commit_that_waited_until_its_partition_was_given_up_is_not_sent(
    groups: Groups, join: Callable[..., Started]
) -> None:
    """The commit of a partition hangs while it goes to another member, who commits more of it."""
    member = join(assignors=("cooperative-sticky",), request_timeout=1.0)
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].append(Silence)
    errors: list[IngestdError | None] = []
    hangs = asyncio.create_task(member.membership.commit({ALL[3]: OffsetAndMetadata(7)}))
    await groups.more("OffsetCommit")
    member.membership.commit_later({ALL[2]: OffsetAndMetadata(7)}, lambda _, error: errors.append(error))
    waits = asyncio.create_task(member.membership.commit({ALL[3]: OffsetAndMetadata(8)}))
    stays = asyncio.create_task(member.membership.commit({ALL[0]: OffsetAndMetadata(9)}))
    other = join(assignors=("cooperative-sticky",))
    await other.owner.until(("assigned", ALL[2:]))
    await other.membership.commit({ALL[3]: OffsetAndMetadata(20)})
    for refused in (hangs, waits):
        with pytest.raises(KafkaError, match="t-3 was given up"):
            await refused
    await stays
    member.membership.run_callbacks()
    assert ["t-2 was given up" in str(error) for error in errors] == [True]
    assert {key: offset for key, (offset, _, _) in groups.offsets.items()} == {("t", 3): 20, ("t", 0): 9}


async def test_a_commit_without_an_answer_ends_at_its_deadline(groups: Groups, join: Callable[..., Started]) -> None:
    member = join(request_timeout=0.05)
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].extend([Silence] * 50)
    with pytest.raises(DeadlineExceeded):
        await member.membership.commit(ONE, 0.3)


async def test_commits_are_sent_in_order_and_those_that_wait_go_together(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].append(ErrorCode.coordinator_load_in_progress)
    done: list[int] = []

    def told(number: int) -> Callable[[Mapping[Any, Any], IngestdError | None], None]:
        return lambda offsets, error: done.append(number if error is None else -1)

    for number in range(1, 6):
        member.membership.commit_later({ALL[0]: OffsetAndMetadata(number)}, told(number))
    await member.membership.commit({ALL[1]: OffsetAndMetadata(9)})
    assert groups.offsets == {("t", 0): (5, -1, ""), ("t", 1): (9, -1, "")}
    assert groups.counts["OffsetCommit"] == 3  # refused, the five, the last
    assert done == []
    member.membership.run_callbacks()
    assert done == [1, 2, 3, 4, 5]


async def test_callbacks_run_where_they_are_asked_for_and_a_failed_commit_without_one_is_logged(
    groups: Groups, join: Callable[..., Started], caplog: pytest.LogCaptureFixture
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].extend([ErrorCode.offset_metadata_too_large] * 2)
    member.membership.commit_later(ONE)
    heard: list[tuple[int, str]] = []
    await groups.more("OffsetCommit")
    member.membership.commit_later(ONE, lambda _, error: heard.append((threading.get_ident(), str(error))))
    await groups.until(lambda: groups.counts["OffsetCommit"] == 2)
    async with asyncio.timeout(5):
        while len(heard) == 0:
            await asyncio.sleep(0.001)
            elsewhere = threading.Thread(target=member.membership.run_callbacks)
            elsewhere.start()
            elsewhere.join()
    assert "not committed" in caplog.text
    assert heard[0][0] != threading.get_ident()
    assert "OFFSET_METADATA_TOO_LARGE" in heard[0][1]


async def test_commits_that_were_not_sent_are_told_so_at_the_end(groups: Groups, join: Callable[..., Started]) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].append(Silence)
    errors: list[IngestdError | None] = []
    member.membership.commit_later(ONE, lambda _, error: errors.append(error))
    await groups.more("OffsetCommit")
    member.membership.commit_later(ONE, lambda _, error: errors.append(error))
    await member.membership.close(1.0)
    member.membership.run_callbacks()
    assert [type(error) for error in errors] == [Closed, Closed]
    with pytest.raises(Closed):
        await member.membership.commit(ONE)


@pytest.mark.parametrize("how", ["cancelled", "out of time"])
async def test_a_commit_that_ends_early_takes_none_of_those_with_it_that_were_made_later(
    groups: Groups, join: Callable[..., Started], how: str
) -> None:
    """A commit sends what waits before it as well; its own, short deadline is not that of the others."""
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetCommit"].append(Silence)
    errors: list[IngestdError | None] = []
    committing = asyncio.create_task(member.membership.commit({ALL[1]: OffsetAndMetadata(9)}, 0.1))
    member.membership.commit_later(ONE, lambda _, error: errors.append(error))
    if how == "cancelled":
        await groups.more("OffsetCommit")
        committing.cancel()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else DeadlineExceeded):
        await committing
    assert groups.counts["OffsetCommit"] == 1
    await groups.until(lambda: ("t", 0) in groups.offsets)
    async with asyncio.timeout(5):
        while not errors:
            member.membership.run_callbacks()
            await asyncio.sleep(0.001)
    assert errors == [None]


# Committed offsets


@pytest.mark.parametrize("error", [*PASSING, ErrorCode.unstable_offset_commit])
async def test_committed_offsets_are_asked_for_until_they_are_there(
    groups: Groups, join: Callable[..., Started], error: Any
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetFetch"].append(error)
    assert await member.membership.committed(ALL) == dict.fromkeys(ALL)


@pytest.mark.parametrize("error", [ErrorCode.group_authorization_failed, ErrorCode.topic_authorization_failed])
async def test_committed_offsets_that_we_may_not_see_are_an_error(
    groups: Groups, join: Callable[..., Started], error: ErrorCode
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["OffsetFetch"].append(error)
    with pytest.raises(KafkaError) as refused:
        await member.membership.committed(ALL)
    assert refused.value.code is error


async def test_whoever_watches_is_told_of_everything(groups: Groups, join: Callable[..., Started]) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    await member.membership.commit(ONE)
    await groups.more("Heartbeat", 2)
    groups.script["Heartbeat"].append(ErrorCode.unknown_member_id)
    await member.owner.until(("lost", ALL), ("assigned", ALL))
    await member.membership.close(5.0)
    told = member.events.others
    assert {event[1] for event in told} == {"g"}
    assert [event[2] for event in told if event[0] == "joined"] == [1, 2]
    assert [list(event[2]) for event in told if event[0] == "assigned"] == [ALL, ALL]
    assert [sorted(event[2]) for event in told if event[0] in ("lost", "revoked")] == [ALL, ALL]
    assert [event[0] for event in told if event[0] in ("lost", "revoked")] == ["lost", "revoked"]
    assert [event[2] for event in told if event[0] == "committed"] == [1]
    assert all(event[2] >= 0 for event in told if event[0] == "heartbeat")
    assert "heartbeat" in {event[0] for event in told}
    assert member.events.reasons[0] == "the member is new"


# The end


async def test_closing_revokes_leaves_and_says_why(groups: Groups, join: Callable[..., Started]) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    await member.membership.close(5.0)
    await member.membership.close(5.0)
    assert member.owner.told == [("revoked", ALL)]
    assert groups.left == [("m1", None)]
    assert member.membership.end is not None
    assert member.membership.end.reason is EndReason.closed
    assert member.membership.assignment == frozenset()


async def test_leaving_is_tried_again_where_the_coordinator_moves_and_no_longer_than_closing_may_take(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    groups.script["LeaveGroup"] += [ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress]
    await member.membership.close(5.0)
    assert groups.left == [("m1", None)]
    assert groups.counts["LeaveGroup"] == 3
    other = join()
    await other.owner.until(("assigned", ALL))
    groups.script["LeaveGroup"] += [ErrorCode.not_coordinator] * 1_000
    async with asyncio.timeout(5.0):
        await other.membership.close(0.5)
    assert other.membership.end is not None


async def test_closing_while_a_join_waits_for_others_leaves_at_once(
    groups: Groups, join: Callable[..., Started]
) -> None:
    groups.window = 60.0
    first = join()
    await first.owner.until(("assigned", ALL))
    first.owner.gates["revoked"] = asyncio.Event()
    second = join()
    await groups.until(lambda: len(groups.members) == 2)
    await second.membership.close(5.0)
    assert groups.left == [("m2", None)]


@pytest.mark.parametrize("how", ["silent", "down"])
async def test_closing_ends_in_time_when_no_broker_answers(
    groups: Groups, join: Callable[..., Started], how: str
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    for kind in ("Heartbeat", "LeaveGroup", "FindCoordinator"):
        groups.script[kind].extend([Silence] * 1000 if how == "silent" else [])
    if how == "down":
        groups.down = True
        groups.cut()
    started = asyncio.get_running_loop().time()
    await member.membership.close(0.5)
    assert asyncio.get_running_loop().time() - started < 2.0
    assert member.owner.told == [("revoked", ALL)]


async def test_closing_waits_for_the_owner_but_not_beyond_its_time(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join()
    await member.owner.until(("assigned", ALL))
    member.owner.gates["revoked"] = asyncio.Event()
    await member.membership.close(0.4)
    assert member.owner.cancelled == ["revoked"]
    assert groups.left == [("m1", None)]


async def test_a_member_that_makes_no_progress_leaves_with_a_clear_error(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join(max_poll_interval=0.3)
    await member.owner.until(("assigned", ALL))
    for _ in range(10):
        await asyncio.sleep(0.05)
        member.membership.progressed()
    assert member.membership.end is None
    end = await member.ended()
    assert end.reason is EndReason.poll_interval
    assert isinstance(end.error, PollIntervalExceeded)
    assert "0.3 s" in str(end.error)
    assert member.owner.told == [("lost", ALL)]
    assert groups.left == [("m1", None)]


async def test_a_process_that_stood_still_is_given_time_to_say_that_it_goes_on(
    groups: Groups, join: Callable[..., Started]
) -> None:
    """A suspended machine, a debugger: nobody was stuck, but the timer is due before anybody can say so."""
    member = join(max_poll_interval=10.0)
    await member.owner.until(("assigned", ALL))
    stopped = asyncio.get_running_loop()
    for _ in range(3):
        stopped.now += 60.0  # type: ignore[attr-defined]  # simulated
        await asyncio.sleep(1.0)
        member.membership.progressed()
    await asyncio.sleep(9.0)
    assert member.membership.end is None
    stopped.now += 60.0  # type: ignore[attr-defined]
    assert (await member.ended()).reason is EndReason.poll_interval


async def test_an_owner_that_does_not_return_keeps_the_member_no_longer_than_the_rebalance_timeout(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join(max_poll_interval=0.1, rebalance_timeout=0.2)
    member.owner.gates["lost"] = asyncio.Event()
    assert (await member.ended()).reason is EndReason.poll_interval
    assert groups.left == [("m1", None)]


async def test_closing_while_the_owner_loses_its_partitions_ends_in_time_and_leaves(
    groups: Groups, join: Callable[..., Started]
) -> None:
    member = join(max_poll_interval=0.1, rebalance_timeout=60.0)
    member.owner.gates["lost"] = asyncio.Event()
    await member.owner.until(("lost", ALL))
    await member.membership.close(0.4)
    assert groups.left == [("m1", None)]


@pytest.mark.parametrize("what", ["assigned", "revoked"])
async def test_an_owner_that_raises_ends_the_membership_and_the_member_leaves(
    groups: Groups, join: Callable[..., Started], what: str
) -> None:
    member = join()
    if what == "revoked":
        await member.owner.until(("assigned", ALL))
    member.owner.failures[what] = ValueError("broken")
    member.membership.rejoin("the test wants it")
    end = await member.ended()
    assert end.reason is EndReason.failed
    assert "broken" in str(end.error)
    assert member.owner.words[-1] == "lost"
    assert groups.left == [("m1", None)]


async def test_a_membership_is_started_once(groups: Groups, join: Callable[..., Started]) -> None:
    member = join()
    with pytest.raises(Closed):
        member.membership.start(["t"])
