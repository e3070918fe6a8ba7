"""Topic producer: one per topic. Chooses a partition for each record, as soon as the topic's partitions are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.errors import ErrorCode, IngestdError, KafkaError
from ingestd.producer.batch import Batch
from ingestd.producer.open_batch import OpenBatch
from ingestd.producer.partition_producer import PartitionProducer
from ingestd.producer.partitioners import Hashed, Keyed, Sticky, murmur2_partition
from ingestd.producer.waiting_records import WaitingRecords
from ingestd.records.loops import TopicIntake
from ingestd.records.refusals import require_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.client.metadata import TopicMetadata
    from ingestd.producer.delivery import Delivered
    from ingestd.producer.dispatcher import Dispatcher
    from ingestd.producer.events import ProducerEvents
    from ingestd.producer.identity import IdentityDesk
    from ingestd.producer.ledger import Ledger
    from ingestd.producer.settings import ProducerSettings
    from ingestd.producer.waiting_records import Waiting

__all__ = ["TopicProducer"]

_PARTITIONS: Final = 1 << 31
"""The protocol has no number for more."""


class TopicProducer:
    """Spreads records and batches over the topic's partition producers.

    Invariants
        Records that wait for metadata get their partitions in the order in which they came, before any later one.
        Every record accepted ends in exactly one call of `done`.
    """

    def __init__(
        self,
        topic: str,
        settings: ProducerSettings,
        dispatcher: Dispatcher,
        desk: IdentityDesk | None,
        ledger: Ledger,
        events: ProducerEvents | None,
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._dispatcher = dispatcher
        self._desk = desk
        self._ledger = ledger
        self._events = events
        self._partitioner = partitioner = settings.new_partitioner(topic)
        self._sticky = isinstance(partitioner.keyless if isinstance(partitioner, Keyed) else partitioner, Sticky)
        self.intake = TopicIntake()
        """The open batches that records may go to the short way. Kept current here."""
        if isinstance(partitioner, (Keyed, Hashed)):
            self.intake.murmur2 = partitioner.index is murmur2_partition
            self.intake.index = partitioner.index
        self.used = False
        """Whether a batch was made since this was set to False. An idle topic's metadata may be forgotten."""
        self._producers: dict[int, PartitionProducer] = {}
        self._open: dict[int, OpenBatch] = {}
        self._known: TopicMetadata | None = None
        self._partitions: tuple[int, ...] = ()
        self._writable: tuple[int, ...] = ()
        self._waiting = WaitingRecords(topic, settings, dispatcher, ledger, events, self.intake, sticky=self._sticky)
        self._ended: IngestdError | None = None
        self._look(dispatcher.metadata.snapshot.topics.get(topic))

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        done: Delivered | None,
    ) -> None:
        """Accept a record. Raises `KafkaError` (invalid partition, or the topic's breaker is open), `ValueError`.

        `TypeError` names the argument that is wrong.
        """
        require_bytes("value", value)
        require_bytes("key", key)
        if partition is None:
            if not self._partitions or self._waiting:
                self._waiting.hold(key, value, headers, timestamp_ms, done)
            else:
                self._place(key, value, headers, timestamp_ms, done)
            return
        open_batch = self._open_batch(partition)
        if not open_batch.append(key, value, headers, timestamp_ms, done):
            open_batch.append(key, value, headers, timestamp_ms, done)

    def producer_of(self, partition: int) -> PartitionProducer:
        """The producer of the partition that a ready batch goes to. It has all earlier records by now.

        Raises `KafkaError` for a negative partition.
        """
        self.used = True
        open_batch = self._open.get(partition)
        if open_batch is not None:
            open_batch.close()
        return self._producers.get(partition) or self._producer(partition)

    def close_batches(self) -> None:
        """Send all open batches now, without waiting for the linger."""
        for open_batch in self._open.values():
            open_batch.close()
        self._waiting.close_batch()

    @property
    def trouble(self) -> str | None:
        """What its records wait for, for people. None if none waits."""
        if (waiting := self._waiting.trouble) is not None:
            return waiting
        return next((trouble for producer in self._producers.values() if (trouble := producer.trouble)), None)

    def metadata_changed(self, known: TopicMetadata | None) -> None:
        """The snapshot was replaced; `known` is this topic's part."""
        if known is self._known:
            return
        self._look(known)
        for producer in self._producers.values():
            producer.metadata_changed()
        if self._partitions and self._waiting.asking:
            self._release()

    def give_up(self, error: IngestdError) -> None:
        """The transaction is aborted: fail with `error` what is not in flight."""
        self._waiting.fail_all(error)
        for producer in self._producers.values():
            producer.doom(error)
        self.close_batches()

    def end(self, error: IngestdError) -> None:
        """Fail everything left with `error`. The caller has aborted every connection that may hold a batch."""
        self._ended = error
        self._waiting.fail_all(error)
        self.close_batches()
        for producer in self._producers.values():
            producer.end(error)

    # How it is done

    def _look(self, known: TopicMetadata | None) -> None:
        self._known = known
        partitions = () if known is None else known.partitions
        self._partitions = tuple(each.partition for each in partitions)
        self._writable = tuple(each.partition for each in partitions if each.leader >= 0)
        self.intake.sticky = None
        opened: list[OpenBatch | None] = []
        if self._partitions == tuple(range(len(partitions))):
            opened = [self._open.get(partition) for partition in self._partitions]
        self.intake.partitions = [None if each is None else each.builder for each in opened]

    def _place(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        done: Delivered | None,
        generation: int | None = None,
    ) -> None:
        """Give a record to the partition that the partitioner chooses."""
        open_batch = self._open_batch(self._choose(key, value))
        sticks = self._sticky and key is None
        while not open_batch.append(key, value, headers, timestamp_ms, done, generation):
            # Its batch was full, so a sticky partitioner moves on with this record (KIP-480).
            if sticks:
                open_batch = self._open_batch(self._choose(key, value))
        if sticks and open_batch.builder.records:
            self.intake.sticky = open_batch.builder

    def _choose(self, key: bytes | None, value: bytes | None) -> int:
        partitioner = self._partitioner
        offered = self._partitions
        if not partitioner.needs_consistency(key):
            # None is writable: any partition will do. The record waits for its leader.
            offered = self._writable or offered
        index = partitioner.choose(key, value, offered)
        if not 0 <= index < len(offered):
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"{self._topic}: invalid partition: the partitioner chose index {index} of {len(offered)} partitions",
            )
        return offered[index]

    def _producer(self, partition: int) -> PartitionProducer:
        producer = self._producers.get(partition)
        if producer is None:
            if not isinstance(partition, int):
                raise TypeError(f"partition of {self._topic}: {partition!r}; expected a whole number, or None")
            if not 0 <= partition < _PARTITIONS:
                raise KafkaError(ErrorCode.invalid_partitions, f"{self._topic}: invalid partition {partition}")
            producer = self._producers[partition] = PartitionProducer(
                self._topic, partition, self._settings, self._dispatcher, self._desk, self._ledger, self._events
            )
        return producer

    def _open_batch(self, partition: int) -> OpenBatch:
        existing = self._open.get(partition)
        if existing is not None:
            return existing
        producer = self._producer(partition)

        def closed(batch: Batch) -> None:
            self.used = True
            self.intake.sticky = None
            self._partitioner.batch_full(partition)
            if self._ended is None:
                producer.offer(batch)
            else:
                producer.refuse(batch, self._ended)

        opened = self._open[partition] = OpenBatch(self._settings, self._ledger, closed)
        if partition < len(self.intake.partitions):
            self.intake.partitions[partition] = opened.builder
        return opened

    def _release(self) -> None:
        """Give everything that waited for the partitions its own."""
        refused: list[tuple[Waiting, IngestdError]] = []
        for item in self._waiting.take():
            try:
                if isinstance(item, Batch):
                    partition = self._choose(None, None)
                    producer = self.producer_of(partition)
                    self._partitioner.batch_full(partition)
                    producer.offer(item)
                    continue
                self._place(item.key, item.value, item.headers, item.timestamp_ms, item.done, item.generation)
            except Exception as error:  # noqa: BLE001 - whatever a partitioner raises, the others' ends must come
                refused.append((item, error if isinstance(error, IngestdError) else IngestdError(repr(error))))
                continue
            self._ledger.release(item.reserved)
            self._ledger.leave(item.generation)
        # They have waited longer than the linger, and a flush may wait for them.
        self.close_batches()
        # Last, because a callback may send more. The waiting records go first.
        for item, reason in refused:
            self._waiting.fail(item, reason)
