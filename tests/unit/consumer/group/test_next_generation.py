"""A KIP-848 member against a scripted coordinator: every answer there is, and every way to end."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from next_generation_coordinator import FAST, Coordinator, CutAfterwards, Late, Silence

from ingestd.client import broker as broker_module
from ingestd.client.client import Client
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.membership import EndReason, PollIntervalExceeded
from ingestd.consumer.group.next_generation import NextGenerationMembership
from ingestd.consumer.group.settings import GroupProtocol, GroupSettings
from ingestd.errors import Closed, ConfigurationError, ErrorCode, IngestdError, KafkaError, UnsupportedVersion
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

SETTINGS = GroupSettings(protocol=GroupProtocol.consumer, request_timeout=5.0, rack="r1", remote_assignor="uniform")


def partitions(*numbers: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


class Owner:
    """Remembers what it is told; a test can hold each call up, or make it raise."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.failure: Exception | None = None
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
        if self.failure is not None:
            raise self.failure
        if what in self.gates:
            try:
                await self.gates[what].wait()
            except asyncio.CancelledError:
                self.cancelled.append(what)
                raise

    async def until(self, what: str, partitions: list[TopicPartition]) -> None:
        """Wait until it was told this."""
        async with asyncio.timeout(20):
            while (what, partitions) not in self.told:
                self._changed.clear()
                await self._changed.wait()


class Events:
    """Remembers what was tried again, and why the group rebalanced."""

    def __init__(self) -> None:
        self.retries: list[tuple[str, IngestdError]] = []
        self.reasons: list[str] = []

    def retried(self, group_id: str, doing: str, error: IngestdError) -> None:
        self.retries.append((doing, error))

    def rebalancing(self, group_id: str, reason: str) -> None:
        self.reasons.append(reason)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    """A coordinator that knows topic "t"."""
    scripted = Coordinator()
    scripted.topic("t")
    monkeypatch.setattr(broker_module.Connection, "open", scripted.open)
    return scripted


@pytest.fixture
async def client(coordinator: Coordinator) -> AsyncIterator[Client]:
    async with Client(["one:1"], FAST) as opened:
        yield opened


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def join(client: Client, owner: Owner, events: Events) -> AsyncIterator[Callable[..., NextGenerationMembership]]:
    """`join(topics, **settings)`: a membership that was started."""
    memberships = []

    def start(topics: Any = ("t",), **changes: Any) -> NextGenerationMembership:
        membership = NextGenerationMembership(client, "g", replace(SETTINGS, **changes), owner, events=events)  # type: ignore[arg-type]
        memberships.append(membership)
        membership.start(topics)
        return membership

    yield start
    for membership in memberships:
        await membership.close(1)


async def joined(coordinator: Coordinator, membership: NextGenerationMembership, owner: Owner, *numbers: int) -> None:
    """Until the membership is a member with these partitions, and the coordinator knows that it has them."""
    member_id = membership.member.member_id
    coordinator.assign(member_id, [("t", number) for number in numbers])
    await owner.until("assigned", partitions(*numbers))
    await coordinator.until(lambda: len(coordinator.members[member_id].owned) == len(numbers))


# Heartbeats


