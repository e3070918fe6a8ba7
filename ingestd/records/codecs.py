"""The five codecs of record batches: compress into a given buffer, decompress within a given bound.

Frames are what Kafka's Java reader takes: lz4 in independent blocks, snappy in xerial's framing, zstd with its content
size, gzip as one member. What is read may come from any client: linked lz4 blocks, plain snappy, zstd frames without a
size, several gzip members. A stream that would grow beyond the bound is `CorruptBatch`, found before the memory is
taken.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

import lz4.block
import lz4.frame
import zstandard
from cramjam import DecompressionError, snappy
from isal import igzip_lib

from ingestd.errors import CorruptBatch, UnsupportedCodec

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

__all__ = ["Codec", "Compression", "Compressor", "compressor", "decompress"]


class Codec(IntEnum):
    """Compression type, as in the low three bits of a batch's attributes."""

    none = 0
    gzip = 1
    snappy = 2
    lz4 = 3
    zstd = 4

    @classmethod
    def of(cls, number: int) -> Codec:
        """The codec of a number on the wire. Raises `UnsupportedCodec`."""
        try:
            return cls(number)
        except ValueError:
            raise UnsupportedCodec(f"compression type {number}") from None


_LEVELS: Final[dict[Codec, range]] = {
    Codec.none: range(0),
    Codec.gzip: range(1, 10),
    Codec.snappy: range(0),
    Codec.lz4: range(-64, 18),
    Codec.zstd: range(-7, 23),
}


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec and its level. None is the level that moves most bytes a second for what it saves.

    gzip 1 to 9. zstd -7 to 22, by default 1. lz4: 1 to 17 as Kafka has them, all of the high compression kind; below
    0 faster than the default, and weaker. none and snappy have no level.
    """

    codec: Codec = Codec.none
    level: int | None = None

    def __post_init__(self) -> None:
        if self.level is not None and self.level not in _LEVELS[self.codec]:
            levels = _LEVELS[self.codec]
            expected = f"{levels.start} to {levels.stop - 1}" if levels else "no level"
            raise UnsupportedCodec(f"{self.codec.name} level {self.level}: expected {expected}")

    @classmethod
    def parse(cls, name: str, level: int | None = None) -> Compression:
        """From a configuration's words. Raises `UnsupportedCodec` for an unknown name or level."""
        try:
            codec = Codec[name]
        except KeyError:
            known = ", ".join(codec.name for codec in Codec)
            raise UnsupportedCodec(f"compression {name!r}: expected one of {known}") from None
        return cls(codec, level)


class Compressor(Protocol):
    """Compresses the records of one batch at a time; of one thread."""

    def compress(self, data: Buffer) -> Buffer:
        """The compressed form, in memory of its own."""
        ...

    def compress_into(self, data: Buffer, out: memoryview) -> int:
        """Write the compressed form to `out`; its length, or -1 when it does not fit (`out` is then undefined)."""
        ...


_pool: Final = threading.local()


def compressor(compression: Compression) -> Compressor:
    """This thread's compressor for `compression`, made once: its tables are warm and its memory is taken."""
    made: dict[Compression, Compressor]
    try:
        made = _pool.made
    except AttributeError:
        made = _pool.made = {}
    found = made.get(compression)
    if found is None:
        found = made[compression] = _MAKERS[compression.codec](compression.level)
    return found


def decompress(codec: Codec, data: Buffer, limit: int) -> Buffer:
    """The bytes that `data` stands for, at most `limit` of them.

    Raises `CorruptBatch` for a stream that is damaged, torn, followed by other bytes, or longer than `limit`. No more
    than `limit` bytes, and the codec's own window, are ever taken for it. With `Codec.none`, `data` itself.
    """
    try:
        return _READERS[codec](memoryview(data), limit)
    except _DAMAGE as error:
        raise CorruptBatch(f"{codec.name}: {error}") from error


