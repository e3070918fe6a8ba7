"""Groups: commits on the target what consumer groups have committed at the source, translated record by record.

A group is written to while it has no members on the target, and never goes back there. So a group that stops at the
source goes on there behind the last record that it has read. What it has read beyond the mirror's position, and what
the mirror copied twice, it reads again. It skips nothing.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ingestd.client.group import OffsetAndMetadata
from ingestd.daemon.status import GroupStatus
from ingestd.errors import ErrorCode, IngestdError, KafkaError
from ingestd.logs import get_logger
from ingestd.mirror.target_topics import REQUEST_TIMEOUT
from ingestd.mirror.two_way import TwoWay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingestd.client.admin import ClusterAdmin
    from ingestd.client.admin.group_offsets import GroupOffsets
    from ingestd.client.metadata import TopicPartition
    from ingestd.mirror.route import MirrorRoute

__all__ = ["ACTIVE", "GroupSync", "Translator"]

ACTIVE: Final = "it has members on the target"

AT_ONCE: Final = 16
"""Groups whose offsets are committed at the same time."""

POSITIONS: Final = re.compile(r"ingestd-mirror-.*")
"""Groups that are no consumers: their offsets are positions of mirrors."""


class Translator(Protocol):
    """Translates offsets of the partitions that it holds, which are named as on the target. They come and go."""

    def holds(self, to: TopicPartition) -> bool:
        """Whether the mirror copies a partition here and now. Only then the other questions can be asked."""
        ...

    def translate(self, to: TopicPartition, offset: int) -> int | None:
        """An offset at the source as one on the target; None if it is not known."""
        ...

    def known_from(self, to: TopicPartition) -> int:
        """The first offset at the source from which on a partition's offsets can be translated."""
        ...

    def target_id(self, to: TopicPartition) -> str:
        """The id of the topic on the target; empty if its cluster has none."""
        ...

    def uncovered(self, to: TopicPartition, target: int) -> int:
        """The first offset on the target, from this one on, at which is no record that was copied last."""
        ...


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Where a group shall go on, on the target; and why some of its offsets can not be translated."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    unknown: Sequence[str]


