"""Consumer groups on real Kafka: members come, go and die; what is handled, committed and kept."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import TopicPartition as LibrdkafkaPartition
from confluent_kafka.admin import NewPartitions
from harness.members import QUICK, Team, produce

from ingestd.client.client import Client
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.classic import ClassicMembership
from ingestd.consumer.group.consumer_group import ConsumerGroup
from ingestd.consumer.group.handler import ConsumerGroupHandler
from ingestd.consumer.group.membership import EndReason, PollIntervalExceeded
from ingestd.consumer.group.settings import GroupProtocol, NoOffset
from ingestd.errors import IngestdError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster

    from ingestd.consumer.group.claim import Claim
    from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession
    from ingestd.records.decode import Record

EAGER = {"assignors": ("range",)}
COOPERATIVE = {"assignors": ("cooperative-sticky",)}
NEXT_GENERATION = {"protocol": GroupProtocol.consumer}


def all_of(topic: str, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(partitions)]


@pytest.mark.parametrize("settings", [EAGER, COOPERATIVE, NEXT_GENERATION], ids=["eager", "cooperative", "kip848"])
async def test_members_come_and_go_and_every_record_is_handled_exactly_once(
    kafka: KafkaCluster, topic: Callable[..., str], settings: dict[str, Any]
) -> None:
    name = topic(partitions=6)
    async with Team(kafka.servers, name, [name], **settings) as team:
        producing = asyncio.create_task(asyncio.to_thread(produce, kafka.servers, name, 3_000, 6))
        first = team.join()
        await team.settled(name, 6)
        team.join()
        await team.settled(name, 6)
        team.join()
        await team.settled(name, 6)
        await team.leave(first)
        await team.settled(name, 6)
        await producing
        await asyncio.to_thread(produce, kafka.servers, name, 3_000, 6, first=3_000)
        await team.handled_all(6_000)
    assert set(team.handled.values()) == {1}
    assert sum(team.handled.values()) == 6_000


async def test_a_cooperative_rebalance_keeps_the_claims_that_stay(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=4)
    async with Team(kafka.servers, name, [name], **COOPERATIVE) as team:
        first = team.join()
        await team.settled(name, 4)
        assert first.group.session is not None
        before = dict(first.group.session.claims)
        second = team.join()
        await team.settled(name, 4)
        kept = first.claims
        assert len(kept) == 2
        assert all(first.group.session.claims[key] is before[key] for key in kept)
        assert [what for what, _ in first.told] == ["setup", "assigned", "revoked"]
        await team.leave(second)
        await team.settled(name, 4)
        assert all(first.group.session.claims[key] is before[key] for key in kept)
        assert first.ends == []


async def test_an_eager_rebalance_ends_the_session_and_the_next_one_begins_where_it_was(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=4)
    async with Team(kafka.servers, name, [name], **EAGER) as team:
        first = team.join()
        await team.settled(name, 4)
        team.join()
        await team.settled(name, 4)
        assert first.ends == [EndReason.rebalance]
        assert first.told[:4] == [
            ("setup", []),
            ("assigned", all_of(name, 4)),
            ("revoked", all_of(name, 4)),
            ("cleanup", []),
        ]


async def test_a_handler_slower_than_the_session_timeout_causes_no_rebalance(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    await asyncio.to_thread(produce, kafka.servers, name, 2, 2)

    async def slowly(_: Record) -> None:
        await asyncio.sleep(6.5)

    async with Team(kafka.servers, name, [name], session_timeout=6.0, **EAGER) as team:
        member = team.join(before=slowly)
        await team.handled_all(2)
        assert member.group.session is not None
        assert member.group.session.generation == 1
        assert member.ends == []
    assert set(team.handled.values()) == {1}


async def test_a_handler_beyond_the_poll_interval_makes_its_member_leave_with_a_clear_error(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    await asyncio.to_thread(produce, kafka.servers, name, 10, 2)

    async def never(_: Record) -> None:
        await asyncio.get_running_loop().create_future()

    async with Team(kafka.servers, name, [name]) as team:
        stuck = team.join(before=never, max_poll_interval=5.0)
        with pytest.raises(PollIntervalExceeded, match="max_poll_interval"):
            await asyncio.shield(stuck.consuming)
        team.members.remove(stuck)
        team.join()
        await team.handled_all(10)
        assert [what for what, _ in stuck.told] == ["setup", "assigned", "lost", "cleanup"]
        await stuck.close()


MEMBER = """
import asyncio, sys
from ingestd.client.client import Client
from ingestd.consumer.group.consumer_group import ConsumerGroup
from ingestd.consumer.group.settings import GroupSettings, NoOffset

