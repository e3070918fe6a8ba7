"""Coordinator log: one partition of an internal topic. A coordinator appends records to it, and reads them all back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingestd.broker.coordinator.records import encode_record, read_record
from ingestd.broker.settings import Flush
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger
from ingestd.records.batch import read_header, seal, split_batches
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import decode_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ingestd.broker.coordinator.records import CoordinatorRecord
    from ingestd.broker.storage import Partition, Storage

__all__ = ["CoordinatorLog"]

_READ_BYTES: Final = 1 << 20
_UNCOMPRESSED: Final = Compression(Codec.none)
_NO_LIMIT: Final = 1 << 31
_log = get_logger(__name__)


class CoordinatorLog:
    """The log that a coordinator's state is made from.

    Invariants
        `done` is called when the records are in the log, and on the disk with `Flush.always`; in the order of appends.
        The records of one `append` are in one batch: all or none.
    """

    def __init__(self, storage: Storage, partition: Partition, flush: Flush) -> None:
        self._storage = storage
        self._partition = partition
        self._flush = flush

    def append(
        self, records: Sequence[CoordinatorRecord], timestamp_ms: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """Append records, and tell `done` what became of it: at once, or after the fsync."""
        try:
            self._storage.check_writable()
            batch = _batch(records, timestamp_ms)
            self._partition.log.append(batch, read_header(batch))
        except KafkaError as error:
            # The client asks again, for as long as it takes until there is room.
            _log.warning("coordinator record not written", error=str(error))
            done(ErrorCode.coordinator_not_available)
            return
        self.when_written(done)

    def when_written(self, done: Callable[[ErrorCode], None]) -> None:
        """Tell `done` when all that was appended is in the log, and on the disk with `Flush.always`."""
        if self._flush is Flush.os:
            done(ErrorCode.none)
            return
        self._partition.commit.flushed().add_done_callback(lambda flushed: done(_outcome(flushed)))

    async def replay(self) -> AsyncIterator[CoordinatorRecord]:
        """All records, from the oldest on. Other work goes on meanwhile. Raises `IngestdError`, `OSError`."""
        log = self._partition.log
        offset = log.start_offset
        while (part := log.slice(offset, _READ_BYTES, log.end_offset)) is not None:
            for batch in split_batches(part.read()):
                header = read_header(batch)
                offset = header.last_offset + 1
                if header.control:
                    continue
                for record in decode_records(batch):
                    known = read_record(record.key, record.value)
                    if known is not None:
                        yield known
            await asyncio.sleep(0)


def _batch(records: Sequence[CoordinatorRecord], timestamp_ms: int) -> memoryview:
    builder = BatchBuilder(limit=_NO_LIMIT)
    for record in records:
        key, value = encode_record(record)
        builder.append(key, value, (), timestamp_ms)
    batch = memoryview(builder.build(_UNCOMPRESSED))
    seal(batch)
    return batch


def _outcome(flushed: asyncio.Future[None]) -> ErrorCode:
    lost = flushed.cancelled() or flushed.exception() is not None
    return ErrorCode.coordinator_not_available if lost else ErrorCode.none
