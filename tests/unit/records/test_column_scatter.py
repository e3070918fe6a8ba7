"""Records in columns become the records that they would be one by one, in the batches of their partitions."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.records import _intake_compiled, _intake_plain
from ingestd.records.columns import BinaryColumn, Columns, HeaderColumn
from ingestd.records.loops import murmur2

TWINS = pytest.mark.parametrize("twin", [_intake_compiled, _intake_plain], ids=["compiled", "plain"])

BYTES = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.tuples(
        BYTES,
        BYTES,
        st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3),
        st.integers(-(2**40), 2**40),
        st.integers(0, 2),
    ),
    max_size=60,
)


def column(values):
    ends, valid = array("i", [0]), bytearray((len(values) + 7) // 8)
    for number, value in enumerate(values):
        ends.append(ends[-1] + len(value or b""))
        valid[number >> 3] |= (value is not None) << (number & 7)
    nulls = values.count(None)
    return BinaryColumn(ends, b"".join(value or b"" for value in values), bytes(valid) if nulls else None, nulls)


def columns(records):
    headers = [header for record in records for header in record[2]]
    entries = array("i", [0])
    for record in records:
        entries.append(entries[-1] + len(record[2]))
    return Columns(
        len(records),
        array("q", [0] * len(records)),
        array("q", [record[3] for record in records]),
        column([record[0] for record in records]),
        column([record[1] for record in records]),
        HeaderColumn(
            entries, len(headers), column([key.encode() for key, _ in headers]), column([v for _, v in headers])
        ),
    )


def batches(twin, limit, fill):
    """What `fill` makes of three buffers, as (partition, records, bytes, timestamps)."""
    buffers = [twin.RecordBuffer(limit) for _ in range(3)]
    done = []

    def build(partition):
        buffer = buffers[partition]
        with buffer.view() as view:
            done.append((partition, buffer.records, bytes(view), buffer.base_timestamp, buffer.max_timestamp))
        buffer.clear()

    fill(buffers, build)
    for partition, buffer in enumerate(buffers):
        if buffer.records:
            build(partition)
    return done


@TWINS
@given(records=RECORDS, limit=st.integers(1, 400))
def test_columns_make_the_batches_that_records_one_by_one_make(twin, records, limit):
    def in_columns(buffers, build):
        scatter = twin.ColumnScatter(columns(records), array("i", [record[4] for record in records]))
        while (full := scatter.append_to(buffers)) >= 0:
            build(full)
        assert scatter.next == len(records)

    def one_by_one(buffers, build):
        for key, value, headers, timestamp, partition in records:
            if buffers[partition].append(key, value, headers, timestamp) < 0:
                build(partition)
                assert buffers[partition].append(key, value, headers, timestamp) > 0

    assert batches(twin, limit, in_columns) == batches(_intake_plain, limit, one_by_one)


@TWINS
def test_what_points_outside_of_its_column_is_refused(twin):
    one = columns([(b"k", b"v", [("h", b"x")], 5, 0)])
    zero = array("i", [0])
    wrong = BinaryColumn(array("i", [0, 9]), b"v", None, 0)
    for broken in (
        Columns(1, one.offsets, one.timestamps, wrong, one.values, one.headers),
        Columns(1, one.offsets, one.timestamps, one.keys, BinaryColumn(array("i", [1, 0]), b"v", None, 0), one.headers),
        Columns(2, one.offsets, one.timestamps, one.keys, one.values, one.headers),
        Columns(1, one.offsets, array("q"), one.keys, one.values, one.headers),
        Columns(
            1,
            one.offsets,
            one.timestamps,
            one.keys,
            one.values,
            HeaderColumn(array("i", [0, 2]), 1, one.keys, one.keys),
        ),
    ):
        with pytest.raises(ValueError, match=r"not within|fewer than"):
            twin.ColumnScatter(broken, zero)
    with pytest.raises(ValueError, match="record 0: partition 7; expected 0 to 0"):
        twin.ColumnScatter(one, array("i", [7])).append_to([twin.RecordBuffer(100)])
    nameless = Columns(
        1,
        one.offsets,
        one.timestamps,
        one.keys,
        one.values,
        HeaderColumn(array("i", [0, 1]), 1, column([None]), one.keys),
    )
    with pytest.raises(ValueError, match="a header without a key"):
        twin.ColumnScatter(nameless, zero).append_to([twin.RecordBuffer(100)])


@TWINS
@given(keys=st.lists(BYTES, max_size=40), partitions=st.integers(1, 9))
def test_keys_in_a_column_get_the_partitions_that_java_gives_them(twin, keys, partitions):
    chosen = memoryview(twin.partition_column(column(keys), len(keys), partitions, 77)).cast("i").tolist()
    assert chosen == [77 if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]


@TWINS
def test_a_key_outside_of_its_column_is_refused(twin):
    with pytest.raises(ValueError, match="not within its column"):
        twin.partition_column(BinaryColumn(array("i", [0, 9]), b"k", None, 0), 1, 3, 0)
    with pytest.raises(ValueError, match="fewer than 2"):
        twin.partition_column(column([b"k"]), 2, 3, 0)
    with pytest.raises(ValueError, match="expected at least 1"):
        twin.partition_column(column([b"k"]), 1, 0, 0)
    with pytest.raises(ValueError, match="fewer than -1"):
        twin.partition_column(column([b"k"]), -1, 3, 0)
