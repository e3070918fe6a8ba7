import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.client.metadata import TopicPartition
from ingestd.errors import ErrorCode, ProducerFenced
from ingestd.records.batch import seal
from ingestd.records.decode import decode_records
from ingestd.spark import transactions
from ingestd.spark.outflow import OpenTransaction
from ingestd.spark.transactions import Marker, NotOnce, end_all, write_once
from ingestd.spark.write_options import write_options
from ingestd.spark.writing import Written

OPTIONS = write_options({"bootstrap": "a:1", "topic": "t", "delivery": "exactly-once", "group": "g"})


class Killed(Exception):
    """What ends a task."""


class Cluster:
    """Committed records of one topic, a group's offsets, and who holds each transactional id."""

    def __init__(self):
        self.records = []
        self.offsets = {}
        self.holders = {}

    def commit(self, one):
        """What the driver does with a transaction that was left open."""
        assert self.holders[one.name] is one
        self.holders[one.name] = None
        self.records += one.written
        self.offsets |= one.offsets


class Outflow:
    """One producer; its task is killed before the step of number `kill_at`."""

    def __init__(self, cluster, transactional_id, kill_at):
        self.cluster = cluster
        self.name = transactional_id
        self.steps = iter(range(100))
        self.kill_at = kill_at
        self.written = []
        self.offsets = {}

    def _step(self):
        if next(self.steps) == self.kill_at:
            raise Killed

    def begin(self):
        self._step()
        self.cluster.holders[self.name] = self

    def committed(self, group, partition):
        return self.cluster.offsets.get((group, partition))

    def partitions(self, _topic):
        return 1

    def send(self, _topic, _partition, batch, _records):
        self._step()
        seal(memoryview(batch))
        self.written += [int(one.value) for one in decode_records(memoryview(batch))]

    def finish(self):
        self._step()

    def add_offsets(self, offsets, member):
        self._step()
        self.offsets = {(member.group_id, key): offset for key, offset in offsets.items()}

    def leave_open(self):
        return self

    def close(self):
        pass


def rows(values, partition=0):
    positions = [{"topic": "s", "partition": partition, "offset": value} for value in values]
    kind = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    return pa.RecordBatch.from_pydict(
        {"value": [b"%d" % value for value in values], "position": pa.array(positions, kind)}
    )


def task(cluster, marker, batches, kill_at=None):
    """What one task leaves open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Marker, "of_task", lambda: marker)
        patch.setattr(transactions, "_outflow", lambda _, name: Outflow(cluster, name, kill_at))
        return write_once(OPTIONS, batches).open


def committed(cluster, marker, batches):
    """What one task adds to the topic, if its micro-batch is committed."""
    before = len(cluster.records)
    for one in task(cluster, marker, batches):
        cluster.commit(one)
    return len(cluster.records) - before


def test_a_batch_that_runs_again_writes_nothing_and_the_next_one_does():
    cluster = Cluster()
    for number, expected in ((0, 3), (0, 0), (1, 3), (1, 0)):
        values = range(3 * number, 3 * number + 3)
        assert committed(cluster, Marker("q", number, 0), [rows(values)]) == expected
    assert cluster.records == list(range(6))
    assert cluster.offsets["g", TopicPartition("s", 0)].offset == 6


def test_rows_that_end_early_because_spark_has_ended_the_task_are_not_committed():
    """Seen: another task of the stage failed. Spark shut the pipe of this one, whose rows then ended as if whole."""
    cluster = Cluster()
    assert task(cluster, Marker("q", 0, 0), [rows(range(4))])
    assert cluster.records == []
    assert committed(cluster, Marker("q", 0, 0), [rows(range(4)), rows(range(4, 8))]) == 8


@settings(max_examples=60)
@given(data=st.data())
def test_every_row_is_committed_once_wherever_tasks_and_the_driver_are_killed(data):
    cluster = Cluster()
    for number in range(3):
        whole = [[rows(range(first, first + 4), side), rows(range(first + 4, first + 9), side)]
                 for side, first in enumerate((20 * number, 20 * number + 9))]  # fmt: skip
        for last in [False] * data.draw(st.integers(0, 3)) + [True]:
            left, failed = [], False
            for side, batches in enumerate(whole):
                shown = batches if last else batches[: data.draw(st.integers(0, 2))]
                try:
                    left += task(
                        cluster,
                        Marker("q", number, side),
                        shown,
                        None if last else data.draw(st.none() | st.integers(0, 6)),
                    )
                except Killed:
                    failed = True
                failed |= len(shown) < len(batches)
            if not failed:  # the driver commits, and may be killed amid that
                for one in left if last else left[: data.draw(st.integers(0, 2))]:
                    cluster.commit(one)
    assert sorted(cluster.records) == [20 * number + value for number in range(3) for value in range(18)]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (Marker("other", 0, 0), "has offsets of the query other; expected a group of this query, q, alone"),
        (Marker("q", 6, 0), "has offsets of micro-batch 6, and this is 5"),
        (Marker("q", 5, 1), "tasks 1 and 0 of micro-batch 5 both have rows; .* no shuffle before the sink"),
    ],
)
def test_what_would_not_be_once_is_refused(last, message):
    cluster = Cluster()
    committed(cluster, last, [rows([1])])
    with pytest.raises(NotOnce, match=f"group g, s-0 {message}" if "tasks" not in message else message):
        task(cluster, Marker("q", 5, 0), [rows([2])])
    assert cluster.records == [1]


def test_a_group_that_somebody_else_commits_to_is_refused():
    cluster = Cluster()
    committed(cluster, Marker("q", 0, 0), [rows([1])])
    (key,) = cluster.offsets
    for metadata in ("", "{}", "[1]", "x"):
        cluster.offsets[key] = type(cluster.offsets[key])(5, metadata=metadata)
        with pytest.raises(NotOnce, match="group g has an offset of s-0 that no sink has committed"):
            task(cluster, Marker("q", 1, 0), [rows([2])])


def test_rows_of_a_source_partition_in_two_tasks_are_not_committed():
    left = [Written(1, (OpenTransaction("g-s-0", 1, number, implicit=True),)) for number in range(2)]
    with pytest.raises(
        NotOnce, match="several tasks have rows of g-s-0; expected all rows of a source partition in one"
    ):
        end_all(OPTIONS, left, commit=True)


def test_a_task_that_another_one_has_fenced_says_what_was_expected(monkeypatch):
    def fenced(_options, _name):
        raise ProducerFenced(ErrorCode.producer_fenced, "g-s-0")

    monkeypatch.setattr(Marker, "of_task", lambda: Marker("q", 0, 0))
    monkeypatch.setattr(transactions, "_outflow", fenced)
    message = "g-s-0; expected one run at a time on a checkpoint, and all rows of a source partition in one task: no sh"
    with pytest.raises(NotOnce, match=message):
        write_once(OPTIONS, [rows([1])])


def test_a_driver_that_another_one_has_fenced_says_what_was_expected(monkeypatch):
    async def fenced(*_args, **_more):
        raise ProducerFenced(ErrorCode.producer_fenced, "g-s-0")

    monkeypatch.setattr(transactions, "end_transactions", fenced)
    left = [Written(1, (OpenTransaction("g-s-0", 1, 0, implicit=True),))]
    with pytest.raises(NotOnce, match="g-s-0; expected one run at a time on a checkpoint"):
        end_all(OPTIONS, left, commit=True)


def test_outside_of_a_streaming_query_it_is_refused():
    with pytest.raises(NotOnce, match="expected a task of a streaming query"):
        write_once(OPTIONS, [])
