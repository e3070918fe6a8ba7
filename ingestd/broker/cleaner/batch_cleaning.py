"""What of one batch stays when its log is compacted. The rules are Kafka's, tombstones and markers as in KIP-534.

https://kafka.apache.org/documentation/#compaction
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.records.decode import decode_records
from ingestd.records.thinning import emptied, thinned

if TYPE_CHECKING:
    from ingestd.broker.cleaner.job import Cleaning
    from ingestd.broker.cleaner.latest_offsets import LatestOffsets
    from ingestd.records.batch import BatchHeader
    from ingestd.records.decode import Record

__all__ = ["BatchCleaning"]


class BatchCleaning:
    """Cleans batches by the latest offsets of keys.

    Invariants
        The latest record of a key stays, unless it is a tombstone beyond its batch's delete horizon.
        A batch that a tombstone or a marker stays in, which could go but for readers that are behind, has a delete
        horizon. It is set once.
        The last batch of an active producer stays, perhaps without records.
    """

    def __init__(self, cleaning: Cleaning, latest: LatestOffsets) -> None:
        self._cleaning = cleaning
        self._latest = latest
        self._new_horizon_ms = cleaning.now_ms + cleaning.delete_retention_ms

    def records(self, batch: memoryview, header: BatchHeader, *, aborted: bool) -> memoryview | None:
        """What stays of a batch of records; None for nothing. `batch` itself if all of it stays. Raises `CorruptBatch`.

        `aborted`: the records are of an aborted transaction, and do not count.
        """
        kept: list[bool] = []
        tombstones = False
        if not aborted:
            expired = self._expired(header)
            for record in decode_records(batch, header=header):
                keeps = self._keeps(record, expired=expired)
                kept.append(keeps)
                tombstones = tombstones or (keeps and record.value is None)
        if not any(kept):
            if self._cleaning.last_batches.get(header.producer_id) != header.base_offset:
                return None
            return emptied(header) if header.records else batch
        horizon = self._new_horizon_ms if tombstones and not header.delete_horizon else None
        return batch if all(kept) and horizon is None else thinned(batch, header, kept, horizon)

    def _keeps(self, record: Record, *, expired: bool) -> bool:
        if record.key is None or (record.value is None and expired):
            return False
        return self._latest.is_latest(record.key, record.offset)

    def marker(self, batch: memoryview, header: BatchHeader, *, needed: bool) -> memoryview | None:
        """What stays of a control batch, as for `records`. `needed`: batches of its transaction are in the log."""
        # The only trace of the producer's epoch. Kafka keeps a batch without the marker, from which no epoch is read.
        if needed or self._cleaning.last_markers.get(header.producer_id) == header.producer_epoch:
            return batch
        if not header.delete_horizon:
            return thinned(batch, header, [True] * header.records, self._new_horizon_ms) if header.records else None
        return None if self._expired(header) else batch

    def _expired(self, header: BatchHeader) -> bool:
        return header.delete_horizon and header.base_timestamp <= self._cleaning.now_ms
