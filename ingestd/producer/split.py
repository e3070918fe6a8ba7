"""Split: a batch that is too large for its topic becomes two, decoded and encoded again with the same codec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.errors import KafkaError
from ingestd.producer.batch import Batch
from ingestd.producer.delivery import Delivery, SplitEnds, deliver
from ingestd.records.batch import HEADER_BYTES, read_header
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Compression
from ingestd.records.decode import decode_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.errors import IngestdError
    from ingestd.producer.delivery import Delivered
    from ingestd.producer.ledger import Ledger
    from ingestd.records.decode import Record

__all__ = ["split"]

_NO_LIMIT = 1 << 62

_IN_PART = "part of a batch that was split because of its size failed"


def split(batch: Batch, ledger: Ledger) -> tuple[Batch, Batch]:
    """Two new batches with the records of `batch`, not numbered. Raises `CorruptBatch`.

    If `done` is `SplitEnds`, each half has its own. Any other is called when both halves are done: with the first
    half's base offset, or with the error of the half that failed. The halves take over what `batch` holds in the
    ledger.
    """
    header = read_header(batch.data)
    records = decode_records(batch.data)
    middle = len(records) // 2
    compression = Compression(header.codec)
    dones: Sequence[Delivered | None]
    if isinstance(batch.done, SplitEnds):
        dones = batch.done.split(middle)
    else:
        dones = (None if batch.done is None else _Joined(batch.done, batch.records),) * 2
    first, second = (
        Batch(
            data=memoryview(_encode(part, compression)),
            records=len(part),
            done=done,
            accepted_at=batch.accepted_at,
            deadline=batch.deadline,
            generation=batch.generation,
            attempts=batch.attempts,
        )
        for part, done in zip((records[:middle], records[middle:]), dones, strict=True)
    )
    ledger.enter_again(batch.generation)
    first.reserved, second.reserved = batch.reserved // 2, batch.reserved - batch.reserved // 2
    return first, second


def _encode(records: Sequence[Record], compression: Compression) -> bytearray:
    builder = BatchBuilder(_NO_LIMIT)
    for record in records:
        builder.append(record.key, record.value, record.headers, record.timestamp_ms)
    built = builder.build(compression)
    assert len(built) > HEADER_BYTES
    return built


def _in_part(error: IngestdError, place: str) -> IngestdError:
    """The same error, which says that it is of a part. A Kafka error names its code, and the partition, once."""
    where = f"{place}: {_IN_PART}"
    if isinstance(error, KafkaError):
        detail = error.detail.removeprefix(place).removeprefix(": ")
        return KafkaError(error.code, f"{where}: {detail}" if detail else where)
    return type(error)(f"{where}: {error}")


class _Joined:
    """Joins two deliveries to one. Called once for each half."""

    def __init__(self, done: Delivered, records: int) -> None:
        self._done = done
        self._records = records
        self._other: Delivery | None = None

    def __call__(self, half: Delivery) -> None:
        other = self._other
        if other is None:
            self._other = half
            return
        offsets = [part.base_offset for part in (other, half) if part.base_offset >= 0]
        error = other.error or half.error
        in_part = error is not None and (other.error is None or half.error is None)
        if error is not None and in_part and _IN_PART not in str(error):  # a half may have been split again
            error = _in_part(error, f"{half.topic}[{half.partition}]")
        whole = Delivery(
            half.topic,
            half.partition,
            self._records,
            -1 if error is not None or len(offsets) < 2 else min(offsets),
            max(other.log_append_time_ms, half.log_append_time_ms),
            error,
        )
        deliver(self._done, whole)
