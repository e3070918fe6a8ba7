"""Share partitions by weight: `python custom_assignor.py BOOTSTRAP TOPIC GROUP COUNT WEIGHT`.

Every member of the group runs this assignor and says its weight; the leader gives each member partitions in proportion.
Ends after COUNT records; start it several times at once, with different weights, to see the partitions shared.
"""

import asyncio
import sys
from collections.abc import Collection, Mapping

from ingestd import (
    Assignment,
    Claim,
    Client,
    ClusterMetadata,
    ConsumerGroup,
    ConsumerGroupHandler,
    ConsumerGroupSession,
    GroupSettings,
    RebalanceProtocol,
    Subscription,
    TopicPartition,
)


class WeightedAssignor:
    """Gives each partition to the member that has the fewest for its weight."""

    name = "weighted"
    rebalance_protocols = frozenset({RebalanceProtocol.eager})

    def __init__(self, weight: int) -> None:
        self.weight = weight

    def user_data(self, topics: Collection[str]) -> bytes:
        """What the leader hears of this member, beside its topics."""
        return self.weight.to_bytes(4, "big")

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """On the leader: everybody's part."""
        weights = {member: int.from_bytes(told.user_data or b"\x01", "big") for member, told in members.items()}
        shares: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for topic in sorted({topic for told in members.values() for topic in told.topics} & cluster.topics.keys()):
            subscribers = sorted(member for member, told in members.items() if topic in told.topics)
            for partition in cluster.topics[topic].partitions:
                member = min(subscribers, key=lambda one: (len(shares[one]) + 1) / weights[one])
                shares[member].append(TopicPartition(topic, partition.partition))
        return {member: Assignment(partitions) for member, partitions in shares.items()}

    def on_assignment(self, assignment: Assignment, member_id: str, generation: int) -> None:
        """On every member: its own part."""
        print(f"generation {generation}: {len(assignment.partitions)} partitions for weight {self.weight}")


class Counting(ConsumerGroupHandler):
    """Counts records, and marks each that it has counted."""

    def __init__(self, enough: int) -> None:
        self.left = enough

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:
        """Return when there is enough, which ends the session for all claims."""
        async for record in claim:
            claim.mark(record)
            self.left -= 1
            if self.left <= 0:
                return


async def main(bootstrap: str, topic: str, group_id: str, count: str, weight: str) -> None:
    """Consume until COUNT records are counted."""
    handler = Counting(int(count))
    settings = GroupSettings(assignors=(WeightedAssignor(int(weight)),), no_offset="earliest")
    async with Client([bootstrap]) as client, ConsumerGroup(client, group_id, settings) as group:
        while handler.left > 0:
            await group.consume([topic], handler)
    print(f"{count} records")


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
