"""Positions of a mirror: offsets of a group on the target. So they survive this host, and its clock and its disk.

Each source partition's position is a commit for the partition that it is copied to:

    offset       of the target partition: behind the last record that was copied. So tools that show the lag of groups,
                 which compare with the end of the target's log, do not show a difference between two clusters' offsets
    metadata     JSON: the cluster, topic id and offset at the source to go on from, and the leader epoch of the record
                 before it; and the id of the topic on the target, which may be deleted and made again
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from ingestd.client.admin import ClusterAdmin
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import IngestdError
from ingestd.figures import in_count
from ingestd.logs import get_logger
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from ingestd.client.client import Client
    from ingestd.consumer.group.membership import Membership
    from ingestd.daemon.source import StoredPosition
    from ingestd.mirror.translations import Translations
    from ingestd.retry import Deadline

__all__ = ["CanNotBegin", "GroupPositions", "MirrorPosition", "PositionsNotUnderstood", "read_positions"]

COMMIT_INTERVAL: Final = 0.5
"""Seconds between two commits. What was copied since the last one is copied again after a crash of the host."""

COMMIT_TIMEOUT: Final = 10.0
"""Seconds that one commit may take."""


class CanNotBegin(IngestdError):
    """The mirror can not begin, and trying again does not mend it."""


class PositionsNotUnderstood(CanNotBegin):
    """The group on the target holds offsets that no mirror wrote. The message says what to do."""


@dataclass(frozen=True, slots=True)
class MirrorPosition:
    """Where a source partition is read on, and what that is on the target.

    offset: the next offset to read at the source. leader_epoch: of the record before it, -1 if not known.
    target_offset: the offset behind the last record that was copied, on the target. topic_id: of the topic at the
    source, target_id: of the one on the target; empty if it is not known.
    """

    offset: int
    leader_epoch: int
    target_offset: int
    topic_id: str = ""
    target_id: str = ""


class GroupPositions:
    """A mirror's `PositionKeeper`. Belongs to the supervisor's event loop.

    Invariants
        A commit holds what was acknowledged when it was made. An older one never follows a newer one.
        What could not be committed is committed with the next attempt, while its partition is still this host's.
        A commit is made with the member and generation of the moment: of two hosts that believe to have a partition,
        the target takes only one's.
        Where records went (`Translations`) is written before the position that they are before.
    """

    def __init__(self, route: str, group: str, source: str, translations: Translations | None = None) -> None:
        """`source` is the source cluster's name. The membership comes with `open`."""
        self.at_end: Callable[[Deadline], Awaitable[str | None]] | None = None
        """What is left to do once all positions are committed. Returns why it could not be done, or None."""
        self._translations = translations
        self._group = group
        self._source = source
        self._membership: Membership | None = None
        self._changed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._work = asyncio.Event()
        self._log = get_logger("ingestd.supervisor").bind(route=route, group=group)
        self._tasks = TaskOwner(lambda error: self._log.error("positions can not be committed", exc_info=error))
        self._failing = ""
        self._first_run: int | None = None
        """When the mirror ran first, in ms since 1970 UTC, where its positions say so."""

    def open(self, membership: Membership) -> None:
        """Commit in this member's name from now on."""
        first, self._membership = self._membership is None, membership
        if first:
            self._tasks.start(self._commit_again_and_again(membership), "commits of a mirror")

    async def read(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, MirrorPosition]:
        """The positions of partitions of the target; without those that have none.

        Raises `PositionsNotUnderstood`, and `IngestdError` if the target does not tell within `timeout` seconds.
        """
        assert self._membership is not None, "opened before"
        committed = await self._membership.committed(partitions, timeout)
        self._learn_first_run(committed.values())
        return {
            partition: _understood(self._group, self._source, partition, found)
            for partition, found in committed.items()
            if found is not None
        }

    async def first_run(self, target: Client, timeout: float) -> int | None:
        """When the mirror ran first, on any host, in ms since 1970 UTC; None if this is the first run.

        It stands beside every position of a mirror that began with the latest records. Raises `IngestdError`.
        """
        self._learn_first_run((await self._listed(target, timeout)).values())
        if self._first_run is not None:
            return self._first_run
        self._first_run = round(time.time() * 1000)
        return None

    async def any(self, target: Client, timeout: float) -> bool:
        """Whether there is any position: the mirror has run before, on some host. Raises `IngestdError`."""
        return bool(await self._listed(target, timeout))

    async def _listed(self, target: Client, timeout: float) -> Mapping[TopicPartition, OffsetAndMetadata]:
        (listed,) = await ClusterAdmin(target).list_group_offsets({self._group: None}, timeout=timeout)
        if listed.error is not None:
            raise listed.error
        return listed.offsets

    def _learn_first_run(self, committed: Iterable[OffsetAndMetadata | None]) -> None:
        for found in committed:
            since = None if found is None else _since(found)
            if since is not None and (self._first_run is None or since < self._first_run):
                self._first_run = since

    async def commit(self, positions: Mapping[TopicPartition, MirrorPosition], timeout: float) -> None:
        """Commit these now, by partitions of the target. Raises `IngestdError` if that fails."""
        assert self._membership is not None, "opened before"
        offsets = {partition: self._committed(position) for partition, position in positions.items()}
        await self._membership.commit(offsets, timeout)

    def _committed(self, position: MirrorPosition) -> OffsetAndMetadata:
        said: dict[str, Any] = {
            "cluster": self._source,
            "offset": position.offset,
            "epoch": position.leader_epoch,
            "topic_id": position.topic_id,
            "target_id": position.target_id,
            "since": self._first_run,
        }
        return OffsetAndMetadata(max(0, position.target_offset), -1, orjson.dumps(said).decode())

    async def flush(self, timeout: float) -> None:
        """Commit now what changed. What can not be is logged."""
        assert self._membership is not None, "opened before"
        await self._commit_changed(self._membership, timeout)

    # What the supervisor calls.

    def remember(self, stored: StoredPosition) -> None:
        """See `PositionKeeper`."""
        detail: Mapping[str, Any] = stored.detail
        ids = detail["topic_id"], detail["target_id"]
        position = MirrorPosition(stored.position, detail["epoch"], detail["target_offset"], *ids)
        to = TopicPartition(detail["target_topic"], detail["partition"])
        self._changed[to] = self._committed(position)
        if self._translations is not None and stored.note is not None:
            self._translations.copied(to, position.topic_id, stored.note)
        self._work.set()

    def forget(self, source: str) -> None:
        """See `PositionKeeper`. A group's offsets of topics that are gone are dropped by the target itself."""

    async def finish(self, deadline: Deadline) -> str | None:
        """See `PositionKeeper`. The group is left at the end."""
        await self._tasks.close()
        membership = self._membership
        if membership is None:
            return None
        while self._changed and not deadline.expired and membership.end is None:
            if await self._commit_changed(membership, min(COMMIT_TIMEOUT, deadline.remaining)):
                break
            await asyncio.sleep(min(COMMIT_INTERVAL, deadline.remaining))
        left = len(self._changed)
        problem = None
        if not left and self.at_end is not None:
            problem = await self.at_end(deadline)
        if self._translations is not None:
            await self._translations.close(max(1.0, deadline.remaining))
        await membership.close(max(1.0, deadline.remaining))
        if not left:
            return problem
        positions = in_count(left, "position")
        return f"{positions} could not be committed to group {self._group}: {self._failing}"

    async def _commit_again_and_again(self, membership: Membership) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            membership.progressed()
            if not await self._commit_changed(membership, COMMIT_TIMEOUT):
                self._work.set()
            await asyncio.sleep(COMMIT_INTERVAL)

    async def _commit_changed(self, membership: Membership, timeout: float) -> bool:
        """Commit what changed. Returns whether that was done."""
        changed, self._changed = self._changed, {}
        ours = {partition: offset for partition, offset in changed.items() if partition in membership.assignment}
        try:
            if self._translations is not None:
                await self._translations.write(timeout)
            await membership.commit(ours, timeout)
        except IngestdError as error:
            self._changed = {**ours, **self._changed}
            if str(error) != self._failing:
                self._failing = str(error)
                again = "they are committed again; after a crash until then, records are copied twice"
                self._log.warning("positions can not be committed", error=str(error), then=again)
            return False
        except asyncio.CancelledError:
            self._changed = {**ours, **self._changed}
            raise
        if self._failing:
            self._failing = ""
            self._log.info("positions are committed again")
        return True


