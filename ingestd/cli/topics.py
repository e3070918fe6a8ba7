"""`ingestd topics`: what topics there are, what is in them, and making and unmaking them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestd.cli.scope import offsets_at, partitions_in
from ingestd.cli.starts import parse_start
from ingestd.client.admin import (
    EARLIEST,
    LATEST,
    AlterOperation,
    ClusterAdmin,
    ConfigChange,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetAt,
    ResourceType,
)
from ingestd.consumer.settings import AtTime, Edge
from ingestd.errors import ConfigurationError, ErrorCode, IngestdError, KafkaError
from ingestd.figures import in_count

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ingestd.cli.configured import ClusterAccess
    from ingestd.client.admin import CreatedTopic, TopicOutcome
    from ingestd.client.metadata import PartitionMetadata, TopicPartition

__all__ = [
    "DeletedBefore",
    "DiskUse",
    "PartitionDescription",
    "PartitionOffset",
    "TopicDescription",
    "TopicDiskUse",
    "add_partitions",
    "alter_topic",
    "by_topic",
    "create_topics",
    "delete_records",
    "delete_topics",
    "describe_topics",
    "disk_use",
    "list_offsets",
    "list_topics",
    "parse_at",
    "parse_before",
    "parse_configs",
    "raise_errors",
]


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: who has it, and from which offset to before which it reaches (-1 where no leader says)."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic: its partitions, and the configurations that it does not have by default."""

    topic: str
    partitions: Sequence[PartitionDescription]
    configs: Mapping[str, str | None]
    configs_error: str | None = None
    """Why nobody says which configurations there are."""

    def lines(self) -> Iterable[str]:
        """For people: the topic, then a line for each partition."""
        configs = " ".join(f"{name}={value}" for name, value in self.configs.items())
        if self.configs_error is not None:
            configs = f"configurations not known: {self.configs_error}"
        yield f"{self.topic}: {in_count(len(self.partitions), 'partition')}{'; ' if configs else ''}{configs}"
        for one in self.partitions:
            replicas = ",".join(map(str, one.replicas))
            in_sync = ",".join(map(str, one.in_sync_replicas))
            yield (
                f"  {one.partition}: offsets {one.first_offset} to {one.end_offset}, leader {one.leader}, "
                f"replicas {replicas}, in sync {in_sync}"
            )


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """Where a partition was at a point in time; None where no record is as late as that.

    The timestamp, in milliseconds since 1970, is that of the record at the offset, if a time was asked for.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DeletedBefore:
    """What became of a partition's records: its first offset now, or why they are all there."""

    topic: str
    partition: int
    first_offset: int | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What one replica takes on a broker's disk, in bytes, and the directory that it is in.

    A replica lags where it has not yet the newest records of its leader. A future one is on its way into this directory
    from another one of the same broker.
    """

    topic: str
    partition: int
    broker: int
    directory: str
    size: int
    offset_lag: int
    future: bool


@dataclass(frozen=True, slots=True)
class TopicDiskUse:
    """What the replicas of a topic take, on all brokers together, in bytes."""

    topic: str
    replicas: int
    size: int


async def list_topics(access: ClusterAccess, *, internal: bool = False) -> dict[str, int]:
    """Each topic's number of partitions, by name."""
    async with access.client() as client:
        topics = await ClusterAdmin(client).list_topics(include_internal=internal)
    return {name: len(topic.partitions) for name, topic in topics.items()}


async def describe_topics(access: ClusterAccess, names: Sequence[str]) -> list[TopicDescription]:
    """Describe topics, in the order of `names`. Raises `KafkaError` for one that is not there."""
    async with access.client() as client:
        admin = ClusterAdmin(client)
        topics = await admin.describe_topics(names)
        for name in names:
            topic = topics.get(name)
            if topic is None or topic.error is not ErrorCode.none:
                raise KafkaError(ErrorCode.unknown_topic_or_partition if topic is None else topic.error, name)
        edges = await _offsets(admin, [(name, one.partition) for name in names for one in topics[name].partitions])
        configs = await _configs(admin, names)
    return [
        TopicDescription(name, [_partition(name, one, edges) for one in topics[name].partitions], *configs[name])
        for name in names
    ]