class GroupSync:
    """One mirror's. Holds nothing but what it said last.

    Invariants
        What goes wrong with one group holds no other up. It is said once, and when it is over.
        Where both sides write a topic, the offset is before the first record on the target that the group may not have
        read. So it reads some records again.
        An offset on the target grows. Who moves it otherwise is left alone: members of the group, or administrators
        who set it forward.
    """

    def __init__(self, route: MirrorRoute) -> None:
        self._patterns = route.groups
        self._log = get_logger("ingestd.supervisor").bind(route=route.name)
        self._two_way = TwoWay()
        self._problems: dict[str, str] = {}
        """By group, why it is not translated, as it was said."""
        self.failures: list[str] = []
        """What went wrong in the last look. A group with members, or one where no offset is known, is nothing wrong."""

    async def sync(
        self,
        source: ClusterAdmin,
        target: ClusterAdmin,
        pairs: Mapping[TopicPartition, TopicPartition],
        translator: Translator,
    ) -> list[GroupStatus]:
        """Look once. `pairs` has this host's partitions at the source, with those on the target.

        Raises `IngestdError` if a cluster does not answer at all.
        """
        listed = await source.list_groups(timeout=REQUEST_TIMEOUT)
        consumers = [one.group_id for one in listed.items if one.protocol_type in ("", "consumer")]
        names = [group for group in consumers if self.takes(group)]
        mirrors = [group for group in consumers if POSITIONS.fullmatch(group)]
        await self._see_mirrors(
            source, mirrors, {one: translator.target_id(to) for one, to in _held(pairs, translator).items()}
        )
        asked = await source.list_group_offsets(dict.fromkeys(names), timeout=REQUEST_TIMEOUT)
        held = _held(pairs, translator)  # another host may have taken some meanwhile
        found = {one.group_id: self._wanted(one, held, translator) for one in asked}
        concerned = [name for name, one in found.items() if isinstance(one, IngestdError) or one.offsets or one.unknown]
        there = await target.list_group_offsets(dict.fromkeys(concerned), timeout=REQUEST_TIMEOUT)
        turns = asyncio.Semaphore(AT_ONCE)
        self.failures = [f"node {node} of the source: {error}" for node, error in listed.errors.items()]

        async def in_turn(now: GroupOffsets) -> GroupStatus:
            async with turns:
                return await self._sync_one(target, now, found[now.group_id])

        statuses = list(await asyncio.gather(*(in_turn(now) for now in there)))
        statuses += [
            GroupStatus(f"groups of node {node} of the source", 0, 0, f"they can not be listed: {error}")
            for node, error in listed.errors.items()
        ]
        self._say(statuses)
        return statuses

    async def _see_mirrors(
        self, source: ClusterAdmin, groups: Sequence[str], target_ids: Mapping[TopicPartition, str]
    ) -> None:
        """See how far mirrors in the other direction are. Without that, what a group has read can not be told."""
        if groups:
            for found in await source.list_group_offsets(dict.fromkeys(groups), timeout=REQUEST_TIMEOUT):
                if found.error is not None:
                    raise found.error
                self._two_way.note(found.offsets, target_ids)

    def takes(self, group: str) -> bool:
        """Whether a group's offsets are translated."""
        return POSITIONS.fullmatch(group) is None and any(re.fullmatch(one, group) for one in self._patterns)

    def _wanted(
        self, committed: GroupOffsets, pairs: Mapping[TopicPartition, TopicPartition], translator: Translator
    ) -> _Wanted | IngestdError:
        if committed.error is not None:
            return committed.error
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        unknown = [f"{error}" for one, error in committed.errors.items() if one in pairs]
        for one, at in committed.offsets.items():
            to = pairs.get(one)
            if to is None:
                continue
            offset = translator.translate(to, at.offset)
            if offset is None:
                known_from = translator.known_from(to)
                unknown.append(f"where records of {one} went is known from offset {known_from} on, it is before that")
                continue
            if self._two_way.concerns(one):
                returned = self._two_way.read(one, at.offset)
                if returned is None:
                    unknown.append(
                        f"both sides write {one}, and it is before what was last copied back from the target"
                    )
                    continue
                offset = min(offset, translator.uncovered(to, returned))
            offsets[to] = OffsetAndMetadata(offset, -1, at.metadata)
        return _Wanted(offsets, unknown)

    async def _sync_one(self, target: ClusterAdmin, now: GroupOffsets, wanted: _Wanted | IngestdError) -> GroupStatus:
        group = now.group_id
        if isinstance(wanted, IngestdError):
            return self._failed(group, 0, f"its offsets at the source can not be read: {wanted}")
        partitions = len(wanted.offsets) + len(wanted.unknown)
        if now.error is not None:
            return self._failed(group, partitions, f"its offsets on the target can not be read: {now.error}")
        behind: dict[tuple[str, int], int | OffsetAndMetadata] = {
            to: at for to, at in wanted.offsets.items() if to not in now.offsets or now.offsets[to].offset < at.offset
        }
        problems = list(wanted.unknown)
        failed = 0
        if behind:
            outcomes = await target.alter_group_offsets(group, behind, timeout=REQUEST_TIMEOUT)
            errors = [outcome.error for outcome in outcomes if outcome.error is not None]
            failed = len(errors)
            if errors:
                active = isinstance(errors[0], KafkaError) and errors[0].code is ErrorCode.unknown_member_id
                problems.insert(0, ACTIVE if active else str(errors[0]))
                self.failures += [] if active else [f"group {group}: {errors[0]}"]
        translated = len(wanted.offsets) - failed
        ahead = sum(now.offsets[to].offset > at.offset for to, at in wanted.offsets.items() if to in now.offsets)
        return GroupStatus(group, partitions, translated, problems[0] if problems else None, ahead)

    def _failed(self, group: str, partitions: int, problem: str) -> GroupStatus:
        self.failures.append(f"group {group}: {problem}")
        return GroupStatus(group, partitions, 0, problem)

    def _say(self, statuses: Sequence[GroupStatus]) -> None:
        problems = {one.group: one.problem for one in statuses if one.problem is not None}
        for group, problem in problems.items():
            if self._problems.get(group) != problem:
                log = self._log.info if problem == ACTIVE else self._log.warning
                log("group not translated", group=group, reason=problem)
        for group in self._problems.keys() - problems.keys():
            self._log.info("group translated again", group=group)
        self._problems = problems


def _held(
    pairs: Mapping[TopicPartition, TopicPartition], translator: Translator
) -> dict[TopicPartition, TopicPartition]:
    return {one: to for one, to in pairs.items() if translator.holds(to)}
