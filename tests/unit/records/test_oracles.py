"""Batches against readers and writers written elsewhere: aiokafka's, kafka-python's, kio's."""

from __future__ import annotations

import warnings

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from ingestd.records.batch import check_crc, patch_offset, patch_producer, read_header, split_batches
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import decode_records
from ingestd.records.lines import LineEncoder

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, when it is imported
    from kafka.record.memory_records import MemoryRecords as PythonMemoryRecords
    from kafka.record.memory_records import MemoryRecordsBuilder as PythonMemoryRecordsBuilder

BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=20), BYTES), max_size=3)
RECORDS = st.lists(st.tuples(BYTES, BYTES, HEADERS, st.integers(0, 2**45)), min_size=1, max_size=20)
CODECS = st.sampled_from(list(Codec))
TEXT = b"".join(b'10.0.%d.%d "GET /page/%d HTTP/1.1" 200 %d\n' % (n % 7, n % 251, n, n * n) for n in range(9000))
LEVELS = [
    Compression(Codec.none),
    *(Compression(Codec.gzip, level) for level in (None, 9)),
    Compression(Codec.snappy),
    *(Compression(Codec.lz4, level) for level in (None, -3, 9)),
    *(Compression(Codec.zstd, level) for level in (None, 19)),
]


def read_by_aiokafka(batches):
    records = MemoryRecords(bytes(batches))
    while batch := records.next_batch():
        assert batch.validate_crc()
        yield from (
            (record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in batch
        )


@given(RECORDS, CODECS, st.integers(0, 2**40))
def test_aiokafka_reads_what_the_builder_builds(records, codec, offset):
    builder = BatchBuilder(1 << 20)
    for record in records:
        builder.append(*record)
    batch = builder.build(Compression(codec))
    patch_producer(memoryview(batch), 77, 3, 12)
    patch_offset(memoryview(batch), offset, 5)
    assert list(read_by_aiokafka(batch)) == [
        (offset + index, time, key, value, tuple(headers)) for index, (key, value, headers, time) in enumerate(records)
    ]
    header = DefaultRecordBatch(bytes(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 12)


@pytest.mark.parametrize("compression", LEVELS, ids=str)
def test_aiokafka_and_kafka_python_read_what_the_line_encoder_makes(compression):
    out = memoryview(bytearray(2 * len(TEXT)))
    consumed, batches = LineEncoder(compression, 75_000).encode(TEXT, out, key=b"host", timestamp_ms=1234)
    assert consumed == len(TEXT)
    assert len(batches) > 2
    offset = 0
    for made in batches:
        view = out[made.start : made.start + made.length]
        patch_producer(view, 1, 0, offset)
        patch_offset(view, offset, 0)
        offset += made.records
    end = batches[-1].start + batches[-1].length
    lines = TEXT.split(b"\n")[:-1]
    assert list(read_by_aiokafka(out[:end])) == [(n, 1234, b"host", line, ()) for n, line in enumerate(lines)]
    if compression.codec is not Codec.snappy:  # kafka-python would need a library of its own
        values = []
        for batch in PythonMemoryRecords(bytes(out[:end])):
            assert batch.validate_crc()
            values += [record.value for record in batch]
        assert values == lines


@given(RECORDS, CODECS, st.booleans())
def test_what_aiokafka_builds_is_read(records, codec, transactional):
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=int(codec), is_transactional=transactional, producer_id=9, producer_epoch=2,
        base_sequence=4, batch_size=1 << 20,
    )  # fmt: skip
    for index, (key, value, headers, time) in enumerate(records):
        assert builder.append(index, timestamp=time, key=key, value=value, headers=headers)
    batch = builder.build()
    check_crc(batch)
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 4)
    assert header.transactional == transactional
    assert [
        (record.key, record.value, list(record.headers), record.timestamp_ms) for record in decode_records(batch)
    ] == records


@given(RECORDS, st.sampled_from([Codec.none, Codec.gzip, Codec.lz4, Codec.zstd]))
def test_what_kafka_python_builds_is_read(records, codec):
    builder = PythonMemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 20)
    for key, value, headers, time in records:
        assert builder.append(timestamp=time, key=key, value=value, headers=headers)
    builder.close()
    (batch,) = split_batches(builder.buffer())
    check_crc(batch)
    assert [
        (record.key, record.value, list(record.headers), record.timestamp_ms) for record in decode_records(batch)
    ] == records


@given(RECORDS)
def test_kio_reads_what_the_builder_builds(records):
    builder = BatchBuilder(1 << 20)
    for record in records:
        builder.append(*record)
    batch = builder.build(Compression())
    patch_producer(memoryview(batch), 1, 0, 0)
    # kio compares a record's time in seconds with the batch's in milliseconds, and so refuses none.
    read, size = read_batch(bytes(batch), 0)
    assert size == len(batch)
    assert [
        (record.key, record.value, [((header.key or b"").decode(), header.value) for header in record.headers])
        for record in read.records
    ] == [record[:3] for record in records]
