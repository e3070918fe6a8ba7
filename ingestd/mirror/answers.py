"""Answers: the way of an answer's batches. Those of mirrors by their origin, the others in units, to the sender."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from ingestd.errors import IngestdError
from ingestd.mirror.origins import Fate, by_fate
from ingestd.mirror.passing import WAYS, passage, units
from ingestd.mirror.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingestd.consumer.fetched import Fetched, FetchedBatch
    from ingestd.daemon.statistics import RouteCounters
    from ingestd.mirror.lease import Lease
    from ingestd.mirror.origins import Origin, SourceProducers
    from ingestd.mirror.pace import Pace
    from ingestd.mirror.partition import CopiedPartition
    from ingestd.mirror.passing import Unit
    from ingestd.mirror.route import MirrorRoute
    from ingestd.mirror.sender import CopyNews, Sender

__all__ = ["Answers"]


class Answers:
    """One for each mirror in a worker, for all of its partitions.

    Invariants
        Batches are sent in the order of the log, or passed over.
        Nothing of what may be on the target already is sent, nor anything behind it.
    """

    def __init__(
        self,
        route: MirrorRoute,
        counters: RouteCounters,
        origins: SourceProducers,
        pace: Pace | None,
        lease: Lease,
        sender: Sender,
        news: CopyNews,
    ) -> None:
        self._counters = counters
        self._origins = origins
        self._pace = pace
        self._lease = lease
        self._sender = sender
        self._news = news
        self._target = route.target
        self._filter = route.record_filter
        self._passage = partial(passage, filtered=self._filter is not None)
        self._turns = Turns()
        for way in WAYS:
            counters.count_way(way, 0, batches=0)

    async def copy(self, held: CopiedPartition, fetched: Fetched) -> None:
        """Send the batches of an answer. What is raised is raised after the batches before the faulty one are sent."""
        held.sending = True
        try:
            origins = await self._prepared(held, fetched)
            for fate, batches in by_fate(fetched.batches, origins):
                if fate is Fate.PASSES:
                    await self._send(held, batches, fetched)
                elif fate is Fate.CAME_BACK:
                    self._pass_over(held, batches, fetched)
                else:
                    self._refuse(held, batches[0], origins)
                    return
        finally:
            held.sending = False

    async def _prepared(self, held: CopiedPartition, fetched: Fetched) -> Mapping[int, Origin]:
        """Learn who wrote these batches. Returns those of mirrors, by producer id. Raises `IngestdError`."""
        if unknown := self._origins.unknown(fetched.batches):
            await self._origins.learn(unknown)
        origins = self._origins.of(fetched.batches)
        through = held.through.union(*(one.through for one in origins.values() if one.fate is Fate.PASSES))
        if through != held.through:
            # The producers do not wait for each other. So what the other one has must be in the log first.
            held.drained = asyncio.Event()
            if held.bytes:
                await held.drained.wait()
            held.drained = None
            held.through = through
        return origins

    def _pass_over(self, held: CopiedPartition, batches: Sequence[FetchedBatch], fetched: Fetched) -> None:
        """Batches that came from the target are not sent back."""
        last = batches[-1]
        self._counters.records_not_sent_back += sum([batch.header.records for batch in batches])
        self._news.acknowledge(held, held.read(_end(last, fetched), last.header.leader_epoch))

    def _refuse(self, held: CopiedPartition, batch: FetchedBatch, origins: Mapping[int, Origin]) -> None:
        said = origins[batch.header.producer_id].said
        self._news.stop(
            f"records of {held.name} from offset {batch.header.base_offset} on were brought there by {said}. "
            f"Some of them may come from {self._target}, and nobody knows which: expected mirrors of this topic "
            "in a line or a star, with one way between any two clusters, and no ring"
        )

    async def _send(self, held: CopiedPartition, batches: Sequence[FetchedBatch], fetched: Fetched) -> None:
        for unit in units(map(self._passage, batches)):
            if self._pace is not None:
                size = sum([batch.header.size for batch in unit.batches])
                await asyncio.sleep(self._pace.spend(size, time.monotonic()))
            try:
                await self._send_unit(held, unit, fetched)
            except IngestdError:
                if len(unit.batches) == 1:
                    raise
                for alone in unit.alone():
                    await self._send_unit(held, alone, fetched)

    async def _send_unit(self, held: CopiedPartition, unit: Unit, fetched: Fetched) -> None:
        """Send a unit. If `CorruptBatch` or `UnsupportedCodec` is raised, nothing of it counts as read."""
        parts = await self._turns.take(unit.parts(self._filter))
        if time.monotonic() >= self._lease.until:
            self._lease.end()
            await asyncio.sleep(0)  # does not return: this task was cancelled
        last = unit.batches[-1]
        for way, (size, number) in unit.sizes().items():
            self._counters.bytes_read += size
            self._counters.count_way(way, size, batches=number)
        newest = max([batch.header.max_timestamp for batch in unit.batches])
        span = held.read(_end(last, fetched), last.header.leader_epoch)
        self._sender.send(held, span, parts, newest)
        await self._sender.room.wait()


def _end(batch: FetchedBatch, fetched: Fetched) -> int:
    """The position behind a batch of an answer."""
    return fetched.next_offset if batch is fetched.batches[-1] else batch.next_offset
