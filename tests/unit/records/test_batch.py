"""The batch header: read, written, patched, sealed."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ingestd.errors import CorruptBatch, UnsupportedCodec
from ingestd.records.batch import (
    HEADER_BYTES,
    check_crc,
    patch_offset,
    patch_producer,
    read_header,
    seal,
    split_batches,
    write_header,
    write_unsealed_header,
)
from ingestd.records.codecs import Codec

RECORDS = b"not looked at"


def batch(content=RECORDS, **fields):
    whole = bytearray(HEADER_BYTES) + content
    arguments = {"records": 3, "codec": Codec.lz4, "base_timestamp": 5, "max_timestamp": 9} | fields
    write_header(memoryview(whole), **arguments)
    return whole


INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, INT32, INT64, INT64, INT64, INT16, INT32, st.integers(1, 2**31 - 1))
def test_what_is_written_is_read(offset, leader_epoch, base, latest, producer_id, epoch, sequence, records):
    whole = batch(
        base_offset=offset,
        leader_epoch=leader_epoch,
        base_timestamp=base,
        max_timestamp=latest,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        records=records,
        attributes=0x28,
    )
    header = read_header(whole)
    assert (header.base_offset, header.leader_epoch, header.base_timestamp) == (offset, leader_epoch, base)
    assert (header.max_timestamp, header.producer_id, header.producer_epoch) == (latest, producer_id, epoch)
    assert (header.base_sequence, header.records, header.last_offset_delta) == (sequence, records, records - 1)
    assert (header.magic, header.size, header.codec) == (2, len(whole), Codec.lz4)
    assert (header.log_append_time, header.control, header.transactional, header.delete_horizon) == (
        True,
        True,
        False,
        False,
    )
    check_crc(whole)


def test_a_header_is_read_at_its_offset_and_without_its_records():
    whole = bytes(7) + batch()
    assert read_header(whole, 7).records == 3
    assert read_header(whole[: 7 + HEADER_BYTES], 7).size == HEADER_BYTES + len(RECORDS)


@pytest.mark.parametrize("size", [0, 1, 16, 17, 60])
def test_a_torn_header_is_corrupt(size):
    with pytest.raises(CorruptBatch):
        read_header(batch()[:size])
    with pytest.raises(CorruptBatch):
        read_header(batch(), len(batch()) - size)


def test_an_offset_outside_the_buffer_is_corrupt():
    for offset in (-1, 1 << 40):
        with pytest.raises(CorruptBatch):
            read_header(batch(), offset)


@pytest.mark.parametrize(
    ("at", "content", "reason"),
    [
        (16, b"\x01", "magic 1"),
        (8, (48).to_bytes(4, "big"), "length 48"),
        (8, b"\xff\xff\xff\xff", "length -1"),
        (57, b"\xff\xff\xff\xff", "-1 records"),
        (23, b"\xff\xff\xff\xff", "delta -1"),
    ],
)
def test_a_header_that_no_batch_can_have_is_corrupt(at, content, reason):
    whole = batch()
    whole[at : at + len(content)] = content
    with pytest.raises(CorruptBatch, match=reason):
        read_header(whole)


def test_an_unknown_codec_is_an_error_of_its_own():
    whole = batch()
    whole[22] = 5
    with pytest.raises(UnsupportedCodec, match="5"):
        _ = read_header(whole).codec


def test_an_unsealed_batch_fails_its_crc_until_it_is_sealed():
    whole = bytearray(HEADER_BYTES) + RECORDS
    view = memoryview(whole)
    write_unsealed_header(view, records=1, codec=Codec.none, base_timestamp=0, max_timestamp=0)
    with pytest.raises(CorruptBatch, match="CRC"):
        check_crc(whole)
    seal(view)
    check_crc(whole)
    assert read_header(whole).crc == crc32c(bytes(whole[21:]))


def test_patching_the_producer_seals():
    whole = bytearray(HEADER_BYTES) + RECORDS
    view = memoryview(whole)
    write_unsealed_header(view, records=1, codec=Codec.zstd, base_timestamp=0, max_timestamp=0)
    patch_producer(view, 1234, 5, 678)
    check_crc(whole)
    header = read_header(whole)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1234, 5, 678)
    assert (header.codec, header.transactional, whole[HEADER_BYTES:]) == (Codec.zstd, False, RECORDS)


def test_patching_the_producer_rewrites_the_transactional_and_clears_the_delete_horizon_bit():
    whole = batch(attributes=0x50)
    patch_producer(memoryview(whole), 1, 0, 0)
    assert (read_header(whole).transactional, read_header(whole).delete_horizon) == (False, False)
    patch_producer(memoryview(whole), 1, 0, 0, transactional=True)
    header = read_header(whole)
    assert (header.transactional, header.delete_horizon, header.codec) == (True, False, Codec.lz4)
    check_crc(whole)


def test_offset_and_leader_epoch_are_outside_the_crc():
    whole = batch()
    patch_offset(memoryview(whole), 2**40, 17)
    check_crc(whole)
    header = read_header(whole)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (2**40, 2**40 + 2, 17)


@given(st.integers(21, HEADER_BYTES + len(RECORDS) - 1), st.integers(1, 255))
def test_any_byte_behind_the_crc_is_covered_by_it(at, flip):
    whole = batch()
    whole[at] ^= flip
    with pytest.raises(CorruptBatch):
        check_crc(whole)


@pytest.mark.parametrize("extra", [-1, 1])
def test_a_buffer_that_is_not_one_whole_batch_fails_the_crc(extra):
    whole = batch() + b"x"
    with pytest.raises(CorruptBatch, match="buffer"):
        check_crc(memoryview(whole)[: len(whole) - 1 + extra])


def test_a_fetch_answer_is_split_into_whole_batches_without_copies():
    first, second = batch(b"1"), batch(b"22", base_offset=3)
    buffer = first + second
    views = list(split_batches(buffer))
    assert views == [first, second]
    buffer[0:8] = (99).to_bytes(8, "big")
    assert read_header(views[0]).base_offset == 99


@pytest.mark.parametrize("kept", [0, 1, 8, 11, 12, 30, 61, 70])
def test_a_torn_last_batch_is_left_out(kept):
    assert list(split_batches(batch() + batch()[:kept])) == [batch()]


def test_a_length_that_no_batch_can_have_ends_the_splitting():
    torn = batch()
    torn[8:12] = bytes(4)
    views = split_batches(batch() + torn)
    next(views)
    with pytest.raises(CorruptBatch):
        next(views)
