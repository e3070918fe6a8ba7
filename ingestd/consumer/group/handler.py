"""Handler: the user's part of a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.group.claim import Claim
    from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession

__all__ = ["ConsumerGroupHandler"]


class ConsumerGroupHandler:
    """Base class of what `ConsumerGroup.consume` calls, on its event loop. What it raises ends the session.

    For each session `setup` is called first. Then `consume_claim` runs for each partition, in its own task. When all
    have ended, `cleanup` is called. The other methods tell of partitions that come and go, also during the session
    (cooperative rebalances).
    """

    async def setup(self, session: ConsumerGroupSession) -> None:
        """Before the first claim of a session."""

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:
        """Process a claim's records and mark them: `async for record in claim`.

        Return soon after iteration ends: the partition goes to another member. A handler that does not return is
        cancelled. Returning earlier ends the session for all claims. A call that blocks the thread blocks the
        heartbeats: use `asyncio.to_thread` for it.
        """
        raise NotImplementedError

    async def cleanup(self, session: ConsumerGroupSession) -> None:
        """After the last claim of a session. What is marked is committed after this."""

    async def assigned(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        """These partitions were assigned. Called before their claims begin."""

    async def revoked(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        """These go to other members. Called after their claims have ended, before their marks are committed."""

    async def lost(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        """Other members may have these already. Nothing of them can be committed any more."""