def _too_long(codec: Codec, limit: int) -> CorruptBatch:
    return CorruptBatch(f"{codec.name}: more than the limit of {limit} bytes when decompressed")


def _fitted(data: Buffer, out: memoryview) -> int:
    """Copy to `out`; the length, or -1 when it does not fit."""
    view = memoryview(data)
    if len(view) > len(out):
        return -1
    out[: len(view)] = view
    return len(view)


# none


class _NoCompression:
    """Leaves the bytes as they are."""

    def __init__(self, level: int | None) -> None:
        del level

    def compress(self, data: Buffer) -> Buffer:
        return data

    def compress_into(self, data: Buffer, out: memoryview) -> int:
        return _fitted(data, out)


def _read_plain(data: memoryview, limit: int) -> Buffer:
    if len(data) > limit:
        raise _too_long(Codec.none, limit)
    return data


# gzip


class _Gzip:
    """isal for the low levels; zlib for those who would rather spend time than bytes."""

    def __init__(self, level: int | None) -> None:
        self._level = 2 if level is None else level

    def compress(self, data: Buffer) -> Buffer:
        if self._level <= igzip_lib.ISAL_BEST_COMPRESSION:
            result: bytes = igzip_lib.compress(data, level=self._level, flag=igzip_lib.COMP_GZIP)
            return result
        stream = zlib.compressobj(self._level, zlib.DEFLATED, wbits=31)
        return stream.compress(data) + stream.flush()

    def compress_into(self, data: Buffer, out: memoryview) -> int:
        return _fitted(self.compress(data), out)


def _read_gzip(data: memoryview, limit: int) -> Buffer:
    pieces: list[bytes] = []
    total = 0
    rest: Buffer = data
    while True:
        stream = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        piece: bytes = stream.decompress(rest, max_length=limit - total + 1)
        total += len(piece)
        if total > limit:
            raise _too_long(Codec.gzip, limit)
        if not stream.eof:
            raise CorruptBatch("gzip: the stream ends in the middle")
        pieces.append(piece)
        rest = stream.unused_data
        if not rest:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# snappy

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_BLOCK: Final = 64 * 1024
_BLOCK_LENGTH: Final = Struct(">i")


