"""The codecs: what is written other libraries read, what they write is read, and nothing grows beyond its bound."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ingestd.errors import CorruptBatch, UnsupportedCodec
from ingestd.records.codecs import Codec, Compression, compressor, decompress

PACKED = [codec for codec in Codec if codec is not Codec.none]
LINES = b"".join(b'10.0.%d.%d - - "GET /page/%d HTTP/1.1" 200 %d\n' % (n % 7, n % 251, n, n * n) for n in range(3000))
NOISE = zstandard.ZstdCompressor(19).compress(LINES) * 4
"""Nothing that a codec gains anything by, but for zstd's long memory."""
LEVELS = [
    Compression(Codec.none),
    *(Compression(Codec.gzip, level) for level in (None, 1, 3, 4, 9)),
    Compression(Codec.snappy),
    *(Compression(Codec.lz4, level) for level in (None, -64, -3, 0, 1, 9, 17)),
    *(Compression(Codec.zstd, level) for level in (None, -7, 1, 3, 22)),
]


def unpacked_elsewhere(codec, data):
    """What the reference reader of each format makes of it."""
    data = bytes(data)
    match codec:
        case Codec.none:
            return data
        case Codec.gzip:
            return gzip.decompress(data)
        case Codec.lz4:
            return lz4.frame.decompress(data)
        case Codec.zstd:
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)
        case Codec.snappy:
            assert data[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
            plain, at = b"", 16
            while at < len(data):
                length = int.from_bytes(data[at : at + 4], "big")
                plain += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + length]))
                at += 4 + length
            return plain


@pytest.mark.parametrize("compression", LEVELS, ids=str)
@pytest.mark.parametrize("data", [b"", b"x", LINES[:65535], LINES[:65536], LINES[:65537], LINES, NOISE], ids=len)
def test_what_is_compressed_is_read_here_and_elsewhere(compression, data):
    made = compressor(compression).compress(data)
    assert unpacked_elsewhere(compression.codec, made) == data
    assert bytes(decompress(compression.codec, made, len(data))) == data


