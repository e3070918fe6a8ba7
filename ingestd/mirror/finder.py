"""MirrorFinder: finds the partitions to copy, prepares their topics on the target, and says where each is read on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ingestd.client.admin import ClusterAdmin
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.settings import Edge
from ingestd.daemon.source import Found
from ingestd.errors import DeadlineExceeded, IngestdError
from ingestd.logs import get_logger
from ingestd.mirror.group_looks import GroupLooks
from ingestd.mirror.host import HostMember
from ingestd.mirror.one_cluster import selection_between
from ingestd.mirror.overlaps import Copied, Overlaps
from ingestd.mirror.positions import CanNotBegin, GroupPositions
from ingestd.mirror.registry import Origins, cluster_id
from ingestd.mirror.starts import Starts, find_offsets
from ingestd.mirror.target_topics import REQUEST_TIMEOUT, TargetTopics
from ingestd.mirror.topic_configs import TopicConfigs
from ingestd.mirror.topic_ids import TopicIds
from ingestd.mirror.translations import Taken, Translations
from ingestd.retry import Backoff, Deadline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ingestd.client.client import Client
    from ingestd.daemon.source import End, Sources, Surroundings
    from ingestd.mirror.positions import MirrorPosition
    from ingestd.mirror.route import MirrorRoute

__all__ = ["MirrorFinder"]

FIRST_PAUSE: Final = 0.2
"""Seconds until the first look is tried again after it has failed."""

_NAMED_MOST: Final = 5
"""Topics that one line of the log names. Of more, it says how many."""


class MirrorFinder:
    """One mirror's finder, in the supervisor. A source is a partition at the source cluster, named TOPIC-PARTITION.

    The daemons of all hosts that run the mirror are members of one group on the target. They subscribe to the topics
    there. So who gets a partition of the target reads the source's partition that is copied to it (`PartitionOwner`). A
    run with an end takes all partitions, as a member of no group; then there must be no other.

    Invariants
        A partition appears only once its topic can be written on the target, and its start is committed there.
        A partition is given up only after nothing of it is sent any more, and its last position was committed.
    """

    def __init__(self, route: MirrorRoute, surroundings: Surroundings) -> None:
        self._route = route
        self._surroundings = surroundings
        self._translations = Translations(route, lambda: surroundings.client(route.target)) if route.groups else None
        self._origins = Origins(route, surroundings.client)
        self.keeper = GroupPositions(route.name, route.positions_group, route.source, self._translations)
        self._ids = TopicIds()
        self._starts = Starts(route, self.keeper, self._ids, once=surroundings.once)
        self._taken: dict[TopicPartition, TopicPartition] = {}
        """Of `_ours`, those that have appeared; with the partitions of the source."""
        self._groups = None
        if self._translations is not None:
            self._groups = GroupLooks(route, surroundings, self._translations, self._taken)
        if surroundings.once and self._groups is not None:
            self.keeper.at_end = self._groups.at_end
        self._log = get_logger("ingestd.supervisor").bind(route=route.name)
        self._sources: Sources | None = None
        self._host = HostMember(route.positions_group, self._leased)
        self._ready: dict[TopicPartition, TopicPartition] = {}
        """Partitions of the source whose topics can be written, by those of the target that they are copied to."""
        self._configs = TopicConfigs(route.name, route.exclude_configs)
        self._ours: set[TopicPartition] = set()
        """Partitions of the target that the group gave this host. One that is being given up is none of them any more,
        although it is in `Membership.assignment` until that is done."""
        self._taking = asyncio.Lock()
        self._joined = False
        """Whether the group has given this host its share once."""
        self._share_decided = asyncio.Event()
        """This host's first share is taken, or never will be."""
        self._troubles: dict[str, str] = {}
        """By topic of the source, why it is not taken, as it was said."""
        self._copies: set[str] = set()
        """Topics within one cluster that were said to have names of copies."""
        others = (other.overlaps for other in surroundings.others if isinstance(other, MirrorFinder))
        self.overlaps: Overlaps = next(others, None) or Overlaps()
        """What this mirror shares with the others."""
        self._hopeless = False
        """Whether the last look failed with what trying again does not mend."""
        self._given_up = False
        """Whether this run, which has an end, does without the mirror."""

    @property
    def waiting(self) -> int:
        """See `Finder`. No partition is a copy of another one."""
        return 0

    async def scan(self, sources: Sources) -> None:
        """See `Finder`. Tried again until both clusters have answered; then waits for this host's first share."""
        self._sources = sources
        backoff = Backoff(FIRST_PAUSE, self._route.refresh_interval)
        while True:
            if not await self._try(sources):
                if self._surroundings.once and self._hopeless:
                    return
                await asyncio.sleep(backoff.next_delay())
            elif self._host.membership is None or await self._has_its_share():
                return
            elif not self._joined:
                sources.looked(f"group {self._route.positions_group} has given this host no share yet{self._host.why}")

    async def run(self, sources: Sources) -> None:
        """See `Finder`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_again_and_again(sources))
            if self._groups is not None:
                tasks.create_task(self._groups.run(sources))

    async def _look_again_and_again(self, sources: Sources) -> None:
        while True:
            await asyncio.sleep(self._route.refresh_interval)
            await self._try(sources)

    def _leased(self, until: float) -> None:
        if self._sources is not None:
            self._sources.leased(until)

    async def _has_its_share(self) -> bool:
        """Wait for this host's first share, but not for long: what failed is tried again."""
        with suppress(DeadlineExceeded):
            await Deadline.after(self._route.refresh_interval).wait_for(self._share_decided.wait(), "a first share")
        return self._share_decided.is_set()

    def moved(self) -> None:
        """See `Finder`. It waits for nothing to be stored."""

    async def rest(self) -> None:
        """See `Finder`. What comes is copied by the next run, too."""

    def ended(self, found: Found, end: End) -> None:
        """See `Finder`. Its position is committed already."""

    async def answer(self, question: object) -> object:
        """See `Finder`."""
        return await self._origins.answer(question)

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
            if self._sources is not None:
                self._failed(self._sources, error)

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """See `PartitionOwner`."""
        await self._give_up(partitions)
        await self.keeper.flush(REQUEST_TIMEOUT)
        self._forget_translations(partitions)

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """See `PartitionOwner`."""
        self._log.warning("partitions are lost: the target has heard nothing of this host for too long")
        await self._give_up(partitions)
        self._forget_translations(partitions)

    def _forget_translations(self, partitions: Collection[TopicPartition]) -> None:
        if self._translations is not None:
            self._translations.drop(partitions)

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
            self._failed(sources, error)
            return False
        self._hopeless = False
        if self._host.membership is None or self._surroundings.once or self._joined:
            sources.looked(None)
        return True

    def _failed(self, sources: Sources, error: IngestdError) -> None:
        """Sources can not be looked for, or not be taken. It is tried again, if that may help."""
        self._hopeless = isinstance(error, CanNotBegin)
        if not (self._hopeless and self._surroundings.once):
            sources.looked(str(error))
        elif not self._given_up:
            self._given_up = True
            sources.given_up(str(error))
            self._share_decided.set()

    async def _look(self, sources: Sources) -> None:
        source, target = (self._surroundings.client(name) for name in (self._route.source, self._route.target))
        admins = ClusterAdmin(source), ClusterAdmin(target)
        topics = await admins[0].list_topics(timeout=REQUEST_TIMEOUT)
        ids = [await cluster_id(client, REQUEST_TIMEOUT) for client in (source, target)]
        selection = selection_between(self._route, *ids)
        self._say_copies(selection.copies(topics))
        wanted, problems = selection.wanted(topics)
        self._say_overlaps(Copied(ids[0], known.name, ids[1], name) for name, known in wanted.items())
        if self._translations is not None:
            await self._translations.prepare(REQUEST_TIMEOUT)
        prepared = await TargetTopics(self._route, self._configs, *admins).prepare(wanted)
        problems |= {wanted[name].name: problem for name, problem in prepared.problems.items()}
        self._say(sources, problems)
        self._ready = {
            TopicPartition(name, one.partition): TopicPartition(wanted[name].name, one.partition)
            for name in prepared.partitions
            for one in wanted[name].partitions
        }
        self._ids.source = {known.name: str(known.topic_id or "") for known in wanted.values()}
        deleted = await self._note_deleted(prepared.ids, sources)
        made = {name: first for name, first in prepared.made.items() if name not in deleted}
        new = {to: one for to, one in self._ready.items() if to.topic in made and to.partition >= made[to.topic]}
        await self._starts.begin_made(new, source, first_run=not self._joined)
        # What is copied already is not given up because a broker has trouble with its topic now.
        troubled = {to.topic for to, one in self._taken.items() if one.topic in problems}
        self._join(target, prepared.partitions.keys() | troubled)
        await self._see_partitions(target, prepared.partitions)
        if self._joined:
            await self._take()
        if self._route.create_topics:
            ours = [name for name in prepared.partitions if TopicPartition(name, 0) in self._ours]
            await self._configs.follow({name: known.name for name, known in wanted.items()}, ours, *admins)

    async def _note_deleted(self, ids: Mapping[str, str], sources: Sources) -> set[str]:
        """The topics that were deleted on the target, and made again by anybody, since the last look.

        What was copied into them is gone. Their partitions are given up, to be taken again from where they began.
        """
        async with self._taking:  # a position of the old topic, taken meanwhile, would count as one of the new topic
            deleted = self._ids.look(ids)
            gone = [self._taken.pop(to) for to in list(self._taken) if to.topic in deleted]
        for name in sorted(deleted):
            then = "what was copied into it is gone; it is copied again from where the mirror began"
            self._log.error("topic was deleted on the target", topic=name, then=then)
        if gone:
            await sources.withdraw([str(partition) for partition in gone])
            await self.keeper.flush(REQUEST_TIMEOUT)
        return deleted

    async def _see_partitions(self, target: Client, partitions: Mapping[str, int]) -> None:
        """Have the client know partitions that any host has added: the group shares what its leader knows."""
        known = target.metadata.snapshot.topics
        behind = [name for name in partitions if name not in known or len(known[name].partitions) < partitions[name]]
        if behind:
            await target.metadata.refresh(partitions, REQUEST_TIMEOUT)

    def _join(self, target: Client, topics: Collection[str]) -> None:
        """Be a member that subscribes to these topics of the target."""
        if self._host.membership is not None:
            self._host.subscribe(topics)
        elif topics:
            if self._surroundings.once:
                membership = self._host.alone(target, self, self._ready)
            else:
                membership = self._host.member(target, self, self._surroundings.host)
            self.keeper.open(membership)
            membership.start(topics)

    def _say(self, sources: Sources, problems: Mapping[str, str]) -> None:
        for topic, problem in problems.items():
            if self._troubles.get(topic) != problem:
                sources.trouble(topic, problem)
        for topic in self._troubles.keys() - problems.keys():
            sources.trouble_over(topic)
        self._troubles = dict(problems)

    def _say_copies(self, topics: Iterable[str]) -> None:
        """Say of topics of one cluster, once, that they are left out as copies."""
        if new := sorted(set(topics) - self._copies):
            self._copies.update(new)
            why = f"they have names of copies ({self._route.writes_to}), and source and target are one cluster"
            self._log.info("topics left out", topics=len(new), first=new[:_NAMED_MOST], why=why)

    def _say_overlaps(self, taken: Iterable[Copied]) -> None:
        """Say, once, which topics another mirror copies into the same topics as this one."""
        for other, topics in self.overlaps.look(self._route.name, taken).items():
            then = "records that both copy are on the target twice; expected one mirror for a topic"
            first = topics[:_NAMED_MOST]
            self._log.warning("topics copied by two mirrors", other=other, topics=len(topics), first=first, then=then)

    async def _take(self) -> None:
        """Have partitions appear that are this host's and have not yet. Raises `IngestdError`."""
        source, target = (self._surroundings.client(name) for name in (self._route.source, self._route.target))
        sources = self._sources
        assert sources is not None
        async with self._taking:
            ours = {to: self._ready[to] for to in self._ours if to in self._ready and to not in self._taken}
            if ours:
                await self._take_these(ours, sources, source, target)
            self._share_decided.set()

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
        positions, fresh = await self._starts.positions(ours, source, target)
        if self._translations is not None:
            await self._translations.take(self._begun(ours, positions, fresh), REQUEST_TIMEOUT)
        ends = await find_offsets(source, dict.fromkeys(ours.values(), Edge.latest)) if self._surroundings.once else {}
        for to, one in ours.items():
            if to not in self._ours:
                continue  # it goes already
            self._taken[to] = one
            sources.appeared(self._found(one, to, positions[to], ends.get(one)))

    def _begun(
        self,
        ours: Mapping[TopicPartition, TopicPartition],
        positions: Mapping[TopicPartition, MirrorPosition],
        fresh: Collection[TopicPartition],
    ) -> dict[TopicPartition, Taken]:
        """For `Translations.take`."""
        return {
            to: Taken(
                one,
                positions[to],
                positions[to].topic_id or self._ids.source[one.topic],
                self._ids.on_target(to.topic),
                to in fresh,
            )
            for to, one in ours.items()
        }

    def _found(self, one: TopicPartition, to: TopicPartition, position: MirrorPosition, until: int | None) -> Found:
        detail = {
            "topic": one.topic,
            "partition": one.partition,
            "target_topic": to.topic,
            "epoch": position.leader_epoch,
            "topic_id": position.topic_id or self._ids.source[one.topic],
            "target_id": self._ids.on_target(to.topic),
            "target_offset": position.target_offset,
        }
        return Found(str(one), position.offset, detail, until=until)