async def list_offsets(
    access: ClusterAccess, scope: Mapping[str, Collection[int] | None], at: int
) -> list[PartitionOffset]:
    """The offset of each partition in `scope` (of a topic's partitions None: all) at a time, `EARLIEST` or `LATEST`.

    Raises `KafkaError` for a topic or partition that is not there, or whose leader refuses.
    """
    async with access.client() as client:
        admin = ClusterAdmin(client)
        found = (await offsets_at(admin, await partitions_in(admin, scope), at)).values()
    for one in found:
        if one.error is not None:
            raise one.error
    return [
        PartitionOffset(
            one.topic, one.partition, *(None if value < 0 else value for value in (one.offset, one.timestamp_ms))
        )
        for one in found
    ]


async def create_topics(
    access: ClusterAccess,
    names: Sequence[str],
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
) -> list[CreatedTopic]:
    """Create topics that are alike; -1: as many as the broker has by default. One that is not created has its error."""
    alike = [NewTopic(name, partitions, replication_factor, dict(configs or {})) for name in dict.fromkeys(names)]
    async with access.client() as client:
        return await ClusterAdmin(client).create_topics(alike)


async def delete_topics(access: ClusterAccess, names: Sequence[str]) -> None:
    """Delete topics. Raises `KafkaError`, or a group of them, for those that could not be deleted; others are."""
    async with access.client() as client:
        outcomes = await ClusterAdmin(client).delete_topics(names)
    raise_errors("topics not deleted", outcomes)


