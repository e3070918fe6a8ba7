"""Planning: options and the log's present offsets in, ranges of offsets out, and which of them a task reads."""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql.datasource import InputPartition

from ingestd.consumer.settings import AtTime, Edge, Start, TopicPartition
from ingestd.errors import ConfigurationError, ErrorCode, IngestdError, KafkaError
from ingestd.spark.read_options import Assigned, Committed, Subscribed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ingestd.client.metadata import TopicMetadata
    from ingestd.spark.read_options import BatchOptions, RangeBounds, ReadOptions, Subscription

__all__ = [
    "NO_TOPIC",
    "READS_THE_REST",
    "DataLoss",
    "Log",
    "OffsetRange",
    "Ranges",
    "Topics",
    "bounds",
    "is_named",
    "nested",
    "plan",
    "require_all",
    "split",
    "starts",
    "subscribed",
    "tasks",
]


NO_TOPIC: Final = "no such topic: "
"""What is said before the names of missing topics. A pipeline says what to do about it."""
READS_THE_REST: Final = "failOnDataLoss = false reads what is there"
"""What to do about a `DataLoss`. A pipeline has no such option, and says what it has instead."""
_MAYBE_DELETED: Final = f"some records may have been deleted ({READS_THE_REST})"


_LEAST_TASKS: Final = 32
"""Ranges share tasks only where there are more than this many. Few partitions are read side by side, as with Spark's
connector: what the query does with a row may be slow."""
_SHARED_OFFSETS: Final = 10_000
"""Ranges that share a task have no more offsets together. They are read in about the time that a task costs Spark."""


class DataLoss(IngestdError):
    """Asked offsets are not in the log, and `failOnDataLoss` is true."""


@dataclass(frozen=True)
class OffsetRange:
    """The records of one partition from `start` up to but without `end`. Pickles."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None
    """The id of the topic that these offsets are of. None: the cluster does not tell ids."""

    @property
    def size(self) -> int:
        """Offsets in the range; records are at most as many."""
        return self.end - self.start


@dataclass(frozen=True)
class Ranges(InputPartition):
    """What one task reads: ranges of different partitions. Pickles."""

    ranges: tuple[OffsetRange, ...]


class Log(Protocol):
    """What planning asks a cluster; `Planner` answers."""

    def topics(self) -> list[str]:
        """Every topic that is not internal."""
        ...

    def describe(self, topics: Collection[str]) -> dict[str, TopicMetadata]:
        """Topics as they are now; those that do not exist have that error."""
        ...

    def offsets(self, wanted: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """The offsets that these starts mean now."""
        ...

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where a consumer group goes on, of those of these partitions of which it has committed an offset."""
        ...


@dataclass(frozen=True, slots=True)
class Topics:
    """The partitions that a query reads, in order, and the ids of their topics as far as the cluster tells them."""

    partitions: tuple[TopicPartition, ...]
    ids: Mapping[str, str]
    missing: tuple[str, ...] = ()
    """Topics that are named by the query and do not exist."""


def plan(options: BatchOptions, log: Log) -> list[OffsetRange]:
    """The ranges to read, in order of topic, partition and offset; none where there is nothing. `tasks` takes them.

    Raises `ConfigurationError` where an option does not fit the partitions, `DataLoss`, and what `log` raises.
    """
    topics = require_all(subscribed(options.subscription, log))
    begins, ends = _bounds(options, topics.partitions, log)
    ranges = [
        OffsetRange(*key, begins[key], ends[key], topics.ids.get(key.topic))
        for key in topics.partitions
        if begins[key] < ends[key]
    ]
    return split(ranges, options.min_partitions, options.max_records_per_partition)


