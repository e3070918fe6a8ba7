"""Process a topic together with others: `python consumer_group.py BOOTSTRAP TOPIC GROUP COUNT`.

Ends after COUNT records; start it several times at once to see the partitions shared.
"""

import asyncio
import sys

from ingestd import Claim, Client, ConsumerGroup, ConsumerGroupHandler, ConsumerGroupSession, GroupSettings


class Counting(ConsumerGroupHandler):
    """Counts records, and marks each that it has counted."""

    def __init__(self, enough: int) -> None:
        self.left = enough

    async def setup(self, session: ConsumerGroupSession) -> None:
        """Say which partitions came."""
        print(f"generation {session.generation}: {sorted(map(str, session.assignment))}")

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:
        """Return when there is enough, which ends the session for all claims."""
        async for record in claim:
            claim.mark(record)
            self.left -= 1
            if not self.left:
                return


async def main(bootstrap: str, topic: str, group_id: str, count: str) -> None:
    """Consume until COUNT records are counted; what is marked is committed as the session ends."""
    handler = Counting(int(count))
    settings = GroupSettings(no_offset="earliest")
    async with Client([bootstrap]) as client, ConsumerGroup(client, group_id, settings) as group:
        while handler.left:
            end = await group.consume([topic], handler)
            print(f"the session ended: {end.reason.name}")
    print(f"{count} records")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