def raise_errors(message: str, outcomes: Iterable[CreatedTopic | TopicOutcome]) -> None:
    """Raises the error of the outcomes that have one, or a group of them with this message."""
    errors: list[IngestdError] = [outcome.error for outcome in outcomes if outcome.error is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup(message, errors)


async def delete_records(
    access: ClusterAccess, scope: Mapping[str, Collection[int] | None], before: int | AtTime | Edge
) -> list[DeletedBefore]:
    """Delete the records before an offset, a time or the end, in each partition of `scope` (of a topic's None: all).

    A time stands for the first record at or after it. Raises `KafkaError` for a topic or partition that is not there,
    or whose leader does not say its offsets.
    """
    async with access.client() as client:
        admin = ClusterAdmin(client)
        partitions = await partitions_in(admin, scope)
        if isinstance(before, int):
            offsets = dict.fromkeys(partitions, before)
        else:
            # As of now: what comes meanwhile stays. First the ends, for partitions with no record as late as the time.
            offsets = await _offsets_of(admin, partitions, LATEST)
            if isinstance(before, AtTime):
                found = await _offsets_of(admin, partitions, before.timestamp_ms)
                offsets |= {partition: offset for partition, offset in found.items() if offset >= 0}
        outcomes = await admin.delete_records({(topic, number): offset for (topic, number), offset in offsets.items()})
    return [
        DeletedBefore(one.topic, one.partition, None, str(one.error))
        if one.error is not None
        else DeletedBefore(one.topic, one.partition, one.first_offset)
        for one in outcomes
    ]


async def disk_use(
    access: ClusterAccess, scope: Mapping[str, Collection[int] | None] | None = None
) -> tuple[list[DiskUse], list[IngestdError]]:
    """What replicas take on their brokers' disks, and the errors of brokers and directories that do not say it.

    `scope`: the partitions that are meant, of a topic's None: all; None: every topic. Raises `KafkaError` for a topic
    or partition that is not there.
    """
    async with access.client() as client:
        admin = ClusterAdmin(client)
        partitions = None if scope is None else await partitions_in(admin, scope)
        described = await admin.describe_log_dirs(partitions=partitions)
    found = [
        DiskUse(one.topic, one.partition, broker.node_id, place.path, one.size, one.offset_lag, one.future)
        for broker in described
        for place in broker.log_dirs
        for one in place.replicas
    ]
    errors = [
        error for broker in described for error in (broker.error, *(one.error for one in broker.log_dirs)) if error
    ]
    return sorted(found, key=lambda one: (one.topic, one.partition, one.broker, one.directory)), errors


def by_topic(uses: Iterable[DiskUse]) -> list[TopicDiskUse]:
    """The sum of each topic, the largest first."""
    sizes: dict[str, list[int]] = {}
    for one in uses:
        sizes.setdefault(one.topic, []).append(one.size)
    totals = [TopicDiskUse(topic, len(each), sum(each)) for topic, each in sizes.items()]
    return sorted(totals, key=lambda one: (-one.size, one.topic))


async def alter_topic(access: ClusterAccess, name: str, configs: Mapping[str, str | None]) -> None:
    """Change some of a topic's configurations; None: back to the default. Raises `KafkaError`."""
    changes = [
        ConfigChange(key, value, AlterOperation.delete if value is None else AlterOperation.set)
        for key, value in configs.items()
    ]
    if not changes:
        raise ConfigurationError("nothing to change: expected --config-entry NAME=VALUE or --default NAME")
    async with access.client() as client:
        topic = ConfigResource(ResourceType.topic, name)
        for outcome in await ClusterAdmin(client).incremental_alter_configs({topic: changes}):
            if outcome.error is not None:
                raise outcome.error


async def add_partitions(access: ClusterAccess, name: str, total: int) -> None:
    """Give a topic more partitions, `total` altogether. Raises `KafkaError`."""
    async with access.client() as client:
        for outcome in await ClusterAdmin(client).create_partitions([NewPartitions(name, total)]):
            if outcome.error is not None:
                raise outcome.error


def parse_at(text: str) -> int:
    """`EARLIEST`, `LATEST` or milliseconds since 1970 from `beginning`, `end`, `@TIME`. Raises `ConfigurationError`."""
    start = parse_start(text)
    if isinstance(start, AtTime):
        return start.timestamp_ms
    if not isinstance(start, Edge):
        raise ConfigurationError(f"--at {text}: expected `beginning`, `end` or @TIME")
    return EARLIEST if start is Edge.earliest else LATEST


def parse_before(text: str) -> int | AtTime | Edge:
    """An offset, a time or the end, from `OFFSET`, `@TIME`, `end`. Raises `ConfigurationError`."""
    start = parse_start(text)
    if isinstance(start, int | AtTime) or start is Edge.latest:
        return start
    raise ConfigurationError(f"--before {text}: expected an offset, @TIME, or `end` for all records")


def parse_configs(entries: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` entries. Raises `ConfigurationError`."""
    configs = {}
    for entry in entries:
        name, found, value = entry.partition("=")
        if not found or not name:
            raise ConfigurationError(f"--config-entry {entry!r}: expected NAME=VALUE, as in retention.ms=3600000")
        configs[name] = value
    return configs


async def _offsets_of(admin: ClusterAdmin, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
    """Each partition's offset at a time. Raises `KafkaError` where a leader does not say it."""
    found = await offsets_at(admin, partitions, at)
    for one in found.values():
        if one.error is not None:
            raise one.error
    return {partition: one.offset for partition, one in found.items()}


async def _offsets(admin: ClusterAdmin, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int, Any], int]:
    asked = [OffsetAt(topic, partition, at) for topic, partition in partitions for at in (EARLIEST, LATEST)]
    listed = await admin.list_offsets(asked)
    return {
        (one.topic, one.partition, one.timestamp_ms): found.offset for one, found in zip(asked, listed, strict=True)
    }


async def _configs(admin: ClusterAdmin, names: Sequence[str]) -> dict[str, tuple[dict[str, str | None], str | None]]:
    """Each topic's own configurations, or why they are not told."""
    described = await admin.describe_configs([ConfigResource(ResourceType.topic, name) for name in names])
    return {
        one.resource.name: (
            {entry.name: entry.value for entry in one.entries.values() if entry.source == ConfigSource.topic},
            None if one.error is None else str(one.error),
        )
        for one in described
    }


def _partition(topic: str, one: PartitionMetadata, edges: Mapping[tuple[str, int, Any], int]) -> PartitionDescription:
    return PartitionDescription(
        one.partition,
        one.leader,
        one.replicas,
        one.in_sync_replicas,
        edges[topic, one.partition, EARLIEST],
        edges[topic, one.partition, LATEST],
    )
