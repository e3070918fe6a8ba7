"""Pushed: metadata that a supervisor refreshes. Snapshots are pushed in, wishes and hints are passed on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ingestd.client.answers import keep_newer_leaders, with_leaders
from ingestd.client.listeners import Snapshot
from ingestd.client.metadata import NewLeader
from ingestd.errors import Closed
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ingestd.client.metadata import ClusterMetadata, Node
    from ingestd.errors import IngestdError

__all__ = ["PushedMetadata"]


class PushedMetadata:
    """The metadata source of a worker process. Only its supervisor asks the cluster.

    Invariants
        It never makes a request.
        The same wish is passed on once, and again only after a push, or `repeat` seconds later. So a storm of "not
        leader" answers costs one message.
        A hint counts here at once, and is passed on. An older push does not undo it.
    """

    def __init__(
        self,
        wanted: Callable[[Collection[str], str], None],
        hint: Callable[[str, int, int, int], None],
        *,
        repeat: float = 1.0,
    ) -> None:
        self._snapshot = Snapshot()
        self._pass_on_wanted = wanted
        self._pass_on_hint = hint
        self._repeat = repeat
        self._asked: dict[str, float] = {}
        self._pushed: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def snapshot(self) -> ClusterMetadata:
        """The newest metadata; empty before the first push."""
        return self._snapshot.metadata

    @property
    def failure(self) -> IngestdError | None:
        """Always None: only the supervisor knows."""
        return None

    @property
    def last_error(self) -> IngestdError | None:
        """Never one: nothing is asked here."""
        return None

    def listen(
        self, changed: Callable[[ClusterMetadata], None], uses: Callable[[], Collection[str]] | None = None
    ) -> Callable[[], None]:
        """Call `changed` after every replacement of the snapshot; the returned function ends that.

        `uses` is not needed here: the supervisor pushes what it knows.
        """
        return self._snapshot.listen(changed, uses)

    def push(self, metadata: ClusterMetadata) -> None:
        """Take a complete snapshot from the supervisor. Call it on the event loop."""
        self._asked.clear()
        self._snapshot.replace(keep_newer_leaders(self.snapshot, metadata))
        pushed, self._pushed = self._pushed, None
        if pushed is not None and not pushed.done():
            pushed.set_result(None)

    def wanted(self, topics: Collection[str], reason: str, *, create: bool = False) -> None:  # noqa: ARG002 - see below
        """Pass the wish on, unless that was done lately. The supervisor decides whether a topic is created."""
        now = asyncio.get_running_loop().time()
        # "" stands for a wish without topics, which asks for the nodes alone.
        fresh = [topic for topic in topics or ("",) if self._asked.get(topic, float("-inf")) + self._repeat <= now]
        if not fresh or self._closed:
            return
        self._asked.update(dict.fromkeys(fresh, now))
        self._pass_on_wanted([topic for topic in fresh if topic], reason)

    def hint(self, topic: str, partition: int, leader: int, leader_epoch: int, node: Node | None = None) -> None:
        """Apply a newer leader here, and pass it on without its address, which the supervisor finds by a refresh."""
        self.hints([NewLeader(topic, partition, leader, leader_epoch, node)])

    def hints(self, leaders: Sequence[NewLeader]) -> None:
        """Apply newer leaders here, in one replacement of the snapshot, and pass them on one by one."""
        before = self.snapshot
        changed = with_leaders(before, leaders)
        if changed is not None:
            self._snapshot.replace(changed)
        for new in leaders:
            known = before.partition(new.topic, new.partition)
            if new.leader >= 0 and (known is None or new.leader_epoch > known.leader_epoch):
                self._pass_on_hint(new.topic, new.partition, new.leader, new.leader_epoch)

    async def refresh(self, topics: Collection[str] | None, timeout: float, *, create: bool = False) -> ClusterMetadata:
        """Pass the wish on and wait for the next push. Raises `DeadlineExceeded`, `Closed`."""
        if self._closed:
            raise Closed("the client is closed")
        self.wanted(self.snapshot.topics if topics is None else topics, "refresh", create=create)
        if self._pushed is None:
            self._pushed = asyncio.get_running_loop().create_future()
        await Deadline.after(timeout).wait_for(asyncio.shield(self._pushed), "waiting for metadata from the supervisor")
        if self._closed:
            raise Closed("the client is closed")
        return self.snapshot

    async def close(self) -> None:
        """Close. All that wait for a push get `Closed`."""
        self._closed = True
        if self._pushed is not None and not self._pushed.done():
            self._pushed.set_result(None)
