"""Producer state of a partition (KIP-98): for each producer that writes to it, the epoch and the last five batches."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson

from ingestd.broker.log.files import write_replaceable
from ingestd.errors import ErrorCode, KafkaError
from ingestd.records.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ingestd.records.batch import BatchHeader
    from ingestd.records.decode import ControlMarker

__all__ = ["ActiveProducer", "ProducerStates"]

BATCHES_REMEMBERED: Final = 5
_SEQUENCES: Final = 1 << 31
_CRC_DIGITS: Final = 8
_HIGHEST_EPOCH: Final = (1 << 15) - 1
_AWAITED_SECONDS: Final = 60.0
"""Seconds. If a refused batch is not sent again for this long, its producer has given it up."""


@dataclass(frozen=True, slots=True)
class _Appended:
    base_sequence: int
    last_sequence: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class _Awaited:
    """The batch that a producer must send next, because its first batch was refused and the log has nothing of it.

    `refused`: when it was last refused, on the monotonic clock.
    """

    epoch: int
    base_sequence: int
    refused: float


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer that writes to the partition. `written`: seconds since the epoch. -1 for what there is not.

    `coordinator_epoch` is that of its last marker. `first_offset` is where its open transaction begins. `last_batch` is
    the base offset of its last batch in this epoch. `timestamp_ms` is the newest timestamp of its last batch or marker.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    written: float
    coordinator_epoch: int
    first_offset: int
    last_batch: int
    timestamp_ms: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    appended: deque[_Appended] = field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))
    written: float = 0.0
    coordinator_epoch: int = -1
    first_offset: int = -1
    timestamp_ms: int = -1

    def begin_epoch(self, epoch: int) -> None:
        """Sequences begin again with a new epoch. An open transaction stays open."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.appended.clear()


