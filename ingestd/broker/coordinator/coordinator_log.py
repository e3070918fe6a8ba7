"""Coordinator log: one partition of an internal topic. A coordinator appends records to it, and reads them all back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ingestd.broker.log.markers import marker_of
from ingestd.broker.settings import Flush
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger
from ingestd.records.batch import NO_PRODUCER_ID, NO_SEQUENCE, patch_producer, read_header, seal, split_batches
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import decode_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ingestd.broker.storage import Partition, Storage
    from ingestd.records.decode import ControlMarker
    from ingestd.wire.codec import Buffer

__all__ = ["CoordinatorLog", "LogBatch", "RecordFormat"]

R = TypeVar("R")

_READ_BYTES: Final = 1 << 16
"""Of a log that is read back, between two turns of others: 64 KiB of small records take some 20 ms."""
_UNCOMPRESSED: Final = Compression(Codec.none)
_NO_LIMIT: Final = 1 << 31
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RecordFormat(Generic[R]):
    """How records become keys and values, and back. `read` returns None for records that this broker does not know.

    `read` raises `ProtocolError`.
    """

    encode: Callable[[R], tuple[bytes, bytes | None]]
    read: Callable[[Buffer | None, Buffer | None], R | None]


@dataclass(frozen=True, slots=True)
class LogBatch(Generic[R]):
    """Records that were appended together, or the marker that ends a transaction.

    `producer_id` is that of the transaction which the records are in; -1: they are in none.
    """

    records: Sequence[R]
    producer_id: int = NO_PRODUCER_ID
    marker: ControlMarker | None = None


class CoordinatorLog(Generic[R]):
    """The log that a coordinator's state is made from.

    Invariants
        `done` is called when the records are in the log, and on the disk with `Flush.always`; in the order of appends.
        The records of one `append` are in one batch: all or none.
    """

    def __init__(self, storage: Storage, partition: Partition, flush: Flush, records: RecordFormat[R]) -> None:
        self._records = records
        self._storage = storage
        self._partition = partition
        self._flush = flush

    @property
    def epoch(self) -> int:
        """The coordinator's epoch: that of the leader of the partition. It rises with each crash of the broker."""
        return self._partition.log.leader_epoch

    def append(self, records: Sequence[R], timestamp_ms: int, done: Callable[[ErrorCode], None]) -> None:
        """Append records, and tell `done` what became of it: at once, or after the fsync."""
        try:
            self.write(records, timestamp_ms)
        except KafkaError as error:
            done(error.code)
            return
        self.when_written(done)

    def write(self, records: Sequence[R], timestamp_ms: int, transaction: tuple[int, int] | None = None) -> None:
        """Append records. `transaction`: producer id and epoch of the transaction that they are in.

        Raises `KafkaError`: COORDINATOR_NOT_AVAILABLE if the disk does not take them, INVALID_PRODUCER_EPOCH.
        """
        try:
            self._storage.check_writable()
            batch = self._batch(records, timestamp_ms, transaction)
            self._partition.log.append(batch, read_header(batch))
        except KafkaError as error:
            if error.code is ErrorCode.invalid_producer_epoch:
                raise
            # The client asks again, for as long as it takes until there is room.
            _log.warning("coordinator record not written", error=str(error))
            raise KafkaError(ErrorCode.coordinator_not_available, str(error)) from error

    def when_written(self, done: Callable[[ErrorCode], None]) -> None:
        """Tell `done` when all that was appended is in the log, and on the disk with `Flush.always`."""
        if self._flush is Flush.os:
            done(ErrorCode.none)
            return
        self._partition.commit.flushed().add_done_callback(lambda flushed: done(_outcome(flushed)))

    async def replay(self) -> AsyncIterator[LogBatch[R]]:
        """All batches, from the oldest on. Other work goes on meanwhile. Raises `IngestdError`, `OSError`."""
        log = self._partition.log
        offset = log.start_offset
        while (part := log.slice(offset, _READ_BYTES, log.end_offset)) is not None:
            for batch in split_batches(part.read()):
                header = read_header(batch)
                offset = header.last_offset + 1
                if header.control:
                    yield LogBatch((), marker=marker_of(batch, header))
                else:
                    yield LogBatch(self._known(batch), header.producer_id if header.transactional else NO_PRODUCER_ID)
            await asyncio.sleep(0)

    def _known(self, batch: Buffer) -> list[R]:
        known = (self._records.read(record.key, record.value) for record in decode_records(batch))
        return [record for record in known if record is not None]

    def _batch(self, records: Sequence[R], timestamp_ms: int, transaction: tuple[int, int] | None) -> memoryview:
        builder = BatchBuilder(limit=_NO_LIMIT)
        for record in records:
            key, value = self._records.encode(record)
            builder.append(key, value, (), timestamp_ms)
        batch = memoryview(builder.build(_UNCOMPRESSED))
        if transaction is None:
            seal(batch)
        else:
            patch_producer(batch, *transaction, NO_SEQUENCE, transactional=True)
        return batch


def _outcome(flushed: asyncio.Future[None]) -> ErrorCode:
    lost = flushed.cancelled() or flushed.exception() is not None
    return ErrorCode.coordinator_not_available if lost else ErrorCode.none
