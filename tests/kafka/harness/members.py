"""Members of consumer groups, ours, and what each of them handled."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Producer

from ingestd.client.client import Client
from ingestd.client.metadata import TopicPartition
from ingestd.client.settings import ClientSettings
from ingestd.consumer.group.consumer_group import ConsumerGroup
from ingestd.consumer.group.handler import ConsumerGroupHandler
from ingestd.consumer.group.membership import EndReason
from ingestd.consumer.group.settings import GroupSettings, NoOffset
from ingestd.wire.connection import ConnectionSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ingestd.consumer.group.claim import Claim
    from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession
    from ingestd.records.decode import Record

__all__ = ["Member", "Team", "produce"]

PATIENCE = 60.0
QUICK = GroupSettings(
    session_timeout=15.0,  # a machine that stands still for some seconds takes nobody out of a group
    heartbeat_interval=0.2,
    rebalance_timeout=30.0,
    auto_commit_interval=0.3,
    no_offset=NoOffset.earliest,
    pattern_interval=0.3,
)


def produce(servers: str, topic: str, count: int, partitions: int, *, first: int = 0) -> None:
    """`count` records, numbered from `first`, round robin over the partitions, whatever broker is dead or hangs."""
    settings = {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 2, "linger.ms": 5}
    producer = Producer(settings | {"socket.timeout.ms": 3_000})  # a broker that hangs is given up, not waited for
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(PATIENCE) == 0


class Member(ConsumerGroupHandler):
    """One member with a client of its own, consuming again and again; remembers what it was told and handled."""

    def __init__(
        self,
        team: Team,
        topics: Any,
        settings: GroupSettings,
        before: Callable[[Record], Awaitable[None]] | None,
    ) -> None:
        connection = ConnectionSettings(client_id=f"{team.group_id} {settings.rack or ''}".rstrip())
        self.client = Client(team.servers.split(","), ClientSettings(metadata_max_age=0.3, connection=connection))
        self.group = ConsumerGroup(self.client, team.group_id, settings)
        self.handled: Counter[tuple[str, int, int]] = Counter()
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.ends: list[EndReason] = []
        self._team = team
        self._before = before
        self.consuming = asyncio.create_task(self._consume(topics))

    @property
    def claims(self) -> frozenset[TopicPartition]:
        """The partitions whose handler runs now."""
        session = self.group.session
        return (
            frozenset() if session is None else frozenset(key for key, one in session.claims.items() if not one.ended)
        )

    async def setup(self, session: ConsumerGroupSession) -> None:
        self.told.append(("setup", []))

    async def cleanup(self, session: ConsumerGroupSession) -> None:
        self.told.append(("cleanup", []))

    async def assigned(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("assigned", list(partitions)))

    async def revoked(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("revoked", list(partitions)))

    async def lost(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("lost", list(partitions)))

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:
        async for record in claim:
            if self._before is not None:
                await self._before(record)
            self.handled[record.topic, record.partition, record.offset] += 1
            claim.mark(record)

    async def close(self, timeout: float = 30.0) -> None:
        """Leave the group."""
        await self.group.close(timeout)
        await asyncio.wait([self.consuming])
        await self.client.close()

    async def _consume(self, topics: Any) -> None:
        while True:
            end = await self.group.consume(topics, self)
            self.ends.append(end.reason)
            if end.reason is EndReason.closed:
                return


class Team:
    """The members of one group. Async context manager: closes those that are left."""

    def __init__(self, servers: str, group_id: str, topics: Any, **settings: Any) -> None:
        self.servers = servers
        self.group_id = group_id
        self.topics = topics
        self.settings = replace(QUICK, **settings)
        self.members: list[Member] = []
        self.gone: list[Member] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in list(self.members):
            await self.leave(member)

    def join(self, *, before: Callable[[Record], Awaitable[None]] | None = None, **settings: Any) -> Member:
        """A new member. `before` is awaited before each record counts as handled."""
        topics = settings.pop("topics", self.topics)
        member = Member(self, topics, replace(self.settings, **settings), before)
        self.members.append(member)
        return member

    async def leave(self, member: Member) -> None:
        """A member closes."""
        self.members.remove(member)
        self.gone.append(member)
        await member.close()

    @property
    def handled(self) -> Counter[tuple[str, int, int]]:
        """How often each (topic, partition, offset) was handled, by whomever."""
        return sum((member.handled for member in [*self.members, *self.gone]), Counter())

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds; a member that failed meanwhile raises here."""
        async with asyncio.timeout(PATIENCE):
            while not holds():
                for member in self.members:
                    if member.consuming.done() and member.consuming.exception() is not None:
                        member.consuming.result()
                await asyncio.sleep(0.02)
        assert holds(), what

    async def settled(self, topic: str, partitions: int) -> None:
        """Wait until every partition is claimed, each by one member, and every member has its share."""
        whole = {TopicPartition(topic, number) for number in range(partitions)}

        def complete() -> bool:
            claims = [member.claims for member in self.members]
            return sum(map(len, claims)) == len(whole) and frozenset().union(*claims) == whole and all(claims)

        await self.until(complete, f"{topic} is claimed")

    async def handled_all(self, count: int) -> None:
        """Wait until so many different records were handled."""
        await self.until(lambda: len(self.handled) >= count, f"{count} records are handled")
