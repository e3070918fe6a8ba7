"""Marker writer: brings the end of a transaction into each of its partitions, and tries again until it is there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from ingestd.broker.log.markers import marker_batch
from ingestd.broker.settings import Flush
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger
from ingestd.records.batch import read_header
from ingestd.records.decode import ControlKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingestd.broker.clock import Clock
    from ingestd.broker.storage import Partition, Storage
    from ingestd.broker.transactions.transaction import Ids, TopicPartition

__all__ = ["Marker", "MarkerWriter"]

_RETRY: Final = 1.0
"""Seconds. A marker that the disk does not take is written again then."""
_GONE: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,  # deleted
        ErrorCode.not_leader_or_follower,  # closed
        ErrorCode.invalid_producer_epoch,  # a later marker is there
        ErrorCode.transaction_coordinator_fenced,
    }
)
"""Where a marker is not written there is no transaction that it could end."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a producer's transaction."""

    ids: Ids
    commits: bool
    coordinator_epoch: int


class Ended(Protocol):
    """Is told of each marker that is in a partition, and on the disk with `Flush.always`."""

    def __call__(self, where: TopicPartition, producer_id: int, *, commits: bool) -> None: ...


class MarkerWriter:
    """Writes markers into the logs of this broker.

    Invariants
        `done` is called once, when the marker is in each partition, and on the disk with `Flush.always`.
        A partition that is gone needs no marker.
    """

    def __init__(self, storage: Storage, clock: Clock, flush: Flush, ended: Ended) -> None:
        self._ended = ended
        self._storage = storage
        self._clock = clock
        self._flush = flush
        self._retries: set[asyncio.TimerHandle] = set()
        self._refusing: set[TopicPartition] = set()
        """Partitions that take no marker now. It is logged once of each."""
        self._closed = False

    def close(self) -> None:
        """Write no more. The next start writes what is missing."""
        self._closed = True
        for timer in self._retries:
            timer.cancel()
        self._retries.clear()

    def write(self, marker: Marker, partitions: Iterable[TopicPartition], done: Callable[[], None]) -> None:
        """Write the marker into each partition, then call `done`: at once, or after the fsyncs."""
        missing = set(partitions)
        if not missing:
            done()
            return

        def written(partition: TopicPartition) -> None:
            missing.discard(partition)
            if not missing:
                done()

        for partition in sorted(missing):
            self._write(marker, partition, partial(written, partition))

    def write_once(self, marker: Marker, partition: TopicPartition) -> asyncio.Future[ErrorCode]:
        """Write the marker into one partition for a client, which tries again itself. Raises `KafkaError`.

        Done when it is there, and on the disk with `Flush.always`.
        """
        found = self._append(marker, partition)
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def flushed(flush: asyncio.Future[None]) -> None:
            lost = flush.cancelled() or flush.exception() is not None
            if not lost:
                self._ended(partition, marker.ids.producer_id, commits=marker.commits)
            if not outcome.done():  # else its client is gone
                outcome.set_result(ErrorCode.kafka_storage_error if lost else ErrorCode.none)

        if self._flush is Flush.os:
            self._ended(partition, marker.ids.producer_id, commits=marker.commits)
            outcome.set_result(ErrorCode.none)
        else:
            found.commit.flushed().add_done_callback(flushed)
        return outcome

    def _append(self, marker: Marker, partition: TopicPartition) -> Partition:
        """Write the marker into the log. Raises `KafkaError`."""
        found = self._storage.partition(*partition)
        if found is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{partition[0]}-{partition[1]}")
        self._storage.check_writable()
        kind = ControlKind.commit if marker.commits else ControlKind.abort
        batch = marker_batch(
            marker.ids.producer_id,
            marker.ids.epoch,
            kind,
            marker.coordinator_epoch,
            int(self._clock.wall() * 1000),
        )
        found.log.append(batch, read_header(batch))
        return found

    def _write(self, marker: Marker, partition: TopicPartition, written: Callable[[], None]) -> None:
        try:
            found = self._append(marker, partition)
        except KafkaError as error:
            if error.code in _GONE:
                self._refusing.discard(partition)
                written()
            else:
                self._say_refused(partition, error)
                self._try_again(marker, partition, written)
            return
        self._refusing.discard(partition)
        if self._flush is Flush.os:
            self._tell(marker, partition, written)
            return
        found.commit.flushed().add_done_callback(partial(self._flushed, marker, partition, written))

    def _say_refused(self, partition: TopicPartition, error: KafkaError) -> None:
        if partition not in self._refusing:
            self._refusing.add(partition)
            name = f"{partition[0]}-{partition[1]}"
            _log.error("marker not written; it is tried again", partition=name, error=str(error), retry_seconds=_RETRY)

    def _flushed(
        self,
        marker: Marker,
        partition: TopicPartition,
        written: Callable[[], None],
        flushed: asyncio.Future[None],
    ) -> None:
        if flushed.cancelled() or flushed.exception() is not None:
            self._try_again(marker, partition, written)
        else:
            self._tell(marker, partition, written)

    def _tell(self, marker: Marker, partition: TopicPartition, written: Callable[[], None]) -> None:
        self._ended(partition, marker.ids.producer_id, commits=marker.commits)
        written()

    def _try_again(self, marker: Marker, partition: TopicPartition, written: Callable[[], None]) -> None:
        if self._closed:
            return

        def again() -> None:
            self._retries.discard(timer)
            self._write(marker, partition, written)

        timer = self._clock.call_later(_RETRY, again)
        self._retries.add(timer)
