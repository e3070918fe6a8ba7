"""One member of a group in a process of its own, for `group.py`: its figures as JSON on standard output."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from ingestd.client.client import Client
from ingestd.consumer.group.consumer_group import ConsumerGroup
from ingestd.consumer.group.handler import ConsumerGroupHandler
from ingestd.consumer.group.membership import EndReason
from ingestd.consumer.group.settings import GroupSettings, NoOffset

if TYPE_CHECKING:
    from ingestd.consumer.group.claim import Claim
    from ingestd.consumer.group.consumer_group_session import ConsumerGroupSession

SETTLE_SECONDS = 3.0
REFRESHES = 5
REFRESH_TIMEOUT = 30.0


@dataclass
class Figures:
    """CPU seconds of this process, and those on the clock."""

    join_cpu: float = 0.0
    join_wall: float = 0.0
    refresh_cpu: float = 0.0
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
    settings = GroupSettings(no_offset=NoOffset.earliest, auto_commit_interval=None)
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
        await asyncio.sleep(SETTLE_SECONDS)
        refreshes = []
        for _ in range(REFRESHES):
            cpu = time.process_time()
            await client.metadata.refresh(topics, REFRESH_TIMEOUT)
            refreshes.append(time.process_time() - cpu)
        figures.refresh_cpu = median(refreshes)
        cpu, wall = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        figures.idle_percent = (time.process_time() - cpu) / (time.monotonic() - wall) * 100
        await group.close()
        await consuming
    return figures


if __name__ == "__main__":
    servers, topics, partitions, group_id, seconds = sys.argv[1:]
    measured = measure(servers.split(","), topics.split(","), int(partitions), group_id, float(seconds))
    print(json.dumps(asdict(asyncio.run(measured))))