class _Snappy:
    """xerial's framing: a header, then blocks of 64 KiB, each behind its compressed length."""

    def __init__(self, level: int | None) -> None:
        del level
        self._block = bytearray(snappy.compress_raw_max_len(bytes(_XERIAL_BLOCK)))

    def compress(self, data: Buffer) -> Buffer:
        view = memoryview(data)
        blocks = -(-len(view) // _XERIAL_BLOCK)
        out = bytearray(len(_XERIAL_HEADER) + blocks * (_BLOCK_LENGTH.size + len(self._block)))
        del out[self.compress_into(view, memoryview(out)) :]
        return out

    def compress_into(self, data: Buffer, out: memoryview) -> int:
        view = memoryview(data)
        at = len(_XERIAL_HEADER)
        if len(out) < at:
            return -1
        out[:at] = _XERIAL_HEADER
        for start in range(0, len(view), _XERIAL_BLOCK):
            length = snappy.compress_raw_into(view[start : start + _XERIAL_BLOCK], self._block)
            end = at + _BLOCK_LENGTH.size + length
            if end > len(out):
                return -1
            _BLOCK_LENGTH.pack_into(out, at, length)
            out[at + _BLOCK_LENGTH.size : end] = memoryview(self._block)[:length]
            at = end
        return at


def _read_snappy(data: memoryview, limit: int) -> Buffer:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _read_plain_snappy(data, limit)
    blocks: list[tuple[memoryview, int]] = []
    total = 0
    at = len(_XERIAL_HEADER)
    while at < len(data):
        if len(data) - at < _BLOCK_LENGTH.size:
            raise CorruptBatch("snappy: the stream ends within a block's length")
        (length,) = _BLOCK_LENGTH.unpack_from(data, at)
        at += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - at:
            raise CorruptBatch(f"snappy: a block of {length} bytes where {len(data) - at} are left")
        block = data[at : at + length]
        plain: int = snappy.decompress_raw_len(block)
        total += plain
        if total > limit:
            raise _too_long(Codec.snappy, limit)
        blocks.append((block, plain))
        at += length
    out = bytearray(total)
    view = memoryview(out)
    at = 0
    for block, plain in blocks:
        _exactly(snappy.decompress_raw_into(block, view[at : at + plain]), plain)
        at += plain
    view.release()
    return out


def _read_plain_snappy(data: memoryview, limit: int) -> Buffer:
    plain: int = snappy.decompress_raw_len(data)
    if plain > limit:
        raise _too_long(Codec.snappy, limit)
    out = bytearray(plain)
    _exactly(snappy.decompress_raw_into(data, out), plain)
    return out


def _exactly(written: int, expected: int) -> None:
    if written != expected:
        raise CorruptBatch(f"snappy: a block gives {written} bytes and claims {expected}")


# lz4

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"


class _Lz4:
    """Frames of independent blocks, each compressed on its own."""

    def __init__(self, level: int | None) -> None:
        self._level = 0 if level is None else level

    def compress(self, data: Buffer) -> Buffer:
        result: bytes = lz4.frame.compress(
            data, compression_level=self._level, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False,
            store_size=False,
        )  # fmt: skip
        return result

    def compress_into(self, data: Buffer, out: memoryview) -> int:
        return _fitted(self.compress(data), out)


def _read_lz4(data: memoryview, limit: int) -> Buffer:
    stream = lz4.frame.LZ4FrameDecompressor()
    result: bytes = stream.decompress(data, max_length=limit + 1)
    if len(result) > limit:
        raise _too_long(Codec.lz4, limit)
    if not stream.eof:
        raise CorruptBatch("lz4: the frame ends in the middle")
    if stream.unused_data:
        raise CorruptBatch(f"lz4: {len(stream.unused_data)} bytes behind the frame")
    return result


# zstd

_WINDOW: Final = 8 * 1024 * 1024
_LARGEST_WINDOW: Final = 128 * 1024 * 1024


class _Zstd:
    """One frame with its content size."""

    def __init__(self, level: int | None) -> None:
        self._compressor = zstandard.ZstdCompressor(level=1 if level is None else level)

    def compress(self, data: Buffer) -> Buffer:
        return self._compressor.compress(memoryview(data))

    def compress_into(self, data: Buffer, out: memoryview) -> int:
        return _fitted(self._compressor.compress(memoryview(data)), out)


def _read_zstd(data: memoryview, limit: int) -> Buffer:
    window = min(max(limit, _WINDOW), _LARGEST_WINDOW)
    size = zstandard.frame_content_size(data)
    if size > limit:
        raise _too_long(Codec.zstd, limit)
    out = bytearray()
    with zstandard.ZstdDecompressor(max_window_size=window).stream_reader(data, read_across_frames=True) as reader:
        while piece := reader.read(min(1 << 20, limit - len(out) + 1)):
            out += piece
            if len(out) > limit:
                raise _too_long(Codec.zstd, limit)
    return out


_MAKERS: Final[dict[Codec, Callable[[int | None], Compressor]]] = {
    Codec.none: _NoCompression,
    Codec.gzip: _Gzip,
    Codec.snappy: _Snappy,
    Codec.lz4: _Lz4,
    Codec.zstd: _Zstd,
}

_READERS: Final[dict[Codec, Callable[[memoryview, int], Buffer]]] = {
    Codec.none: _read_plain,
    Codec.gzip: _read_gzip,
    Codec.snappy: _read_snappy,
    Codec.lz4: _read_lz4,
    Codec.zstd: _read_zstd,
}

_DAMAGE: Final = (
    DecompressionError,
    EOFError,
    RuntimeError,
    ValueError,
    igzip_lib.IsalError,
    zstandard.ZstdError,
)
"""What the libraries raise for damaged bytes."""
