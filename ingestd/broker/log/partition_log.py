"""One partition's log: appends batches, finds them by offset and by time, and removes what is beyond retention.

Everything here runs on the broker's event loop, except the fsyncs of `GroupCommit` and `Sealer`. Those run on its disk
threads and touch nothing that changes.
"""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.broker.log.epochs import LeaderEpochs
from ingestd.broker.log.files import make_directory, sync_directory
from ingestd.broker.log.log_start import LogStart
from ingestd.broker.log.markers import marker_of
from ingestd.broker.log.partition_producers import PartitionProducers
from ingestd.broker.log.recovery import load_segments
from ingestd.broker.log.sealing import Sealer
from ingestd.broker.log.segment import Segment
from ingestd.broker.log.swaps import link_swap, read_cleaned_offset
from ingestd.broker.log.transactions import LogEnd
from ingestd.broker.settings import Flush
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger
from ingestd.records.batch import NO_PRODUCER_ID, patch_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future
    from pathlib import Path
    from typing import Protocol

    from ingestd.broker.log.files import OpenFiles
    from ingestd.broker.log.producer_state import ActiveProducer
    from ingestd.broker.log.transactions import AbortedTransaction
    from ingestd.broker.topic_config import TopicConfig
    from ingestd.records.batch import BatchHeader

    class Watcher(Protocol):
        """Waits for a log to change."""

        def grew(self, size: int) -> None:
            """`size` bytes more can be read."""

        def gone(self) -> None:
            """The log was deleted or closed."""


__all__ = ["Appended", "LogSlice", "PartitionLog"]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Appended:
    """A batch's offset in the log. `duplicate`: it was there before, and nothing was written."""

    base_offset: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class LogSlice:
    """A run of whole batches in one segment: [position, position + length). `first` is the size of the first batch.

    `last`: nothing more can be read behind it now.
    """

    segment: Segment
    position: int
    length: int
    first: int
    last: bool = False

    def read(self) -> bytes:
        """The bytes. Raises `OSError`."""
        return self.segment.read(self.position, self.length)

    @property
    def ends_before(self) -> int:
        """An offset behind the last batch, not more than one entry of the index too far."""
        return self.segment.index.offset_after(self.position + self.length, self.segment.next_offset)