async def main(servers, name):
    settings = GroupSettings(session_timeout=1.0, heartbeat_interval=0.2, rebalance_timeout=10.0,
        auto_commit_interval=0.2, no_offset=NoOffset.earliest)
    async with Client(servers.split(",")) as client:
        async with ConsumerGroup(client, name, settings) as group, group.subscribe([name]) as records:
            async for record in records:
                print(record.partition, record.offset, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_a_killed_process_had_is_handled_by_others_after_its_session_timeout(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=4)
    async with Team(kafka.servers, name, [name]) as team:
        victim = await asyncio.create_subprocess_exec(
            sys.executable, "-c", MEMBER, kafka.servers, name, stdout=asyncio.subprocess.PIPE
        )
        assert victim.stdout is not None
        await asyncio.to_thread(produce, kafka.servers, name, 400, 4)
        handled = {tuple(map(int, (await victim.stdout.readline()).split()))}
        team.join()
        await team.until(lambda: len(team.members[0].claims) == 2, "both have their share")
        os.kill(victim.pid, signal.SIGKILL)
        handled |= {tuple(map(int, line.split())) for line in (await victim.stdout.read()).splitlines(keepends=False)}
        await victim.wait()
        await asyncio.to_thread(produce, kafka.servers, name, 400, 4, first=400)
        await team.settled(name, 4)
        every = {(number % 4, number // 4) for number in range(800)}
        await team.until(
            lambda: {(partition, offset) for _, partition, offset in team.handled} | handled >= every,
            "every record is handled at least once",
        )
    assert set(team.handled.values()) == {1}  # by us; the victim's last ones may be handled again


async def test_partitions_that_are_added_are_claimed(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=2)
    async with Team(kafka.servers, name, [name]) as team:
        team.join()
        await team.settled(name, 2)
        kafka.admin.create_partitions([NewPartitions(name, 4)])[name].result()
        await team.settled(name, 4)


async def test_a_topic_that_appears_and_matches_the_pattern_is_claimed(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    async with Team(kafka.servers, name, re.compile(f"{name}(-more)?")) as team:
        member = team.join()
        await team.settled(name, 2)
        topic(name=f"{name}-more", partitions=1)
        topic(name=f"{name}-most", partitions=1)
        await team.until(
            lambda: member.claims == {*all_of(name, 2), TopicPartition(f"{name}-more", 0)}, "the topic is claimed"
        )


async def test_a_topic_that_is_made_again_is_read_and_committed_from_its_beginning(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    await asyncio.to_thread(produce, kafka.servers, name, 50, 1)
    async with Team(kafka.servers, name, [name]) as team:
        team.join()
        await team.handled_all(50)
        await asyncio.to_thread(kafka.delete_topic, name)
        await asyncio.to_thread(topic, name)
        await asyncio.to_thread(produce, kafka.servers, name, 20, 1)
        await team.until(lambda: sum(team.handled.values()) >= 70, "the new records are handled")
    assert await committed(kafka, name) == {TopicPartition(name, 0): 20}
    assert all(team.handled[name, 0, offset] == (2 if offset < 20 else 1) for offset in range(50))


async def test_a_static_member_restarts_without_a_rebalance(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=4)
    async with Team(kafka.servers, name, [name], session_timeout=30.0, **EAGER) as team:
        stays = team.join(group_instance_id="stays")
        restarts = team.join(group_instance_id="restarts")
        await team.settled(name, 4)
        assert stays.group.session is not None
        generation = stays.group.session.generation
        had = restarts.claims
        await team.leave(restarts)  # a static member stays in the group when it closes
        ends = list(stays.ends)
        again = team.join(group_instance_id="restarts")
        await team.settled(name, 4)
        assert again.claims == had
        assert stays.group.session.generation == generation
        assert stays.ends == ends


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("settings", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
async def test_a_static_member_that_comes_back_finds_what_came_while_it_was_away(
    kafka: KafkaCluster, topic: Callable[..., str], settings: dict[str, Any], leads: bool
) -> None:
    name, more = topic(partitions=2), topic(partitions=1)
    async with Team(kafka.servers, name, [name], session_timeout=30.0, **settings) as team:
        first = team.join(group_instance_id="first")
        await team.settled(name, 2)
        second = team.join(group_instance_id="second")
        await team.settled(name, 2)
        restarts = first if leads else second
        await team.leave(restarts)  # a static member stays in the group when it closes
        if leads:
            await asyncio.to_thread(kafka.admin.create_partitions([NewPartitions(name, 4)])[name].result)
        again = team.join(group_instance_id="first" if leads else "second", topics=[name] if leads else [name, more])
        wanted = {*all_of(name, 4)} if leads else {*all_of(name, 2), TopicPartition(more, 0)}
        await team.until(
            lambda: frozenset().union(*(member.claims for member in team.members)) == wanted, "all is claimed"
        )
        assert again.claims


async def test_a_second_member_of_the_same_static_name_fences_the_first(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=1)
    async with Team(kafka.servers, name, [name], **EAGER) as team:
        first = team.join(group_instance_id="same")
        await team.settled(name, 1)
        second = team.join(group_instance_id="same")
        with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
            await asyncio.shield(first.consuming)
        team.members.remove(first)
        await team.settled(name, 1)
        assert second.ends == []
        await first.close()


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
async def test_members_of_librdkafka_and_ours_share_the_partitions(
    kafka: KafkaCluster, topic: Callable[..., str], assignor: str
) -> None:
    name = topic(partitions=4)
    theirs = LibrdkafkaConsumer(
        {
            "bootstrap.servers": kafka.servers,
            "group.id": name,
            "partition.assignment.strategy": assignor,
            "heartbeat.interval.ms": 200,
            "auto.offset.reset": "earliest",
            "log_level": 2,
        }
    )
    theirs.subscribe([name])
    async with Team(kafka.servers, name, [name], assignors=(assignor,)) as team:
        if assignor != "roundrobin":  # they lead, or we do
            await asyncio.to_thread(theirs.poll, 1.0)
        ours = team.join()

        def shared() -> bool:
            theirs.poll(0.05)
            claims = {TopicPartition(one.topic, one.partition) for one in theirs.assignment()}
            return len(claims) == len(ours.claims) == 2 and claims | ours.claims == set(all_of(name, 4))

        await team.until(shared, "each has half")
        await asyncio.to_thread(theirs.close)
        await team.settled(name, 4)


# Offsets


async def test_our_commits_are_read_by_javas_tool_and_by_librdkafka_and_theirs_by_us(
    kafka: KafkaCluster, topic: Callable[..., str], java_tool: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    await asyncio.to_thread(produce, kafka.servers, name, 100, 2)
    async with Team(kafka.servers, name, [name]) as team:
        team.join()
        await team.handled_all(100)
    described = await asyncio.to_thread(
        java_tool,
        "consumer.group.ConsumerGroupCommand",
        "--bootstrap-server",
        kafka.servers,
        "--describe",
        "--group",
        name,
    )
    rows = [line.split() for line in described.splitlines() if line.startswith(name)]
    assert sorted((row[2], row[3], row[5]) for row in rows) == [("0", "50", "0"), ("1", "50", "0")]
    theirs = LibrdkafkaConsumer({"bootstrap.servers": kafka.servers, "group.id": name, "log_level": 2})
    found = theirs.committed([LibrdkafkaPartition(name, 0), LibrdkafkaPartition(name, 1)], timeout=20)
    assert [one.offset for one in found] == [50, 50]
    theirs.commit(offsets=[LibrdkafkaPartition(name, 0, 20)], asynchronous=False)
    theirs.close()
    async with Team(kafka.servers, name, [name]) as team:
        team.join()
        await team.handled_all(30)
    assert sorted(team.handled) == [(name, 0, offset) for offset in range(20, 50)]


class Script(ConsumerGroupHandler):
    """A handler of one test's own: `claim` for each claim."""

    def __init__(self, claim: Callable[[ConsumerGroupSession, Claim], Any]) -> None:
        self._claim = claim

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:
        await self._claim(session, claim)


def quick(**changes: Any) -> Any:
    from dataclasses import replace

    return replace(QUICK, **changes)


async def test_marks_commits_callbacks_and_resets(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    await asyncio.to_thread(produce, kafka.servers, name, 10, 1)
    called: list[tuple[Any, ...]] = []
    began: list[int] = []

    async def marks(session: ConsumerGroupSession, claim: Claim) -> None:
        began.append(claim.initial_offset)
        async for record in claim:
            claim.mark(record, "half" if record.offset == 4 else "")
            if record.offset == 4:
                await session.commit()
            if record.offset == 6:
                session.commit_later(lambda offsets, error: called.append((dict(offsets), error)))
            if record.offset == 9:
                break
        async with asyncio.timeout(20):
            while not called:
                await asyncio.sleep(0.01)
                claim.mark_all()  # callbacks run first
        claim.reset_offset(2, "again")
        assert claim.lag == 0
        await session.commit()

    async with (
        Client([kafka.servers]) as client,
        ConsumerGroup(client, name, quick(auto_commit_interval=None)) as group,
    ):
        end = await group.consume([name], Script(marks))
        assert end.reason is EndReason.claim_returned
        assert called == [({TopicPartition(name, 0): OffsetAndMetadata(7, 0, "")}, None)]

        async def again(_: ConsumerGroupSession, claim: Claim) -> None:
            began.append(claim.initial_offset)

        assert (await group.consume([name], Script(again))).reason is EndReason.claim_returned
        assert began == [0, 2]


async def test_without_auto_commit_nothing_is_committed_by_itself(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    await asyncio.to_thread(produce, kafka.servers, name, 10, 1)
    async with Team(kafka.servers, name, [name], auto_commit_interval=None) as team:
        team.join()
        await team.handled_all(10)
    async with Team(kafka.servers, name, [name], auto_commit_interval=None) as team:
        team.join()
        await team.handled_all(10)


async def test_where_no_offset_is_committed_the_policy_decides(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic()
    await asyncio.to_thread(produce, kafka.servers, name, 10, 1)
    began: dict[NoOffset, int] = {}
    async with Client([kafka.servers]) as client:
        for policy in (NoOffset.earliest, NoOffset.latest, NoOffset.error):

            async def begins(_: ConsumerGroupSession, claim: Claim, policy: NoOffset = policy) -> None:
                began[policy] = claim.initial_offset

            async with ConsumerGroup(client, f"{name}-{policy.value}", quick(no_offset=policy)) as group:
                if policy is NoOffset.error:
                    with pytest.raises(IngestdError, match="committed no offset"):
                        await group.consume([name], Script(begins))
                else:
                    await group.consume([name], Script(begins))
    assert began == {NoOffset.earliest: 0, NoOffset.latest: 10}


async def test_a_paused_partition_is_not_read_and_causes_no_rebalance(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    async with Team(kafka.servers, name, [name]) as team:
        member = team.join()
        await team.settled(name, 2)
        member.group.pause([TopicPartition(name, 1)])
        await asyncio.to_thread(produce, kafka.servers, name, 20, 2)
        await team.handled_all(10)
        assert {partition for _, partition, _ in team.handled} == {0}
        assert member.group.paused == {TopicPartition(name, 1)}
        member.group.pause_all()
        assert member.group.paused == set(all_of(name, 2))
        member.group.resume_all()
        await team.handled_all(20)
        assert member.ends == []


async def test_a_handler_that_raises_ends_the_session_and_is_heard(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    await asyncio.to_thread(produce, kafka.servers, name, 20, 2)
    ended: list[int] = []

    async def fails(session: ConsumerGroupSession, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)
            if claim.partition == 0 and record.offset == 4:
                raise ValueError("poison")
        ended.append(claim.partition)

    async with Client([kafka.servers]) as client:
        async with ConsumerGroup(client, name, quick()) as group:
            with pytest.raises(ValueError, match="poison"):
                await group.consume([name], Script(fails))
            assert ended == [1]
            assert group.session is None
        async with ConsumerGroup(client, name, quick()) as group:

            async def begins(_: ConsumerGroupSession, claim: Claim) -> None:
                if claim.partition == 0:
                    assert claim.initial_offset == 5  # what was marked before is committed
                    return
                await claim.wait_ended()

            await group.consume([name], Script(begins))


async def test_cancelling_ends_the_session_with_its_final_commit(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic()
    await asyncio.to_thread(produce, kafka.servers, name, 10, 1)
    async with Team(kafka.servers, name, [name], auto_commit_interval=60.0) as team:
        member = team.join()
        await team.handled_all(10)
        member.consuming.cancel()
        await asyncio.wait([member.consuming])
        assert member.told[-1] == ("cleanup", [])
        assert await committed(kafka, name) == {TopicPartition(name, 0): 10}


async def test_records_come_as_one_stream_and_go_on_where_it_was_left(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=3)
    await asyncio.to_thread(produce, kafka.servers, name, 300, 3)
    seen: list[tuple[int, int]] = []
    async with Client([kafka.servers]) as client:
        for until in (100, 300):
            async with ConsumerGroup(client, name, quick()) as group, group.subscribe([name]) as records:
                async for record in records:
                    seen.append((record.partition, record.offset))
                    if len(seen) == until:
                        break
    assert sorted(seen) == [(partition, offset) for partition in range(3) for offset in range(100)]


async def test_partitions_of_ones_own_choice_are_committed_without_membership(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(partitions=3)
    await asyncio.to_thread(produce, kafka.servers, name, 300, 3)

    async def half(_: ConsumerGroupSession, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)
            if record.offset == 49:
                await claim.wait_ended() if claim.partition == 0 else None
                return

    chosen = [TopicPartition(name, 0), TopicPartition(name, 2)]
    async with Client([kafka.servers]) as client, ConsumerGroup(client, name, quick()) as group:
        end = await group.consume_assigned(chosen, Script(half))
        assert end.reason is EndReason.claim_returned
    found = await committed(kafka, name, partitions=3)
    assert found[chosen[1]] == 50
    assert found[TopicPartition(name, 1)] is None


async def committed(kafka: KafkaCluster, name: str, *, partitions: int = 1) -> dict[TopicPartition, int | None]:
    """The group's offsets as one sees them who is no member."""

    class Nobody:
        async def assigned(self, _: Any) -> None: ...
        async def revoked(self, _: Any) -> None: ...
        async def lost(self, _: Any) -> None: ...

    async with Client([kafka.servers]) as client:
        session = ClassicMembership(client, name, QUICK, Nobody())
        found = await session.committed(all_of(name, partitions))
        await session.close(30.0)
    return {key: None if one is None else one.offset for key, one in found.items()}
