"""What a member of a consumer group costs: joining with thousands of partitions, committing them all, doing nothing."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import results
from harness.cluster import KafkaCluster
from workload import JAVA_FOR_MEASURING, scratch

from ingestd.client.client import Client
from ingestd.consumer.group.consumer_group import ConsumerGroup
from ingestd.consumer.group.handler import ConsumerGroupHandler
from ingestd.consumer.group.session import EndReason
from ingestd.consumer.group.settings import GroupSettings, NoOffset

if TYPE_CHECKING:
    from ingestd.consumer.group.claim import Claim
    from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession

MOST_JOIN_SECONDS = 1.0
"""CPU seconds from the first request to the last claim's start."""
MOST_IDLE_PERCENT = 0.2
"""Of one core."""
SETTLE_SECONDS = 3.0
TOPICS = 2


@dataclass
class Figures:
    """CPU seconds of this process, and those on the clock."""

    join_cpu: float = 0.0
    join_wall: float = 0.0
    commit_cpu: float = 0.0
    idle_percent: float = 0.0


class Waiting(ConsumerGroupHandler):
    """Claims that wait for records that never come."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._left = partitions
        self.all_begun = asyncio.Event()

    async def setup(self, session: ConsumerGroupSession) -> None:  # noqa: ARG002 - a handler's
        self._left = self._partitions

    async def consume_claim(self, session: ConsumerGroupSession, claim: Claim) -> None:  # noqa: ARG002 - a handler's
        claim.mark_offset(claim.initial_offset)
        self._left -= 1
        if self._left == 0:
            self.all_begun.set()
        async for _ in claim:
            pass


async def consume(group: ConsumerGroup, topics: list[str], handler: Waiting) -> None:
    """Until the group is closed."""
    while (await group.consume(topics, handler)).reason is not EndReason.closed:
        pass


async def measure(
    servers: list[str], topics: list[str], partitions: int, group_id: str, seconds: float = 0.1
) -> Figures:
    """Join, commit, idle, leave."""
    figures = Figures()
    settings = GroupSettings(no_offset=NoOffset.oldest, auto_commit_interval=None)
    async with Client(servers) as client, ConsumerGroup(client, group_id, settings) as group:
        handler = Waiting(partitions)
        cpu, wall = time.process_time(), time.monotonic()
        consuming = asyncio.create_task(consume(group, topics, handler))
        await handler.all_begun.wait()
        figures.join_cpu, figures.join_wall = time.process_time() - cpu, time.monotonic() - wall
        assert group.session is not None
        cpu = time.process_time()
        await group.session.commit()
        figures.commit_cpu = time.process_time() - cpu
        if seconds > SETTLE_SECONDS:
            await asyncio.sleep(SETTLE_SECONDS)
        cpu, wall = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        figures.idle_percent = (time.process_time() - cpu) / (time.monotonic() - wall) * 100
        await group.close()
        await consuming
    return figures


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--idle-partitions", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    with (
        scratch(given.directory) as directory,
        KafkaCluster(
            directory / "kafka",
            # A node that makes thousands of partitions says nothing for a while, and shall not be taken for dead.
            settings={"broker.session.timeout.ms": "60000", "broker.heartbeat.interval.ms": "2000"},
            java_options=JAVA_FOR_MEASURING,
        ) as cluster,
    ):
        small = cluster.create_topic(partitions=given.idle_partitions)
        idle = asyncio.run(measure(cluster.bootstrap, [small], given.idle_partitions, "idle", given.seconds))
        # A controller makes at most 9,999 partitions at once.
        large = [cluster.create_topic(partitions=given.partitions // TOPICS) for _ in range(TOPICS)]
        # The node takes a while until it leads thousands of new partitions.
        asyncio.run(measure(cluster.bootstrap, large, given.partitions, "early"))
        first = asyncio.run(measure(cluster.bootstrap, large, given.partitions, "large"))
        again = asyncio.run(measure(cluster.bootstrap, large, given.partitions, "large"))
    join = max(first.join_cpu, again.join_cpu)
    verdicts = [
        f"joining {join:.2f} CPU-s, below {MOST_JOIN_SECONDS:g}: {'reached' if join < MOST_JOIN_SECONDS else 'MISSED'}",
        f"idle {idle.idle_percent:.3f} % of a core, below {MOST_IDLE_PERCENT:g} %: "
        + ("reached" if idle.idle_percent < MOST_IDLE_PERCENT else "MISSED"),
    ]
    rows = [
        ["joining, nothing committed, CPU-s", first.join_cpu],
        ["joining, all committed, CPU-s", again.join_cpu],
        ["joining, all committed, seconds", again.join_wall],
        ["committing all, CPU-s", first.commit_cpu],
        ["idle member, % of a core", idle.idle_percent],
    ]
    caption = f"{given.partitions} partitions; idle with {given.idle_partitions}, {given.seconds:.0f} s"
    results.print_table("Group", ["what", "figure"], rows, "\n".join([caption, *verdicts]))
    settings = {"partitions": given.partitions, "idle_partitions": given.idle_partitions, "seconds": given.seconds}
    figures = {str(name): figure for name, figure in rows} | {"verdicts": verdicts}
    saved = results.save("group", settings, figures)
    bars = {"CPU seconds": {str(name).removesuffix(", CPU-s"): figure for name, figure in rows if "CPU-s" in str(name)}}
    plot = results.plot_bars("group", caption, "CPU seconds", bars)
    print(f"written: {saved}, {plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
