"""The consumer group against a coordinator in memory, with partitions that the test feeds: what Kafka hardly shows."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from fed_partitions import Consumer
from group_coordinator import Groups, Member
from next_generation_coordinator import FAST, Silence

from ingestd.client import broker as broker_module
from ingestd.client.client import Client
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group import consumer_group as consumer_group_module
from ingestd.consumer.group.consumer_group import ConsumerGroup
from ingestd.consumer.group.handler import ConsumerGroupHandler
from ingestd.consumer.group.membership import EndReason, PollIntervalExceeded
from ingestd.consumer.group.settings import GroupProtocol, GroupSettings, NoOffset
from ingestd.consumer.settings import Edge
from ingestd.errors import Closed, ConfigurationError, ConnectionLost, ErrorCode, IngestdError, KafkaError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ingestd.consumer.group.claim import Claim
    from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession
    from ingestd.records.decode import Record

SETTINGS = GroupSettings(
    assignors=("range",),
    heartbeat_interval=0.02,
    session_timeout=5.0,
    rebalance_timeout=5.0,
    request_timeout=5.0,
    auto_commit_interval=60.0,
    no_offset=NoOffset.earliest,
)
ALL = [TopicPartition("t", number) for number in range(4)]


class Handler(ConsumerGroupHandler):
    """Marks what it reads; remembers what it is told. A test can hold up, or break, each of its methods."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.stubborn = False
        """Whether it swallows cancellations at a gate."""
        self.failures: dict[str, Exception] = {}
        self.claims: list[Claim] = []
        self.cancelled: list[TopicPartition] = []
        self.returns: set[TopicPartition] = set()
        self._changed = asyncio.Event()

    async def _hear(self, what: str) -> None:
        self.told.append(what)
        self._changed.set()
        if what in self.failures:
            raise self.failures[what]
        await self._pass(what)

    async def _pass(self, what: str) -> None:
        while what in self.gates and not self.gates[what].is_set():
            try:
                await self.gates[what].wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise

    async def setup(self, session: ConsumerGroupSession) -> None:
        await self._hear("setup")

    async def cleanup(self, session: ConsumerGroupSession) -> None:
        await self._hear("cleanup")

    async def assigned(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        await self._hear("assigned")

    async def revoked(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        await self._hear("revoked")

    async def lost(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        await self._hear("lost")

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:
        self.claims.append(claim)
        self._changed.set()
        try:
            await self._pass("claim")
            async for record in claim:
                claim.mark(record)
                self._changed.set()
                if claim.key in self.returns:
                    return
        except asyncio.CancelledError:
            self.cancelled.append(claim.key)
            raise

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


class Joined:
    """A group, its handler, and the consuming task."""

    def __init__(self, client: Client, settings: GroupSettings) -> None:
        self.retries: list[tuple[str, IngestdError]] = []
        self.handler = Handler()
        self.group = ConsumerGroup(client, "g", settings, events=self)
        self.consuming: asyncio.Task[Any] | None = None

    def consume(self) -> asyncio.Task[Any]:
        self.consuming = asyncio.create_task(self.group.consume(["t"], self.handler))
        return self.consuming

    async def claimed(self, count: int) -> None:
        await self.handler.until(lambda: len(self.handler.claims) >= count)

    def retried(self, group_id: str, doing: str, error: IngestdError) -> None:
        self.retries.append((doing, error))

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    scripted = Groups()
    monkeypatch.setattr(broker_module.Connection, "open", scripted.open)
    return scripted


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    """The consumer of the group that is made next; of one group for each test."""
    stands_in = Consumer()
    monkeypatch.setattr(consumer_group_module, "Consumer", lambda *_, **__: stands_in)
    return stands_in


@pytest.fixture
async def join(groups: Groups, consumer: Consumer) -> AsyncIterator[Callable[..., Joined]]:
    """`join(**settings)`: a group that consumes, with a client of its own."""
    joined: list[Joined] = []
    clients: list[Client] = []

    def start(**changes: Any) -> Joined:
        clients.append(Client(["one:1"], FAST))
        joined.append(Joined(clients[-1], replace(SETTINGS, **changes)))
        joined[-1].consume()
        return joined[-1]

    yield start
    for one in joined:
        for gate in one.handler.gates.values():
            gate.set()
        await one.group.close(5.0)
        if one.consuming is not None:
            await asyncio.wait([one.consuming])
            if not one.consuming.cancelled():
                one.consuming.exception()
    for client in clients:
        await client.close()


@pytest.fixture
async def client(groups: Groups) -> AsyncIterator[Client]:
    async with Client(["one:1"], FAST) as opened:
        yield opened


def kinds(groups: Groups) -> list[str]:
    """The requests that show in which order a rebalance goes."""
    names = [type(request).__name__.removesuffix("Request") for request in groups.heard]
    return [name for name in names if name in ("JoinGroup", "SyncGroup", "OffsetCommit", "LeaveGroup")]


async def test_the_final_commit_is_sent_before_the_join_that_gives_the_partitions_up(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join()
    await member.claimed(4)
    consumer.partitions[ALL[1]].feed(3)
    await member.handler.until(lambda: member.handler.claims[1].uncommitted is not None)
    groups.heard.clear()
    groups.script["Heartbeat"].append(ErrorCode.rebalance_in_progress)
    assert (await member.consuming).reason is EndReason.rebalance
    await groups.more("SyncGroup")
    assert kinds(groups)[:2] == ["OffsetCommit", "JoinGroup"]
    assert groups.offsets == {("t", 1): (3, 5, "")}
    assert member.handler.told == ["setup", "assigned", "revoked", "cleanup"]
    member.consume()
    await member.claimed(8)
    assert consumer.asked[-1][ALL[1]] == OffsetAndMetadata(3, 5, "")
    assert consumer.asked[-1][ALL[0]] is Edge.earliest


async def test_marks_of_a_claim_that_is_over_count_for_nothing(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join()
    await member.claimed(4)
    groups.script["Heartbeat"].append(ErrorCode.rebalance_in_progress)
    await member.consuming
    claim = member.handler.claims[0]
    claim.mark_offset(17)
    claim.reset_offset(3)
    assert claim.ended
    assert claim.uncommitted is None


async def test_marks_go_back_where_reading_goes_back(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    """A log that was cut is read again from where it became another."""
    member = join()
    await member.claimed(4)
    claim, partition = member.handler.claims[0], consumer.partitions[ALL[0]]
    partition.feed(10)
    await member.handler.until(lambda: claim.next_offset == 10)
    claim.mark_offset(3)  # late, and of no effect
    assert claim.uncommitted == OffsetAndMetadata(10, 5, "")
    partition.next_offset, partition.end = 6, 7
    partition.feed(0)
    await member.handler.until(lambda: claim.next_offset == 7)
    assert claim.uncommitted == OffsetAndMetadata(7, 5, "")


async def test_what_is_lost_ends_at_once_and_is_not_committed(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join()
    await member.claimed(4)
    consumer.partitions[ALL[0]].feed(3)
    await member.handler.until(lambda: member.handler.claims[0].uncommitted is not None)
    groups.script["Heartbeat"].append(ErrorCode.illegal_generation)
    assert (await member.consuming).reason is EndReason.lost
    assert member.handler.told == ["setup", "assigned", "lost", "cleanup"]
    assert groups.counts["OffsetCommit"] == 0
    member.consume()
    await member.claimed(8)


async def test_partitions_that_go_while_their_claims_open_get_no_handler(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    consumer.gate = asyncio.Event()
    member = join(assignors=("cooperative-sticky",))
    async with asyncio.timeout(5):
        while not consumer.asked:
            await asyncio.sleep(0.001)
    session = member.group.session
    assert session is not None
    await session.revoked(ALL[2:])
    consumer.gate.set()
    await member.claimed(2)
    assert sorted(claim.key for claim in member.handler.claims) == ALL[:2]
    assert [sorted(asked) for asked in consumer.asked] == [ALL, ALL[:2]]
    assert member.handler.told.count("assigned") == 1


async def test_a_rebalance_during_setup_leads_to_the_newer_assignment(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    first = Handler()
    first.gates["setup"] = asyncio.Event()
    client = Client(["one:1"], FAST)
    group = ConsumerGroup(client, "g", SETTINGS)
    consuming = asyncio.create_task(group.consume(["t"], first))
    await first.until(lambda: first.told == ["setup"])
    other = join()
    await groups.stable(2)
    first.gates["setup"].set()
    await first.until(lambda: len(first.claims) == 2)
    await other.claimed(2)
    keys = sorted(claim.key for claim in [*first.claims, *other.handler.claims])
    assert keys == ALL
    await group.close()
    assert (await consuming).reason is EndReason.closed
    await client.close()


async def test_a_handler_that_does_not_return_is_cancelled_in_time_for_the_rebalance(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join(rebalance_timeout=0.4)
    member.handler.gates["claim"] = asyncio.Event()
    await member.claimed(4)
    groups.script["Heartbeat"].append(ErrorCode.rebalance_in_progress)
    assert (await member.consuming).reason is EndReason.rebalance
    assert sorted(member.handler.cancelled) == ALL
    await groups.stable(1, generation=2)
    assert "revoke" not in [doing for doing, _ in member.retries]  # the member was not late


async def test_a_handler_that_returns_ends_all_claims_and_the_next_session_joins_anew(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join()
    member.handler.returns = {ALL[2]}
    await member.claimed(4)
    consumer.partitions[ALL[2]].feed(1)
    assert (await member.consuming).reason is EndReason.claim_returned
    assert all(partition.closed for partition in consumer.partitions.values())
    assert groups.offsets == {("t", 2): (1, 5, "")}
    joins = groups.counts["JoinGroup"]
    member.consume()
    await member.claimed(8)
    assert groups.counts["JoinGroup"] == joins + 1
    assert groups.requests("JoinGroup")[-1].reason == "consumes again after: claim returned"


@pytest.mark.parametrize("what", ["setup", "assigned", "cleanup", "revoked"])
async def test_what_a_hook_raises_is_raised_and_what_is_marked_is_committed(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined], what: str
) -> None:
    member = join()
    member.handler.failures[what] = ValueError(what)
    if what in ("cleanup", "revoked"):
        await member.claimed(4)
        consumer.partitions[ALL[0]].feed(1)
        await member.handler.until(lambda: member.handler.claims[0].uncommitted is not None)
        groups.script["Heartbeat"].append(ErrorCode.rebalance_in_progress)
    with pytest.raises(ValueError, match=what):
        await member.consuming
    assert member.handler.told[-1] == "cleanup"
    if what in ("cleanup", "revoked"):
        assert groups.offsets == {("t", 0): (1, 5, "")}


async def test_claims_that_can_not_begin_yet_are_tried_again(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    consumer.errors = [ConnectionLost("away"), KafkaError(ErrorCode.not_leader_or_follower)]
    member = join()
    await member.claimed(4)
    assert [doing for doing, _ in member.retries] == ["start of claims"] * 2


async def test_claims_that_can_never_begin_end_the_session_with_their_error(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    consumer.errors = [KafkaError(ErrorCode.topic_authorization_failed, "t")]
    member = join()
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        await member.consuming


async def test_an_error_that_ends_the_membership_is_raised_and_consuming_again_makes_a_new_member(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    groups.script["JoinGroup"].append(ErrorCode.group_max_size_reached)
    member = join()
    with pytest.raises(KafkaError, match="GROUP_MAX_SIZE_REACHED"):
        await member.consuming
    assert member.handler.told == []
    member.consume()
    await member.claimed(4)
    groups.script["Heartbeat"].append(ErrorCode.group_authorization_failed)
    with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
        await member.consuming
    assert member.handler.told == ["setup", "assigned", "lost", "cleanup"]


async def test_an_automatic_commit_that_fails_is_told_and_made_again(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    groups.script["OffsetCommit"].append(ErrorCode.offset_metadata_too_large)
    member = join(auto_commit_interval=0.02)
    await member.claimed(4)
    consumer.partitions[ALL[0]].feed(1)
    await groups.until(lambda: groups.offsets != {})
    assert ("auto commit", "OFFSET_METADATA_TOO_LARGE") in [
        (doing, error.code.name.upper()) for doing, error in member.retries if isinstance(error, KafkaError)
    ]
    commits = groups.counts["OffsetCommit"]
    await groups.more("Heartbeat", 5)
    assert groups.counts["OffsetCommit"] == commits  # what is committed is not committed again


async def test_only_a_handler_that_is_busy_with_one_thing_exceeds_the_poll_interval(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join(max_poll_interval=0.2)
    await member.claimed(4)
    await groups.more("Heartbeat", 20)  # all wait for records
    member.handler.claims[1].idle = True
    member.handler.gates["claim"] = asyncio.Event()
    groups.script["Heartbeat"].append(ErrorCode.rebalance_in_progress)
    await member.consuming
    member.consume()
    with pytest.raises(PollIntervalExceeded):
        await member.consuming
    assert member.handler.told[-2:] == ["lost", "cleanup"]
    await groups.until(lambda: len(groups.left) == 1)


async def test_nobody_who_consumes_exceeds_the_poll_interval_too_and_comes_back_as_a_new_member(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join(max_poll_interval=0.1)
    member.handler.returns = {ALL[0]}
    await member.claimed(4)
    consumer.partitions[ALL[0]].feed(1)
    await member.consuming
    await groups.until(lambda: len(groups.left) == 1)
    member.consume()
    await member.claimed(8)
    assert groups.requests("JoinGroup")[-1].member_id == "m2"


async def test_one_session_at_a_time_and_none_after_close(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join()
    await member.claimed(4)
    with pytest.raises(IngestdError, match="consuming already"):
        await member.group.consume(["t"], member.handler)
    await member.group.close()
    assert (await member.consuming).reason is EndReason.closed
    with pytest.raises(Closed):
        await member.group.consume(["t"], member.handler)


@pytest.mark.parametrize("what", ["claim", "revoked", "cleanup"])
async def test_closing_ends_in_time_whatever_a_handler_does(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined], what: str
) -> None:
    member = join()
    member.handler.gates[what] = asyncio.Event()
    await member.claimed(4)
    consumer.partitions[ALL[0]].feed(1)
    groups.script["OffsetCommit"].extend([Silence] * 10)
    started = asyncio.get_running_loop().time()
    await member.group.close(1.0)
    assert asyncio.get_running_loop().time() - started < 2.0
    assert groups.left == [("m1", None)]
    await asyncio.wait([member.consuming])


async def test_cancelling_waits_for_cleanup_and_the_final_commit_and_the_member_stays(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join()
    await member.claimed(4)
    consumer.partitions[ALL[0]].feed(1)
    await member.handler.until(lambda: member.handler.claims[0].uncommitted is not None)
    assert member.consuming is not None
    member.consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await member.consuming
    assert member.handler.told[-1] == "cleanup"
    assert groups.offsets == {("t", 0): (1, 5, "")}
    await groups.more("Heartbeat", 2)
    assert groups.left == []


async def test_cancelling_before_there_is_an_assignment_ends_at_once(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    groups.script["JoinGroup"].extend([Silence] * 3)
    member = join()
    await groups.more("JoinGroup", 1)
    assert member.consuming is not None
    member.consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await member.consuming
    assert member.handler.told == []


async def test_what_is_paused_stays_paused_in_the_next_session(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join()
    await member.claimed(4)
    member.group.pause(ALL[:1])
    groups.script["Heartbeat"].append(ErrorCode.rebalance_in_progress)
    await member.consuming
    member.consume()
    await member.claimed(8)
    assert [consumer.partitions[key].paused for key in ALL] == [True, False, False, False]
    member.group.resume_all()
    assert member.group.paused == frozenset()
    assert not consumer.partitions[ALL[0]].paused


async def test_the_clients_status_tells_of_the_group_until_it_is_closed(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    member = Joined(client, SETTINGS)
    member.consume()
    await member.claimed(4)
    member.group.pause(ALL[:1])
    section = member.group.status()
    assert json.loads(json.dumps(client.status().sections["group g"])) == section
    assert section["member"] == "m1"
    assert section["assignment"] == ["t-0", "t-1", "t-2", "t-3"]
    assert section["paused"] == ["t-0"]
    assert section["lag"] == dict.fromkeys(section["assignment"])
    await member.group.close()
    assert "group g" not in client.status().sections


async def test_chosen_partitions_wait_for_a_broker_without_haste_and_are_committed_by_nobody_in_particular(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    groups.down = True
    client = Client(["one:1"], FAST)
    told = Joined(client, replace(SETTINGS, request_timeout=0.05, auto_commit_interval=0.02))
    consuming = asyncio.create_task(told.group.consume_assigned(ALL[1:2], told.handler))
    async with asyncio.timeout(20):
        while len(told.retries) < 3:
            await asyncio.sleep(0.01)
    assert {doing for doing, _ in told.retries} == {"find a broker"}
    groups.down = False
    await told.claimed(1)
    consumer.partitions[ALL[1]].feed(2)
    await groups.until(lambda: groups.offsets == {("t", 1): (2, 5, "")})
    request = groups.requests("OffsetCommit")[-1]
    assert (request.member_id, request.generation_id_or_member_epoch) == ("", -1)
    assert groups.counts["JoinGroup"] == 0
    await told.group.close()
    assert (await consuming).reason is EndReason.closed
    assert groups.left == []
    await client.close()


# Interruptions


def running(name: str) -> list[str]:
    """The tasks whose name begins so."""
    return sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(name))


@pytest.mark.parametrize("what", ["claim", "assigned", "revoked", "cleanup"])
async def test_closing_ends_in_time_and_names_the_task_where_a_handler_swallows_cancellation(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined], caplog: pytest.LogCaptureFixture, what: str
) -> None:
    member = join()
    member.handler.stubborn = True
    member.handler.gates[what] = asyncio.Event()
    if what == "assigned":
        await member.handler.until(lambda: what in member.handler.told)
    else:
        await member.claimed(4)
    async with asyncio.timeout(10):
        await member.group.close(1.0)
        assert groups.left == [("m1", None)]
        await asyncio.wait([member.consuming])
    named = {"claim": "claim of t-0", "assigned": "open 4 claims"}.get(what, f"{what} of the handler")
    assert named in "".join(record.message for record in caplog.records if record.levelno == logging.ERROR)


async def test_a_hook_that_swallows_cancellation_does_not_keep_its_partitions_from_others(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    """The hook runs while the member gives up a part of its partitions: the member has to join again in time."""
    member = join(assignors=("cooperative-sticky",), rebalance_timeout=0.4)
    member.handler.stubborn = True
    member.handler.gates["revoked"] = asyncio.Event()
    await member.claimed(4)
    async with Client(["one:1"], FAST) as client:
        other = Joined(client, replace(SETTINGS, assignors=("cooperative-sticky",)))
        consuming = other.consume()
        async with asyncio.timeout(10):
            await other.claimed(2)
            await other.group.close(1.0)
            await consuming


async def test_what_was_given_up_late_is_claimed_no_more(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    """No answer to the final commit: the rebalance timeout passes while the claims are given up."""
    member = join(assignors=("cooperative-sticky",), rebalance_timeout=0.4)
    await member.claimed(4)
    for key in ALL:
        consumer.partitions[key].feed(1)
    await member.handler.until(lambda: all(claim.uncommitted for claim in member.handler.claims))
    groups.script["OffsetCommit"].extend([Silence] * 3)
    async with Client(["one:1"], FAST) as client:
        other = Joined(client, replace(SETTINGS, assignors=("cooperative-sticky",)))
        consuming = other.consume()
        await other.claimed(2)
        assert member.group.session is not None
        assert len(member.group.session.claims) == 2
        await other.group.close(1.0)
        await consuming


async def test_closing_while_a_session_ends_at_leisure_leaves_no_handler_behind(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join(rebalance_timeout=60.0)
    member.handler.returns = {ALL[0]}
    await member.claimed(4)
    member.handler.gates["revoked"] = asyncio.Event()
    consumer.partitions[ALL[0]].feed(1)
    await member.handler.until(lambda: "revoked" in member.handler.told)
    started = asyncio.get_running_loop().time()
    await member.group.close(0.5)
    assert asyncio.get_running_loop().time() - started < 5.0
    assert running("claim of") == running("revoked of") == []
    async with asyncio.timeout(5):
        await asyncio.wait([member.consuming])


async def test_closing_that_is_cancelled_leaves_no_task_behind(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join()
    member.handler.gates["claim"] = asyncio.Event()
    await member.claimed(4)
    closing = asyncio.create_task(member.group.close(30.0))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert running("member of") == running("heartbeats of") == running("claim of") == []


async def test_closing_while_the_member_is_replaced_leaves_none_behind(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join()
    await member.claimed(4)
    member.consuming.cancel()
    await asyncio.wait([member.consuming])
    groups.script["LeaveGroup"].append(Silence)
    consuming = asyncio.create_task(member.group.consume_assigned(ALL[:1], member.handler))
    await groups.more("LeaveGroup")
    async with asyncio.timeout(3):  # the member that is replaced has 5
        await member.group.close(0.3)
    with pytest.raises(Closed):
        await consuming
    assert running("member of") == []


async def test_a_subscription_that_is_refused_leaves_no_member_behind_that_never_began(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    group = ConsumerGroup(client, "g", replace(SETTINGS, protocol=GroupProtocol.consumer))
    with pytest.raises(ConfigurationError):
        await group.consume(re.compile("t .", re.VERBOSE), Handler())
    async with asyncio.timeout(5):  # this one begins, and finds that the scripted coordinator is of the other protocol
        with pytest.raises(IngestdError, match="ConsumerGroupHeartbeat"):
            await group.consume(["t"], Handler())
    await group.close()


def test_a_member_that_is_dropped_unclosed_is_warned_of(groups: Groups, consumer: Consumer) -> None:
    async def forget() -> None:
        member = Joined(Client(["one:1"], FAST), SETTINGS)
        member.consume()
        await member.claimed(4)

    asyncio.run(forget())
    with pytest.warns(ResourceWarning, match="unclosed consumer group 'g'"):
        gc.collect()


def test_a_group_that_never_joined_has_nothing_to_close(groups: Groups, consumer: Consumer) -> None:
    async def forget() -> None:
        ConsumerGroup(Client(["one:1"], FAST), "g", SETTINGS)

    asyncio.run(forget())
    gc.collect()


async def test_what_cleanup_raises_while_consuming_is_cancelled_is_logged(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined], caplog: pytest.LogCaptureFixture
) -> None:
    member = join()
    member.handler.failures["cleanup"] = ValueError("broken")
    await member.claimed(4)
    member.consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await member.consuming
    assert "broken" in caplog.text


async def test_committing_later_runs_the_callbacks_of_what_was_committed_before(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    """A handler that does nothing but commit now and then must not pile callbacks up, nor nest them."""
    member = join()
    await member.claimed(4)
    session = member.group.session
    assert session is not None
    done: list[int] = []

    def again(offsets: Any, error: Any) -> None:
        done.append(len(done))
        if len(done) < 3000:
            session.commit_later(again)

    for _ in range(2000):
        session.commit_later(again)
    async with asyncio.timeout(20):
        while len(done) < 4000:
            session.commit_later()
            await asyncio.sleep(0.001)


async def test_handlers_that_commit_together_commit_as_one(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join(auto_commit_interval=None)
    await member.claimed(4)
    session = member.group.session
    assert session is not None
    for number, claim in enumerate(member.handler.claims):
        claim.mark_offset(number + 1)
    groups.heard.clear()
    await asyncio.gather(*(session.commit() for _ in range(100)))
    assert kinds(groups) == ["OffsetCommit"]
    assert {key.partition: groups.offsets["t", key.partition][0] for key in ALL} == {0: 1, 1: 2, 2: 3, 3: 4}


async def test_closing_amid_a_rebalance_commits_in_the_generation_that_it_brings(
    groups: Groups, consumer: Consumer, join: Callable[..., Joined]
) -> None:
    member = join(assignors=("cooperative-sticky",), auto_commit_interval=3600.0)
    await member.claimed(4)
    member.handler.claims[0].mark_offset(7)
    gate = member.handler.gates["revoked"] = asyncio.Event()
    groups.members |= {"silent": Member("silent"), "gone": Member("gone")}
    groups.kick("gone")
    await groups.more("JoinGroup")  # which waits for the silent one
    closing = asyncio.create_task(member.group.close(10.0))
    await groups.until(lambda: groups.generation == 2)
    gate.set()
    await closing
    assert groups.offsets["t", 0][0] == 7
    assert kinds(groups)[-1] == "LeaveGroup"


# Records as one stream


async def opened(consumer: Consumer, count: int) -> None:
    async with asyncio.timeout(20):
        while len(consumer.partitions) < count:
            await asyncio.sleep(0.001)


async def test_a_record_is_marked_when_the_next_one_is_asked_for_and_the_last_when_the_block_is_left(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    async with ConsumerGroup(client, "g", SETTINGS) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        consumer.partitions[ALL[1]].feed(5)
        read = [(record.partition, record.offset) for record in [await anext(records) for _ in range(3)]]
    assert read == [(1, 0), (1, 1), (1, 2)]
    assert groups.offsets == {("t", 1): (3, 5, "")}
    assert groups.left == [("m1", None)]


async def test_the_record_that_raised_is_not_marked(groups: Groups, consumer: Consumer, client: Client) -> None:
    async def read() -> None:
        async with ConsumerGroup(client, "g", SETTINGS) as group, group.subscribe(["t"]) as records:
            await opened(consumer, 4)
            consumer.partitions[ALL[1]].feed(5)
            async for record in records:
                if record.offset == 2:
                    raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await read()
    assert groups.offsets == {("t", 1): (2, 5, "")}


async def test_partitions_take_turns_and_a_rebalance_waits_for_the_record_at_hand(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    async with ConsumerGroup(client, "g", SETTINGS) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        for key in ALL[:2]:
            consumer.partitions[key].feed(2)
        first = await anext(records)
        groups.script["Heartbeat"].append(ErrorCode.rebalance_in_progress)
        await groups.more("Heartbeat", 5)
        assert groups.counts["JoinGroup"] == 2  # the two of the first time: the reader is still at its record
        old = dict(consumer.partitions)
        asking = asyncio.ensure_future(anext(records))
        await groups.more("SyncGroup")
        async with asyncio.timeout(20):
            while any(consumer.partitions[key] is old[key] for key in ALL):
                await asyncio.sleep(0.001)
        assert groups.offsets == {("t", first.partition): (1, 5, "")}
        consumer.partitions[ALL[3]].feed(1)
        record = await asking
        assert (record.partition, record.offset) == (3, 0)


async def test_what_ends_consuming_is_raised_to_the_reader(groups: Groups, consumer: Consumer, client: Client) -> None:
    groups.script["JoinGroup"].append(ErrorCode.group_authorization_failed)
    async with ConsumerGroup(client, "g", SETTINGS) as group, group.subscribe(["t"]) as records:
        with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
            await anext(records)


@pytest.mark.parametrize("reads", [0, 1])
async def test_a_reader_that_stays_away_exceeds_the_poll_interval(
    groups: Groups, consumer: Consumer, client: Client, reads: int
) -> None:
    settings = replace(SETTINGS, max_poll_interval=0.2)
    async with ConsumerGroup(client, "g", settings) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        await groups.more("Heartbeat", 20)  # there is nothing to read: nobody is late
        for key in ALL:
            consumer.partitions[key].feed(2)
        for _ in range(reads):
            await anext(records)
        await groups.until(lambda: groups.left == [("m1", None)])
        with pytest.raises(PollIntervalExceeded):
            await anext(records)


# Many at once


async def test_records_that_are_read_outside_of_their_block_say_how(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    async with ConsumerGroup(client, "g", SETTINGS) as group:
        with pytest.raises(IngestdError, match=r"async with group\.subscribe"):
            await anext(group.subscribe(["t"]))


async def test_wrong_arguments_are_named(groups: Groups, consumer: Consumer, client: Client) -> None:
    async with ConsumerGroup(client, "g", SETTINGS) as group:
        with pytest.raises(ConfigurationError, match=r"^handler: .*; expected a ConsumerGroupHandler$"):
            await group.consume(["t"], lambda _: None)  # type: ignore[arg-type]
        async with group.subscribe(["t"]) as records:
            await opened(consumer, 4)
            with pytest.raises(ConfigurationError, match=r"^offsets: 7; expected a mapping, as in \{"):
                await records.commit(7)  # type: ignore[arg-type]
            await records.commit({("t", 1): 3})  # type: ignore[dict-item]
    assert groups.offsets[("t", 1)][0] == 3


def offsets_of(chunks: Mapping[TopicPartition, Sequence[Record]]) -> dict[int, list[int]]:
    return {key.partition: [record.offset for record in records] for key, records in chunks.items()}


async def test_many_at_once_come_by_partition_and_are_marked_when_more_is_asked_for(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    async with ConsumerGroup(client, "g", SETTINGS) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        assert records.assignment == frozenset(ALL)
        for key in ALL[:2]:
            consumer.partitions[key].feed(3)
        assert await records.poll(20.0) is not None  # both are in line by now, or soon
        given: dict[int, list[int]] = {}
        while sum(map(len, given.values())) < 5:
            for number, offsets in offsets_of(await records.take_chunks(20.0, 4)).items():
                given.setdefault(number, []).extend(offsets)
        assert sorted(given.values()) == [[0, 1, 2], [1, 2]]
        assert await records.take_chunks(0.0) == {}
        consumer.partitions[ALL[2]].feed(4)
        assert offsets_of(await records.take_chunks(20.0, 3)) == {2: [0, 1, 2]}
        await records.commit()
        assert groups.offsets == {("t", 0): (3, 5, ""), ("t", 1): (3, 5, ""), ("t", 2): (3, 5, "")}
        following = await anext(records)
        assert (following.partition, following.offset) == (2, 3)


async def test_columns_go_on_where_records_stopped(groups: Groups, consumer: Consumer, client: Client) -> None:
    async with ConsumerGroup(client, "g", SETTINGS) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        consumer.partitions[ALL[1]].feed(5)
        assert (await anext(records)).offset == 0
        assert offsets_of(await records.take_chunks(20.0, 2)) == {1: [1, 2]}
        ((key, (columns,)),) = (await records.take_columns(20.0)).items()
        assert (key, list(memoryview(columns.offsets).cast("B").cast("q"))) == (ALL[1], [3, 4])
        assert await records.take_columns(0.0) == {}
        assert groups.offsets == {}
    assert groups.offsets == {("t", 1): (5, 5, "")}


async def test_what_was_not_given_is_not_committed_by_a_rebalance(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    async with ConsumerGroup(client, "g", SETTINGS) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        consumer.partitions[ALL[1]].feed(5)
        assert offsets_of(await records.take_chunks(20.0, 2)) == {1: [0, 1]}
        groups.script["Heartbeat"].append(ErrorCode.rebalance_in_progress)
        await groups.more("Heartbeat", 3)
        assert groups.offsets == {}  # it waits for the reader
        old = consumer.partitions[ALL[1]]
        asking = asyncio.ensure_future(records.take_chunks(20.0))
        async with asyncio.timeout(20):
            while consumer.partitions[ALL[1]] is old:
                await asyncio.sleep(0.001)
        assert groups.offsets == {("t", 1): (2, 5, "")}
        consumer.partitions[ALL[1]].feed(1)
        assert offsets_of(await asking) == {1: [2]}


async def test_leaving_the_block_commits_and_leaves_the_group_open(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    async with ConsumerGroup(client, "g", SETTINGS) as group:
        async with group.subscribe(["t"]) as records:
            await opened(consumer, 4)
            consumer.partitions[ALL[1]].feed(2)
            assert offsets_of(await records.take_chunks(20.0)) == {1: [0, 1]}
        assert groups.offsets == {("t", 1): (2, 5, "")}
        assert groups.left == []
        old = consumer.partitions[ALL[1]]
        async with group.subscribe(["t"]) as records:
            async with asyncio.timeout(20):
                while consumer.partitions[ALL[1]] is old:
                    await asyncio.sleep(0.001)
            consumer.partitions[ALL[1]].feed(1)
            assert offsets_of(await records.take_chunks(20.0)) == {1: [2]}
    assert groups.left == [("m1", None)]


async def test_a_seek_forgets_what_was_given_and_the_next_commit_commits_the_place(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    async with ConsumerGroup(client, "g", SETTINGS) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        consumer.partitions[ALL[1]].feed(5)
        assert offsets_of(await records.take_chunks(20.0, 3)) == {1: [0, 1, 2]}
        await records.commit()
        await records.seek(ALL[1], 1)
        await records.commit()
        assert groups.offsets == {("t", 1): (1, -1, "")}
        assert offsets_of(await records.take_chunks(20.0, 1)) == {1: [1]}
        await records.commit()
        assert groups.offsets == {("t", 1): (2, 5, "")}
        with pytest.raises(IngestdError, match="t-9 is not assigned to this member; assigned: t-0, t-1"):
            await records.seek(TopicPartition("t", 9), 1)


async def test_paused_partitions_keep_their_records_until_they_are_resumed(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    settings = replace(SETTINGS, max_poll_interval=0.2)
    async with ConsumerGroup(client, "g", settings) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        consumer.partitions[ALL[1]].feed(5)
        assert (await anext(records)).offset == 0
        records.pause([ALL[1]])
        assert (records.paused, group.paused) == ({ALL[1]}, {ALL[1]})
        assert await records.take_chunks(0.0) == {}
        await groups.more("Heartbeat", 20)  # longer than the poll interval: nobody is late
        assert groups.left == []
        asking = asyncio.ensure_future(records.take_chunks(20.0))
        await asyncio.sleep(0)
        records.resume([ALL[1]])
        assert offsets_of(await asking) == {1: [1, 2, 3, 4]}


async def test_offsets_of_ones_own_are_committed_whatever_was_given(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    settings = replace(SETTINGS, auto_commit_interval=None)
    async with ConsumerGroup(client, "g", settings) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        consumer.partitions[ALL[1]].feed(5)
        assert offsets_of(await records.take_chunks(20.0)) == {1: [0, 1, 2, 3, 4]}
        await records.commit({ALL[1]: 2, ALL[2]: OffsetAndMetadata(7, metadata="m")})
        assert groups.offsets == {("t", 1): (2, -1, ""), ("t", 2): (7, -1, "m")}
        with pytest.raises(IngestdError, match="t-9 is not assigned"):
            await records.commit({TopicPartition("t", 9): 2})
        with pytest.raises(ConfigurationError, match="offsets: -2 for t-1; expected an offset"):
            await records.commit({ALL[1]: -2})
    assert groups.offsets == {("t", 1): (2, -1, ""), ("t", 2): (7, -1, "m")}


async def test_committing_what_was_given_up_meanwhile_is_refused(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    settings = replace(SETTINGS, rebalance_timeout=0.2)
    async with ConsumerGroup(client, "g", settings) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        consumer.partitions[ALL[1]].feed(5)
        assert offsets_of(await records.take_chunks(20.0)) == {1: [0, 1, 2, 3, 4]}
        groups.script["Heartbeat"].append(ErrorCode.rebalance_in_progress)
        old = consumer.partitions[ALL[1]]
        async with asyncio.timeout(20):
            while consumer.partitions[ALL[1]] is old:  # it waited for the reader for as long as it may
                await asyncio.sleep(0.001)
        with pytest.raises(KafkaError, match="t-1 was given up before it was committed"):
            await records.commit()
    assert groups.offsets == {}


async def test_the_final_commit_does_not_go_back_behind_offsets_of_ones_own(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    # 2 was marked when more was asked for, 4 committed by hand; the end of the block committed 2.
    async def read() -> None:
        async with ConsumerGroup(client, "g", SETTINGS) as group, group.subscribe(["t"]) as records:
            await opened(consumer, 4)
            consumer.partitions[ALL[1]].feed(5)
            assert offsets_of(await records.take_chunks(20.0, 2)) == {1: [0, 1]}
            assert offsets_of(await records.take_chunks(20.0)) == {1: [2, 3, 4]}
            await records.commit({ALL[1]: OffsetAndMetadata(4, 5, "m")})
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await read()
    assert groups.offsets == {("t", 1): (4, 5, "m")}


async def test_a_seek_before_the_claim_is_forgotten_when_its_partition_goes(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    # It was kept, and applied whenever the partition came again.
    consumer.gate = asyncio.Event()
    async with ConsumerGroup(client, "g", SETTINGS) as group, group.subscribe(["t"]) as records:
        await groups.until(lambda: groups.state == "Stable" and len(consumer.asked) == 1)
        await records.seek(ALL[1], 3)
        groups.script["Heartbeat"].append(ErrorCode.rebalance_in_progress)
        async with asyncio.timeout(20):
            while len(consumer.asked) < 2:
                await asyncio.sleep(0.001)
        consumer.gate.set()
        await opened(consumer, 4)
        consumer.partitions[ALL[1]].feed(1)
        assert (await anext(records)).offset == 0


async def test_who_asks_again_after_an_error_that_ended_the_membership_joins_again(
    groups: Groups, consumer: Consumer, client: Client
) -> None:
    # As with other clients: a program that logs the error and asks again reads on. Each call raised the same, for ever.
    settings = replace(SETTINGS, max_poll_interval=0.2)
    async with ConsumerGroup(client, "g", settings) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        consumer.partitions[ALL[1]].feed(2)
        assert offsets_of(await records.take_chunks(20.0, 1)) == {1: [0]}
        await groups.until(lambda: groups.left == [("m1", None)])
        consumer.partitions.clear()
        with pytest.raises(PollIntervalExceeded):
            await records.poll(20.0)
        await groups.until(lambda: groups.state == "Stable" and list(groups.members) == ["m2"])
        await opened(consumer, 4)
        consumer.partitions[ALL[1]].feed(2)
        assert offsets_of(await records.take_chunks(20.0)) == {1: [0, 1]}


async def test_a_reader_that_never_has_to_wait_lets_other_tasks_run(
    groups: Groups, consumer: Consumer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.consumer.group.group_records._FAIR_BYTES", 150)
    async with ConsumerGroup(client, "g", SETTINGS) as group, group.subscribe(["t"]) as records:
        await opened(consumer, 4)
        consumer.partitions[ALL[1]].per_batch = 1
        consumer.partitions[ALL[1]].feed(100)
        ran: list[int] = []

        async def other() -> None:
            while len(ran) < 20:
                ran.append(0)
                await asyncio.sleep(0)

        assert (await anext(records)).offset == 0
        running = asyncio.ensure_future(other())
        for _ in range(99):
            await anext(records)
        assert running.done()