@pytest.mark.parametrize("compression", [each for each in LEVELS if each.level != 22], ids=str)
@pytest.mark.parametrize("data", [b"x", LINES, NOISE], ids=len)
def test_compressing_into_a_buffer_fits_exactly_or_says_no(compression, data):
    expected = bytes(compressor(compression).compress(data))
    out = bytearray(b"\xee" * (len(expected) + 20))
    assert compressor(compression).compress_into(data, memoryview(out)[10 : 10 + len(expected)]) == len(expected)
    assert out == b"\xee" * 10 + expected + b"\xee" * 10
    for room in (0, 1, 7, 20, len(expected) // 2, len(expected) - 1):
        if room < len(expected):
            out = bytearray(b"\xee" * (len(expected) + 20))
            assert compressor(compression).compress_into(data, memoryview(out)[:room]) == -1
            assert out[room:] == b"\xee" * (len(out) - room)


@given(st.sampled_from(list(Codec)), st.binary(max_size=3000), st.integers(1, 400))
def test_round_trip(codec, piece, times):
    data = piece * times
    made = compressor(Compression(codec)).compress(data)
    assert bytes(decompress(codec, made, len(data))) == data


def test_lz4_frames_are_what_kafka_accepts():
    """Independent blocks of at most 64 KiB, no content size, no checksums but the header's (KIP-57)."""
    frame = compressor(Compression(Codec.lz4)).compress(LINES)
    info = lz4.frame.get_frame_info(bytes(frame))
    assert (info["block_linked"], info["block_size"], info["content_size"]) == (False, 65536, 0)
    assert (info["content_checksum"], info["block_checksum"]) == (False, False)


def test_higher_levels_make_fewer_bytes():
    for codec, levels in ((Codec.gzip, (1, 9)), (Codec.lz4, (-20, 0, 9)), (Codec.zstd, (-7, 1, 19))):
        sizes = [len(memoryview(compressor(Compression(codec, level)).compress(LINES))) for level in levels]
        assert sizes == sorted(sizes, reverse=True)
        assert len(set(sizes)) == len(sizes)


def test_compressors_are_pooled_for_each_thread():
    compression = Compression(Codec.zstd, 3)
    mine = compressor(compression)
    assert compressor(Compression.parse("zstd", 3)) is mine
    others = []
    thread = threading.Thread(target=lambda: others.append(compressor(compression)))
    thread.start()
    thread.join()
    assert others[0] is not mine


def test_unknown_codecs_and_levels_are_refused_by_name():
    assert Compression.parse("lz4") == Compression(Codec.lz4)
    for name, level, expected in (
        ("brotli", None, "none, gzip, snappy, lz4, zstd"),
        ("zstd", 23, "-7 to 22"),
        ("gzip", 0, "1 to 9"),
        ("lz4", 18, "-64 to 17"),
        ("snappy", 1, "no level for snappy"),
        ("none", 0, "no level for none"),
    ):
        with pytest.raises(UnsupportedCodec, match=expected) as caught:
            Compression.parse(name, level)
        assert name in str(caught.value)
    with pytest.raises(UnsupportedCodec, match="7"):
        Codec.of(7)


# What others write


def streamed_zstd(data, level=3):
    """As Java's stream writes it: without the content size."""
    stream = zstandard.ZstdCompressor(level=level, write_content_size=False).compressobj()
    return stream.compress(data) + stream.flush()


ELSEWHERE = [
    (Codec.gzip, gzip.compress(LINES)),
    (Codec.gzip, gzip.compress(LINES[:5000]) + gzip.compress(LINES[5000:])),
    (Codec.snappy, bytes(cramjam.snappy.compress_raw(LINES))),
    (Codec.lz4, lz4.frame.compress(LINES, block_linked=True)),
    (
        Codec.lz4,
        lz4.frame.compress(LINES, block_linked=False, block_size=7, content_checksum=True, block_checksum=True),
    ),
    (Codec.lz4, lz4.frame.compress(NOISE[:200] + LINES[200:], block_linked=False, store_size=True)),
    (Codec.zstd, streamed_zstd(LINES)),
    (Codec.zstd, streamed_zstd(LINES, level=22)),
    (Codec.zstd, streamed_zstd(LINES[:5000]) + zstandard.ZstdCompressor(write_checksum=True).compress(LINES[5000:])),
]
ELSEWHERE_NAMES = [
    "gzip", "gzip-members", "snappy-plain", "lz4-linked", "lz4-4MiB-checksums", "lz4-size", "zstd-streamed",
    "zstd-streamed-22", "zstd-frames",
]  # fmt: skip


@pytest.mark.parametrize(("codec", "data"), ELSEWHERE, ids=ELSEWHERE_NAMES)
def test_what_other_clients_write_is_read_within_its_bound(codec, data):
    plain = bytes(decompress(codec, data, len(LINES)))
    assert plain in (LINES, NOISE[:200] + LINES[200:])
    with pytest.raises(CorruptBatch):
        decompress(codec, data, len(LINES) - 1)


@pytest.mark.parametrize(("codec", "data"), ELSEWHERE, ids=ELSEWHERE_NAMES)
@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99])
def test_a_torn_stream_is_corrupt(codec, data, kept):
    for size in {int(len(data) * kept), int(len(data) * kept) + 3, len(data) - 1}:
        with pytest.raises(CorruptBatch):
            decompress(codec, data[:size], 1 << 24)


@pytest.mark.parametrize("codec", PACKED)
def test_bytes_behind_a_stream_are_corrupt(codec):
    made = bytes(compressor(Compression(codec)).compress(LINES))
    for rest in (b"\x00", b"\x00\x00\x00\x00", b"more than that"):
        with pytest.raises(CorruptBatch):
            decompress(codec, made + rest, 1 << 24)


