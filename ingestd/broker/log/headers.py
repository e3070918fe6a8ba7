"""Walks the batch headers of a segment file without reading the records between them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ingestd.errors import CorruptBatch
from ingestd.records.batch import HEADER_BYTES, BatchHeader, read_header
from ingestd.records.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["scan_headers", "scan_whole_batches"]

_CHUNK: Final = 64 * 1024
_CRC_PIECE: Final = 4 << 20
_CRC_COVERS_FROM: Final = 21


def scan_headers(descriptor: int, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every batch that starts in [start, end), in order.

    Ends before a batch that is not wholly before `end`. Raises `CorruptBatch` for bytes that can not be a header.
    """
    position = start
    chunk = b""
    chunk_at = start
    while end - position >= HEADER_BYTES:
        inside = position - chunk_at
        if inside + HEADER_BYTES > len(chunk):
            chunk = os.pread(descriptor, min(_CHUNK, end - position), position)
            chunk_at, inside = position, 0
        header = read_header(chunk, inside)
        if position + header.size > end:
            return
        yield position, header
        position += header.size


def scan_whole_batches(
    descriptor: int, end: int, first_offset: int, *, gaps_until: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every valid batch, from the file's start. Ends at the first that is not valid.

    Valid: the header is possible, all bytes are there, the CRC is right, and the offset follows the batch before. The
    cleaner leaves gaps, between batches and within them, up to `gaps_until`. Elsewhere a gap is damage: no CRC covers
    the offset.
    """
    next_offset = first_offset
    try:
        for position, header in scan_headers(descriptor, 0, end):
            offsets = header.last_offset_delta + 1
            if header.base_offset < next_offset or not 0 <= header.records <= offsets:
                return
            if next_offset < header.base_offset > gaps_until:
                return
            if header.records < offsets and header.last_offset >= gaps_until:
                return
            if _crc(descriptor, position + _CRC_COVERS_FROM, position + header.size) != header.crc:
                return
            yield position, header
            next_offset = header.last_offset + 1
    except CorruptBatch:
        return


def _crc(descriptor: int, start: int, end: int) -> int:
    checksum = 0
    while start < end:
        piece = os.pread(descriptor, min(_CRC_PIECE, end - start), start)
        if not piece:
            return -1
        checksum = crc32c(piece, checksum)
        start += len(piece)
    return checksum
