"""A batch built record by record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.records.batch import HEADER_BYTES, patch_producer, read_header
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import decode_records

BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=20), BYTES), max_size=3)
RECORDS = st.lists(st.tuples(BYTES, BYTES, HEADERS, st.integers(0, 2**50)), min_size=1, max_size=20)


@given(RECORDS, st.sampled_from(list(Codec)))
def test_what_is_appended_is_decoded(records, codec):
    builder = BatchBuilder(1 << 20)
    for record in records:
        builder.append(*record)
    batch = builder.build(Compression(codec))
    patch_producer(memoryview(batch), 7, 1, 3)
    header = read_header(batch)
    times = [record[3] for record in records]
    assert (header.base_timestamp, header.max_timestamp, header.records) == (times[0], max(times), len(records))
    assert [
        (record.key, record.value, list(record.headers), record.timestamp_ms) for record in decode_records(batch)
    ] == records


@pytest.mark.parametrize("codec", Codec)
def test_a_builder_begins_anew_after_each_batch(codec):
    builder = BatchBuilder(1000)
    builder.append(None, b"first", (), 5)
    first = builder.build(Compression(codec))
    assert (builder.records, builder.size, builder.room) == (0, 0, 1000)
    builder.append(None, b"second" * 40, (), 9)
    second = builder.build(Compression(codec))
    assert [record.value for record in decode_records(first)] == [b"first"]
    assert [(record.timestamp_ms, record.offset) for record in decode_records(second)] == [(9, 0)]


def test_room_says_what_still_fits():
    builder = BatchBuilder(100)
    assert builder.room == 100
    size = builder.append(b"key", b"value", (), 0)
    assert builder.room == 100 - size
    assert builder.append(None, b"x" * (builder.room - 10), (), 0) == 100 - builder.room
    assert builder.append(None, b"x" * builder.room, (), 0) == -1
    assert (builder.records, builder.room < 10) == (2, True)


def test_what_gains_nothing_by_compression_is_stored_as_it_is():
    builder = BatchBuilder(1000)
    size = builder.append(None, b"abc", (), 0)
    batch = builder.build(Compression(Codec.gzip))
    assert (read_header(batch).codec, len(batch)) == (Codec.none, HEADER_BYTES + size)


def test_a_batch_needs_a_record():
    with pytest.raises(ValueError, match="record"):
        BatchBuilder(1000).build(Compression())
