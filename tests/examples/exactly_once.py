"""Records of one topic, changed, into another, each exactly once: `python exactly_once.py BOOTSTRAP FROM TO COUNT`.

Results and progress are committed in one transaction, so that whoever reads TO with `read_committed` sees the result of
each record of FROM once, wherever this is killed and started again.
"""

import asyncio
import sys

from ingestd import (
    AsyncProducer,
    Claim,
    Client,
    ConsumerGroup,
    ConsumerGroupHandler,
    ConsumerGroupSession,
    ConsumerSettings,
    GroupSettings,
    OffsetAndMetadata,
    ProducerSettings,
)


class Shouting(ConsumerGroupHandler):
    """Writes each value in capitals; one transaction for each chunk of records."""

    def __init__(self, producer: AsyncProducer, target: str, enough: int) -> None:
        self.left = enough
        self._producer = producer
        self._target = target
        self._turn = asyncio.Lock()  # a producer has one transaction at a time

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:
        """Offsets are committed by the transactions, and by nobody else: nothing is marked."""
        async for records in claim.chunks():
            async with self._turn, self._producer.transaction() as transaction:
                for record in records:
                    self._producer.send(self._target, (record.value or b"").upper(), key=record.key)
                behind = OffsetAndMetadata(records[-1].offset + 1, records[-1].leader_epoch)
                await transaction.add_offsets({claim.key: behind}, session.member)
            self.left -= len(records)
            if self.left <= 0:
                return


async def main(bootstrap: str, source: str, target: str, count: str) -> None:
    """Go on until COUNT records are done."""
    settings = GroupSettings(
        no_offset="earliest",
        auto_commit_interval=None,
        consumer=ConsumerSettings(isolation="read_committed"),
    )
    transactional = ProducerSettings(transactional_id=f"shouting-{source}")
    async with (
        Client([bootstrap]) as client,
        AsyncProducer(client, transactional) as producer,
        ConsumerGroup(client, f"shouting-{source}", settings) as group,
    ):
        await producer.init_transactions()
        handler = Shouting(producer, target, int(count))
        while handler.left > 0:
            await group.consume([source], handler)
    print(f"{count} records")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