class ProducerStates:
    """The producers of one partition, by producer id.

    Invariants
        Sequences of one producer id and epoch follow each other without a gap. After 2³¹-1 comes 0.
        The state depends only on the batches in the log. So a replay of the log gives it again.
        A marker has no sequence: it may bring a newer epoch, and is none of the remembered batches.
        A producer with an open transaction is not forgotten.
    """

    __slots__ = ("_awaited", "_expiry", "_producers")

    def __init__(self, expiry: float) -> None:
        self._expiry = expiry
        self._producers: dict[int, _Producer] = {}
        self._awaited: dict[int, _Awaited] = {}

    def check(self, header: BatchHeader) -> int | None:
        """The base offset that the same batch got before; None if the batch is new and may be appended.

        Raises `KafkaError`: INVALID_PRODUCER_EPOCH for an older epoch than the newest seen,
        OUT_OF_ORDER_SEQUENCE_NUMBER for a sequence that does not follow, INVALID_TXN_STATE for a batch outside of the
        producer's open transaction. An unknown producer may start anywhere,
        because its batches may be beyond retention. But it may not start after a batch of its own that was refused.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            if (awaited := self._awaited_before(header)) is not None:
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {header.producer_id}: sequence {header.base_sequence} where {awaited} is next",
                )
            return None
        self.check_epoch(header.producer_id, header.producer_epoch)
        if producer.first_offset >= 0 and not header.transactional:
            raise KafkaError(
                ErrorCode.invalid_txn_state, f"producer {header.producer_id}: it has an open transaction here"
            )
        if header.base_sequence < 0:
            return None  # the broker's own
        if header.producer_epoch > producer.epoch:
            if header.base_sequence != 0:
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {header.producer_id}: epoch {header.producer_epoch} begins with {header.base_sequence}",
                )
            return None
        last_sequence = _last_sequence(header)
        for appended in producer.appended:
            if appended.base_sequence == header.base_sequence and appended.last_sequence == last_sequence:
                return appended.base_offset
        # With only a control batch in this epoch, the first sequence is next, as in Kafka.
        expected = (producer.appended[-1].last_sequence + 1) % _SEQUENCES if producer.appended else 0
        if header.base_sequence != expected:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id}: sequence {header.base_sequence} where {expected} is next",
            )
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise `KafkaError` (INVALID_PRODUCER_EPOCH) for an older epoch than the newest seen."""
        producer = self._producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {producer_id}: epoch {epoch} is older than {producer.epoch}",
            )

    def check_begins(self, header: BatchHeader) -> None:
        """Raise `KafkaError` (OUT_OF_ORDER_SEQUENCE_NUMBER) unless an unknown producer begins with sequence 0."""
        if header.producer_id not in self._producers and header.base_sequence != 0:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id}: sequence {header.base_sequence}, and none before it was written",
            )

    def _awaited_before(self, header: BatchHeader) -> int | None:
        """The sequence of a refused batch that must come before this one, if there is one."""
        awaited = self._awaited.get(header.producer_id)
        if awaited is None or awaited.refused < time.monotonic() - _AWAITED_SECONDS:
            return None
        mine = awaited.epoch != header.producer_epoch or awaited.base_sequence == header.base_sequence
        return None if mine else awaited.base_sequence

    def refused(self, header: BatchHeader) -> None:
        """There was no room for a batch.

        Later batches of its producer may be smaller, and under way already. They must not be appended before it. If one
        were, librdkafka would count the refused batch as written too, when it gets OUT_OF_ORDER_SEQUENCE for it.
        """
        if header.producer_id not in self._producers and self._awaited_before(header) is None:
            self._awaited[header.producer_id] = _Awaited(header.producer_epoch, header.base_sequence, time.monotonic())

    def check_marker(self, marker: ControlMarker) -> None:
        """Raise `KafkaError` for a marker that is too late.

        INVALID_PRODUCER_EPOCH for an older epoch than the newest seen, TRANSACTION_COORDINATOR_FENCED for one of an
        older coordinator than that of the last marker.
        """
        producer = self._producers.get(marker.producer_id)
        if producer is None:
            return
        self.check_epoch(marker.producer_id, marker.producer_epoch)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"coordinator epoch {marker.coordinator_epoch} is older than {producer.coordinator_epoch}",
            )

    def check_raises_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise `KafkaError` (INVALID_PRODUCER_EPOCH) unless a marker of this epoch ends what an older epoch wrote.

        That is how transactions end with KIP-890. So a late marker does not end the next transaction (KIP-1228). One
        that is there already may come again.
        """
        producer = self._producers.get(producer_id)
        if producer is None or epoch > producer.epoch:
            return
        again = epoch == producer.epoch and (producer.first_offset < 0 or epoch == _HIGHEST_EPOCH)
        if not again:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {producer_id}: epoch {epoch} does not raise that of the transaction, {producer.epoch}",
            )

    def appended(self, header: BatchHeader, base_offset: int, written: float) -> bool:
        """Remember a batch of records that is in the log. `written`: seconds since the epoch.

        Returns whether a transaction began with it.
        """
        self._awaited.pop(header.producer_id, None)
        producer = self._producer(header.producer_id, header.producer_epoch, header.max_timestamp, written)
        # The broker's own batches (offsets of a group) have no sequence.
        if header.base_sequence >= 0:
            producer.appended.append(_Appended(header.base_sequence, _last_sequence(header), base_offset))
        if not header.transactional or producer.first_offset >= 0:
            return False
        producer.first_offset = base_offset
        return True

    def ended(self, marker: ControlMarker, timestamp_ms: int, written: float) -> int | None:
        """Remember a marker that is in the log. Returns where the transaction began that it ended; None for none."""
        producer = self._producer(marker.producer_id, marker.producer_epoch, timestamp_ms, written)
        producer.coordinator_epoch = marker.coordinator_epoch
        first, producer.first_offset = producer.first_offset, -1
        return first if first >= 0 else None

    def _producer(self, producer_id: int, epoch: int, timestamp_ms: int, written: float) -> _Producer:
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(epoch)
        producer.begin_epoch(epoch)
        producer.timestamp_ms = timestamp_ms
        producer.written = written
        return producer

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction in this epoch."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.first_offset >= 0 and producer.epoch == epoch

    def __iter__(self) -> Iterator[ActiveProducer]:
        for producer_id, producer in self._producers.items():
            yield ActiveProducer(
                producer_id,
                producer.epoch,
                producer.appended[-1].last_sequence if producer.appended else -1,
                producer.written,
                producer.coordinator_epoch,
                producer.first_offset,
                producer.appended[-1].base_offset if producer.appended else -1,
                producer.timestamp_ms,
            )

    def expire(self) -> None:
        """Forget producers that wrote nothing for the expiry time, and have no open transaction."""
        oldest = time.time() - self._expiry
        for producer_id, producer in tuple(self._producers.items()):
            if producer.written < oldest and producer.first_offset < 0:
                del self._producers[producer_id]
        since = time.monotonic() - _AWAITED_SECONDS
        self._awaited = {known: awaited for known, awaited in self._awaited.items() if awaited.refused >= since}

    def write(self, path: Path) -> None:
        """Write a snapshot, whole or not at all. Raises `OSError`."""
        content = orjson.dumps(
            [
                [
                    producer_id,
                    producer.epoch,
                    producer.written,
                    [[batch.base_sequence, batch.last_sequence, batch.base_offset] for batch in producer.appended],
                    producer.coordinator_epoch,
                    producer.first_offset,
                    producer.timestamp_ms,
                ]
                for producer_id, producer in self._producers.items()
            ]
        )
        write_replaceable(path, f"{crc32c(content):08x}".encode() + content)

    def read(self, path: Path) -> bool:
        """Load a snapshot. Returns False, and changes nothing, if it is damaged. Raises `OSError`."""
        content = path.read_bytes()
        body = content[_CRC_DIGITS:]
        if content[:_CRC_DIGITS] != f"{crc32c(body):08x}".encode():
            return False
        # Snapshots of older versions end with the batches, or before the timestamp.
        for producer_id, epoch, written, batches, *more in orjson.loads(body):
            producer = _Producer(epoch, deque(maxlen=BATCHES_REMEMBERED), written, *more)
            producer.appended.extend(_Appended(*batch) for batch in batches)
            self._producers[producer_id] = producer
        return True


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES
