"""Lines to ready batches: every line once, in order, within `out`, whatever fits."""

from __future__ import annotations

import mmap
import os
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.errors import BufferFull, CorruptBatch
from ingestd.records import lines as lines_module
from ingestd.records.batch import HEADER_BYTES, check_crc, patch_producer, read_header, seal
from ingestd.records.codecs import Codec, Compression, compressor
from ingestd.records.decode import decode_records
from ingestd.records.lines import LARGEST_BATCH_BYTES, LineEncoder

SPARE = 64 * 1024
LINES = st.lists(st.binary(max_size=400).map(lambda line: line.replace(b"\n", b"")), max_size=60)
CODECS = st.sampled_from(list(Codec))
TEXT = b"".join(b'10.0.%d.%d "GET /page/%d HTTP/1.1" 200 %d\n' % (n % 7, n % 251, n, n * n) for n in range(4000))

EVEN = b'10.0.0.1 "GET /page HTTP/1.1" 200\n' * 4000
COMPRESSED = [codec for codec in Codec if codec is not Codec.none]


class Watched:
    """A compressor that notes how much it was given."""

    def __init__(self, inner, tried):
        self._inner = inner
        self._tried = tried

    def compress_into(self, data, out):
        self._tried.append(len(data))
        return self._inner.compress_into(data, out)


def random_lines(size, longest, seed=1):
    """Incompressible lines."""
    source = random.Random(seed)
    raw = bytearray()
    while len(raw) < size:
        raw += source.randbytes(source.randint(0, longest)).replace(b"\n", b" ") + b"\n"
    return bytes(raw)


def values(out, batches):
    """What the batches hold, by partition, after a producer has patched them."""
    found = {}
    for batch in batches:
        view = out[batch.start : batch.start + batch.length]
        patch_producer(view, 1, 0, 0)
        check_crc(view)
        header = read_header(view)
        records = decode_records(view)
        assert header.records == batch.records == len(records)
        assert (header.base_offset, header.base_timestamp, header.max_timestamp) == (0, 1234, 1234)
        assert [record.offset for record in records] == list(range(len(records)))
        assert {record.timestamp_ms for record in records} == {1234}
        found.setdefault(batch.partition, []).extend((record.key, record.value) for record in records)
    return found


def encode_all(encoder, raw, room, **arguments):
    """As the daemon does it: again with the rest and a fresh `out`, until all is consumed."""
    found = []
    view = memoryview(raw)
    while view:
        out = memoryview(bytearray(room))
        consumed, batches = encoder.encode(view, out, timestamp_ms=1234, **arguments)
        assert consumed > 0
        assert [batch.start for batch in batches] == [
            sum(batch.length for batch in batches[:index]) for index in range(len(batches))
        ]
        for made in values(out, batches).values():
            found += made
        view = view[consumed:]
    return found


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("key", [None, b"", b"host-17"])
def test_every_line_is_a_record_once_and_in_order(codec, key):
    found = encode_all(LineEncoder(Compression(codec), 20_000), TEXT, len(TEXT) + SPARE, key=key)
    assert found == [(key, line) for line in TEXT.split(b"\n")[:-1]]


@given(CODECS, LINES, st.integers(1, 5000), st.integers(0, 3000), st.none() | st.binary(max_size=30))
def test_nothing_is_lost_when_out_is_small(codec, lines, batch_bytes, spare, key):
    raw = b"".join(line + b"\n" for line in lines)
    room = 600 + spare
    found = encode_all(LineEncoder(Compression(codec), batch_bytes), raw, room, key=key)
    assert found == [(key, line) for line in lines]


@pytest.mark.parametrize("codec", Codec)
def test_compressible_lines_are_consumed_by_one_call(codec):
    encoder = LineEncoder(Compression(codec), len(TEXT))
    consumed, batches = encoder.encode(TEXT, memoryview(bytearray(len(TEXT) + SPARE)), timestamp_ms=0)
    assert (consumed, sum(batch.records for batch in batches)) == (len(TEXT), 4000)


def test_batches_hold_at_most_batch_bytes_of_records():
    encoder = LineEncoder(Compression(Codec.none), 10_000)
    _, batches = encoder.encode(TEXT, memoryview(bytearray(len(TEXT) + SPARE)), timestamp_ms=0)
    sizes = [batch.uncompressed for batch in batches]
    assert max(sizes) <= 10_000
    assert min(sizes[:-1]) > 9_900


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_compressed_batch_gathers_twice_that_of_lines_that_become_less_than_half(codec):
    encoder = LineEncoder(Compression(codec), 10_000)
    _, batches = encoder.encode(EVEN, memoryview(bytearray(len(EVEN) + SPARE)), timestamp_ms=0)
    sizes = [batch.uncompressed for batch in batches]
    assert max(sizes) <= 20_000
    assert min(sizes[:-1]) > 19_900


@pytest.mark.parametrize("codec", COMPRESSED)
def test_lines_that_compress_less_are_gathered_once_in_vain_and_again_when_they_compress(codec, monkeypatch):
    tried = []
    monkeypatch.setattr(lines_module, "compressor", lambda compression: Watched(compressor(compression), tried))
    dense = random_lines(100_000, 500)
    raw = dense + EVEN
    out = memoryview(bytearray(2 * len(raw)))
    consumed, batches = LineEncoder(Compression(codec), 10_000).encode(raw, out, timestamp_ms=1234)
    assert consumed == len(raw)
    assert [size > 10_000 for size in tried[:9]] == [True] + [False] * 8
    assert tried[-2] > 19_900
    assert len(tried) <= len(batches) + 2  # in vain: the first, and perhaps one where the lines change
    assert values(out, batches)[0] == [(None, line) for line in raw.split(b"\n")[:-1]]


@given(CODECS, LINES, st.integers(1, 5000), st.none() | st.binary(max_size=30))
def test_no_batch_of_several_lines_is_sent_larger_than_it_may_be(codec, lines, batch_bytes, key):
    raw = b"".join(line + b"\n" for line in lines)
    out = memoryview(bytearray(2 * len(raw) + 100 * len(lines) + SPARE))
    encoder = LineEncoder(Compression(codec), batch_bytes)
    for _ in range(2):
        consumed, batches = encoder.encode(raw, out, timestamp_ms=0, key=key)
        assert consumed == len(raw)
        assert sum(batch.records for batch in batches) == len(lines)
        assert all(batch.records == 1 or batch.length <= batch_bytes + HEADER_BYTES for batch in batches)


@pytest.mark.parametrize("codec", Codec)
def test_a_line_larger_than_batch_bytes_gets_its_own_batch(codec):
    raw = b"a\n" + b"x" * 100_000 + b"\nb\n"
    out = memoryview(bytearray(len(raw) + SPARE))
    _, batches = LineEncoder(Compression(codec), 1000).encode(raw, out, timestamp_ms=1234)
    assert [batch.records for batch in batches] == [1, 1, 1]
    assert values(out, batches)[0] == [(None, b"a"), (None, b"x" * 100_000), (None, b"b")]


@pytest.mark.parametrize("codec", Codec)
def test_what_gains_nothing_by_compression_is_stored_as_it_is(codec):
    raw = random_lines(1000, 300)
    out = memoryview(bytearray(2 * len(raw)))
    _, batches = LineEncoder(Compression(codec), 1 << 20).encode(raw, out, timestamp_ms=1234)
    assert read_header(out).codec is Codec.none
    assert batches[0].length == HEADER_BYTES + batches[0].uncompressed
    assert [value for _, value in values(out, batches)[0]] == raw.split(b"\n")[:-1]


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("longest", [0, 1, 30, 3000])
def test_incompressible_lines_progress_when_out_is_raw_and_64_kib(codec, longest):
    raw = random_lines(50_000, longest) if longest else b"\n" * 30_000
    found = encode_all(LineEncoder(Compression(codec), 1 << 20), raw, len(raw) + SPARE)
    assert [value for _, value in found] == raw.split(b"\n")[:-1]