def _said(found: OffsetAndMetadata) -> Any:
    """What stands beside an offset. Raises `ValueError` for what is no JSON."""
    return orjson.loads(found.metadata)


def _since(found: OffsetAndMetadata) -> int | None:
    """When the mirror that committed this ran first; None if it does not say."""
    try:
        since = _said(found)["since"]
    except (ValueError, TypeError, KeyError):
        return None
    return since if isinstance(since, int) else None


async def read_positions(
    target: ClusterAdmin, group: str, source: str, timeout: float
) -> dict[TopicPartition, MirrorPosition]:
    """Every position that a mirror's group has, by the partition on the target. `source` is the source cluster's name.

    Raises `PositionsNotUnderstood`, and `IngestdError` if the target does not tell within `timeout` seconds.
    """
    (listed,) = await target.list_group_offsets({group: None}, require_stable=True, timeout=timeout)
    if listed.error is not None:
        raise listed.error
    for error in listed.errors.values():
        raise error
    return {partition: _understood(group, source, partition, found) for partition, found in listed.offsets.items()}


def _understood(group: str, source: str, partition: TopicPartition, found: OffsetAndMetadata) -> MirrorPosition:
    try:
        said = _said(found)
        cluster, offset, epoch = said["cluster"], said["offset"], said["epoch"]
        ids = said.get("topic_id", ""), said.get("target_id", "")
        whole = isinstance(offset, int) and isinstance(epoch, int) and offset >= 0
        whole = whole and all(isinstance(one, str) for one in ids)
    except (ValueError, TypeError, KeyError, AttributeError):
        whole, cluster = False, None
    if not whole or cluster != source:
        raise PositionsNotUnderstood(
            f"group {group}, {partition}: offset {found.offset} has the metadata {found.metadata!r}, not "
            f'{{"cluster": "{source}", "offset": …, "epoch": …}}, as this mirror writes it. Another program '
            "has set it, or another mirror has the same group. Give this one another `group`, or delete the "
            "group's offset: the partition is then read from its start, and its records are copied again"
        )
    return MirrorPosition(offset, epoch, found.offset, *ids)
