"""What a client knows: `python client.py BOOTSTRAP TOPIC` prints where a topic lies, and the client's own state."""

import asyncio
import sys

import orjson

from ingestd import Client


async def main(bootstrap: str, topic: str) -> None:
    """The roles of the client, and the snapshot for bug reports."""
    async with Client([bootstrap]) as client:
        for partition in await client.partitions(topic):
            leader = await client.leader(topic, partition)
            in_sync = await client.in_sync_replicas(topic, partition)
            print(f"{topic}-{partition}: leader {leader.node.id}, in sync {in_sync}")
        print(orjson.dumps(client.status(), option=orjson.OPT_INDENT_2).decode())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
