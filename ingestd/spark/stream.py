"""Streams, on the driver: where a micro-batch begins and ends, and which ranges are between.

Spark keeps one JSON for the end of each micro-batch in the query's checkpoint, and nothing else of the source. So an
end says all that is needed to run its batch again, whatever has become of the topics.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ingestd.consumer.settings import Edge, TopicPartition
from ingestd.errors import ConfigurationError
from ingestd.spark.planning import (
    READS_THE_REST,
    DataLoss,
    OffsetRange,
    is_named,
    nested,
    require_all,
    split,
    starts,
    subscribed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ingestd.spark.planning import Log, Topics
    from ingestd.spark.read_options import StreamOptions

__all__ = ["NOWHERE", "StreamEnd", "StreamPlan"]

_log = logging.getLogger(__name__)

NOWHERE: Final[dict[str, Any]] = {}
"""What Spark gets as the initial offset. It is asked for more than once and never kept, so it says nothing."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Where a micro-batch ends.

    `offsets`: of each partition, the next one to read. `starts`: where those partitions begin in this batch that do not
    begin where the batch before ended. In the first batch these are all; later, new ones and those of a topic that was
    made again. `ids`: the topics' ids, as far as the cluster tells them.
    """

    offsets: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it: plain values, always in the same order, because Spark compares texts."""
        found: dict[str, Any] = {"offsets": nested(self.offsets)}
        if self.starts:
            found["starts"] = nested(self.starts)
        if self.ids:
            found["topicIds"] = dict(sorted(self.ids.items()))
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamEnd:
        """Raises `ConfigurationError` for what is no such value."""
        try:
            return cls(_flat(value["offsets"]), _flat(value.get("starts", {})), dict(value.get("topicIds", {})))
        except (KeyError, TypeError, ValueError, AttributeError):
            expected = '{"offsets": {TOPIC: {PARTITION: OFFSET}}}'
            raise ConfigurationError(
                f"ingestd source: the checkpoint has the offset {value!r}; expected one of this source, such as "
                f"{expected}. The checkpoint of another source can not be taken over: begin with a new one, and "
                "with that offset as `startingOffsets`"
            ) from None

    def offsets_now(self, ids: Mapping[str, str]) -> dict[TopicPartition, int]:
        """The offsets, without those of topics that were made again. `ids`: of the topics as they are now."""
        remade = {name for name in self.ids.keys() & ids.keys() if self.ids[name] != ids[name]}
        return {key: offset for key, offset in self.offsets.items() if key.topic not in remade}

    def ranges_since(self, before: StreamEnd | None) -> list[OffsetRange]:
        """What is between the end of the batch before and this one."""
        known = {} if before is None else before.offsets
        found = []
        for key, end in sorted(self.offsets.items()):
            start = self.starts.get(key, known.get(key, end))
            if start < end:
                found.append(OffsetRange(*key, start, end, self.ids.get(key.topic)))
        return found


