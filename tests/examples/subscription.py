"""The short way to a group's records: `python subscription.py BOOTSTRAP TOPIC GROUP COUNT`."""

import asyncio
import sys

from ingestd import Client, ConsumerGroup, GroupSettings


async def main(bootstrap: str, topic: str, group_id: str, count: str) -> None:
    """Read COUNT records. Each counts as processed when the next one is asked for."""
    left = int(count)
    settings = GroupSettings(no_offset="earliest")
    async with (
        Client([bootstrap]) as client,
        ConsumerGroup(client, group_id, settings) as group,
        group.subscribe([topic]) as records,
    ):
        async for record in records:
            left -= 1
            if not left:
                print(f"the last one: {record.topic}-{record.partition} offset {record.offset}")
                break
    print(f"{count} records")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
