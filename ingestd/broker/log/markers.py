"""Transaction markers: the control batches that end a producer's transaction in a partition (KIP-98)."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from ingestd.records.batch import NO_SEQUENCE, seal, write_header
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import ControlMarker, decode_control

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ingestd.records.batch import BatchHeader
    from ingestd.records.decode import ControlKind

__all__ = ["marker_batch", "marker_of"]

_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")
_VERSION: Final = 0
_TRANSACTIONAL_CONTROL: Final = 0x30
_LIMIT: Final = 1 << 10


def marker_batch(
    producer_id: int, producer_epoch: int, kind: ControlKind, coordinator_epoch: int, timestamp_ms: int
) -> memoryview:
    """A sealed control batch with one marker. It has no sequence."""
    builder = BatchBuilder(limit=_LIMIT)
    builder.append(_KEY.pack(_VERSION, kind), _VALUE.pack(_VERSION, coordinator_epoch), (), timestamp_ms)
    batch = memoryview(builder.build(Compression(Codec.none)))
    write_header(
        batch,
        records=1,
        codec=Codec.none,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        attributes=_TRANSACTIONAL_CONTROL,
    )
    seal(batch)
    return batch


def marker_of(batch: Buffer, header: BatchHeader) -> ControlMarker | None:
    """The transaction marker in a batch; None for batches of records. Raises `CorruptBatch`."""
    if not header.control:
        return None
    # A batch of Kafka's has one marker, since a producer has one transaction at a time.
    return next(iter(decode_control(batch)), None)
