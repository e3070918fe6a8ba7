"""MirrorFinder: finds the partitions to copy, prepares their topics on the target, and says where each is read on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingestd.client.admin import EARLIEST, LATEST, ClusterAdmin, OffsetAt
from ingestd.client.metadata import TopicPartition
from ingestd.daemon.source import Found
from ingestd.errors import ErrorCode, IngestdError
from ingestd.logs import get_logger
from ingestd.mirror.positions import GroupPositions, MirrorPosition
from ingestd.mirror.target_topics import REQUEST_TIMEOUT, TargetTopics
from ingestd.retry import Backoff, Deadline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ingestd.client.client import Client
    from ingestd.client.metadata import TopicMetadata
    from ingestd.daemon.source import End, Sources, Surroundings
    from ingestd.mirror.route import MirrorRoute

__all__ = ["MirrorFinder"]

FIRST_PAUSE: Final = 0.2
"""Seconds until the first look is tried again after it has failed."""


class MirrorFinder:
    """One mirror's finder, in the supervisor. A source is a partition at the source cluster, named TOPIC-PARTITION.

    Invariants
        A partition appears only once its topic can be written on the target, and its start is committed there.
        A start is chosen once: a partition with a committed position goes on from there, whatever `start` says.
    """

    def __init__(self, route: MirrorRoute, surroundings: Surroundings) -> None:
        self._route = route
        self._selection = route.selection
        self._surroundings = surroundings
        self.keeper = GroupPositions(route.name, route.positions_group, route.source)
        self._log = get_logger("ingestd.supervisor").bind(route=route.name)
        self._taken: set[TopicPartition] = set()
        """Partitions of the source that have appeared."""
        self._positions: dict[TopicPartition, MirrorPosition] | None = None
        """What the group had when it was read, by the target's partitions; None before."""
        self._troubles: dict[str, str] = {}
        """By topic of the source, why it is not taken, as it was said."""
        self._failing = ""
        self._opened = False

    async def scan(self, sources: Sources) -> None:
        """See `Finder`. Tried again until both clusters have answered."""
        backoff = Backoff(FIRST_PAUSE, self._route.refresh_interval)
        async for _ in backoff.attempts_until(Deadline.never()):
            if await self._try(sources):
                return

    async def run(self, sources: Sources) -> None:
        """See `Finder`."""
        while True:
            await asyncio.sleep(self._route.refresh_interval)
            await self._try(sources)

    def ended(self, found: Found, end: End) -> None:
        """See `Finder`. Its position is committed already."""

    async def _try(self, sources: Sources) -> bool:
        """Look once. Returns whether both clusters answered."""
        try:
            await self._look(sources)
        except IngestdError as error:
            if str(error) != self._failing:
                self._failing = str(error)
                self._log.warning("topics can not be looked at", error=str(error), then="tried again")
            return False
        self._failing = ""
        return True

    async def _look(self, sources: Sources) -> None:
        source, target = (self._surroundings.client(name) for name in (self._route.source, self._route.target))
        if not self._opened:
            self._opened = True
            self.keeper.open(target)
        admins = ClusterAdmin(source), ClusterAdmin(target)
        wanted, problems = self._wanted(await admins[0].list_topics(timeout=REQUEST_TIMEOUT))
        prepared = await TargetTopics(self._route, *admins).prepare(wanted)
        problems |= {wanted[name].name: problem for name, problem in prepared.problems.items()}
        self._say(sources, problems)
        ready = {wanted[name].name: name for name in prepared.partitions}
        fresh = {
            TopicPartition(topic, one.partition): TopicPartition(name, one.partition)
            for topic, name in ready.items()
            for one in wanted[name].partitions
            if TopicPartition(topic, one.partition) not in self._taken
        }
        if fresh:
            await self._appear(sources, fresh, source, target)

    def _wanted(self, topics: Mapping[str, TopicMetadata]) -> tuple[dict[str, TopicMetadata], dict[str, str]]:
        """The topics to copy, by their names on the target; and those that can not be, with why."""
        wanted: dict[str, TopicMetadata] = {}
        problems: dict[str, str] = {}
        for topic, known in topics.items():
            if not self._selection.takes(topic):
                continue
            try:
                name = self._selection.renamed(topic)
            except ValueError as error:
                problems[topic] = str(error)
                continue
            if known.error is not ErrorCode.none or not known.partitions:
                problems[topic] = f"the source says {known.error.name.upper()}"
            elif name in wanted:
                problems[topic] = f"it would be called {name} on the target, as {wanted[name].name} is"
            else:
                wanted[name] = known
        return wanted, problems

    def _say(self, sources: Sources, problems: Mapping[str, str]) -> None:
        for topic, problem in problems.items():
            if self._troubles.get(topic) != problem:
                sources.trouble(topic, problem)
        for topic in self._troubles.keys() - problems.keys():
            sources.trouble_over(topic)
        self._troubles = dict(problems)

    async def _appear(
        self, sources: Sources, fresh: Mapping[TopicPartition, TopicPartition], source: Client, target: Client
    ) -> None:
        """Say where these partitions of the source, with those of the target that they go to, are read on."""
        first = self._positions is None
        if self._positions is None:
            self._positions = await self.keeper.read(REQUEST_TIMEOUT)
        # Workers ask nobody for metadata: they get what the supervisor's clients know.
        await source.metadata.refresh({partition.topic for partition in fresh}, REQUEST_TIMEOUT)
        await target.metadata.refresh({partition.topic for partition in fresh.values()}, REQUEST_TIMEOUT)
        new = [one for one, to in fresh.items() if to not in self._positions]
        if new:
            starts = await self._starts(new, fresh, source, target, first=first and not self._positions)
            await self.keeper.commit(starts, REQUEST_TIMEOUT)
            self._positions.update(starts)
        ends = await _offsets(source, fresh, LATEST) if self._surroundings.once else {}
        for one, to in fresh.items():
            position = self._positions.pop(to)
            detail = {
                "topic": one.topic,
                "partition": one.partition,
                "target_topic": to.topic,
                "epoch": position.leader_epoch,
                "target_offset": position.target_offset,
            }
            self._taken.add(one)
            sources.appeared(Found(str(one), position.offset, detail, until=ends.get(one)))

    async def _starts(
        self,
        new: Sequence[TopicPartition],
        names: Mapping[TopicPartition, TopicPartition],
        source: Client,
        target: Client,
        *,
        first: bool,
    ) -> dict[TopicPartition, MirrorPosition]:
        """Where partitions without a position begin, by the target's partitions. `first`: the mirror has never run."""
        route = self._route
        offsets = await _offsets(source, new, EARLIEST)
        if first and route.start_time is not None:
            since = await _offsets(source, new, round(route.start_time.timestamp() * 1000))
            latest = await _offsets(source, new, LATEST)  # where there is nothing since then
            offsets = {one: since[one] if since[one] >= 0 else latest[one] for one in new}
        elif first and route.start == "latest":
            offsets = await _offsets(source, new, LATEST)
        ends = await _offsets(target, [names[one] for one in new], LATEST)
        return {names[one]: MirrorPosition(offsets[one], -1, ends[names[one]]) for one in new}


async def _offsets(client: Client, partitions: Iterable[TopicPartition], when: int) -> dict[TopicPartition, int]:
    """What a time, EARLIEST or LATEST means in each partition. Raises the first error."""
    asked = [OffsetAt(one.topic, one.partition, when) for one in partitions]
    found = {}
    for listed in await ClusterAdmin(client).list_offsets(asked, read_committed=True, timeout=REQUEST_TIMEOUT):
        if listed.error is not None:
            raise listed.error
        found[TopicPartition(listed.topic, listed.partition)] = listed.offset
    return found