async def test_the_first_heartbeat_says_everything_and_the_next_ones_what_is_different(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    membership = join(group_instance_id="static")
    await joined(coordinator, membership, owner, 0, 1)
    await coordinator.heartbeats(2)
    first, last = coordinator.heard[0], coordinator.heard[-1]
    assert (first.member_epoch, first.instance_id, first.rack_id) == (0, "static", "r1")
    assert (first.subscribed_topic_names, first.server_assignor) == (("t",), "uniform")
    assert first.rebalance_timeout.total_seconds() == 60
    assert first.topic_partitions == ()
    assert (last.member_epoch, last.instance_id) == (coordinator.epoch, "static")
    assert (last.rack_id, last.subscribed_topic_names, last.subscribed_topic_regex) == (None, None, None)
    assert (last.server_assignor, last.topic_partitions) == (None, None)
    assert last.rebalance_timeout.total_seconds() == -0.001
    assert len({request.member_id for request in coordinator.heard}) == 1


async def test_the_coordinators_interval_is_kept_but_news_do_not_wait_for_it(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    coordinator.interval = 1_000
    membership = join()
    coordinator.assign(membership.member.member_id, [("t", 0)])
    await owner.until("assigned", partitions(0))
    await coordinator.heartbeats(1)  # that it has it
    assert coordinator.heard[-1].topic_partitions[0].partitions == (0,)
    membership.subscribe(["t", "u"])
    await coordinator.heartbeats(1)
    assert coordinator.heard[-1].subscribed_topic_names == ("t", "u")
    assert len(coordinator.heard) == 3
    membership.subscribe({"u", "t"})
    membership.rejoin("somebody wants it")
    await coordinator.heartbeats(1)
    assert coordinator.heard[-1].subscribed_topic_names is None
    await owner.until("assigned", [])  # whoever consumes again waits for a word


async def test_what_moves_is_given_up_then_told_and_only_then_another_begins_with_it(
    coordinator: Coordinator, client: Client, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    first = join()
    await joined(coordinator, first, owner, 0, 1)
    later = Owner()
    second = NextGenerationMembership(client, "g", SETTINGS, later)
    second.start(["t"])
    owner.gates["revoked"] = asyncio.Event()
    coordinator.assign(first.member.member_id, [("t", 0)])
    coordinator.assign(second.member.member_id, [("t", 1)])
    await owner.until("revoked", partitions(1))
    await coordinator.heartbeats(10)
    assert first.assignment == frozenset(partitions(0, 1))  # its own until `revoked` returns
    assert second.assignment == frozenset()
    owner.gates["revoked"].set()
    await later.until("assigned", partitions(1))
    assert first.assignment == frozenset(partitions(0))
    await second.close(1)


async def test_heartbeats_go_on_while_the_owner_is_busy(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    owner.gates["assigned"] = asyncio.Event()
    membership = join()
    coordinator.assign(membership.member.member_id, [("t", 0)])
    await owner.until("assigned", partitions(0))
    await coordinator.heartbeats(10)
    owner.gates["assigned"].set()


async def test_a_revocation_ends_at_the_rebalance_timeout(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    owner.gates["revoked"] = asyncio.Event()
    membership = join(rebalance_timeout=0.05)
    await joined(coordinator, membership, owner, 0, 1)
    coordinator.assign(membership.member.member_id, [("t", 0)])
    await coordinator.until(lambda: len(coordinator.members[membership.member.member_id].owned) == 1)
    assert owner.cancelled == ["revoked"]


async def test_the_newest_assignment_counts_when_several_come_during_a_revocation(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    owner.gates["revoked"] = asyncio.Event()
    membership = join()
    await joined(coordinator, membership, owner, 0)
    member = membership.member.member_id
    coordinator.assign(member, [("t", 1)])
    await owner.until("revoked", partitions(0))
    coordinator.assign(member, [("t", 2)])
    await coordinator.heartbeats(3)
    owner.gates["revoked"].set()
    await owner.until("assigned", partitions(2))
    assert ("assigned", partitions(1)) not in owner.told


# Topics


async def test_a_pattern_is_the_coordinators_to_match_and_a_subscription_can_change_between_both_kinds(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership]
) -> None:
    membership = join(re.compile("T.*", re.IGNORECASE))
    await coordinator.heartbeats(1)
    assert coordinator.heard[0].subscribed_topic_regex == "(?i)T.*"
    assert coordinator.heard[0].subscribed_topic_names == ()
    member = coordinator.members[membership.member.member_id]
    coordinator.script.append(ErrorCode.coordinator_load_in_progress)
    membership.subscribe(["t"])
    await coordinator.until(lambda: member.topics == ("t",))
    assert member.regex == ""  # taken back, also behind an error
    membership.subscribe(re.compile("u"))
    await coordinator.until(lambda: member.regex == "u")
    assert member.topics == ()


def test_a_pattern_that_the_coordinator_cannot_match_as_python_does_is_refused(client: Client, owner: Owner) -> None:
    membership = NextGenerationMembership(client, "g", SETTINGS, owner)
    with pytest.raises(ConfigurationError, match="no such flag"):
        membership.start(re.compile("t  # the topic", re.VERBOSE))


async def test_a_pattern_needs_a_broker_that_takes_patterns(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership]
) -> None:
    coordinator.versions[Api.consumer_group_heartbeat] = (0, 0)
    end = await join(re.compile("t")).wait_ended()
    assert isinstance(end.error, UnsupportedVersion)


async def test_a_topic_that_no_broker_knows_yet_holds_the_others_up_no_longer_than_itself(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    coordinator.hidden.add(coordinator.topic("new"))
    membership = join(["t", "new"])
    coordinator.assign(membership.member.member_id, [("t", 0), ("new", 0)])
    await owner.until("assigned", partitions(0))
    await coordinator.until(lambda: coordinator.lookups_by_id > 3)
    assert membership.assignment == frozenset(partitions(0))
    assert owner.told == [("assigned", partitions(0))]
    coordinator.hidden.clear()
    await owner.until("assigned", partitions(0, topic="new"))
    assert membership.assignment == frozenset(partitions(0) + partitions(0, topic="new"))


async def test_what_is_to_be_given_up_does_not_wait_for_the_name_of_what_is_new(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner, events: Events
) -> None:
    membership = join(["t", "new"])
    await joined(coordinator, membership, owner, 0)
    coordinator.hidden.add(coordinator.topic("new"))
    coordinator.assign(membership.member.member_id, [("new", 0)])
    await owner.until("revoked", partitions(0))
    await coordinator.until(lambda: not coordinator.members[membership.member.member_id].owned)
    await coordinator.heartbeats(2)
    assert ErrorCode.unknown_topic_id in [error.code for _, error in events.retries if isinstance(error, KafkaError)]


async def test_nothing_is_begun_while_the_coordinator_may_take_it_as_given_up(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    # The member has heard that "new" is its own, but not yet what it is called. Behind an error it says everything
    # again: what it has is "t" alone. By then the coordinator wants "new" elsewhere: this says that it may go there.
    coordinator.interval = 1_000
    membership = join(["t", "new"])
    member_id = membership.member.member_id
    coordinator.hidden.add(coordinator.topic("new"))
    coordinator.assign(member_id, [("t", 0), ("new", 0)])
    await owner.until("assigned", partitions(0))
    await coordinator.until(lambda: len(coordinator.heard) == 2)
    coordinator.assign(member_id, [("t", 0)])
    coordinator.script += [ErrorCode.coordinator_load_in_progress, Late]
    membership.rejoin("so that there is a heartbeat")
    await coordinator.until(lambda: not coordinator.script and not coordinator.members[member_id].revoking)
    coordinator.hidden.clear()
    lookups = coordinator.lookups_by_id
    await coordinator.until(lambda: coordinator.lookups_by_id > lookups)
    await asyncio.sleep(0.05)
    assert membership.assignment == frozenset(partitions(0))
    coordinator.late.set()
    await owner.until("assigned", [])
    assert partitions(0, topic="new") not in [keys for _, keys in owner.told]


async def test_a_topic_that_was_deleted_and_created_again_is_given_up_and_begun_anew(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    membership = join()
    await joined(coordinator, membership, owner, 0)
    owner.told.clear()
    coordinator.topic("t")
    await joined(coordinator, membership, owner, 0)
    assert [what for what in owner.told if what[1]] == [("revoked", partitions(0)), ("assigned", partitions(0))]


# Errors


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    ],
)
async def test_an_error_that_passes_is_tried_again_and_takes_nothing_away(
    coordinator: Coordinator,
    join: Callable[..., NextGenerationMembership],
    owner: Owner,
    events: Events,
    code: ErrorCode,
) -> None:
    membership = join()
    await joined(coordinator, membership, owner, 0)
    lookups = coordinator.lookups
    heard = len(coordinator.heard)
    coordinator.script += [code, code]
    await coordinator.heartbeats(4)
    assert [error.code for doing, error in events.retries if isinstance(error, KafkaError)] == [code, code]
    assert membership.assignment == frozenset(partitions(0))
    assert coordinator.lookups - lookups == (0 if code is ErrorCode.coordinator_load_in_progress else 2)
    again = [request for request in coordinator.heard[heard:] if request.subscribed_topic_names is not None]
    assert len(again) >= 2  # what the coordinator heard before may be forgotten there
    assert all(request.topic_partitions[0].partitions == (0,) for request in again)


@pytest.mark.parametrize("trouble", [CutAfterwards, Silence])
async def test_behind_a_heartbeat_without_an_answer_the_next_says_everything(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner, trouble: type
) -> None:
    membership = join(request_timeout=0.2)
    await joined(coordinator, membership, owner, 0)
    coordinator.script.append(trouble)
    await coordinator.until(lambda: not coordinator.script)
    await coordinator.heartbeats(1)
    assert coordinator.heard[-1].subscribed_topic_names == ("t",)
    assert coordinator.heard[-1].member_epoch == coordinator.epoch
    assert coordinator.heard[-1].topic_partitions[0].partitions == (0,)
    assert membership.assignment == frozenset(partitions(0))


@pytest.mark.parametrize("code", [ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id])
async def test_a_member_that_was_fenced_loses_everything_and_joins_again_when_its_owner_knows(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner, code: ErrorCode
) -> None:
    membership = join()
    await joined(coordinator, membership, owner, 0)
    owner.gates["lost"] = asyncio.Event()
    member_id = membership.member.member_id
    coordinator.script.append(code)
    coordinator.fence()
    await owner.until("lost", partitions(0))
    heard = len(coordinator.heard)
    assert membership.member.generation == -1
    assert membership.assignment == frozenset()
    owner.told.clear()
    owner.gates["lost"].set()
    await owner.until("assigned", partitions(0))
    assert coordinator.heard[heard].member_epoch == 0
    assert coordinator.heard[heard].topic_partitions == ()
    assert coordinator.heard[heard].member_id == member_id
    assert membership.end is None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.group_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.invalid_request,
        ErrorCode.unsupported_assignor,
        ErrorCode.invalid_regular_expression,
        ErrorCode.group_max_size_reached,
        ErrorCode.inconsistent_group_protocol,
        ErrorCode.unsupported_version,
        ErrorCode.fenced_instance_id,
    ],
)
async def test_an_error_that_does_not_pass_ends_the_membership_and_says_what_the_coordinator_said(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner, code: ErrorCode
) -> None:
    membership = join()
    await joined(coordinator, membership, owner, 0)
    coordinator.script.append(code)
    end = await membership.wait_ended()
    assert end.reason is EndReason.failed
    assert isinstance(end.error, KafkaError)
    assert end.error.code is code
    assert f"because {code.name}" in str(end.error)
    assert owner.told[-1] == ("lost", partitions(0))
    with pytest.raises(Closed):
        await membership.commit({TopicPartition("t", 0): OffsetAndMetadata(1)})


async def test_a_broker_without_the_protocol_is_named(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership]
) -> None:
    coordinator.versions[Api.consumer_group_heartbeat] = (0, -1)
    end = await join().wait_ended()
    assert isinstance(end.error, UnsupportedVersion)
    assert "consumer_group_heartbeat" in str(end.error)


async def test_an_instance_that_its_dead_predecessor_still_holds_is_waited_for(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    coordinator.script += [ErrorCode.unreleased_instance_id] * 3
    membership = join(group_instance_id="static")
    await joined(coordinator, membership, owner, 0)
    assert [request.member_epoch for request in coordinator.heard[:4]] == [0, 0, 0, 0]


async def test_an_instance_that_another_member_holds_is_an_error_after_the_session_timeout(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership]
) -> None:
    coordinator.script += [ErrorCode.unreleased_instance_id] * 1_000
    membership = join(group_instance_id="static", session_timeout=0.3, heartbeat_interval=0.1)
    end = await membership.wait_ended()
    assert isinstance(end.error, KafkaError)
    assert end.error.code is ErrorCode.unreleased_instance_id


async def test_what_an_owner_raises_ends_the_membership_and_the_group_is_left(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    owner.failure = ValueError("no room")
    membership = join()
    coordinator.assign(membership.member.member_id, [("t", 0)])
    end = await membership.wait_ended()
    assert end.reason is EndReason.failed
    assert "no room" in str(end.error)
    assert coordinator.heard[-1].member_epoch == -1


# Commits


async def test_a_commit_goes_with_the_member_epoch_of_its_moment(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    membership = join()
    await joined(coordinator, membership, owner, 0)
    coordinator.commit_script += [ErrorCode.stale_member_epoch, ErrorCode.coordinator_load_in_progress]
    coordinator.epoch += 7
    await membership.commit({TopicPartition("t", 0): OffsetAndMetadata(3)}, timeout=10)
    assert len(coordinator.commits) >= 3
    last = coordinator.commits[-1]
    assert last.__version__ == 9
    assert (last.member_id, last.generation_id_or_member_epoch) == (membership.member.member_id, coordinator.epoch)
    assert membership.end is None


async def test_a_commit_of_a_member_that_is_none_any_more_is_an_error_and_the_partitions_are_lost(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    coordinator.interval = 1_000
    membership = join()
    await joined(coordinator, membership, owner, 0)
    coordinator.fence()
    with pytest.raises(KafkaError) as raised:
        await membership.commit({TopicPartition("t", 0): OffsetAndMetadata(3)})
    assert raised.value.code is ErrorCode.unknown_member_id
    await owner.until("lost", partitions(0))
    await coordinator.until(lambda: membership.member.member_id in coordinator.members)


async def test_a_late_answer_to_the_member_that_was_does_not_bring_its_partitions_back(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    # A heartbeat is answered with an assignment; before the answer is here, a commit hears that the member is fenced.
    membership = join()
    await joined(coordinator, membership, owner, 0)
    owner.gates["lost"] = asyncio.Event()
    coordinator.assign(membership.member.member_id, [("t", 0), ("t", 1)])
    coordinator.script.append(Late)
    await coordinator.until(lambda: not coordinator.script)
    coordinator.fence()
    with pytest.raises(KafkaError):
        await membership.commit({TopicPartition("t", 0): OffsetAndMetadata(3)})
    await owner.until("lost", partitions(0))
    coordinator.late.set()
    owner.gates["lost"].set()
    await owner.until("assigned", partitions(0, 1))  # by joining again
    assert [request.member_epoch for request in coordinator.heard].count(0) == 2
    assert ("assigned", partitions(1)) not in owner.told


async def test_a_commit_of_a_fenced_instance_ends_the_membership(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    membership = join(group_instance_id="static")
    await joined(coordinator, membership, owner, 0)
    coordinator.commit_script.append(ErrorCode.fenced_instance_id)
    with pytest.raises(KafkaError):
        await membership.commit({TopicPartition("t", 0): OffsetAndMetadata(3)})
    assert (await membership.wait_ended()).reason is EndReason.failed


# The end


@pytest.mark.parametrize(
    ("instance", "leave", "epochs"),
    [(None, True, [-1]), (None, False, []), ("static", True, [-1]), ("static", False, [-2])],
)
async def test_closing_revokes_and_leaves_as_it_is_told(
    coordinator: Coordinator,
    join: Callable[..., NextGenerationMembership],
    owner: Owner,
    instance: str | None,
    leave: bool,
    epochs: list[int],
) -> None:
    membership = join(group_instance_id=instance)
    await joined(coordinator, membership, owner, 0)
    await membership.close(5, leave=leave)
    assert (await membership.wait_ended()).reason is EndReason.closed
    assert owner.told[-1] == ("revoked", partitions(0))
    assert [request.member_epoch for request in coordinator.heard if request.member_epoch < 0] == epochs
    await membership.close(5)
    heard = len(coordinator.heard)
    await asyncio.sleep(3 * coordinator.interval)
    assert len(coordinator.heard) == heard


async def test_leaving_is_tried_again_where_the_coordinator_moves(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    membership = join()
    await joined(coordinator, membership, owner, 0)
    coordinator.leave_script += [ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress]
    await membership.close(5)
    assert [request.member_epoch for request in coordinator.heard if request.member_epoch < 0] == [-1] * 3


async def test_closing_ends_in_time_when_nobody_answers_and_the_owner_does_not_return(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    owner.gates["revoked"] = asyncio.Event()
    membership = join()
    await joined(coordinator, membership, owner, 0)
    coordinator.script += [Silence] * 1_000
    async with asyncio.timeout(5):
        await membership.close(0.3)
    assert membership.end is not None
    assert owner.cancelled == ["revoked"]
    assert membership.assignment == frozenset()


async def test_without_progress_the_member_leaves_and_says_why(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    membership = join(max_poll_interval=0.3)
    await joined(coordinator, membership, owner, 0)
    end = await membership.wait_ended()
    assert end.reason is EndReason.poll_interval
    assert isinstance(end.error, PollIntervalExceeded)
    assert owner.told[-1] == ("lost", partitions(0))
    assert coordinator.heard[-1].member_epoch == -1


async def test_a_membership_is_started_once(join: Callable[..., NextGenerationMembership]) -> None:
    membership = join()
    with pytest.raises(Closed):
        membership.start(["t"])


async def test_random_trouble_never_leaves_owner_and_membership_of_two_minds(
    coordinator: Coordinator, join: Callable[..., NextGenerationMembership], owner: Owner
) -> None:
    import random

    rng = random.Random(4)
    membership = join(request_timeout=0.1)
    for _ in range(20):
        if rng.random() < 0.3:
            coordinator.fence()
        coordinator.script += rng.choices(
            [CutAfterwards, Silence, ErrorCode.not_coordinator, ErrorCode.fenced_member_epoch], k=rng.randint(0, 2)
        )
        coordinator.assign(membership.member.member_id, [("t", number) for number in range(6) if rng.random() < 0.5])
        await coordinator.heartbeats(rng.randint(1, 3))
    wanted = {number for _, number in coordinator.wanted[membership.member.member_id]}
    await coordinator.until(
        lambda: (
            {number for _, number in coordinator.members[membership.member.member_id].owned} == wanted
            if membership.member.member_id in coordinator.members
            else False
        )
    )
    has: set[TopicPartition] = set()
    for what, keys in owner.told:
        if what == "assigned":
            assert not has & set(keys)
            has |= set(keys)
        else:
            assert has >= set(keys)
            has -= set(keys)
    assert has == membership.assignment == set(partitions(*wanted))
    with contextlib.suppress(KafkaError):
        await membership.close(1)


async def test_no_partition_ever_has_two_owners_whatever_is_lost_on_the_way(
    coordinator: Coordinator, client: Client
) -> None:
    import random

    rng = random.Random(8)
    owners = [Owner() for _ in range(3)]
    memberships = [
        NextGenerationMembership(client, "g", replace(SETTINGS, request_timeout=0.1), owner)  # type: ignore[arg-type]
        for owner in owners
    ]
    for membership in memberships:
        membership.start(["t"])

    def nobody_shares() -> bool:
        held = [key for membership in memberships for key in membership.assignment]
        assert len(held) == len(set(held))
        return True

    for _ in range(25):
        shares = [rng.randrange(3) for _ in range(8)]
        for place, membership in enumerate(memberships):
            coordinator.assign(
                membership.member.member_id, [("t", number) for number, share in enumerate(shares) if share == place]
            )
        troubles: list[ErrorCode | type] = [CutAfterwards, Silence, ErrorCode.not_coordinator]
        coordinator.script += rng.choices(troubles, k=rng.randint(0, 3))
        for _ in range(rng.randint(1, 6)):
            await coordinator.heartbeats(1)
            nobody_shares()
    await coordinator.until(
        lambda: (
            nobody_shares()
            and [sorted(key.partition for key in membership.assignment) for membership in memberships]
            == [[number for number, share in enumerate(shares) if share == place] for place in range(3)]
        )
    )
    assert not any(what == "lost" for owner in owners for what, _ in owner.told)
    for membership in memberships:
        await membership.close(1)
