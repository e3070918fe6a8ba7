"""Positions of a mirror: offsets of a group on the target. So they survive this host, and its clock and its disk.

Each source partition's position is a commit for the partition that it is copied to:

    offset       of the target partition: behind the last record that was copied. So tools that show the lag of groups,
                 which compare with the end of the target's log, do not show a difference between two clusters' offsets
    metadata     JSON: the cluster and offset at the source to go on from, and the leader epoch of the record before it
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson

from ingestd.client.admin import ClusterAdmin
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import IngestdError
from ingestd.logs import get_logger
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.client.client import Client
    from ingestd.daemon.source import StoredPosition
    from ingestd.retry import Deadline

__all__ = ["GroupPositions", "MirrorPosition", "PositionsNotUnderstood"]

_Offsets: TypeAlias = dict[tuple[str, int], int | OffsetAndMetadata]

COMMIT_INTERVAL: Final = 0.5
"""Seconds between two commits. What was copied since the last one is copied again after a crash of the host."""

COMMIT_TIMEOUT: Final = 10.0
"""Seconds that one commit may take."""


class PositionsNotUnderstood(IngestdError):
    """The group on the target holds offsets that no mirror wrote. The message says what to do."""


@dataclass(frozen=True, slots=True)
class MirrorPosition:
    """Where a source partition is read on, and what that is on the target.

    offset: the next offset to read at the source. leader_epoch: of the record before it, -1 if not known.
    target_offset: the offset behind the last record that was copied, on the target.
    """

    offset: int
    leader_epoch: int
    target_offset: int


class GroupPositions:
    """A mirror's `PositionKeeper`. Belongs to the supervisor's event loop.

    Invariants
        A commit holds what was acknowledged when it was made. An older one never follows a newer one.
        What could not be committed is committed with the next attempt.
    """

    def __init__(self, route: str, group: str, source: str) -> None:
        """`source` is the source cluster's name. The client comes with `open`."""
        self._group = group
        self._source = source
        self._admin: ClusterAdmin | None = None
        self._changed: _Offsets = {}
        self._work = asyncio.Event()
        self._log = get_logger("ingestd.supervisor").bind(route=route, group=group)
        self._tasks = TaskOwner(lambda error: self._log.error("positions can not be committed", exc_info=error))
        self._failing = ""
        self._committing = asyncio.Lock()

    def open(self, target: Client) -> None:
        """Commit to this cluster from now on."""
        self._admin = ClusterAdmin(target)
        self._tasks.start(self._commit_again_and_again(), "commits of a mirror")

    async def read(self, timeout: float) -> dict[TopicPartition, MirrorPosition]:
        """Every position that the group has, by the partition on the target.

        Raises `PositionsNotUnderstood`, and `IngestdError` if the target does not tell within `timeout` seconds.
        """
        assert self._admin is not None, "opened before"
        (listed,) = await self._admin.list_group_offsets({self._group: None}, require_stable=True, timeout=timeout)
        if listed.error is not None:
            raise listed.error
        for error in listed.errors.values():
            raise error
        return {partition: self._understood(partition, found) for partition, found in listed.offsets.items()}

    def _understood(self, partition: TopicPartition, found: OffsetAndMetadata) -> MirrorPosition:
        try:
            said = orjson.loads(found.metadata)
            cluster, offset, epoch = said["cluster"], said["offset"], said["epoch"]
            whole = isinstance(offset, int) and isinstance(epoch, int) and offset >= 0
        except (ValueError, TypeError, KeyError):
            whole, cluster = False, None
        if not whole or cluster != self._source:
            raise PositionsNotUnderstood(
                f"group {self._group}, {partition}: offset {found.offset} has the metadata {found.metadata!r}, not "
                f'{{"cluster": "{self._source}", "offset": …, "epoch": …}}, as this mirror writes it. Another program '
                "has set it, or another mirror has the same group. Give this one another `group`, or delete the "
                "group's offset: the partition is then read from its start, and its records are copied again"
            )
        return MirrorPosition(offset, epoch, found.offset)

    async def commit(self, starts: Mapping[TopicPartition, MirrorPosition], timeout: float) -> None:
        """Commit these now. Raises `IngestdError` if that fails."""
        await self._commit({partition: self._committed(start) for partition, start in starts.items()}, timeout)

    def _committed(self, position: MirrorPosition) -> OffsetAndMetadata:
        said = {"cluster": self._source, "offset": position.offset, "epoch": position.leader_epoch}
        return OffsetAndMetadata(max(0, position.target_offset), -1, orjson.dumps(said).decode())

    async def _commit(self, offsets: _Offsets, timeout: float) -> None:
        assert self._admin is not None, "opened before"
        async with self._committing:
            for outcome in await self._admin.alter_group_offsets(self._group, offsets, timeout=timeout):
                if outcome.error is not None:
                    raise outcome.error

    # What the supervisor calls.

    def remember(self, stored: StoredPosition) -> None:
        """See `PositionKeeper`."""
        detail: Mapping[str, Any] = stored.detail
        position = MirrorPosition(stored.position, detail["epoch"], detail["target_offset"])
        self._changed[TopicPartition(detail["target_topic"], detail["partition"])] = self._committed(position)
        self._work.set()

    def forget(self, source: str) -> None:
        """See `PositionKeeper`. A group's offsets of topics that are gone are dropped by the target itself."""

    async def finish(self, deadline: Deadline) -> str | None:
        """See `PositionKeeper`."""
        await self._tasks.close()
        while self._changed and not deadline.expired:
            if await self._commit_changed(min(COMMIT_TIMEOUT, deadline.remaining)):
                return None
            await asyncio.sleep(min(COMMIT_INTERVAL, deadline.remaining))
        left = len(self._changed)
        return f"{left} positions could not be committed to group {self._group}: {self._failing}" if left else None

    async def _commit_again_and_again(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            if not await self._commit_changed(COMMIT_TIMEOUT):
                self._work.set()
            await asyncio.sleep(COMMIT_INTERVAL)

    async def _commit_changed(self, timeout: float) -> bool:
        """Commit what changed. Returns whether that was done."""
        changed, self._changed = self._changed, {}
        try:
            await self._commit(changed, timeout)
        except IngestdError as error:
            self._changed = {**changed, **self._changed}
            if str(error) != self._failing:
                self._failing = str(error)
                again = "they are committed again; after a crash until then, records are copied twice"
                self._log.warning("positions can not be committed", error=str(error), then=again)
            return False
        except asyncio.CancelledError:
            self._changed = {**changed, **self._changed}
            raise
        if self._failing:
            self._failing = ""
            self._log.info("positions are committed again")
        return True