@pytest.mark.parametrize("codec", Codec)
def test_no_room_for_the_first_record_is_an_error(codec):
    encoder = LineEncoder(Compression(codec), 1000)
    for room in (0, 1, HEADER_BYTES, HEADER_BYTES + 9):
        with pytest.raises(BufferFull):
            encoder.encode(random_lines(500, 300, seed=7)[:200], memoryview(bytearray(room)), timestamp_ms=0)
        with pytest.raises(BufferFull):
            encoder.encode_partitioned(
                b"x" * 100, memoryview(bytearray(room)), chosen=array("i", [0]), partitions=1, timestamp_ms=0
            )


@pytest.mark.parametrize("codec", Codec)
def test_no_lines_are_no_batches(codec):
    encoder = LineEncoder(Compression(codec), 1000)
    assert encoder.encode(b"", memoryview(bytearray(10)), timestamp_ms=0) == (0, [])
    nothing = encoder.encode_partitioned(
        b"", memoryview(bytearray(10)), chosen=array("i"), partitions=3, timestamp_ms=0
    )
    assert nothing == (0, [])


def test_batches_are_unsealed_until_sealed():
    out = memoryview(bytearray(SPARE))
    _, (batch,) = LineEncoder(Compression(Codec.lz4), 1000).encode(b"a\n", out, timestamp_ms=0)
    view = out[batch.start : batch.start + batch.length]
    with pytest.raises(CorruptBatch, match="CRC"):
        check_crc(view)
    seal(view)
    check_crc(view)
    header = read_header(view)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.leader_epoch) == (-1, -1, -1, -1)


@pytest.mark.parametrize("codec", Codec)
def test_batches_are_made_in_shared_memory_at_any_offset_and_nowhere_else(codec):
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, 1 << 20)
    with mmap.mmap(descriptor, 1 << 20) as arena, memoryview(arena) as whole:
        whole[:] = b"\xee" * len(whole)
        raw, out = whole[4097 : 4097 + len(TEXT)], whole[500_003 : 500_003 + len(TEXT) + SPARE]
        raw[:] = TEXT
        before = bytes(whole[:500_003])
        _, batches = LineEncoder(Compression(codec), 1 << 20).encode(raw, out, timestamp_ms=1234)
        assert [value for _, value in values(out, batches)[0]] == TEXT.split(b"\n")[:-1]
        assert whole[:500_003] == before
        assert whole[500_003 + len(out) :] == b"\xee" * (len(whole) - 500_003 - len(out))
        raw.release()
        out.release()
    os.close(descriptor)


@pytest.mark.parametrize("size", [0, -1, LARGEST_BATCH_BYTES + 1])
def test_an_impossible_batch_size_is_refused(size):
    with pytest.raises(ValueError, match="batch_bytes"):
        LineEncoder(Compression(), size)


# Many partitions


def partitioned_all(encoder, raw, room, chosen, keys, partitions):
    """As the daemon does it, with the keys' spans moved along."""
    found = {}
    consumed_before = line = 0
    while consumed_before < len(raw):
        rest = memoryview(raw)[consumed_before:]
        spans = None
        if keys is not None:
            spans = array("i", [position - consumed_before if position >= 0 else -1 for position in keys[2 * line :]])
        out = memoryview(bytearray(room))
        consumed, batches = encoder.encode_partitioned(
            rest, out, chosen=array("i", chosen[line:]), partitions=partitions, keys=spans, timestamp_ms=1234
        )
        assert consumed > 0
        line += raw[consumed_before : consumed_before + consumed].count(b"\n")
        consumed_before += consumed
        for partition, made in values(out, batches).items():
            found.setdefault(partition, []).extend(made)
    return found


