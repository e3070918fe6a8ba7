"""The five codecs of record batches: compress into a given buffer, decompress within a given limit.

Written frames are those that Kafka's Java reader takes: lz4 in independent blocks, snappy in xerial's framing, zstd
with its content size, gzip as one member. Read frames may come from any client: linked lz4 blocks, plain snappy, zstd
frames without a size, several gzip members. A stream that would become larger than the limit is `CorruptBatch`. That is
found before the memory is taken.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, cast

import lz4.block
import zstandard
from cramjam import DecompressionError
from isal import igzip_lib

from ingestd.errors import CorruptBatch, UnsupportedCodec
from ingestd.records.lz4_frames import Lz4, read_lz4
from ingestd.records.snappy_frames import Snappy, read_snappy
from ingestd.records.zstd_frames import Zstd, read_zstd

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

__all__ = ["Codec", "Compression", "Compressor", "compressor", "decompress"]


class Codec(IntEnum):
    """The compression type: the low three bits of a batch's attributes."""

    none = 0
    gzip = 1
    snappy = 2
    lz4 = 3
    zstd = 4

    @classmethod
    def of(cls, number: int) -> Codec:
        """The codec of a number on the wire. Raises `UnsupportedCodec`."""
        codec = _BY_NUMBER.get(number)
        if codec is None:
            raise UnsupportedCodec(f"compression type {number}")
        return codec


_BY_NUMBER: Final[dict[int, Codec]] = {int(codec): codec for codec in Codec}

_LEVELS: Final[dict[Codec, range]] = {
    Codec.none: range(0),
    Codec.gzip: range(1, 10),
    Codec.snappy: range(0),
    Codec.lz4: range(-64, 18),
    Codec.zstd: range(-7, 23),
}


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec and its level; None is the default level. none and snappy have no level.

    gzip: 1 to 9, by default 2. Up to 3 isal compresses, above zlib. zstd: -7 to 22, by default 1. lz4: 1 to 17, Kafka's
    levels, are high compression; 0 is the default; below 0 is faster and weaker.
    """

    codec: Codec = Codec.none
    level: int | None = None

    def __post_init__(self) -> None:
        if self.level is not None and self.level not in _LEVELS[self.codec]:
            levels = _LEVELS[self.codec]
            expected = f"{levels.start} to {levels.stop - 1}" if levels else f"no level for {self.codec.name}"
            raise UnsupportedCodec(f"{self.codec.name} level {self.level}: expected {expected}")

    @classmethod
    def of(cls, given: Compression | str) -> Compression:
        """What it is, or what text says (`parse`)."""
        return cls.parse(given) if isinstance(given, str) else given

    @classmethod
    def parse(cls, name: str, level: int | None = None) -> Compression:
        """From text: a codec's name, "lz4", or with a level, "zstd:3". Raises `UnsupportedCodec` for unknown ones."""
        codec, colon, written = name.partition(":")
        if codec not in Codec.__members__:
            known = ", ".join(codec.name for codec in Codec)
            raise UnsupportedCodec(f"compression {name!r}: expected one of {known}")
        if colon:
            try:
                level = int(written)
            except ValueError:
                raise UnsupportedCodec(f"compression {name!r}: expected a level behind the colon") from None
        return cls(Codec[codec], level)


class Compressor(Protocol):
    """Compresses the records of one batch at a time. Belongs to one thread."""

    def compress(self, data: Buffer) -> Buffer:
        """The compressed form, in memory of its own."""
        ...

    def compress_into(self, data: Buffer, out: memoryview) -> int:
        """Write the compressed form to `out`. Returns its length, or -1 (and `out` is undefined) if it does not fit."""
        ...


_pool: Final = threading.local()


def compressor(compression: Compression) -> Compressor:
    """This thread's compressor for `compression`. It is made once, so its tables and memory are used again."""
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
    """`data` decompressed, at most `limit` bytes. With `Codec.none` that is `data` itself.

    Raises `CorruptBatch` for a stream that is damaged, torn, followed by other bytes, or larger than `limit`. It never
    takes more memory than `limit` bytes and the codec's own window.
    """
    try:
        return _READERS[codec](memoryview(data), limit)
    except _DAMAGE as error:
        raise CorruptBatch(f"{codec.name}: {error}") from error


def _too_long(codec: Codec, limit: int) -> CorruptBatch:
    return CorruptBatch(f"{codec.name}: more than the limit of {limit} bytes when decompressed")


def _fitted(data: Buffer, out: memoryview) -> int:
    """Copy to `out`. Returns the length, or -1 if it does not fit."""
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


_GZIP_SIZE_BYTES: Final = 4
_GZIP_PIECE: Final = 64 * 1024
_DEFLATE_EXPANSION: Final = 1032
"""The most bytes that one byte of deflate can stand for."""


class _Gzip:
    """isal for the low levels; zlib for the high ones, which are slow and make fewer bytes."""

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
        while not stream.eof:
            # The trailer of a single, correct member tells the size. The number of bytes bounds what it may claim.
            piece: bytes = stream.decompress(rest, max_length=min(_gzip_guess(data), limit - total + 1))
            rest = b""
            total += len(piece)
            if total > limit:
                raise _too_long(Codec.gzip, limit)
            if not piece and not stream.eof:
                raise CorruptBatch("gzip: the stream ends in the middle")
            pieces.append(piece)
        rest = stream.unused_data
        if not rest:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _gzip_guess(data: memoryview) -> int:
    claimed = int.from_bytes(data[-_GZIP_SIZE_BYTES:], "little")
    return max(_GZIP_PIECE, min(claimed + 1, len(data) * _DEFLATE_EXPANSION))


_MAKERS: Final[dict[Codec, Callable[[int | None], Compressor]]] = {
    Codec.none: _NoCompression,
    Codec.gzip: _Gzip,
    Codec.snappy: lambda _level: Snappy(),
    Codec.lz4: Lz4,
    Codec.zstd: Zstd,
}

_READERS: Final[dict[Codec, Callable[[memoryview, int], Buffer]]] = {
    Codec.none: _read_plain,
    Codec.gzip: _read_gzip,
    Codec.snappy: read_snappy,
    Codec.lz4: read_lz4,
    Codec.zstd: read_zstd,
}

_DAMAGE: Final = (
    DecompressionError,
    EOFError,
    lz4.block.LZ4BlockError,
    RuntimeError,
    cast("type[Exception]", igzip_lib.IsalError),  # isal's stub takes the class for an instance
    zstandard.ZstdError,
)
"""The exceptions of the libraries for damaged bytes."""