def bounds(options: BatchOptions, log: Log) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where each partition begins, and where it ends. Raises what `plan` raises."""
    return _bounds(options, require_all(subscribed(options.subscription, log)).partitions, log)


def _bounds(
    options: BatchOptions, partitions: Sequence[TopicPartition], log: Log
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    ending = _for_each(options.ending, partitions)
    latest = log.offsets(dict.fromkeys(partitions, Edge.latest))
    earliest = log.offsets(dict.fromkeys(partitions, Edge.earliest))
    begins = starts(options, partitions, earliest, latest, log)
    asked_ends = _resolve(ending, earliest, latest, log)
    ends = {
        key: _within(options, options.ending, key, asked_ends[key], earliest[key], latest[key]) for key in partitions
    }
    return begins, ends


def starts(
    options: ReadOptions,
    partitions: Sequence[TopicPartition],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    log: Log,
) -> dict[TopicPartition, int]:
    """Where each partition begins. Raises what `plan` raises."""
    if isinstance(options.starting.everywhere, Committed):
        return _committed(options, options.starting.everywhere, partitions, earliest, latest, log)
    starting = _for_each(options.starting, partitions)
    asked = _resolve(starting, earliest, latest, log)
    found = {}
    for key in partitions:
        none_since = isinstance(starting[key], AtTime) and asked[key] >= latest[key]
        if none_since and not options.latest_if_no_timestamp:
            raise ConfigurationError(
                f"ingestd source: option {options.starting.option}: {key} has no record at or after that time; "
                "expected one, or startingOffsetsByTimestampStrategy = latest"
            )
        found[key] = _within(options, options.starting, key, asked[key], earliest[key], latest[key])
    return found


def _committed(
    options: ReadOptions,
    where: Committed,
    partitions: Sequence[TopicPartition],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    log: Log,
) -> dict[TopicPartition, int]:
    committed = log.committed(where.group, partitions)
    # Where nothing is, every start is the same.
    without = [key for key in partitions if key not in committed and earliest[key] < latest[key]]
    if without and where.otherwise is None:
        raise ConfigurationError(
            f"ingestd source: option startingOffsets = group: group {where.group} has no committed offset of "
            f"{_names(without)}; expected one of each partition, or startingOffsetsByGroupStrategy = earliest or latest"
        )
    found = dict(earliest if where.otherwise is Edge.earliest else latest)
    for key, offset in committed.items():
        if options.fail_on_data_loss and not earliest[key] <= offset <= latest[key]:
            raise DataLoss(
                f"ingestd source: group {where.group} has committed offset {offset} of {key}, whose log has "
                f"{earliest[key]} to {latest[key]}; {_MAYBE_DELETED}; or reset the group's offsets"
            )
        found[key] = min(max(offset, earliest[key]), latest[key])
    return found


def is_named(subscription: Subscription, partition: TopicPartition) -> bool:
    """Whether a query would read a partition if it existed."""
    if isinstance(subscription, Assigned):
        return partition in subscription.partitions
    if isinstance(subscription, Subscribed):
        return partition.topic in subscription.topics
    return re.fullmatch(subscription.pattern, partition.topic) is not None


def subscribed(subscription: Subscription, log: Log) -> Topics:
    """The partitions that a query reads now. Raises `ConfigurationError`, `KafkaError`, and what `log` raises."""
    if isinstance(subscription, Assigned):
        names = sorted({key.topic for key in subscription.partitions})
    elif isinstance(subscription, Subscribed):
        names = sorted(subscription.topics)
    else:
        pattern = re.compile(subscription.pattern)
        names = [topic for topic in log.topics() if pattern.fullmatch(topic)]
    found = log.describe(names) if names else {}
    partitions: list[TopicPartition] = []
    ids: dict[str, str] = {}
    missing: list[str] = []
    for name in names:
        topic = found.get(name)
        if topic is None or topic.error is ErrorCode.unknown_topic_or_partition:
            missing.append(name)
            continue
        if topic.error is not ErrorCode.none:
            raise KafkaError(topic.error, name)
        if topic.topic_id is not None:
            ids[name] = str(topic.topic_id)
        partitions += [TopicPartition(name, one.partition) for one in topic.partitions]
    if isinstance(subscription, Assigned):
        wanted = sorted(key for key in subscription.partitions if key.topic not in missing)
        absent = [key for key in wanted if key not in set(partitions)]
        if absent:
            count = sum(key.topic == absent[0].topic for key in partitions)
            raise ConfigurationError(
                f"ingestd source: option assign names {_names(absent)}; the topic has partitions 0 to {count - 1}"
            )
        partitions = wanted
    return Topics(tuple(partitions), ids, tuple(missing))


def require_all(topics: Topics) -> Topics:
    """Raise `KafkaError` if a topic that the query names does not exist."""
    if topics.missing:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, NO_TOPIC + ", ".join(topics.missing[:5]))
    return topics


def split(ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """Cut ranges so that none has more than `max_records` offsets and there are at least `min_partitions`, evenly."""
    pieces = [1 if max_records is None else -(-one.size // max_records) for one in ranges]
    total = sum(pieces)
    # Whatever has the largest pieces is cut once more, until there are enough.
    heap = [(-one.size / count, index) for index, (one, count) in enumerate(zip(ranges, pieces, strict=True))]
    heapq.heapify(heap)
    while heap and min_partitions is not None and total < min_partitions:
        index = heap[0][1]
        if pieces[index] >= ranges[index].size:
            heapq.heappop(heap)
            continue
        pieces[index] += 1
        total += 1
        heapq.heapreplace(heap, (-ranges[index].size / pieces[index], index))
    return [piece for one, count in zip(ranges, pieces, strict=True) for piece in _cut(one, count)]


def tasks(options: ReadOptions, ranges: Sequence[OffsetRange]) -> list[Ranges]:
    """Tasks for these ranges, in the same order, and always the same for the same ranges and options.

    Small neighbours share a task, and so its consumer, as far as `minPartitions` and `maxRecordsPerPartition` allow it.
    With the source's position, each range has a task of its own: for a sink that writes every row once, a micro-batch
    that runs again must have its rows in the same tasks, also in another version.
    """
    least = max(_LEAST_TASKS, options.min_partitions or 0)
    most = min(_SHARED_OFFSETS, options.max_records_per_partition or _SHARED_OFFSETS)
    if options.include_position or len(ranges) <= least:
        return [Ranges((one,)) for one in ranges]
    most = bisect_right(range(most + 1), -least, key=lambda most: -len(_shared(ranges, most))) - 1
    return [Ranges(tuple(one)) for one in _shared(ranges, most)]


def _shared(ranges: Iterable[OffsetRange], most: int) -> list[list[OffsetRange]]:
    """As few runs of neighbours as can be. None has more than `most` offsets, but for a larger range alone."""
    runs: list[list[OffsetRange]] = []
    size = 0
    for one in ranges:
        if runs and size + one.size <= most:
            runs[-1].append(one)
            size += one.size
        else:
            runs.append([one])
            size = one.size
    return runs


def _cut(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    edges = [whole.start + whole.size * number // count for number in range(count + 1)]
    return (replace(whole, start=start, end=end) for start, end in pairwise(edges))


def _for_each(bounds: RangeBounds, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Start]:
    if bounds.everywhere is not None:
        assert not isinstance(bounds.everywhere, Committed), "`starts` asks the group"
        return dict.fromkeys(partitions, bounds.everywhere)
    missing = sorted(set(partitions) - bounds.each.keys())
    surplus = sorted(bounds.each.keys() - set(partitions))
    if missing or surplus:
        wrong = (
            f"leaves out {_names(missing)}" if missing else f"names {_names(surplus)}, which the query does not read"
        )
        raise ConfigurationError(
            f"ingestd source: option {bounds.option} {wrong}; expected every partition read, no other"
        )
    return bounds.each


def _resolve(
    wanted: Mapping[TopicPartition, Start],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    log: Log,
) -> dict[TopicPartition, int]:
    by_time = {key: start for key, start in wanted.items() if isinstance(start, AtTime)}
    found = log.offsets(by_time) if by_time else {}
    for key, start in wanted.items():
        if isinstance(start, int):
            found[key] = start
        elif start is Edge.earliest:
            found[key] = earliest[key]
        elif start is Edge.latest:
            found[key] = latest[key]
    return found


def _within(
    options: ReadOptions, bounds: RangeBounds, key: TopicPartition, offset: int, earliest: int, latest: int
) -> int:
    if earliest <= offset <= latest:
        return offset
    if options.fail_on_data_loss and isinstance(bounds.each.get(key), int):
        raise DataLoss(
            f"ingestd source: option {bounds.option} asks for offset {offset} of {key}, whose log has {earliest} to "
            f"{latest}; {_MAYBE_DELETED}"
        )
    return min(max(offset, earliest), latest)


def _names(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(map(str, partitions[:5]))
    return f"{shown} and {len(partitions) - 5} more" if len(partitions) > 5 else shown


def nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Offsets by topic and partition, in order, as JSON has them."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found
