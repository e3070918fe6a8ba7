"""Members of the classic protocol come, go and meet errors at random: each partition has one owner at a time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from group_coordinator import Groups
from next_generation_coordinator import FAST, CutAfterwards

from ingestd.client import broker as broker_module
from ingestd.client.client import Client
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.classic import ClassicMembership
from ingestd.consumer.group.settings import GroupSettings
from ingestd.errors import ErrorCode, IngestdError

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL = {TopicPartition(topic, number) for topic, count in (("t", 7), ("u", 3)) for number in range(count)}
SETTINGS = GroupSettings(heartbeat_interval=0.01, session_timeout=30.0, rebalance_timeout=30.0, request_timeout=5.0)
PASSING = (ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator, CutAfterwards)
ERRORS: dict[str, tuple[Any, ...]] = {
    "JoinGroup": PASSING,
    "SyncGroup": (*PASSING, ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation),
    "Heartbeat": (*PASSING, ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation),
    "OffsetCommit": (*PASSING, ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation),
}


class Owner:
    """Takes its time over everything, and looks that nobody else has what it is given."""

    def __init__(self, name: int, holders: dict[TopicPartition, int], chance: random.Random) -> None:
        self._name = name
        self._holders = holders
        self._chance = chance
        self.wrong: list[str] = []

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        for key in partitions:
            if key in self._holders:
                self.wrong.append(f"{key} is given to {self._name}, and {self._holders[key]} has it")
            self._holders[key] = self._name
        await self._pause()

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._pause()
        self._give_back(partitions)

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._give_back(partitions)
        await self._pause()

    def _give_back(self, partitions: Sequence[TopicPartition]) -> None:
        for key in partitions:
            if self._holders.pop(key, None) != self._name:
                self.wrong.append(f"{key} is taken from {self._name}, who does not have it")

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.choice((0.0, 0.0, 0.01, 0.03)))


class Play:
    """A group, its members, and what may happen to them."""

    def __init__(self, assignor: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.groups = Groups(topics={"t": 7, "u": 3}, window=20.0)
        self.holders: dict[TopicPartition, int] = {}
        self.living: list[ClassicMembership] = []
        self.owners: list[Owner] = []
        self._settings = replace(SETTINGS, assignors=(assignor,))
        self._clients: list[Client] = []
        self._committing: set[asyncio.Task[None]] = set()

    async def join(self) -> None:
        if len(self.living) < 5:
            self._clients.append(Client(["one:1"], FAST))
            self.owners.append(Owner(len(self.owners), self.holders, self.chance))
            self.living.append(ClassicMembership(self._clients[-1], "g", self._settings, self.owners[-1]))
            self.living[-1].start(["t", "u"])

    async def leave(self) -> None:
        if len(self.living) > 1:
            await self.living.pop(self.chance.randrange(len(self.living))).close(10.0)

    async def rejoin(self) -> None:
        self.chance.choice(self.living).rejoin("by chance")

    async def error(self) -> None:
        kind = self.chance.choice(list(ERRORS))
        self.groups.script[kind].append(self.chance.choice(ERRORS[kind]))

    async def cut(self) -> None:
        self.groups.cut()

    async def commit(self) -> None:
        self._committing.add(asyncio.create_task(self._commit(self.chance.choice(self.living))))

    async def _commit(self, membership: ClassicMembership) -> None:
        with contextlib.suppress(IngestdError):  # of a generation that ended: what counts is who has what
            await membership.commit({key: OffsetAndMetadata(1) for key in membership.assignment}, 2.0)

    async def calm(self) -> None:
        """Nothing happens any more: every partition gets its owner."""
        self.groups.script.clear()
        if self._committing:
            await asyncio.wait(self._committing)
        async with asyncio.timeout(30):
            while set(self.holders) != ALL or sum(len(one.assignment) for one in self.living) != len(ALL):
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        for membership in self.living:
            await membership.close(10.0)
        for client in self._clients:
            await client.close()


@pytest.mark.parametrize("assignor", ["range", "sticky", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_partitions_have_one_owner_at_a_time_and_in_the_end_each_has_one(
    monkeypatch: pytest.MonkeyPatch, assignor: str, seed: int
) -> None:
    play = Play(assignor, seed)
    monkeypatch.setattr(broker_module.Connection, "open", play.groups.open)
    await play.join()
    happenings = (play.join, play.leave, play.rejoin, play.error, play.error, play.cut, play.commit, play.commit)
    for _ in range(25):
        await play.chance.choice(happenings)()
        await asyncio.sleep(play.chance.choice((0.0, 0.005, 0.02, 0.05)))
    await play.calm()
    assert [membership.end for membership in play.living if membership.end is not None] == []
    await play.close()
    assert [wrong for owner in play.owners for wrong in owner.wrong] == []
    assert play.holders == {}
    assert play.groups.members == {}
