import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from ingestd.consumer.fetched import FetchedBatch
from ingestd.errors import IngestdError
from ingestd.records.batch import check_crc, patch_offset, patch_producer, read_header, seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import decode_records, record_cursor
from ingestd.spark import raw
from ingestd.spark.passing import BatchPasser
from ingestd.spark.raw import raw_rows, raw_schema
from ingestd.spark.source import spark_batch_schema
from ingestd.spark.write_options import write_options

HORIZON = 10**9


def fetched(values, base_offset=0, *, first=0, end=None, kept=None, log_append_time=False):
    """A batch as the broker keeps it, of a transaction. `kept`: compaction left these of its records."""
    builder = BatchBuilder(1 << 20)
    for number, value in enumerate(values):
        builder.append(b"k", value, [("h", b"x")], 1_000 + number)
    data = memoryview(builder.build(Compression(Codec.none)))
    if kept is not None:
        cut = BatchBuilder(1 << 20)
        record_cursor(data, kept=kept).copy_into(cut)
        left = memoryview(cut.build(Compression(Codec.none)))
        left = _with_gaps(left, kept, len(values))
        data = left
    if log_append_time:
        data[22] |= 8
        struct.pack_into(">q", data, 35, 5_000)
    patch_offset(data, base_offset, 7)
    patch_producer(data, 11, 2, 5, transactional=True)
    return FetchedBatch(read_header(data), data, first, end)


def _with_gaps(data, kept, count):
    """Records of less than 64 bytes, without a codec: each offset delta is one byte."""
    at = 61
    for delta in [number for number, one in enumerate(kept) if one]:
        length = data[at] >> 1  # a zigzag varint of one byte
        data[at + 3] = delta << 1
        at += 1 + length
    struct.pack_into(">i", data, 23, count - 1)
    return data


def records_in(batch, first=0, end=HORIZON):
    return [(one.offset, one.value, one.timestamp_ms) for one in decode_records(batch, first=first, end=end)]


def rows(batches, **options):
    found = list(raw_rows(batches, "t", 3, **options))
    for batch in found:
        batch.validate(full=True)
    return found


@pytest.mark.parametrize("include_position", [False, True])
def test_the_schema_is_exactly_what_spark_makes_of_its_own(include_position):
    own = spark_batch_schema(include_position=include_position)
    assert raw_schema(include_position=include_position).equals(to_arrow_schema(own, timezone="UTC"))


def test_a_whole_batch_is_a_row_with_its_bytes():
    batch = fetched([b"a", b"b", b"c"], 40)
    (found,) = rows([batch], include_position=True)
    (row,) = found.to_pylist()
    assert row.pop("batch") == bytes(batch.data)
    assert row.pop("maxTimestamp").timestamp() == 1.002
    assert row == {
        "topic": "t",
        "partition": 3,
        "baseOffset": 40,
        "lastOffset": 42,
        "recordCount": 3,
        "position": {"topic": "t", "partition": 3, "offset": 42},
    }


def test_a_batch_that_is_wanted_in_part_has_the_wanted_records_alone():
    (found,) = rows([fetched([b"%d" % number for number in range(10)], 40, first=43, end=47)])
    (row,) = found.to_pylist()
    assert (row["baseOffset"], row["lastOffset"], row["recordCount"]) == (43, 46, 4)
    check_crc(row["batch"])
    assert records_in(row["batch"]) == [(40 + number, b"%d" % number, 1_000 + number) for number in range(3, 7)]
    assert rows([fetched([b"a", b"b", b"c"], 40, first=41, end=42, kept=bytes([1, 0, 1]))]) == []


def test_rows_are_handed_out_by_their_bytes(monkeypatch):
    batches = [fetched([b"x" * 100], offset) for offset in range(7)]
    monkeypatch.setattr(raw, "BYTES", 2 * len(batches[0].data))
    assert [found.num_rows for found in rows(batches)] == [2, 2, 2, 1]
    monkeypatch.setattr(raw, "BYTES", 1)
    assert [found.num_rows for found in rows(batches[:2])] == [1, 1]