class PartitionLog:
    """The log of one partition.

    Invariants
        Offsets [start_offset, high_watermark) are readable, but for those that compaction removed.
        With `Flush.always` the high watermark is the end that the last fsync found. A power cut takes nothing of it.
        The last stable offset is at most the high watermark. Every transaction with a batch before it has ended, by a
        marker before the high watermark. It never goes back.
        When `append` returns, the batch is in the file (at least in the kernel's page cache).
        A failed write changes nothing: the next append goes to the same offset.
        After a failed fsync nothing is appended, acknowledged or sealed. The next start reads what the disk has.
        A log that was closed or deleted touches no file: another log may use its directory's name by now.
    """

    def __init__(
        self,
        directory: Path,
        config: TopicConfig,
        files: OpenFiles,
        disk: Executor,
        *,
        leader_epoch: int,
        producer_expiry: float,
        flush: Flush,
    ) -> None:
        self.directory = directory
        self.config = config
        self.leader_epoch = leader_epoch
        self.cleaned_offset = 0
        """The offset up to which the log was compacted."""
        self.high_watermark = 0
        """The end of what readers get. The first offset behind it is that of a batch, or the log's end."""
        self._flush = flush
        self._start = LogStart(directory, flush)
        self._appended_bytes = 0
        self._readable_bytes = 0
        self._stable = LogEnd(0, 0)
        self.epochs = LeaderEpochs(directory)
        self.watchers: set[Watcher] = set()
        """They are told how the high watermark moves."""
        self.stable_watchers: set[Watcher] = set()
        """They are told how the last stable offset moves."""
        self._files = files
        self._sealer = Sealer(directory.name, disk, self.fail)
        self._producers = PartitionProducers(directory, producer_expiry)
        self._segments: list[Segment] = []
        self._failed = False
        self._closed = False
        self._names_unsynced = True
        self._refused: int | None = None
        """Bytes of the smallest batch that the disk did not take; None while it takes every batch."""

    def open(self, *, clean: bool = False) -> None:
        """Read what is on the disk, and cut off what a crash left unfinished. Raises `OSError`.

        `clean`: the last one on this directory has ended by `close`, and all logs were `sealed`.
        """
        make_directory(self.directory)
        cleaned, gaps_until = read_cleaned_offset(self.directory)
        recovered = load_segments(self.directory, self._files, self.config, gaps_until=gaps_until)
        self._segments = recovered.segments
        # The file of an empty segment may not be there yet.
        self._names_unsynced = not clean or not self._active.size
        # What was cleaned and then cut off is written anew.
        self.cleaned_offset = 0 if cleaned > self.end_offset else cleaned
        self._start = LogStart(self.directory, self._flush, recovered.start_offset)
        self.epochs.load(self.end_offset)
        self._producers.load(self._segments, recovered.names)
        for segment in self._segments[:-1]:
            if not segment.sealed:
                self._sealer.begin_if_possible(segment)
        if self._flush is Flush.always:
            self._sync_recovered()
        self.high_watermark = self.end_offset
        self._stable = self._producers.transactions.stable(self.log_end)

    def configure(self, config: TopicConfig) -> None:
        """Go by another configuration of the topic from now on."""
        self.config = config
        self._active.index.interval = config.index_interval

    def _sync_recovered(self) -> None:
        """After a kill, batches may be in the kernel's page cache alone."""
        try:
            for segment in self._segments:
                if segment.unflushed and segment.size:
                    os.fsync(segment.descriptor)
                    segment.unflushed = False
            # Also the name of a segment whose bytes are on the disk.
            if self._names_wanted:
                sync_directory(self.directory)
                self._names_unsynced = False
        except OSError as error:
            _log.error("fsync failed; the partition takes no more batches", log=str(self.directory), error=str(error))
            self.fail()

    @property
    def _names_wanted(self) -> bool:
        """Whether records are in a file whose name may not be on the disk."""
        return self._names_unsynced and any(segment.size for segment in self._segments)

    def _segment(self, base_offset: int) -> Segment:
        return Segment(self._files, self.directory, base_offset, self.config.index_interval)

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    @property
    def start_offset(self) -> int:
        """The first offset that readers get."""
        return self._start.offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._segments[-1].next_offset

    @property
    def log_end(self) -> LogEnd:
        """How far the log was appended to."""
        return LogEnd(self.end_offset, self._appended_bytes)

    @property
    def last_stable_offset(self) -> int:
        """The end of what readers of committed records get: the high watermark, or the first open transaction."""
        # Records of an open transaction may have been deleted.
        return max(self._stable.offset, self.start_offset)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    def check_leader_epoch(self, known: int) -> None:
        """Check the leader epoch that a client gives; -1 for none (KIP-320).

        Raises `KafkaError`: FENCED_LEADER_EPOCH for an older one than this log's, UNKNOWN_LEADER_EPOCH for a newer one.
        """
        if known in {-1, self.leader_epoch}:
            return
        older = known < self.leader_epoch
        raise KafkaError(
            ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch,
            f"{self.directory.name}: leader epoch {known}, expected {self.leader_epoch}",
        )

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the batch at `offset`, or of the next one at the log's end; -1 if it is not known."""
        return self.leader_epoch if offset >= self.end_offset else self.epochs.at(offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch`, and the offset at which it ended; (-1, -1) if none is known.

        As in Kafka, a leader's epoch is known before its first batch, and of later ones nothing is.
        """
        if epoch > self.leader_epoch:
            return -1, -1
        if epoch == self.leader_epoch:
            return epoch, self.end_offset
        return self.epochs.end_of(epoch, self.end_offset)

    def append(self, batch: memoryview, header: BatchHeader) -> Appended:
        """Append a valid batch. Its base offset and leader epoch are written into `batch` itself.

        A control batch ends its producer's transaction. Only the broker writes those.

        Raises `KafkaError`: for a sequence or epoch that the producer may not use, and KAFKA_STORAGE_ERROR if the disk
        does not take it.
        """
        if self._closed:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{self.directory.name} is closed")
        if self._failed:
            raise KafkaError(
                ErrorCode.kafka_storage_error, f"{self.directory.name}: an fsync failed; restart the broker"
            )
        marker = marker_of(batch, header)
        before = self._producers.check(header, marker)
        if before is not None:
            return Appended(before, duplicate=True)
        try:
            base_offset = self._write(batch, header)
        except OSError as error:
            self._say_refused(len(batch), error)
            self.refused(header)
            raise KafkaError(ErrorCode.kafka_storage_error, f"{self.directory.name}: {error}") from error
        if self._refused is not None and len(batch) >= self._refused:
            _log.info("batches are taken again", partition=self.directory.name)
            self._refused = None
        place = LogEnd(base_offset, self._appended_bytes)
        self._producers.appended(self._active, header, marker, place, time.time())
        self._appended_bytes += len(batch)
        if self._flush is Flush.os:
            self._readable(self.log_end)
        return Appended(base_offset, duplicate=False)

    def synced(self, end: LogEnd) -> None:
        """All before `end` is on the disk."""
        if end.offset > self.high_watermark and not self._closed:
            self._readable(end)

    def _readable(self, end: LogEnd) -> None:
        more, self._readable_bytes = end.appended_bytes - self._readable_bytes, end.appended_bytes
        self.high_watermark = end.offset
        # A watcher that has enough leaves the set during this loop.
        for watcher in tuple(self.watchers):
            watcher.grew(more)
        stable = self._producers.transactions.stable(end)
        if stable.offset <= self._stable.offset:
            return
        more, self._stable = stable.appended_bytes - self._stable.appended_bytes, stable
        for watcher in tuple(self.stable_watchers):
            watcher.grew(more)

    def refused(self, header: BatchHeader) -> None:
        """Keep the place of a batch that there was no room for, because it will be sent again."""
        if header.producer_id != NO_PRODUCER_ID and not header.control:
            self._producers.states.refused(header)

    def _say_refused(self, size: int, error: OSError) -> None:
        # Logged once, until a batch as large is taken: producers try for hours, and this log may be on the full disk.
        if self._refused is None:
            _log.error(
                "append failed; batches are refused until there is room",
                partition=self.directory.name,
                error=str(error),
            )
        self._refused = min(size, self._refused or size)

    def _write(self, batch: memoryview, header: BatchHeader) -> int:
        if self._segment_full(len(batch)):
            self._roll()
        base_offset = self.end_offset
        if self.epochs.begin(self.leader_epoch, base_offset):
            self._names_unsynced = True
        patch_offset(batch, base_offset, self.leader_epoch)
        self._active.append(batch, header, base_offset)
        return base_offset

    def _segment_full(self, size: int) -> bool:
        active = self._active
        if active.size == 0:
            return False
        too_old = time.time() - active.created > self.config.longest_segment_ms / 1000
        return too_old or active.size + size > self.config.segment_bytes

    def _roll(self) -> None:
        full = self._active
        successor = self._segment(full.next_offset)
        # Made now, so that a log still knows its end after a restart if all older segments were removed.
        successor.path.touch(mode=0o600)
        self._names_unsynced = True
        self._segments.append(successor)
        self._producers.write(self._segments)
        self._sealer.begin_if_possible(full)

    def take_unflushed(self) -> list[int]:
        """Descriptors, for the caller to close, of the files whose bytes may not be on the disk. Raises `OSError`."""
        if self._failed:
            raise OSError(errno.EIO, "an fsync failed before")
        # Every segment is checked: they are sealed in any order, and the newest may be empty.
        unflushed = [segment for segment in self._segments if segment.unflushed]
        descriptors: list[int] = []
        try:
            for segment in unflushed:
                descriptors.append(os.dup(segment.descriptor))  # noqa: PERF401 - closed where a later one fails
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        for segment in unflushed:
            segment.unflushed = False
        return descriptors

    def take_unsynced_names(self) -> Path | None:
        """The directory, if a file was added to it whose name may not be on the disk."""
        unsynced, self._names_unsynced = self._names_unsynced, False
        return self.directory if unsynced else None

    @property
    def closed(self) -> bool:
        """Whether the log was closed or deleted."""
        return self._closed

    @property
    def failed(self) -> bool:
        """Whether an fsync failed."""
        return self._failed

    def fail(self) -> None:
        """Stop taking batches: after a failed fsync it is not known what the disk has."""
        self._failed = True
        self._sealer.stop()

    def slice(self, offset: int, max_bytes: int, until: int | None = None) -> LogSlice | None:
        """Whole batches from `offset` on; at least one, even if it is larger than `max_bytes`. None if there is none.

        They end at `until`, where a batch begins: the last stable offset, say. Without it, at the high watermark.
        Raises `KafkaError` (OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR).
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.directory.name}: {offset} is not within {self.start_offset} to {self.end_offset}",
            )
        until = self.high_watermark if until is None else until
        if offset >= until:
            return None
        at = bisect_right(self._segments, offset, key=_base_offset) - 1
        try:
            # The batches at the end of a segment may have been compacted away. Then the next one has what follows.
            while at < len(self._segments) and self._segments[at].base_offset < until:
                segment = self._segments[at]
                if (found := segment.slice(offset, max_bytes, until)) is not None:
                    position, length, first, last = found
                    return LogSlice(segment, position, length, first, last and segment.next_offset >= until)
                at += 1
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{self.directory.name}: {error}") from error
        return None

    def aborted(self, offset: int, until: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [offset, until), in the order of their first offsets.

        Raises `KafkaError` (KAFKA_STORAGE_ERROR).
        """
        found: list[AbortedTransaction] = []
        at = max(bisect_right(self._segments, offset, key=_base_offset) - 1, 0)
        for segment in self._segments[at:]:
            for one in segment.index.aborted:
                if one.last_offset >= offset and one.first_offset < until:
                    found.append(one)
                if one.stable_offset >= until:
                    return sorted(found, key=lambda one: one.first_offset)
        return sorted(found, key=lambda one: one.first_offset)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments. The last one is appended to, the others do not change."""
        return tuple(self._segments)

    def replace(self, old: Sequence[Segment], swap: Path, index: Path) -> bool:
        """Put the cleaned segment of a swap file, with its index, in the place of `old`, segments in their order.

        Returns False, and changes nothing, if they are not all here any more. Raises `OSError`: then no more batches
        are taken, and the next start finishes the swap.
        """
        at = bisect_left(self._segments, old[0].base_offset, key=_base_offset)
        if self._closed or self._failed or self._segments[at : at + len(old)] != list(old):
            return False
        cleaned = self._segment(old[0].base_offset)
        try:
            for segment in old:
                segment.delete()
            link_swap(swap, cleaned.path)
            index.rename(cleaned.index_path)
            cleaned.load(gaps_until=old[-1].next_offset)
        except OSError:
            self.fail()
            raise
        self._segments[at : at + len(old)] = [cleaned]
        return True

    def in_directory(self, work: Callable[[], object]) -> bool:
        """Let `work` change files of the log's directory, on any thread. Returns whether it did. Raises what it raises.

        It may not once the log was deleted, or an fsync has failed.
        """
        return self._sealer.in_directory(work)

    @property
    def producers(self) -> Iterator[ActiveProducer]:
        """The producers that write to the log."""
        return iter(self._producers.states)

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction here, of this epoch."""
        return self._producers.states.in_transaction(producer_id, epoch)

    def check_producer_epoch(self, producer_id: int, epoch: int) -> None:
        """Check that the epoch is not older than the newest one that the log has. Raises `KafkaError`."""
        self._producers.states.check_epoch(producer_id, epoch)

    def check_begins(self, header: BatchHeader) -> None:
        """Check that the first batch of a producer that the log does not know is its first. Raises `KafkaError`."""
        self._producers.states.check_begins(header)

    def check_raises_epoch(self, producer_id: int, epoch: int) -> None:
        """Check a marker that ends a transaction by raising its producer's epoch. Raises `KafkaError`."""
        self._producers.states.check_raises_epoch(producer_id, epoch)

    def delete_before(self, offset: int) -> None:
        """Move the log's start to `offset` and remove the segments before it. Raises `OSError`.

        On a full disk, segments may be removed although it raises: it is called to make room.
        """
        self._start.delete_before(offset, self._segments)

    def enforce_retention(self, now: float) -> None:
        """Remove segments beyond the topic's retention. `now`: seconds since the epoch. Raises `OSError`.

        It works on a full disk, too. Then the remaining segments say where the log starts.
        """
        if self._closed:
            return
        self._producers.states.expire()
        if not self.config.deletes:
            return
        if self._expired(self._active, now):
            self._roll_if_possible()
        size = self.size
        keep_from = self.start_offset
        for segment in self._segments[:-1]:
            if segment.next_offset > self.high_watermark:
                break
            over = 0 <= self.config.retention_bytes <= size - segment.size
            if not over and not self._expired(segment, now):
                break
            size -= segment.size
            keep_from = max(keep_from, segment.next_offset)
        if keep_from > self.start_offset:
            _log.info("segments beyond retention removed", partition=self.directory.name, log_start_offset=keep_from)
            self._start.retain_from(keep_from)
        self._start.remove(self._segments)

    def _roll_if_possible(self) -> None:
        try:
            self._roll()
        except OSError as error:
            _log.warning("segment beyond retention stays for now", partition=self.directory.name, error=str(error))

    def _expired(self, segment: Segment, now: float) -> bool:
        if self.config.retention_ms < 0 or segment.size == 0:
            return False
        newest = segment.index.largest_timestamp
        newest_seconds = newest / 1000 if newest >= 0 else segment.created
        return newest_seconds < now - self.config.retention_ms / 1000

    def close(self) -> list[Future[None]]:
        """Write everything to the disk, so that the next start needs no recovery. Returns futures. Raises `OSError`."""
        if self._closed:
            return []
        self._stop()
        if self._failed:
            return []
        unsealed = [segment for segment in self._segments if segment.size and not segment.sealed]
        if unsealed:
            self._producers.write(self._segments)
        sealing = [self._sealer.begin(segment) for segment in unsealed]
        if self._names_wanted:
            sealing.append(self._sealer.begin_names(self.directory))
        return sealing

    @property
    def sealed(self) -> bool:
        """Whether the next start can open the log by its indexes alone."""
        named = self._sealer.names_synced or not self._names_wanted
        return named and all(segment.sealed or not segment.size for segment in self._segments)

    def delete(self, grave: Path) -> None:
        """Delete the log: its directory is renamed to `grave`, and is removed later. Raises `OSError`."""
        self._stop()
        for segment in self._segments:
            self._files.close(segment.path)
        self._sealer.delete(self.directory, grave)

    def _stop(self) -> None:
        self._closed = True
        for watcher in (*self.watchers, *self.stable_watchers):
            watcher.gone()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
