"""Verification: whether what a mirror has copied is on the target as it is at the source, partition by partition."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.client.admin import ClusterAdmin, ConfigResource, ResourceType
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.offsets import resolve_offsets
from ingestd.consumer.settings import ConsumerSettings, Edge, Isolation
from ingestd.errors import ErrorCode, IngestdError
from ingestd.figures import in_count
from ingestd.mirror.comparison import Comparison
from ingestd.mirror.one_cluster import selection_between
from ingestd.mirror.positions import read_positions
from ingestd.mirror.registry import ProducerRegistry, cluster_id
from ingestd.mirror.selection import NAMING
from ingestd.mirror.target_topics import REQUEST_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence

    from ingestd.client.client import Client
    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.mirror.comparison import Difference
    from ingestd.mirror.route import MirrorRoute

__all__ = ["PartitionVerdict", "Verification", "mirrored_partitions", "verify"]

AT_ONCE: Final = 4
"""Partitions that are compared at the same time."""

PREFETCH_BYTES: Final = 8 * 1024 * 1024
"""Fetched and not yet compared bytes of one partition on one side."""


@dataclass(frozen=True, slots=True)
class PartitionVerdict:
    """One partition. What is before `compared_to`, an offset at the source, must be on the target.

    source_records, target_records: how many were compared. duplicates: how many on the target came again.
    notes: what was not compared, and why. problem: why the comparison could not be finished.
    """

    topic: str
    target_topic: str
    partition: int
    compared_to: int
    source_records: int = 0
    target_records: int = 0
    duplicates: int = 0
    notes: Sequence[str] = ()
    difference: Difference | None = None
    problem: str | None = None

    def same(self, *, strict: bool = False) -> bool:
        """Whether the target has what it must have; with `strict` nothing twice."""
        return self.difference is None and self.problem is None and not (strict and self.duplicates)


@dataclass(frozen=True, slots=True)
class Verification:
    """One mirror: its partitions in order of topic and number."""

    mirror: str
    partitions: Sequence[PartitionVerdict]

    def same(self, *, strict: bool = False) -> bool:
        """Whether all partitions are the same."""
        return all(one.same(strict=strict) for one in self.partitions)


async def verify(route: MirrorRoute, source: Client, target: Client, *, to_end: bool = False) -> Verification:
    """Compare what a mirror has copied up to its positions, or with `to_end` up to the present end at the source.

    Only committed records are read. The mirror may run meanwhile; what it copies behind its positions is compared too.
    Raises `PositionsNotUnderstood`, and `IngestdError` if a cluster does not answer or nothing was copied yet.
    """
    admins = ClusterAdmin(source), ClusterAdmin(target)
    positions = await read_positions(admins[1], route.positions_group, route.source, REQUEST_TIMEOUT)
    pairs = await mirrored_partitions(route, source, target)
    ends: dict[TopicPartition, int] = {}
    if to_end:
        ends = await _offsets(source, pairs, Edge.latest, Isolation.read_uncommitted)
        limits = await _offsets(source, pairs, Edge.latest)
    else:
        limits = {one: positions[to].offset for one, to in pairs.items() if to in positions}
    if not limits:
        raise IngestdError(
            f"mirror {route.name}: nothing to compare: of {in_count(len(pairs), 'partition')} that it takes from "
            f"{route.source}, none has a position in group {route.positions_group} on {route.target}"
        )
    copied = await _there(admins[1], [pairs[one] for one in limits])
    target_spans = await _spans(target, copied)
    source_spans = await _spans(source, limits)  # behind the target's ends: all that was copied by then is before these
    left_out = await _left_out(route, source, target)  # after the ends: ids are registered before they are used
    turns = asyncio.Semaphore(AT_ONCE)

    async def verdict(one: TopicPartition) -> PartitionVerdict:
        to, limit = pairs[one], limits[one]
        logs = (
            _ClusterLog(source, one, *source_spans[one], left_out and left_out[0]),
            _ClusterLog(target, to, *target_spans.get(to, (0, 0)), left_out and left_out[1]),
        )
        begun_later, position = route.start != "earliest", positions.get(to)
        begun_at = position.offset if begun_later and position is not None and not position.target_offset else None
        comparison = Comparison(
            *logs,
            limit=limit,
            begun_later=begun_later,
            begun_at=begun_at,
            record_filter=route.record_filter,
        )
        if left_out:
            comparison.notes.append("both directions: what came from the target, and what is its own, is left out")
        if (behind := ends.get(one, limit) - limit) > 0:
            offsets = f"{in_count(behind, 'offset')} from {limit} on"
            comparison.notes.append(f"not compared: {offsets}, behind an open transaction")
        difference = problem = None
        async with turns:
            try:
                difference = await comparison.run()
                if difference is not None and await _compacted(admins, one, to):
                    comparison.notes.append("compacted: each side removes records by itself")
            except IngestdError as error:
                problem = str(error)
        return PartitionVerdict(
            one.topic,
            to.topic,
            one.partition,
            limit,
            comparison.source_records,
            comparison.target_records,
            comparison.duplicates,
            tuple(comparison.notes),
            difference,
            problem,
        )

    async with asyncio.TaskGroup() as comparing:
        verdicts = [comparing.create_task(verdict(one)) for one in sorted(limits)]
    return Verification(route.name, tuple(task.result() for task in verdicts))


class _ClusterLog:
    """See `PartitionLog`. Each reading has a consumer of its own, which bounds its memory."""

    def __init__(
        self, client: Client, key: TopicPartition, first: int, end: int, left_out: Callable[[int], bool] | None
    ) -> None:
        """`left_out` says of a producer id whether its batches do not count."""
        self._client = client
        self._left_out = left_out
        self.key = key
        self.first = first
        self.end = end

    async def batches(self, start: int) -> AsyncGenerator[FetchedBatch, None]:
        """See `PartitionLog`."""
        if start >= self.end:
            return
        settings = ConsumerSettings(isolation="read_committed", prefetch_bytes=PREFETCH_BYTES)
        async with Consumer(self._client, settings) as consumer:
            reading = await consumer.consume_partition(*self.key, start, self.end)
            async for batch in reading.batches():
                if self._left_out is None or not self._left_out(batch.header.producer_id):
                    yield batch


async def _left_out(
    route: MirrorRoute, source: Client, target: Client
) -> tuple[Callable[[int], bool], Callable[[int], bool]] | None:
    """By producer id, what does not count on each side where a mirror comes back to the same names. Else None."""
    if route.template != NAMING["identity"]:
        return None
    theirs = await cluster_id(target)
    came_back = {known for known, found in (await ProducerRegistry(source).all()).items() if found.source == theirs}
    if not came_back:
        return None
    ours = await cluster_id(source)
    copied = {known for known, found in (await ProducerRegistry(target).all()).items() if found.source == ours}
    return came_back.__contains__, lambda producer_id: producer_id not in copied


async def mirrored_partitions(
    route: MirrorRoute, source: Client, target: Client
) -> dict[TopicPartition, TopicPartition]:
    """The source's partitions that the mirror takes, with those that they are copied to. Raises `IngestdError`."""
    selection = selection_between(route, await cluster_id(source), await cluster_id(target))
    pairs: dict[TopicPartition, TopicPartition] = {}
    for topic, known in (await ClusterAdmin(source).list_topics(timeout=REQUEST_TIMEOUT)).items():
        if not selection.takes(topic):
            continue
        try:
            name = selection.renamed(topic)
        except ValueError:  # the mirror says so, and does not take it
            continue
        pairs |= {TopicPartition(topic, one.partition): TopicPartition(name, one.partition) for one in known.partitions}
    return pairs


