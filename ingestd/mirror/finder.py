"""MirrorFinder: finds the partitions to copy, prepares their topics on the target, and says where each is read on."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ingestd.client.admin import EARLIEST, LATEST, ClusterAdmin, OffsetAt
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.classic import ClassicMembership
from ingestd.consumer.group.manual import ManualAssignment
from ingestd.consumer.group.settings import GroupSettings
from ingestd.daemon.source import Found
from ingestd.errors import DeadlineExceeded, ErrorCode, IngestdError, KafkaError
from ingestd.logs import get_logger
from ingestd.mirror.positions import CanNotBegin, GroupPositions, MirrorPosition
from ingestd.mirror.target_topics import REQUEST_TIMEOUT, TargetTopics
from ingestd.retry import Backoff, Deadline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ingestd.client.client import Client
    from ingestd.client.metadata import TopicMetadata
    from ingestd.consumer.group.membership import Membership
    from ingestd.daemon.source import End, Sources, Surroundings
    from ingestd.mirror.route import MirrorRoute

__all__ = ["MirrorFinder"]

FIRST_PAUSE: Final = 0.2
"""Seconds until the first look is tried again after it has failed."""


SESSION_TIMEOUT: Final = 15.0
"""Seconds after which the partitions of a host that was not heard of are given to the others."""


class MirrorFinder:
    """One mirror's finder, in the supervisor. A source is a partition at the source cluster, named TOPIC-PARTITION.

    The daemons of all hosts that run the mirror are members of one group on the target. They subscribe to the topics
    there. So who gets a partition of the target reads the source's partition that is copied to it (`PartitionOwner`). A
    run with an end takes all partitions, as a member of no group; then there must be no other.

    Invariants
        A partition appears only once its topic can be written on the target, and its start is committed there.
        A start is chosen once: a partition with a committed position goes on from there, whatever `start` says.
        A partition is given up only after nothing of it is sent any more, and its last position was committed.
    """

    def __init__(self, route: MirrorRoute, surroundings: Surroundings) -> None:
        self._route = route
        self._selection = route.selection
        self._surroundings = surroundings
        self.keeper = GroupPositions(route.name, route.positions_group, route.source)
        self._log = get_logger("ingestd.supervisor").bind(route=route.name)
        self._sources: Sources | None = None
        self._membership: Membership | None = None
        self._ready: dict[TopicPartition, TopicPartition] = {}
        """Partitions of the source whose topics can be written, by those of the target that they are copied to."""
        self._ids: dict[str, str] = {}
        """By topic of the source, its id; empty where the cluster has none."""
        self._ours: set[TopicPartition] = set()
        """Partitions of the target that the group gave this host. One that is being given up is none of them any more,
        although it is in `Membership.assignment` until that is done."""
        self._taken: dict[TopicPartition, TopicPartition] = {}
        """Those of them that have appeared."""
        self._made: set[TopicPartition] = set()
        """Partitions of the target that this host has made."""
        self._taking = asyncio.Lock()
        self._joined = False
        """Whether the group has given this host its share once."""
        self._first_taken = asyncio.Event()
        self._troubles: dict[str, str] = {}
        """By topic of the source, why it is not taken, as it was said."""
        self._failing = ""
        self._hopeless = False
        """Whether the last look failed with what trying again does not mend."""

    async def scan(self, sources: Sources) -> None:
        """See `Finder`. Tried again until both clusters have answered; then waits for this host's first share."""
        self._sources = sources
        backoff = Backoff(FIRST_PAUSE, self._route.refresh_interval)
        while True:
            if not await self._try(sources):
                if self._surroundings.once and self._hopeless:
                    return
                await asyncio.sleep(backoff.next_delay())
            elif self._membership is None or await self._has_its_share():
                return

    async def run(self, sources: Sources) -> None:
        """See `Finder`."""
        while True:
            await asyncio.sleep(self._route.refresh_interval)
            await self._try(sources)

    async def _has_its_share(self) -> bool:
        """Wait for this host's first share, but not for long: what failed is tried again."""
        with suppress(DeadlineExceeded):
            await Deadline.after(self._route.refresh_interval).wait_for(self._first_taken.wait(), "a first share")
        return self._first_taken.is_set()

    def ended(self, found: Found, end: End) -> None:
        """See `Finder`. Its position is committed already."""

    # What the membership calls.

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """See `PartitionOwner`."""
        if partitions:
            self._log.info("partitions came", partitions=len(partitions))
        self._joined = True
        self._ours |= set(partitions)
        try:
            await self._take()
        except IngestdError as error:
            self._tell_failure(error)  # the next look tries again

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """See `PartitionOwner`."""
        await self._give_up(partitions)
        await self.keeper.flush(REQUEST_TIMEOUT)

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """See `PartitionOwner`."""
        self._log.warning("partitions are lost: the target has heard nothing of this host for too long")
        await self._give_up(partitions)

    async def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        self._ours -= set(partitions)
        async with self._taking:
            gone = [self._taken.pop(partition) for partition in partitions if partition in self._taken]
        if gone and self._sources is not None:
            self._log.info("partitions go", partitions=len(gone))
            await self._sources.withdraw([str(partition) for partition in gone])

    # Looking.

    async def _try(self, sources: Sources) -> bool:
        """Look once. Returns whether both clusters answered."""
        try:
            await self._look(sources)
        except IngestdError as error:
            self._tell_failure(error)
            self._hopeless = isinstance(error, CanNotBegin)
            return False
        self._failing = ""
        return True

    def _tell_failure(self, error: IngestdError) -> None:
        if str(error) != self._failing:
            self._failing = str(error)
            self._log.warning("mirror can not look for its partitions now", error=str(error), then="tried again")
            if self._surroundings.once and self._sources is not None:
                self._sources.trouble(self._route.name, str(error))  # a reason why the run is no success

    async def _look(self, sources: Sources) -> None:
        source, target = (self._surroundings.client(name) for name in (self._route.source, self._route.target))
        admins = ClusterAdmin(source), ClusterAdmin(target)
        wanted, problems = self._wanted(await admins[0].list_topics(timeout=REQUEST_TIMEOUT))
        prepared = await TargetTopics(self._route, *admins).prepare(wanted)
        problems |= {wanted[name].name: problem for name, problem in prepared.problems.items()}
        self._say(sources, problems)
        self._ready = {
            TopicPartition(name, one.partition): TopicPartition(wanted[name].name, one.partition)
            for name in prepared.partitions
            for one in wanted[name].partitions
        }
        self._ids = {known.name: str(known.topic_id or "") for known in wanted.values()}
        await self._begin_made(prepared.made, source)
        # What is copied already is not given up because a broker has trouble with its topic now.
        troubled = {to.topic for to, one in self._taken.items() if one.topic in problems}
        self._join(target, prepared.partitions.keys() | troubled)
        await self._see_partitions(target, prepared.partitions)
        if self._joined:
            await self._take()

    async def _begin_made(self, made: Mapping[str, int], source: Client) -> None:
        """Partitions that were made just now begin at their beginning, whichever host gets them, whatever `start` says.

        Not in the mirror's first run: then all that there is begins where `start` says.
        """
        new = {to: one for to, one in self._ready.items() if to.topic in made and to.partition >= made[to.topic]}
        self._made |= new.keys()
        if new and self._joined:
            earliest = await _offsets(source, new.values(), EARLIEST)
            starts = {to: MirrorPosition(earliest[one], -1, 0, self._ids[one.topic]) for to, one in new.items()}
            await self.keeper.commit(starts, REQUEST_TIMEOUT)

    async def _see_partitions(self, target: Client, partitions: Mapping[str, int]) -> None:
        """Have the client know partitions that any host has added: the group shares what its leader knows."""
        known = target.metadata.snapshot.topics
        behind = [name for name in partitions if name not in known or len(known[name].partitions) < partitions[name]]
        if behind:
            await target.metadata.refresh(partitions, REQUEST_TIMEOUT)

    def _join(self, target: Client, topics: Collection[str]) -> None:
        """Be a member that subscribes to these topics of the target."""
        ended = None if self._membership is None else self._membership.end
        if ended is not None:
            raise IngestdError(f"group {self._route.positions_group}: {ended.error or ended.reason.value}")
        if self._membership is not None:
            self._membership.subscribe(topics)
            self._membership.progressed()
        elif topics:
            group = self._route.positions_group
            if self._surroundings.once:
                self._membership = ManualAssignment(target, group, GroupSettings(), self, partitions=self._ready)
            else:
                settings = GroupSettings(
                    assignors=("cooperative-sticky",),
                    session_timeout=SESSION_TIMEOUT,
                    max_poll_interval=86400.0,
                    group_instance_id=self._surroundings.host,
                )
                self._membership = ClassicMembership(target, group, settings, self)
            self.keeper.open(self._membership)
            self._membership.start(topics)

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
        taken = [topic for topic in topics if self._selection.takes(topic)]
        for pattern in self._route.topics:
            if not any(re.fullmatch(pattern, topic) for topic in taken):
                problems[pattern] = "matches no topic of the source yet"
        return wanted, problems

    def _say(self, sources: Sources, problems: Mapping[str, str]) -> None:
        for topic, problem in problems.items():
            if self._troubles.get(topic) != problem:
                sources.trouble(topic, problem)
        for topic in self._troubles.keys() - problems.keys():
            sources.trouble_over(topic)
        self._troubles = dict(problems)

    async def _take(self) -> None:
        """Have partitions appear that are this host's and have not yet. Raises `IngestdError`."""
        source, target = (self._surroundings.client(name) for name in (self._route.source, self._route.target))
        sources = self._sources
        assert sources is not None
        async with self._taking:
            ours = {to: self._ready[to] for to in self._ours if to in self._ready and to not in self._taken}
            if ours:
                await self._take_these(ours, sources, source, target)
            self._first_taken.set()

    async def _take_these(
        self,
        ours: Mapping[TopicPartition, TopicPartition],
        sources: Sources,
        source: Client,
        target: Client,
    ) -> None:
        # Workers ask nobody for metadata: they get what the supervisor's clients know.
        await source.metadata.refresh({one.topic for one in ours.values()}, REQUEST_TIMEOUT)
        await target.metadata.refresh({to.topic for to in ours}, REQUEST_TIMEOUT)
        positions = await self._positions(ours, source, target)
        ends = await _offsets(source, ours.values(), LATEST) if self._surroundings.once else {}
        for to, one in ours.items():
            if to not in self._ours:
                continue  # it goes already
            self._taken[to] = one
            sources.appeared(self._found(one, to, positions[to], ends.get(one)))

    def _found(self, one: TopicPartition, to: TopicPartition, position: MirrorPosition, until: int | None) -> Found:
        detail = {
            "topic": one.topic,
            "partition": one.partition,
            "target_topic": to.topic,
            "epoch": position.leader_epoch,
            "topic_id": position.topic_id or self._ids[one.topic],
            "target_offset": position.target_offset,
        }
        return Found(str(one), position.offset, detail, until=until)

    async def _positions(
        self, ours: Mapping[TopicPartition, TopicPartition], source: Client, target: Client
    ) -> dict[TopicPartition, MirrorPosition]:
        """Where these partitions of the source go on, by those of the target. Those without a position get a start."""
        positions = await self.keeper.read(ours, REQUEST_TIMEOUT)
        await self._begin_anew(ours, positions, source)
        new = {to: one for to, one in ours.items() if to not in positions}
        if new:
            starts = await self._starts(new, source, target)
            if not self._surroundings.once:
                await self.keeper.commit(starts, REQUEST_TIMEOUT)
            positions |= starts
        if self._surroundings.once:
            await self._require_alone(positions)
        return positions

    async def _require_alone(self, positions: Mapping[TopicPartition, MirrorPosition]) -> None:
        """Commit what is committed. That is refused while hosts run the mirror: the group has members."""
        try:
            await self.keeper.commit(positions, REQUEST_TIMEOUT)
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_member_id:
                raise
            group = self._route.positions_group
            raise CanNotBegin(
                f"group {group} has members: hosts run this mirror now, and copy what there is"
            ) from error

    async def _begin_anew(
        self,
        ours: Mapping[TopicPartition, TopicPartition],
        positions: dict[TopicPartition, MirrorPosition],
        source: Client,
    ) -> None:
        """Begin at the beginning of topics that were made again while nobody read them: old offsets say nothing."""
        again = {
            to: ours[to]
            for to, at in positions.items()
            if at.topic_id and self._ids[ours[to].topic] not in ("", at.topic_id)
        }
        if not again:
            return
        offsets = await _offsets(source, again.values(), EARLIEST)
        starts = {
            to: MirrorPosition(offsets[one], -1, positions[to].target_offset, self._ids[one.topic])
            for to, one in again.items()
        }
        await self.keeper.commit(starts, REQUEST_TIMEOUT)
        positions |= starts
        for topic in sorted({one.topic for one in again.values()}):
            self._log.warning("topic was made again", topic=topic, then="it is copied from its beginning")

    async def _starts(
        self, new: Mapping[TopicPartition, TopicPartition], source: Client, target: Client
    ) -> dict[TopicPartition, MirrorPosition]:
        """Where partitions without a position begin, by those of the target."""
        route, ones = self._route, list(new.values())
        offsets = await _offsets(source, ones, LATEST if route.start == "latest" else EARLIEST)
        moment = None if route.start_time is None else round(route.start_time.timestamp() * 1000)
        if route.start == "latest":
            # Hosts that run the mirror for the first time begin at one moment. What comes later has no such start.
            moment = await self.keeper.first_run(target, REQUEST_TIMEOUT)
            if moment is not None:
                offsets |= await _offsets(source, [one for to, one in new.items() if to in self._made], EARLIEST)
                ones = [one for to, one in new.items() if to not in self._made]
        if moment is not None:
            since = await _offsets(source, ones, moment)
            latest = await _offsets(source, ones, LATEST)  # for those with nothing since then
            offsets |= {one: offset if offset >= 0 else latest[one] for one, offset in since.items()}
        ends = await _offsets(target, new, LATEST)
        return {to: MirrorPosition(offsets[one], -1, ends[to], self._ids[one.topic]) for to, one in new.items()}


async def _offsets(client: Client, partitions: Iterable[TopicPartition], when: int) -> dict[TopicPartition, int]:
    """What a time, EARLIEST or LATEST means in each partition. Raises the first error."""
    asked = [OffsetAt(one.topic, one.partition, when) for one in partitions]
    found = {}
    for listed in await ClusterAdmin(client).list_offsets(asked, read_committed=True, timeout=REQUEST_TIMEOUT):
        if listed.error is not None:
            raise listed.error
        found[TopicPartition(listed.topic, listed.partition)] = listed.offset
    return found
