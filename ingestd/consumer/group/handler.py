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
    """What `ConsumerGroup.consume` calls on its event loop; to be inherited from. What it raises ends the session.

    For each session: `setup`; for each partition `consume_claim` in a task of its own; `cleanup` when all of those have
    ended. The others tell of partitions that come and go, also while the session lives (cooperative rebalances).
    """

    async def setup(self, session: ConsumerGroupSession) -> None:
        """Before the first claim of a session."""

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:
        """Process a claim's records and mark them: `async for record in claim`.

        Return soon after iteration ends: the partition goes to another member. A handler that does not is cancelled.
        Returning while the claim lives ends the session for all claims. A call that blocks the thread blocks the
        heartbeats: use `asyncio.to_thread` for those.
        """
        raise NotImplementedError

    async def cleanup(self, session: ConsumerGroupSession) -> None:
        """After the last claim of a session; what is marked is committed afterwards."""

    async def assigned(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        """These partitions came; before their claims begin."""

    async def revoked(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        """These go to others; after their claims have ended, before what they marked is committed."""

    async def lost(self, session: ConsumerGroupSession, partitions: Sequence[TopicPartition]) -> None:
        """Others may have these already: nothing of them can be committed any more."""