class StreamPlan:
    """Says where micro-batches end. One for each run of a query, on its driver.

    Invariants
        An end is different from the one before if anything is to be read, or is to be remembered.
        Without `failOnDataLoss = false` no position moves over records that were not read.
    """

    def __init__(self, options: StreamOptions, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._log = log
        self._clock = clock
        self._present: tuple[Topics, dict[TopicPartition, int]] | None = None
        """If set, nothing newer is read: what was there when a query that is to end has begun."""
        self._waits_since = -math.inf
        """When it was last decided not to wait for more. The first time after a start it never waits."""
        self.latest: dict[TopicPartition, int] | None = None
        """The ends of all logs at the last look."""
        self.ids: Mapping[str, str] = {}
        """The topics' ids at the last look, as far as the cluster tells them."""
        self._said: set[str] = set()

    def stop_at_present(self) -> None:
        """Read what is there now, and nothing that comes later."""
        self._present = self._look()

    def next_end(self, before: StreamEnd | None, *, limited: bool) -> StreamEnd | None:
        """Where the next micro-batch ends, after one that ended at `before`. None: there is nothing to do yet.

        `limited`: whether the limits of the options count. Raises `DataLoss`, and what `planning.plan` raises.
        """
        topics, latest = self._present or self._look()
        self.latest, self.ids = latest, topics.ids
        if before is None:
            self._waits_since = self._clock()
            positions, moved, ids = self._first(topics, latest)
        else:
            positions, moved, ids = self._resumed(before, topics)
        for key in self._cut(positions, latest):
            self._lost(f"{key} ends at offset {latest[key]}, but was read up to {positions[key]}")
            positions[key] = moved[key] = latest[key]
        if before is not None and not moved and limited and self._too_few(positions, latest):
            return None
        ends = positions | _ends(positions, latest, self._options.max_offsets if limited else None)
        if before is not None and ends == before.offsets and not moved:
            return None
        return StreamEnd(ends, moved, ids)

    def ranges(self, before: StreamEnd | None, end: StreamEnd) -> Sequence[OffsetRange]:
        """The ranges of a micro-batch, for `tasks`. Asks nobody: a batch is always planned in the same way."""
        if before == end:
            return []
        return split(end.ranges_since(before), self._options.min_partitions, self._options.max_records_per_partition)

    def _look(self) -> tuple[Topics, dict[TopicPartition, int]]:
        topics = subscribed(self._options.subscription, self._log)
        return topics, self._log.offsets(dict.fromkeys(topics.partitions, Edge.latest))

    def _first(
        self, topics: Topics, latest: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], Mapping[str, str]]:
        partitions = require_all(topics).partitions
        found = starts(self._options, partitions, self._earliest(partitions), latest, self._log)
        return dict(found), found, topics.ids

    def _resumed(
        self, before: StreamEnd, topics: Topics
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], Mapping[str, str]]:
        """Positions now, those of them that were moved, and the topics' ids."""
        positions = dict(before.offsets)
        present = set(topics.partitions)
        for name in sorted(topics.ids.keys() & before.ids.keys()):
            if topics.ids[name] != before.ids[name]:
                self._lost(f"topic {name} was deleted and made again")
                positions = {key: offset for key, offset in positions.items() if key.topic != name}
        gone = sorted(key for key in positions if key not in present)
        left = [key for key in gone if not is_named(self._options.subscription, key)]
        if left:
            names = ", ".join(sorted({key.topic for key in left}))
            what = f"the checkpoint is of topics or partitions that the source does not name any more, of {names}"
            self._lost(what, "name them too, or begin with a new checkpoint")
        gone = [key for key in gone if key not in left]
        if gone:
            # They keep their positions, in case that the topic is only being made again.
            self._lost(f"{gone[0]} and {len(gone) - 1} more partitions are gone" if gone[1:] else f"{gone[0]} is gone")
        moved = self._earliest(sorted(present - positions.keys()))
        return positions | moved, moved, {**before.ids, **topics.ids}

    def _earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, Edge.earliest)
        return self._log.offsets(wanted) if wanted else {}

    def _cut(self, positions: Mapping[TopicPartition, int], latest: dict[TopicPartition, int]) -> list[TopicPartition]:
        """Partitions that are read beyond the ends of their logs; `latest` gets what their leaders say in the end.

        A new leader may tell an old end for a moment, so it is asked again.
        """
        cut = [key for key, end in latest.items() if positions.get(key, end) > end]
        for _ in range(self._options.retries):
            if not cut:
                break
            time.sleep(self._options.retry_interval)
            latest.update(self._log.offsets(dict.fromkeys(cut, Edge.latest)))
            cut = [key for key in cut if positions[key] > latest[key]]
        return cut

    def _too_few(self, positions: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> bool:
        """Whether to wait for more: not for a query that is to end, and not for ever.

        The delay begins again when it is over, whether there is anything to read or not, as with Spark's connector.
        """
        if self._present is not None or not self._options.waits:
            return False
        now = self._clock()
        waiting = sum(max(0, end - positions[key]) for key, end in latest.items() if key in positions)
        if now - self._waits_since < self._options.max_delay and waiting < self._options.least():
            return True
        self._waits_since = now
        return False

    def _lost(self, what: str, so: str = "some records may have been deleted") -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"ingestd source: {what}; {so} ({READS_THE_REST})")
        if what not in self._said:
            self._said.add(what)
            _log.warning("ingestd source: data lost: %s", what)


def _ends(
    positions: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], most: int | None
) -> dict[TopicPartition, int]:
    """The ends of a batch of `most` offsets. Each partition has a share in proportion to what waits in it.

    A share is one offset at least, so that none is left behind. Therefore a batch may have more than `most` offsets,
    by one for each partition.
    """
    waiting = {key: end - positions[key] for key, end in latest.items() if key in positions and end > positions[key]}
    total = sum(waiting.values())
    if most is None or total <= most:
        return {key: positions[key] + count for key, count in waiting.items()}
    return {key: positions[key] + max(1, math.floor(most * count / total)) for key, count in waiting.items()}


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }
