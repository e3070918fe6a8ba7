"""Manual assignment: partitions that the user chose. Offsets are committed in a group's name by no member of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ingestd.client.group import GroupMember
from ingestd.consumer.group.base_membership import BaseMembership
from ingestd.errors import IngestdError, is_retriable
from ingestd.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Collection

    from ingestd.client.client import Client
    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.group.coordinator import Action
    from ingestd.consumer.group.events import GroupEvents
    from ingestd.consumer.group.membership import PartitionOwner, SessionEnd, Topics
    from ingestd.consumer.group.settings import GroupSettings
    from ingestd.errors import KafkaError

__all__ = ["ManualAssignment"]


class ManualAssignment(BaseMembership):
    """See `Membership`. The assignment is the partitions given, from the moment that a broker is reached.

    The coordinator takes such commits as long as the group has no members. The maximum poll interval does not apply,
    because no other member waits.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        settings: GroupSettings,
        owner: PartitionOwner,
        *,
        partitions: Collection[TopicPartition],
        events: GroupEvents | None = None,
    ) -> None:
        super().__init__(client, group_id, settings, owner, events=events)
        self._chosen = frozenset(partitions)
        self._told_again = asyncio.Event()

    @property
    def member(self) -> GroupMember:
        """Nobody in particular."""
        return GroupMember(self._group_id)

    def subscribe(self, topics: Topics) -> None:
        """There is no subscription."""

    def rejoin(self, reason: str) -> None:  # noqa: ARG002 - there is nobody to tell
        """Tell the owner again, with nothing new."""
        self._told_again.set()

    def commit_refused(self, error: KafkaError, action: Action, member: GroupMember) -> bool:  # noqa: ARG002 - as above
        """See `Committer`: the group has members, so no later commit can pass either."""
        return False

    def _begin(self, topics: Topics) -> None:
        """Nothing to begin."""

    async def _stay_member(self) -> None:
        backoff = Backoff()
        topics = {key.topic for key in self._chosen}
        while True:
            try:
                await self._client.metadata.refresh(topics, self._settings.request_timeout)
                break
            except IngestdError as error:
                if not is_retriable(error):
                    raise
                self._events.retried(self._group_id, "find a broker", error)
            await asyncio.sleep(backoff.next_delay())
        await self._assign(self._chosen)
        while True:
            await self._told_again.wait()
            self._told_again.clear()
            await self._assign(frozenset())

    def _poll_interval_exceeded(self) -> None:
        """Nobody else waits for the partitions."""

    def _is_member(self) -> bool:
        return True

    async def _leave(self, end: SessionEnd, timeout: float) -> None:
        """There is nothing to leave."""
