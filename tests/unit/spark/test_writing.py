from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from ingestd.errors import ConfigurationError, IngestdError
from ingestd.records.batch import seal
from ingestd.records.decode import decode_records
from ingestd.spark.read_options import Rows
from ingestd.spark.rows import by_source, check_rows, values_of
from ingestd.spark.schemas import POSITION
from ingestd.spark.write_options import Guarantee, write_options
from ingestd.spark.writing import RowWriter

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("topic", pa.string()),
        ("partition", pa.int32()),
    ]
)


class Outflow:
    """Keeps what is sent."""

    def __init__(self, partitions=3):
        self.sent = []
        self._partitions = partitions

    def partitions(self, _topic):
        return self._partitions

    def send(self, topic, partition, batch, records):
        view = memoryview(batch)
        seal(view)
        found = decode_records(view)
        assert len(found) == records
        self.sent += [(topic, partition, one.key, one.value, list(one.headers)) for one in found]

    def finish(self):
        pass


def options(**given):
    return write_options({"bootstrap": "a:1"} | given)


def written(rows, outflow=None, **given):
    outflow = outflow or Outflow()
    writer = RowWriter(options(**given), outflow)
    for batch in rows:
        writer.write(batch)
    assert writer.finish() == sum(batch.num_rows for batch in rows)
    return outflow.sent


def batch(rows):
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.binary(max_size=5),
            "value": st.none() | st.binary(max_size=50),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}),
                max_size=2,
            ),
            "topic": st.sampled_from(["a", "b"]),
            "partition": st.integers(0, 2),
        }
    ),
    max_size=30,
)


@settings(max_examples=40)
@given(rows=st.lists(ROWS, max_size=4), skip=st.integers(0, 3), size=st.integers(50, 300))
def test_every_row_is_a_record_of_its_partition_in_order(rows, skip, size):
    batches = [batch(one).slice(skip) for one in rows]
    sent = written(batches, **{"kafka.max.request.size": str(size), "kafka.compression.type": "lz4"})
    rows = [row for one in rows for row in one[skip:]]
    for topic in "ab":
        for partition in range(3):
            assert [one[2:] for one in sent if one[:2] == (topic, partition)] == [
                (row["key"], row["value"], [(one["key"], one["value"]) for one in row["headers"] or []])
                for row in rows
                if (row["topic"], row["partition"]) == (topic, partition)
            ]


def test_the_option_topic_counts_before_the_column_and_rows_without_a_key_go_together():
    rows = [{"value": b"%d" % number, "topic": "a"} for number in range(50)]
    sent = written([batch(rows), batch(rows)], topic="c")
    assert {one[0] for one in sent} == {"c"}
    assert len({one[1] for one in sent}) == 2  # one partition for each of Spark's batches


def test_text_is_written_as_its_bytes_and_a_missing_timestamp_is_the_present():
    at = datetime(2025, 1, 1, tzinfo=UTC)
    rows = pa.RecordBatch.from_pydict(
        {"value": ["ü"], "key": ["k"], "timestamp": pa.array([at], pa.timestamp("us", "UTC"))}
    )
    assert written([rows], topic="t")[0][2:4] == (b"k", "ü".encode())


def test_a_partition_that_is_not_there_is_named():
    with pytest.raises(IngestdError, match="topic t: record 0: partition 7; expected 0 to 2"):
        written([batch([{"value": b"x", "topic": "t", "partition": 7}])])


def test_rows_are_told_apart_by_where_they_come_from():
    positions = [{"topic": "s", "partition": number % 2, "offset": 10 + number} for number in range(5)]
    rows = pa.RecordBatch.from_pydict({"value": [b"%d" % number for number in range(5)], "position": positions})
    found = [(topic, partition, last, part["value"].to_pylist()) for topic, partition, last, part in by_source(rows)]
    assert found == [("s", 0, 14, [b"0", b"2", b"4"]), ("s", 1, 13, [b"1", b"3"])]


def test_a_row_without_a_position_is_refused():
    kind = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    rows = pa.RecordBatch.from_pydict({"value": [b"x"], "position": pa.array([None], kind)})
    with pytest.raises(ConfigurationError, match="a row has a null position"):
        list(by_source(rows))


def test_options_are_read():
    found = options(delivery="exactly-once", group="g", topic="t", **{"kafka.transaction.timeout.ms": "90000"})
    assert (found.guarantee, found.group, found.topic) == (Guarantee.exactly_once, "g", "t")
    assert found.producer.transaction_timeout == 90
    for wrong, message in (
        ({"group": "g"}, "option group is for delivery = exactly-once"),
        ({"delivery": "twice"}, "option delivery = 'twice'; expected at-least-once or exactly-once"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id is not supported; expected delivery"),
        ({"kafka.compression.type": "rar"}, "compression"),
        ({"subscribe": "t"}, "unknown option subscribe"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            options(**wrong)


def test_the_position_is_asked_for_where_it_is_needed():
    schema = StructType().add("value", "string").add("position", POSITION)
    check_rows(schema, Rows.records, topic="t", position=True)
    check_rows(StructType().add("Value", "binary").add("position", "integer"), Rows.records, topic="t", position=False)
    with pytest.raises(ConfigurationError, match="no column position; expected one, as includePosition adds it"):
        check_rows(StructType().add("value", "string"), Rows.records, topic="t", position=True)


def test_rows_that_are_batches_need_the_bytes_and_a_partition():
    schema = StructType().add("batch", "binary").add("partition", "integer").add("value", "integer")
    check_rows(schema, Rows.batches, topic="t", position=False)
    with pytest.raises(ConfigurationError, match="there is no column partition; expected one"):
        check_rows(StructType().add("batch", "binary"), Rows.batches, topic="t", position=False)
    with pytest.raises(ConfigurationError, match="column batch is string; expected binary"):
        check_rows(
            StructType().add("batch", "string").add("partition", "integer"), Rows.batches, topic="t", position=False
        )


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_values_are_read_where_they_are(kind):
    whole = pa.array([b"no", b"a", b"", b"bc", b"no"], kind)
    values = list(values_of(whole[1:4]))
    assert values == [b"a", b"", b"bc"]
    assert values[2].obj is values[0].obj, "no copies"
    assert list(values_of(whole[2:2])) == []


def test_a_null_is_no_bytes_whatever_is_in_its_place():
    data, ends = pa.py_buffer(b"ab"), pa.py_buffer(memoryview(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])))
    column = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\2"), ends, data])
    assert list(values_of(column)) == [b"", b"b"]
