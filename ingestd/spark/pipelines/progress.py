"""Progress: what Spark tells of each micro-batch of a stream, as one value, for logs and metrics."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingestd.spark.stream import StreamEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from ingestd.spark.pipelines.dead_letters import DeadLetters

__all__ = ["BatchProgress", "Watch", "progress_of"]


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One micro-batch of a pipeline; or, with no rows, a look that found nothing new."""

    pipeline: str
    batch: int
    rows: int
    """Rows that were read."""
    seconds: float
    """From its trigger to its end."""
    lag: Mapping[str, int] = field(default_factory=dict)
    """Offsets of each topic that were not read when it ended, as far as was known. Nothing is known, and this is empty,
    where a micro-batch runs again after a restart."""
    state_rows: int = 0
    """Rows in the states of all steps."""
    late_rows: int = 0
    """Rows that were dropped because they came too late. Spark groups the rows of a task by window first, and counts
    those of a group as one."""
    dead_letters: int = 0
    """Letters sent."""

    @property
    def rows_per_second(self) -> float:
        """Rows read in each second of it."""
        return self.rows / self.seconds if self.seconds else 0.0


def progress_of(pipeline: str, told: StreamingQueryProgress, letters: DeadLetters | None = None) -> BatchProgress:
    """The value of what Spark tells. The letters of a micro-batch are counted once."""
    source = told.sources[0]
    return BatchProgress(
        pipeline,
        told.batchId,
        told.numInputRows,
        told.durationMs.get("triggerExecution", 0) / 1_000,
        _lag(source.endOffset, source.latestOffset),
        sum(state.numRowsTotal for state in told.stateOperators),
        sum(state.numRowsDroppedByWatermark for state in told.stateOperators),
        # A look that found nothing has the number of the micro-batch that is to come.
        letters.count(told.batchId) if letters is not None and "addBatch" in told.durationMs else 0,
    )


class Watch:
    """Hands each progress of a query on, once, in order. Spark keeps the last hundred."""

    def __init__(
        self,
        pipeline: str,
        query: StreamingQuery,
        take: Callable[[BatchProgress], None],
        letters: DeadLetters | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._query = query
        self._take = take
        self._letters = letters
        self._last = ""
        self.batches = 0
        """Micro-batches that had rows."""
        self.rows = 0
        """Rows that were read."""
        self.dead_letters = 0
        """Letters sent."""
        self.late_rows = 0
        """Rows that came too late, at least: see `BatchProgress.late_rows`."""

    def look(self) -> None:
        """Hand on what is new."""
        for told in self._query.recentProgress:
            # Times of one query as ISO 8601, which are in the order of their texts.
            if told.timestamp <= self._last:
                continue
            self._last = told.timestamp
            found = progress_of(self._pipeline, told, self._letters)
            self.batches += found.rows > 0
            self.rows += found.rows
            self.dead_letters += found.dead_letters
            self.late_rows += found.late_rows
            self._take(found)


def _lag(end: str | None, latest: str | None) -> dict[str, int]:
    """What is between two offsets as Spark shows them: JSON, or null."""
    read, there = (json.loads(text) if text else None for text in (end, latest))
    if not read or not there:
        return {}
    positions, lag = StreamEnd.from_json(read).offsets, Counter[str]()
    for key, offset in StreamEnd.from_json(there).offsets.items():
        lag[key.topic] += max(0, offset - positions.get(key, offset))
    return dict(sorted(lag.items()))
