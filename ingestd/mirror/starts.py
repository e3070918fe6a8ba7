"""Starts: where each partition of a mirror is read on, or begins. What is chosen is committed at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.consumer.offsets import resolve_offsets
from ingestd.consumer.settings import AtTime, Edge, Isolation
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger
from ingestd.mirror.mirrormaker2 import offsets_topic, read_offsets
from ingestd.mirror.positions import CanNotBegin, MirrorPosition
from ingestd.mirror.target_topics import REQUEST_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ingestd.client.client import Client
    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.settings import Start
    from ingestd.mirror.positions import GroupPositions
    from ingestd.mirror.route import MirrorRoute
    from ingestd.mirror.topic_ids import TopicIds

__all__ = ["Starts", "find_offsets"]


async def find_offsets(client: Client, wanted: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
    """The offsets of these places in partitions, for a reader of committed records. Raises `IngestdError`."""
    return await resolve_offsets(client, wanted, Isolation.read_committed, REQUEST_TIMEOUT)


class Starts:
    """One for each mirror, in the supervisor. Partitions of the source go by those of the target: `to`, `one`.

    Invariant
        A start is chosen once: a partition with a committed position goes on from there, whatever `start` says. Only
        a topic that was deleted and made again, on either side, begins anew.
    """

    def __init__(self, route: MirrorRoute, keeper: GroupPositions, ids: TopicIds, *, once: bool) -> None:
        """`once`: whether the run has an end. It commits only if no host runs the mirror."""
        self._route = route
        self._keeper = keeper
        self._ids = ids
        self._once = once
        self._made: set[TopicPartition] = set()
        """Partitions of the target that this host has made."""
        self._log = get_logger("ingestd.supervisor").bind(route=route.name)

    async def positions(
        self, ours: Mapping[TopicPartition, TopicPartition], source: Client, target: Client
    ) -> tuple[dict[TopicPartition, MirrorPosition], Collection[TopicPartition]]:
        """Where these partitions go on; and those of them that had no position, and got a start.

        Raises `CanNotBegin`, and `IngestdError` where a cluster does not tell.
        """
        committed = await self._keeper.read(ours, REQUEST_TIMEOUT)
        # What was committed of a topic that was deleted on the target since says nothing of the one that is there.
        positions = {
            to: at
            for to, at in committed.items()
            if self._ids.on_target(to.topic) in ("", at.target_id) or not at.target_id
        }
        await self._begin_anew(ours, positions, source)
        new = {to: one for to, one in ours.items() if to not in positions}
        if new:
            starts = await self._starts(new, source, target)
            if not self._once:
                await self._keeper.commit(starts, REQUEST_TIMEOUT)
            positions |= starts
        if self._once:
            await self._require_alone(positions)
        return positions, new.keys()

    async def begin_made(
        self, new: Mapping[TopicPartition, TopicPartition], source: Client, *, first_run: bool
    ) -> None:
        """Partitions that were made just now begin at their beginning, whichever host gets them, whatever `start` says.

        Not in the mirror's first run: then all that there is begins where `start` says.
        """
        self._made |= new.keys()
        if new and not first_run:
            earliest = await find_offsets(source, dict.fromkeys(new.values(), Edge.earliest))
            starts = {to: self._start(to, one, earliest[one], 0) for to, one in new.items()}
            await self._keeper.commit(starts, REQUEST_TIMEOUT)

    async def _require_alone(self, positions: Mapping[TopicPartition, MirrorPosition]) -> None:
        """Commit what is committed. That is refused while hosts run the mirror: the group has members."""
        try:
            await self._keeper.commit(positions, REQUEST_TIMEOUT)
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
            if at.topic_id and self._ids.source[ours[to].topic] not in ("", at.topic_id)
        }
        if not again:
            return
        offsets = await find_offsets(source, dict.fromkeys(again.values(), Edge.earliest))
        starts = {to: self._start(to, one, offsets[one], positions[to].target_offset) for to, one in again.items()}
        await self._keeper.commit(starts, REQUEST_TIMEOUT)
        positions |= starts
        for topic in sorted({one.topic for one in again.values()}):
            self._log.warning("topic was made again", topic=topic, then="it is copied from its beginning")

    async def _starts(
        self, new: Mapping[TopicPartition, TopicPartition], source: Client, target: Client
    ) -> dict[TopicPartition, MirrorPosition]:
        """Where partitions without a position begin."""
        route = self._route
        wanted: dict[TopicPartition, Start] = dict.fromkeys(new.values(), Edge.earliest)
        if route.start_time is not None:
            wanted = dict.fromkeys(new.values(), AtTime(round(route.start_time.timestamp() * 1000)))
        elif route.start == "mirrormaker2":
            wanted |= await self._of_mirrormaker2(new.values(), target)
        elif route.start == "latest":
            wanted = dict.fromkeys(new.values(), Edge.latest)
            # Hosts that run the mirror for the first time begin at one moment. What comes later has no such start.
            first_run = await self._keeper.first_run(target, REQUEST_TIMEOUT)
            if first_run is not None:
                wanted = {one: Edge.earliest if to in self._made else AtTime(first_run) for to, one in new.items()}
        offsets = await find_offsets(source, wanted)
        ends = await find_offsets(target, dict.fromkeys(new, Edge.latest))
        return {to: self._start(to, one, offsets[one], ends[to]) for to, one in new.items()}

    def _start(self, to: TopicPartition, one: TopicPartition, offset: int, target_offset: int) -> MirrorPosition:
        """To begin at an offset of the source."""
        ids = self._ids.source[one.topic], self._ids.on_target(to.topic)
        return MirrorPosition(offset, -1, target_offset, *ids)

    async def _of_mirrormaker2(self, new: Collection[TopicPartition], target: Client) -> dict[TopicPartition, int]:
        """Where MirrorMaker 2 stopped in those of these partitions that it has copied."""
        alias = self._route.source
        stopped = await read_offsets(target, alias, REQUEST_TIMEOUT)
        if not stopped and not await self._keeper.any(target, REQUEST_TIMEOUT):
            raise CanNotBegin(
                f"start = mirrormaker2: {self._route.target} has no offsets of a MirrorMaker 2 that calls its source "
                f"{alias}: expected them in the topic {offsets_topic(alias)}. Call the cluster here as it does there, "
                "or begin elsewhere"
            )
        return {one: stopped[one] for one in new if one in stopped}
