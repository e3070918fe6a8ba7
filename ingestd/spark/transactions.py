"""Exactly once: the rows of one source partition, and how far it was read, in one transaction on the target cluster.

A micro-batch that runs again has the same rows in the same tasks: the ranges are in the checkpoint. So it is enough to
know, for each source partition, which micro-batch was committed last, and by which task. That is kept as the metadata
of the group's offset, which the transaction commits: `Marker`.

A task does not commit. Its rows may end early, without an error, if Spark has ended it: only the driver knows that the
tasks are whole. So a task leaves its transactions open, and the driver commits them (`end_all`) before Spark does.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from ingestd.client.group import GroupMember, OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import IngestdError, ProducerFenced
from ingestd.spark.outflow import Outflow, end_transactions
from ingestd.spark.rows import by_source
from ingestd.spark.writing import Written, writer_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage

    from ingestd.spark.outflow import OpenTransaction
    from ingestd.spark.write_options import WriteOptions

__all__ = ["Marker", "NotOnce", "end_all", "write_once"]


class NotOnce(IngestdError):
    """What the query does can not be written exactly once."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Which task of which micro-batch wrote. `query`: the query's id, which its checkpoint keeps."""

    query: str
    batch: int
    task: int

    def to_text(self) -> str:
        """As it is kept with an offset."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Marker | None:
        """The marker in the metadata of an offset. None: somebody else has committed it."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            return None

    @classmethod
    def of_task(cls) -> Marker:
        """The one of the running task. Raises `NotOnce` outside of a streaming query."""
        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        if context is None or not query or not batch:
            raise NotOnce("ingestd sink: delivery = exactly-once; expected a task of a streaming query")
        return cls(query, int(batch), context.partitionId())

    def is_done(self, last: Marker | None, where: str) -> bool:
        """Whether this task's rows are committed already, if `last` is the newest marker. Raises `NotOnce`."""
        if last is None or (last.query == self.query and last.batch < self.batch):
            return False
        if last.query != self.query:
            raise NotOnce(
                f"ingestd sink: {where} has offsets of the query {last.query}; expected a group of this query, "
                f"{self.query}, alone"
            )
        if last.batch > self.batch:
            raise NotOnce(
                f"ingestd sink: {where} has offsets of micro-batch {last.batch}, and this is {self.batch}; expected "
                "that no other run of this query goes on, and that its checkpoint is not an older one"
            )
        if last.task != self.task:
            raise NotOnce(
                f"ingestd sink: {where}: tasks {last.task} and {self.task} of micro-batch {self.batch} both have rows; "
                f"expected {_ONE_TASK}"
            )
        return True


_ONE_RUN: Final = "one run at a time on a checkpoint"
_ONE_TASK: Final = (
    "all rows of a source partition in one task: no shuffle before the sink, and no speculative execution"
)


def write_once(options: WriteOptions, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write rows, each in the transaction of its source partition. The transactions are left open, for `end_all`.

    Raises `NotOnce`, and the first error of a row. Then they are aborted.
    """
    try:
        return _write_once(options, batches)
    except IngestdError as error:
        if _is_fenced(error):
            raise NotOnce(f"{error}; expected {_ONE_RUN}, and {_ONE_TASK}") from error
        raise


def _write_once(options: WriteOptions, batches: Iterable[pa.RecordBatch]) -> Written:
    marker = Marker.of_task()
    group = options.group or f"ingestd-spark-{marker.query}"
    sources: dict[TopicPartition, _Source] = {}
    with ExitStack() as ending:
        for batch in batches:
            for topic, partition, last, rows in by_source(batch):
                key = TopicPartition(topic, partition)
                if key not in sources:
                    outflow = _outflow(options, f"{group}-{key}")
                    ending.callback(outflow.close)
                    sources[key] = _Source(options, outflow, key, group, marker)
                sources[key].write(rows, last)
        for source in sources.values():
            source.finish()
        # All of them or none: from here on nothing fails.
        left = [source.leave_open() for source in sources.values() if not source.done]
        return Written(sum(source.rows for source in sources.values()), tuple(left))


def _is_fenced(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ProducerFenced):
        error = error.__cause__
    return error is not None


def _outflow(options: WriteOptions, transactional_id: str) -> Outflow:
    return Outflow(options.cluster, replace(options.producer, transactional_id=transactional_id))


class _Source:
    """The rows of one source partition in this task, and their transaction.

    First the transactional id is taken over, which ends what an earlier attempt left open. Only then is it known what
    is committed.
    """

    def __init__(
        self, options: WriteOptions, outflow: Outflow, key: TopicPartition, group: str, marker: Marker
    ) -> None:
        outflow.begin()
        known = outflow.committed(group, key)
        last = None if known is None else Marker.of(known.metadata)
        if known is not None and last is None:
            raise NotOnce(
                f"ingestd sink: group {group} has an offset of {key} that no sink has committed; expected a group that "
                "nobody else uses"
            )
        self.done = marker.is_done(last, f"group {group}, {key}")
        self.rows = 0
        self._outflow = outflow
        self._writer = writer_of(options, outflow)
        self._key, self._group, self._marker = key, group, marker
        self._next = 0

    def write(self, rows: pa.RecordBatch, last: int) -> None:
        """Take rows; `last`: their largest offset. They are dropped if this task has written them before."""
        if not self.done:
            self._writer.write(rows)
            self._next = max(self._next, last + 1)

    def finish(self) -> None:
        """Wait until all rows are acknowledged, and put the offset beside them."""
        if not self.done:
            self.rows = self._writer.finish()
            offset = OffsetAndMetadata(self._next, metadata=self._marker.to_text())
            self._outflow.add_offsets({self._key: offset}, GroupMember(self._group))

    def leave_open(self) -> OpenTransaction:
        """Nothing ends the transaction any more but the one who gets this."""
        return self._outflow.leave_open()


def end_all(options: WriteOptions, messages: Iterable[WriterCommitMessage | None], *, commit: bool) -> None:
    """Commit, or abort, what the tasks of a micro-batch left open. For the driver.

    Each commit stands by itself. If one fails, the micro-batch runs again, and those that were committed find that out
    by their markers. Raises `NotOnce`, `KafkaError`, `DeadlineExceeded`, `CommitOutcomeUnknown`.
    """
    left = [one for message in messages if isinstance(message, Written) for one in message.open]
    if commit:
        names = Counter(one.transactional_id for one in left)
        twice = [name for name, tasks in names.items() if tasks > 1]
        if twice:
            raise NotOnce(f"ingestd sink: several tasks have rows of {', '.join(twice[:5])}; expected {_ONE_TASK}")
    if not left:
        return
    try:
        asyncio.run(end_transactions(options.cluster, options.producer, left, commit=commit))
    except IngestdError as error:
        if _is_fenced(error):
            raise NotOnce(f"{error}; expected {_ONE_RUN}") from error
        raise
