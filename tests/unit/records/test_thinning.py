"""Batches that records were left out of: what stays is as it was, at its offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.errors import CorruptBatch
from ingestd.records.batch import check_crc, patch_offset, patch_producer, read_header
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import decode_records
from ingestd.records.thinning import emptied, thinned

TIMES = st.integers(-1, 2**62)
RECORDS = st.lists(
    st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=300), TIMES, st.booleans()),
    min_size=1,
    max_size=30,
).filter(lambda records: any(keeps for *_, keeps in records))


def made(records, codec=Codec.none, base_offset=1000):
    builder = BatchBuilder(limit=1 << 20)
    for key, value, timestamp_ms, _keeps in records:
        builder.append(key, value, [("h", b"\xff"), ("", None)], timestamp_ms)
    batch = memoryview(builder.build(Compression(codec)))
    patch_producer(batch, 7, 3, 55, transactional=True)
    patch_offset(batch, base_offset, 9)
    return batch


@given(records=RECORDS, codec=st.sampled_from(Codec), horizon=st.none() | TIMES)
def test_what_stays_is_as_it_was(records, codec, horizon):
    batch = made(records, codec)
    header = read_header(batch)
    left = thinned(batch, header, [keeps for *_, keeps in records], horizon)
    check_crc(left)
    after = read_header(left)
    expected = [record for record, (*_, keeps) in zip(decode_records(batch), records, strict=True) if keeps]
    assert decode_records(left) == expected
    assert after.records == len(expected)
    assert after.max_timestamp == max(record.timestamp_ms for record in expected)
    for name in ("base_offset", "leader_epoch", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence"):
        assert getattr(after, name) == getattr(header, name)
    assert after.transactional
    assert after.codec in {codec, Codec.none}
    assert after.delete_horizon == (horizon is not None)
    assert after.base_timestamp == (header.base_timestamp if horizon is None else horizon)


def test_what_compresses_well_stays_compressed():
    batch = made([(b"k", b"v" * 500, 5, True)] * 20, Codec.lz4)
    left = thinned(batch, read_header(batch), [True] * 19 + [False])
    assert read_header(left).codec is Codec.lz4
    assert len(left) < 500


def test_a_horizon_too_far_from_a_timestamp_is_left_out():
    records = [(b"k", b"v", 2**63 - 1, True), (b"l", b"v", -1, True)]
    builder = BatchBuilder(limit=1 << 20)
    builder.append(b"k", b"v", (), 2**62)
    builder.append(b"l", b"v", (), 2**63 - 1)
    batch = memoryview(builder.build(Compression()))
    patch_producer(batch, 7, 3, 55)
    left = thinned(batch, read_header(batch), [False, True], -(2**62))
    assert not read_header(left).delete_horizon
    assert [record.timestamp_ms for record in decode_records(left)] == [records[0][2]]


def test_a_batch_with_the_time_of_its_append_keeps_it():
    batch = made([(b"k", b"v", 5, True), (b"k", b"w", 90, True)])
    header = read_header(batch)
    stamped = thinned(batch, header._replace(attributes=header.attributes | 8, max_timestamp=700), [True, True])
    left = thinned(stamped, read_header(stamped), [True, False])
    assert [record.timestamp_ms for record in decode_records(left)] == [700]


def test_an_emptied_batch_keeps_its_offsets_and_its_producer():
    header = read_header(made([(b"k", b"v", 5, True)] * 3, Codec.zstd))
    left = emptied(header)
    check_crc(left)
    after = read_header(left)
    assert decode_records(left) == []
    assert (after.base_offset, after.last_offset, after.base_sequence) == (1000, 1002, 55)
    assert (after.producer_id, after.producer_epoch, after.transactional) == (7, 3, True)
    assert (after.codec, after.max_timestamp, after.leader_epoch) == (Codec.none, -1, 9)
    assert emptied(after) == left


def test_bytes_behind_the_last_record_are_damage():
    batch = made([(b"k", b"v", 5, True)])
    header = read_header(batch)
    longer = memoryview(bytes(batch) + b"\0")
    with pytest.raises(CorruptBatch, match="1 bytes behind the last of 1 records"):
        thinned(longer, header._replace(length=header.length + 1), [True])
