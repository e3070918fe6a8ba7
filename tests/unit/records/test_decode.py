"""Batches read: columns as Arrow wants them, records, markers."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import COMPILED

from ingestd.errors import CorruptBatch, UnsupportedCodec
from ingestd.records.batch import HEADER_BYTES, patch_offset, write_header
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import (
    ControlKind,
    ControlMarker,
    TimestampType,
    decode_columns,
    decode_control,
    decode_records,
)

BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=20), BYTES), max_size=3)
RECORDS = st.lists(st.tuples(BYTES, BYTES, HEADERS, st.integers(0, 2**50)), min_size=1, max_size=20)


def built(records, codec=Codec.none):
    builder = BatchBuilder(1 << 24)
    for record in records:
        builder.append(*record)
    return builder.build(Compression(codec))


def raw_batch(records, count, **fields):
    batch = bytearray(HEADER_BYTES) + records
    arguments = {"records": count, "codec": Codec.none, "base_timestamp": 5, "max_timestamp": 50} | fields
    write_header(memoryview(batch), **arguments)
    return batch


def to_arrow(columns):
    """The buffers as pyarrow takes them, without a copy, fully validated."""

    def binary(column, count, kind):
        validity = None if column.validity is None else pa.py_buffer(column.validity)
        buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
        return pa.Array.from_buffers(kind, count, buffers, column.nulls)

    headers = columns.headers
    entry = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    entries = pa.Array.from_buffers(
        entry,
        headers.count,
        [None],
        children=[
            binary(headers.keys, headers.count, pa.string()),
            binary(headers.values, headers.count, pa.binary()),
        ],
    )
    arrays = [
        pa.Array.from_buffers(pa.int64(), columns.count, [None, pa.py_buffer(columns.offsets)]),
        pa.Array.from_buffers(pa.int64(), columns.count, [None, pa.py_buffer(columns.timestamps)]),
        binary(columns.keys, columns.count, pa.binary()),
        binary(columns.values, columns.count, pa.binary()),
        pa.Array.from_buffers(
            pa.list_(entry), columns.count, [None, pa.py_buffer(headers.offsets)], children=[entries]
        ),
    ]
    for array in arrays:
        array.validate(full=True)
    return [array.to_pylist() for array in arrays]


@given(RECORDS, st.sampled_from(list(Codec)), st.integers(0, 2**62))
def test_columns_are_valid_arrow_and_hold_the_records(records, codec, base_offset):
    batch = built(records, codec)
    patch_offset(memoryview(batch), base_offset, 0)
    offsets, timestamps, keys, values, headers = to_arrow(decode_columns(batch))
    assert offsets == list(range(base_offset, base_offset + len(records)))
    assert timestamps == [record[3] for record in records]
    assert keys == [record[0] for record in records]
    assert values == [record[1] for record in records]
    assert headers == [[{"key": key, "value": value} for key, value in record[2]] for record in records]


@pytest.mark.usefixtures("either")
def test_records_and_columns_say_the_same():
    batch = built([(b"k", None, [("a", b"1"), ("b", None)], 7), (None, b"v", [], 9)])
    records = decode_records(batch)
    assert [(record.key, record.value, record.headers) for record in records] == [
        (b"k", None, (("a", b"1"), ("b", None))),
        (None, b"v", ()),
    ]
    assert to_arrow(decode_columns(batch))[3] == [None, b"v"]


def test_a_batch_that_compaction_emptied_has_no_records():
    batch = raw_batch(b"", 0)
    batch[23:27] = (4).to_bytes(4, "big")
    assert decode_records(batch) == []
    assert to_arrow(decode_columns(batch)) == [[], [], [], [], []]


def test_offsets_keep_the_gaps_that_compaction_left():
    one, two = (bytes((12, 0, 0, delta * 2, 1, 1, 0)) for delta in (3, 8))
    batch = raw_batch(one + two, 2)
    batch[23:27] = (9).to_bytes(4, "big")
    patch_offset(memoryview(batch), 100, 0)
    assert [record.offset for record in decode_records(batch)] == [103, 108]


def test_log_append_time_is_every_records_timestamp():
    record = bytes((12, 0, 2, 0, 1, 1, 0))
    (created,) = decode_records(raw_batch(record, 1))
    (appended,) = decode_records(raw_batch(record, 1, attributes=0x08))
    assert (created.timestamp_ms, created.timestamp_type) == (6, TimestampType.create_time)
    assert (appended.timestamp_ms, appended.timestamp_type) == (50, TimestampType.log_append_time)


def marker(kind, key=None, value=None):
    buffer = COMPILED.RecordBuffer(1000)
    buffer.append(
        struct.pack(">hh", 0, kind) if key is None else key,
        struct.pack(">hi", 0, 17) if value is None else value,
        (),
        5,
    )
    return raw_batch(bytes(buffer.view()), 1, attributes=0x30, producer_id=9, producer_epoch=2, base_offset=40)


@pytest.mark.parametrize("kind", ControlKind)
def test_a_control_batch_says_how_a_transaction_ended(kind):
    assert decode_control(marker(kind)) == [ControlMarker(40, kind, 9, 2, 17)]
    assert decode_records(marker(kind))[0].key == struct.pack(">hh", 0, kind)


def test_markers_of_others_are_no_ends_of_transactions():
    assert decode_control(marker(3)) == []


@pytest.mark.parametrize(("key", "value"), [(b"\x00\x00\x00", None), (None, b"\x00\x00\x00")])
def test_a_torn_marker_is_corrupt(key, value):
    with pytest.raises(CorruptBatch):
        decode_control(marker(0, key, value))


def test_a_batch_of_records_has_no_markers():
    with pytest.raises(CorruptBatch, match="markers"):
        decode_control(built([(None, b"v", [], 0)]))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([b"\xff", b"ok"], ["\ufffd", "ok"]),
        ([b"\xc3", b"\xa4"], ["\ufffd", "\ufffd"]),
        ([b"\xc3\xa4", b""], ["ä", ""]),
    ],
)
def test_header_keys_that_are_not_utf8_are_replaced_each_by_itself(names, expected):
    batch = built([(None, None, [(name, b"v") for name in names], 0)])
    assert [entry["key"] for entry in to_arrow(decode_columns(batch))[4][0]] == expected
    assert [name for name, _ in decode_records(batch)[0].headers] == expected


@pytest.mark.parametrize("codec", Codec)
def test_records_beyond_the_limit_are_corrupt(codec):
    batch = built([(None, bytes(10_000), [], 0)], codec)
    assert decode_columns(batch, limit=20_000).count == 1
    with pytest.raises(CorruptBatch):
        decode_columns(batch, limit=9_999)


@pytest.mark.parametrize("size", [-1, 1])
def test_a_buffer_that_is_not_one_whole_batch_is_corrupt(size):
    batch = built([(None, b"v", [], 0)]) + b"x"
    with pytest.raises(CorruptBatch):
        decode_columns(memoryview(batch)[: len(batch) - 1 + size])


def test_an_unknown_codec_is_an_error_of_its_own():
    with pytest.raises(UnsupportedCodec):
        decode_columns(raw_batch(b"", 1, attributes=0x07))


@given(RECORDS, st.sampled_from(list(Codec)), st.data())
def test_damaged_batches_are_refused_or_read_but_never_crash(records, codec, data):
    batch = built(records, codec)
    for _ in range(data.draw(st.integers(1, 5))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        columns = decode_columns(batch, limit=1 << 20)
    except (CorruptBatch, UnsupportedCodec):
        return
    to_arrow(columns)
    assert len(decode_records(batch, limit=1 << 20)) == columns.count