class Outflow:
    """Keeps what is sent, as a broker would."""

    def __init__(self):
        self.records = {}
        self.sent = []

    def partitions(self, _topic):
        return 4

    def send(self, topic, partition, batch, records):
        view = memoryview(batch)
        patch_producer(view, 1, 1, 1)
        header = read_header(view)
        assert header.records == records == header.last_offset_delta + 1
        assert not header.log_append_time
        self.sent.append(bytes(view))
        log = self.records.setdefault((topic, partition), [])
        log += [(value, stamp) for _, value, stamp in records_in(view)]

    def finish(self):
        pass


def passed(tables, **options):
    outflow = Outflow()
    passer = BatchPasser(write_options({"bootstrap": "a:1", "rows": "batches"} | options), outflow)
    for table in tables:
        passer.write(table)
    assert passer.finish() == sum(table.num_rows for table in tables)
    return outflow


BATCHES = st.lists(
    st.tuples(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.booleans(), st.booleans()), max_size=9
)


@settings(max_examples=60)
@given(made=BATCHES, data=st.data())
def test_every_wanted_record_passes_once_in_order_with_its_time(made, data):
    batches, offset = [], 0
    for values, gaps, log_append_time in made:
        kept = bytes([1, *data.draw(st.lists(st.integers(0, 1), min_size=len(values) - 1, max_size=len(values) - 1))])
        batches.append(fetched(values, offset, kept=kept if gaps else None, log_append_time=log_append_time))
        offset += len(values)
    first = data.draw(st.integers(0, offset))
    end = data.draw(st.integers(first, offset))
    wanted = [one for batch in batches for one in records_in(batch.data, first, end)]
    read = [
        one._replace(first=first, end=end)
        for one in batches
        if one.header.last_offset >= first and one.header.base_offset < end
    ]
    outflow = passed(rows(read), topic="u")
    assert outflow.records.get(("u", 3), []) == [(value, stamp) for _, value, stamp in wanted]


def table(batches, **columns):
    return pa.RecordBatch.from_pydict(
        {"batch": pa.array(batches, pa.binary()), "partition": pa.array([0] * len(batches), pa.int32())} | columns
    )


def test_a_batch_that_kafka_takes_passes_undecoded():
    batch = fetched([b"a", b"b"], 40)
    (sent,) = passed([table([batch.data])], topic="u").sent
    header = read_header(sent)
    assert sent[61:] == bytes(batch.data)[61:]
    assert (header.base_offset, header.leader_epoch, header.transactional) == (0, -1, False)


def test_rows_name_their_topics_and_partitions():
    batches = [fetched([b"%d" % number]).data for number in range(4)]
    outflow = passed([table(batches, topic=["a", "b", "a", "b"], partition=pa.array([0, 1, 2, 1], pa.int32()))])
    assert {key: [value for value, _ in log] for key, log in outflow.records.items()} == {
        ("a", 0): [b"0"],
        ("a", 2): [b"2"],
        ("b", 1): [b"1", b"3"],
    }


def broken():
    data = memoryview(bytearray(fetched([b"a"]).data))
    data[-1] ^= 1
    return data


def marker():
    data = memoryview(bytearray(fetched([b"a"]).data))
    data[22] |= 0x20
    seal(data)
    return data


@pytest.mark.parametrize(
    ("batch", "partition", "message"),
    [
        (b"no batch", 0, "a row for t-0: column batch: 8 bytes where a batch header of 61 should be; expected one"),
        (None, 0, "column batch: 0 bytes where"),
        (broken(), 0, "column batch: CRC"),
        (bytes(fetched([b"a"]).data) * 2, 0, "column batch: batch of .* bytes in a buffer of"),
        (marker(), 0, "column batch: the broker's own markers"),
        (fetched([b"a"]).data, 4, "topic t: a row has partition 4; expected 0 to 3"),
        (fetched([b"a"]).data, None, "topic t: a row has partition None; expected 0 to 3"),
    ],
)
def test_what_can_not_pass_is_refused(batch, partition, message):
    with pytest.raises(IngestdError, match=message):
        passed([table([batch], partition=pa.array([partition], pa.int32()))], topic="t")
