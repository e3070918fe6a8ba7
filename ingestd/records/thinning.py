"""Leaves records out of a batch, as compaction does. What stays keeps its offset, timestamp and bytes.

A batch keeps its first and last offset, its producer fields and its codec whatever is left out of it. So the next batch
of its producer still follows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.errors import CorruptBatch
from ingestd.records._decode_plain import Reader
from ingestd.records._encode_plain import varint
from ingestd.records.batch import HEADER_BYTES, NO_TIMESTAMP, sealed_batch
from ingestd.records.codecs import Codec, Compression, compressor, decompress
from ingestd.records.decode import LARGEST_RECORDS_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.records.batch import BatchHeader

__all__ = ["emptied", "thinned"]

_CODEC_MASK: Final = 0x07
_DELETE_HORIZON: Final = 0x40
_SMALLEST_INT64: Final = -(2**63)
_LARGEST_INT64: Final = 2**63 - 1


def thinned(
    batch: memoryview, header: BatchHeader, kept: Sequence[bool], delete_horizon_ms: int | None = None
) -> memoryview:
    """A sealed copy with the records for which `kept`, in their order, is true: at least one.

    `delete_horizon_ms`, if given, becomes the batch's delete horizon (KIP-534): the base timestamp. It is left out if a
    record's timestamp is more than 64 bits from it. Raises `CorruptBatch`.
    """
    shift = 0 if delete_horizon_ms is None else header.base_timestamp - delete_horizon_ms
    records, largest, fits = _thinned_records(batch, header, kept, shift)
    if not fits:
        return thinned(batch, header, kept)
    codec, stored = header.codec, compressor(Compression(header.codec)).compress(records)
    if len(memoryview(stored)) >= len(records):
        codec, stored = Codec.none, records
    attributes = header.attributes & ~_CODEC_MASK | codec
    if delete_horizon_ms is not None:
        attributes |= _DELETE_HORIZON
    changed = header._replace(
        attributes=attributes,
        base_timestamp=header.base_timestamp - shift,
        max_timestamp=header.max_timestamp if header.log_append_time else largest,
        records=sum(kept),
    )
    return sealed_batch(changed, stored)


def emptied(header: BatchHeader) -> memoryview:
    """A sealed batch without records. It keeps what the log knows of its producer: id, epoch and last sequence."""
    attributes = header.attributes & ~(_CODEC_MASK | _DELETE_HORIZON)
    changed = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, max_timestamp=NO_TIMESTAMP, records=0)
    return sealed_batch(changed, b"")


def _thinned_records(
    batch: memoryview, header: BatchHeader, kept: Sequence[bool], shift: int
) -> tuple[bytes, int, bool]:
    """The kept records, not compressed, their largest timestamp, and whether all timestamp deltas fit into 64 bits.

    `shift` is added to the deltas.
    """
    if len(kept) != header.records:
        raise ValueError(f"a choice among {len(kept)} records where there are {header.records}")
    data = bytes(decompress(header.codec, batch[HEADER_BYTES:], LARGEST_RECORDS_BYTES))
    reader = Reader(data)
    pieces: list[bytes] = []
    largest = NO_TIMESTAMP
    for keeps in kept:
        begin = reader.at
        reader.begin()
        if keeps:
            attributes = reader.at - 1
            delta = reader.varlong()
            largest = max(largest, header.base_timestamp + delta)
            if shift == 0:
                pieces.append(data[begin : reader.end])
            else:
                if not _SMALLEST_INT64 <= delta + shift <= _LARGEST_INT64:
                    return b"", largest, False
                body = data[attributes : attributes + 1] + varint(delta + shift) + data[reader.at : reader.end]
                pieces += (varint(len(body)), body)
        reader.at = reader.end
    if reader.at != len(data):
        raise CorruptBatch(f"{len(data) - reader.at} bytes behind the last of {header.records} records")
    return b"".join(pieces), largest, True
