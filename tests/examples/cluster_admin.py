"""Look after a cluster: `python cluster_admin.py BOOTSTRAP TOPIC` makes TOPIC, grows it and describes it."""

import asyncio
import sys

from ingestd import Client, ClusterAdmin, NewPartitions, NewTopic


async def main(bootstrap: str, topic: str) -> None:
    """Each item of a call has an outcome of its own: one that fails hides no other."""
    async with Client([bootstrap]) as client:
        admin = ClusterAdmin(client)
        for made in await admin.create_topics([NewTopic(topic, partitions=2), NewTopic("no such/name")]):
            print(f"create {made.topic}: {made.error or 'done'}")
        for grown in await admin.create_partitions([NewPartitions(topic, 4)]):
            print(f"grow {grown.topic}: {grown.error or 'done'}")
        async with asyncio.timeout(30):  # brokers hear of it a moment after the controller has done it
            while len((described := (await admin.describe_topics([topic]))[topic]).partitions) < 4:
                await asyncio.sleep(0.05)
        print(f"{topic}: {len(described.partitions)} partitions")
        cluster = await admin.describe_cluster()
        print(f"{len(cluster.nodes)} nodes")
        for group in (await admin.list_groups()).items:
            print(f"group {group.group_id}: {group.state}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
