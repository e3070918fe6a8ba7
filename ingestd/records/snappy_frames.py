"""snappy in the framing of xerial's Java library, which Kafka uses. Plain snappy can be read too."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from cramjam import snappy

from ingestd.errors import CorruptBatch
from ingestd.records.loops import allocate

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Snappy", "read_snappy"]

_MAGIC: Final = b"\x82SNAPPY\x00"
_HEADER: Final = _MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
"""The magic, then version and lowest compatible version."""
_BLOCK: Final = 64 * 1024
_LENGTH: Final = Struct(">i")


class Snappy:
    """Compresses into blocks of 64 KiB. Each follows its compressed length."""

    def __init__(self) -> None:
        self._block = memoryview(bytearray(snappy.compress_raw_max_len(bytes(_BLOCK))))

    def compress(self, data: Buffer) -> Buffer:
        """One stream."""
        view = memoryview(data)
        blocks = -(-len(view) // _BLOCK)
        out = allocate(len(_HEADER) + blocks * (_LENGTH.size + len(self._block)))
        with memoryview(out) as target:
            length = self.compress_into(view, target)
        del out[length:]
        return out

    def compress_into(self, data: Buffer, out: memoryview) -> int:
        """Write one stream to `out`. Returns its length, or -1 if it does not fit."""
        view = memoryview(data)
        at = len(_HEADER)
        if len(out) < at:
            return -1
        out[:at] = _HEADER
        for start in range(0, len(view), _BLOCK):
            length: int = snappy.compress_raw_into(view[start : start + _BLOCK], self._block)
            body = at + _LENGTH.size
            if body + length > len(out):
                return -1
            _LENGTH.pack_into(out, at, length)
            at = body + length
            out[body:at] = self._block[:length]
        return at


def read_snappy(data: memoryview, limit: int) -> Buffer:
    """The content of a stream, or of a plain block. Raises `CorruptBatch`, also for more than `limit` bytes."""
    blocks = list(_blocks(data)) if data[: len(_MAGIC)].tobytes() == _MAGIC else [data]
    sizes = [snappy.decompress_raw_len(block) for block in blocks]
    if sum(sizes) > limit:
        raise CorruptBatch(f"snappy: {sum(sizes)} bytes, more than the limit of {limit}")
    out = allocate(sum(sizes))
    at = 0
    with memoryview(out) as target:
        for block, size in zip(blocks, sizes, strict=True):
            written = snappy.decompress_raw_into(block, target[at : at + size])
            if written != size:
                raise CorruptBatch(f"snappy: {written} bytes in a block that claims {size}")
            at += size
    return out


def _blocks(data: memoryview) -> list[memoryview]:
    blocks = []
    at = len(_HEADER)
    if len(data) < at:
        raise CorruptBatch("snappy: the stream ends within its header")
    while at < len(data):
        if len(data) - at < _LENGTH.size:
            raise CorruptBatch("snappy: the stream ends within a block's length")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if not 0 < length <= len(data) - at:
            raise CorruptBatch(f"snappy: a block of {length} bytes where {len(data) - at} are left")
        blocks.append(data[at : at + length])
        at += length
    return blocks