async def _there(target: ClusterAdmin, wanted: Collection[TopicPartition]) -> list[TopicPartition]:
    """Those that the target has."""
    topics = await target.describe_topics(list({one.topic for one in wanted}), timeout=REQUEST_TIMEOUT)
    counts = {name: len(topic.partitions) for name, topic in topics.items() if topic.error is ErrorCode.none}
    return [one for one in wanted if one.partition < counts.get(one.topic, 0)]


async def _offsets(
    client: Client, partitions: Iterable[TopicPartition], edge: Edge, isolation: Isolation = Isolation.read_committed
) -> dict[TopicPartition, int]:
    return await resolve_offsets(client, dict.fromkeys(partitions, edge), isolation, REQUEST_TIMEOUT)


async def _spans(client: Client, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset of each, and its end."""
    ends = await _offsets(client, partitions, Edge.latest)
    firsts = await _offsets(client, partitions, Edge.earliest)
    return {one: (firsts[one], max(firsts[one], ends[one])) for one in partitions}


async def _compacted(admins: tuple[ClusterAdmin, ClusterAdmin], source: TopicPartition, target: TopicPartition) -> bool:
    """Whether either side compacts the topic. Raises `IngestdError` if a cluster does not tell."""
    for admin, one in zip(admins, (source, target), strict=True):
        asked = [ConfigResource(ResourceType.topic, one.topic)]
        for described in await admin.describe_configs(asked, timeout=REQUEST_TIMEOUT):
            if described.error is None and "compact" in (described.entries["cleanup.policy"].value or ""):
                return True
    return False