def expected(raw, chosen, keys):
    found = {}
    for number, (line, partition) in enumerate(zip(raw.split(b"\n")[:-1], chosen, strict=True)):
        key = None
        if keys is not None and keys[2 * number] >= 0:
            key = raw[keys[2 * number] : keys[2 * number + 1]]
        found.setdefault(partition, []).append((key, line))
    return found


@given(st.data(), CODECS, LINES, st.integers(1, 3000), st.integers(0, 5000), st.integers(1, 5), st.booleans())
def test_every_line_reaches_its_partition_once_and_in_order(data, codec, lines, batch_bytes, spare, partitions, keyed):
    raw = b"".join(line + b"\n" for line in lines)
    chosen = [data.draw(st.integers(0, partitions - 1)) for _ in lines]
    keys = None
    if keyed:
        keys, at = [], 0
        for line in lines:
            first = data.draw(st.integers(at, at + len(line)))
            keys += data.draw(st.sampled_from([(first, at + len(line)), (-1, 0)]))
            at += len(line) + 1
    found = partitioned_all(LineEncoder(Compression(codec), batch_bytes), raw, 1000 + spare, chosen, keys, partitions)
    assert found == expected(raw, chosen, keys)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("raw", [TEXT, random_lines(100_000, 300)], ids=["text", "noise"])
def test_partitioned_lines_progress_when_out_is_raw_and_64_kib(codec, raw):
    chosen = [number % 7 for number in range(raw.count(b"\n"))]
    found = partitioned_all(LineEncoder(Compression(codec), 9000), raw, len(raw) + SPARE, chosen, None, 7)
    assert found == expected(raw, chosen, None)


@pytest.mark.parametrize("codec", Codec)
def test_a_line_larger_than_a_slot_keeps_its_place_and_key(codec):
    raw = b"a\n" + b"x" * 100_000 + b"\nb\nc\n"
    keys = [0, 1, 2, 5, -1, 0, -1, 0]
    found = partitioned_all(LineEncoder(Compression(codec), 1000), raw, len(raw) + SPARE, [1, 1, 0, 1], keys, 2)
    assert found == expected(raw, [1, 1, 0, 1], keys)


def test_a_thousand_partitions_share_bounded_scratch():
    encoder = LineEncoder(Compression(Codec.lz4), 1 << 20)
    chosen = [number * 7 % 1000 for number in range(4000)]
    found = partitioned_all(encoder, TEXT, len(TEXT) + 2 * SPARE, chosen, None, 1000)
    assert found == expected(TEXT, chosen, None)
    scratch, slot_bytes = encoder.slots(1000)
    assert (len(memoryview(scratch)), slot_bytes) == (1000 * 67108, 67108)


@pytest.mark.parametrize(("chosen", "partitions"), [([0, 5], 5), ([0, -1], 5), ([0], 5), ([0, 0], 0)])
def test_a_partition_that_is_not_there_is_refused(chosen, partitions):
    with pytest.raises(ValueError, match="partition"):
        LineEncoder(Compression(), 1000).encode_partitioned(
            b"a\nb\n", memoryview(bytearray(1000)), chosen=array("i", chosen), partitions=partitions, timestamp_ms=0
        )


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("last", [b"end", b"x" * 5000])
def test_a_last_line_without_newline_is_a_record(codec, last):
    raw = b"one\n" + last
    encoder = LineEncoder(Compression(codec), 1000)
    assert encode_all(encoder, raw, len(raw) + SPARE) == [(None, b"one"), (None, last)]
    out = memoryview(bytearray(len(raw) + SPARE))
    consumed, batches = encoder.encode_partitioned(raw, out, chosen=array("i", [1, 0]), partitions=2, timestamp_ms=1234)
    assert consumed == len(raw)
    assert values(out, batches) == {1: [(None, b"one")], 0: [(None, last)]}