@pytest.mark.parametrize("codec", PACKED)
@given(st.data())
def test_damaged_streams_are_corrupt_or_within_the_limit(codec, data):
    limit = 70_000
    made = bytearray(compressor(Compression(codec)).compress(LINES[: data.draw(st.sampled_from([50, 1000, limit]))]))
    for _ in range(data.draw(st.integers(1, 4))):
        made[data.draw(st.integers(0, min(len(made) - 1, 40)) | st.integers(0, len(made) - 1))] = data.draw(
            st.integers(0, 255)
        )
    try:
        plain = decompress(codec, made, limit)
    except CorruptBatch:
        return
    assert len(memoryview(plain)) <= limit


@pytest.mark.parametrize("codec", PACKED)
@given(st.binary(max_size=200))
def test_any_bytes_are_corrupt_or_within_the_limit(codec, data):
    for start in (b"", b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd",
                  b"\x04\x22\x4d\x18\x60\x40\x82"):  # fmt: skip
        try:
            plain = decompress(codec, start + data, 1000)
        except CorruptBatch:
            continue
        assert len(memoryview(plain)) <= 1000


def gzip_bomb(size):
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    return stream.compress(bytes(size)) + stream.flush()


BOMBS = {
    Codec.gzip: gzip_bomb,
    Codec.snappy: lambda size: compressor(Compression(Codec.snappy)).compress(bytes(size)),
    Codec.lz4: lambda size: compressor(Compression(Codec.lz4)).compress(bytes(size)),
    Codec.zstd: lambda size: streamed_zstd(bytes(size)),
}

MEASURE = """
import resource, sys
from ingestd.errors import CorruptBatch
from ingestd.records.codecs import Codec, decompress
bomb = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(Codec(int(sys.argv[1])), bomb, 8 << 20)
except CorruptBatch:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("codec", PACKED)
def test_a_decompression_bomb_is_corrupt_and_takes_no_more_memory_than_the_limit(codec):
    bomb = bytes(BOMBS[codec](256 << 20))
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(int(codec))], input=bomb, capture_output=True, check=True, timeout=60
    )
    grown = int(ran.stdout) * 1024
    assert grown < (8 << 20) * 2 + (8 << 20), f"{grown >> 20} MiB for a limit of 8"


@pytest.mark.parametrize(
    "claim",
    [
        (Codec.zstd, b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"),
        (Codec.zstd, b"\x28\xb5\x2f\xfd\xe0" + (1 << 20).to_bytes(8, "little") + b"\x01\x00\x00"),
        (Codec.zstd, b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"),
        (Codec.snappy, b"\xff\xff\xff\xff\x0f" + b"\x00a"),
        (Codec.snappy, b"\x80\x80\x40" + b"\x00a"),
        (Codec.lz4, b"\x04\x22\x4d\x18\x68\x40" + (1 << 40).to_bytes(8, "little") + b"\x00" + bytes(4)),
        (Codec.lz4, b"\x04\x22\x4d\x18\x68\x40" + (1 << 10).to_bytes(8, "little") + b"\x00" + bytes(4)),
        (Codec.lz4, b"\x04\x22\x4d\x18\x60\x30\x00" + bytes(4)),
        (Codec.lz4, b"\x04\x22\x4d\x18\x61\x40\x00" + bytes(8)),
        (Codec.lz4, b"\x04\x22\x4d\x18\x60\x40\x82" + b"\xff\xff\xff\xff"),
        (Codec.lz4, b"\x04\x22\x4d\x18\x60\x40\x82" + b"\x00\x00\x00\x80"),
    ],
)
def test_claims_that_the_bytes_do_not_bear_out_are_corrupt(claim):
    with pytest.raises(CorruptBatch):
        decompress(*claim, 1 << 24)


def test_plain_bytes_beyond_the_limit_are_corrupt():
    assert bytes(decompress(Codec.none, b"abc", 3)) == b"abc"
    with pytest.raises(CorruptBatch, match="limit"):
        decompress(Codec.none, b"abc", 2)
