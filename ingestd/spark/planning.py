"""Planning: options and the log's present offsets in, ranges of offsets out, one for each task of the query."""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import InputPartition

from ingestd.consumer.settings import AtTime, Edge, Start, TopicPartition
from ingestd.errors import ConfigurationError, IngestdError
from ingestd.spark.options import Assigned, Subscribed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ingestd.spark.options import RangeBounds, ReadOptions, Subscription

__all__ = ["DataLoss", "Log", "OffsetRange", "plan"]


class DataLoss(IngestdError):
    """Asked offsets are not in the log, and `failOnDataLoss` is true."""


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """The records of one partition from `start` up to but without `end`: what one task reads. Pickles."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Offsets in the range; records are at most as many."""
        return self.end - self.start


class Log(Protocol):
    """What planning asks a cluster; `SyncConsumer` answers."""

    def topics(self) -> list[str]:
        """Every topic that is not internal."""
        ...

    def partitions(self, topic: str) -> list[int]:
        """A topic's partitions."""
        ...

    def offsets(self, wanted: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """The offsets that these starts mean now."""
        ...


def plan(options: ReadOptions, log: Log) -> list[OffsetRange]:
    """The ranges to read, in order of topic, partition and offset; none where there is nothing.

    Raises `ConfigurationError` where an option does not fit the partitions, `DataLoss`, and what `log` raises.
    """
    partitions = _partitions(options.subscription, log)
    starting = _for_each(options.starting, partitions)
    ending = _for_each(options.ending, partitions)
    latest = log.offsets(dict.fromkeys(partitions, Edge.latest))
    earliest = log.offsets(dict.fromkeys(partitions, Edge.earliest))
    asked_starts = _resolve(starting, earliest, latest, log)
    asked_ends = _resolve(ending, earliest, latest, log)
    ranges = []
    for key in partitions:
        none_since = isinstance(starting[key], AtTime) and asked_starts[key] >= latest[key]
        if none_since and not options.latest_if_no_timestamp:
            raise ConfigurationError(
                f"ingestd source: option {options.starting.option}: {key} has no record at or after that time; "
                "expected one, or startingOffsetsByTimestampStrategy = latest"
            )
        start = _within(options, options.starting, key, asked_starts[key], earliest[key], latest[key])
        end = _within(options, options.ending, key, asked_ends[key], earliest[key], latest[key])
        if start < end:
            ranges.append(OffsetRange(*key, start, end))
    return split(ranges, options.min_partitions, options.max_records_per_partition)


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


def _cut(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    edges = [whole.start + whole.size * number // count for number in range(count + 1)]
    return (OffsetRange(whole.topic, whole.partition, start, end) for start, end in pairwise(edges))


def _partitions(subscription: Subscription, log: Log) -> list[TopicPartition]:
    if isinstance(subscription, Assigned):
        for topic in {key.topic for key in subscription.partitions}:
            known = log.partitions(topic)
            missing = [key for key in subscription.partitions if key.topic == topic and key.partition not in known]
            if missing:
                raise ConfigurationError(
                    f"ingestd source: option assign names {_names(missing)}; the topic has partitions 0 to {max(known)}"
                )
        return sorted(subscription.partitions)
    if isinstance(subscription, Subscribed):
        topics = sorted(subscription.topics)
    else:
        pattern = re.compile(subscription.pattern)
        topics = [topic for topic in log.topics() if pattern.fullmatch(topic)]
    return [TopicPartition(topic, partition) for topic in topics for partition in log.partitions(topic)]


def _for_each(bounds: RangeBounds, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Start]:
    if bounds.everywhere is not None:
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
            f"{latest}; some records may have been deleted (failOnDataLoss = false reads what is there)"
        )
    return min(max(offset, earliest), latest)


def _names(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(map(str, partitions[:5]))
    return f"{shown} and {len(partitions) - 5} more" if len(partitions) > 5 else shown
