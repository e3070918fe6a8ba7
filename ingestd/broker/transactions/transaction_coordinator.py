"""Transaction coordinator: which partition has which transactional id, and when they are loaded and forgotten."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ingestd.broker.coordinator.coordinator_log import CoordinatorLog
from ingestd.broker.coordinator.coordinator_topic import CoordinatorTopic
from ingestd.broker.coordinator.transaction_records import transaction_records
from ingestd.broker.settings import Flush
from ingestd.broker.topics import TRANSACTIONS_TOPIC
from ingestd.broker.transactions.marker_writer import Marker, MarkerWriter
from ingestd.broker.transactions.transaction import PREPARED, Ids, TransactionState
from ingestd.broker.transactions.transaction_partition import TransactionPartition
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.broker.clock import Clock
    from ingestd.broker.groups.group_coordinator import GroupCoordinator
    from ingestd.broker.settings import BrokerSettings
    from ingestd.broker.storage import Partition, Storage
    from ingestd.broker.transactions.transaction import TopicPartition, Transaction
    from ingestd.broker.transactions.transaction_partition import Outcome
    from ingestd.tasks import TaskOwner

__all__ = ["TransactionCoordinator"]

_log = get_logger(__name__)


class TransactionCoordinator:
    """The transactional ids of the broker, in partitions of `__transaction_state`."""

    def __init__(
        self, storage: Storage, settings: BrokerSettings, clock: Clock, tasks: TaskOwner, groups: GroupCoordinator
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._topic = CoordinatorTopic(
            TRANSACTIONS_TOPIC, settings.transaction_partitions, storage, settings.topic_defaults, self._partition
        )
        self.markers = MarkerWriter(storage, clock, settings.flush, groups.transaction_ended)

    def _partition(self, partition: Partition) -> TransactionPartition:
        version = self._settings.transaction_version
        log = CoordinatorLog(self._storage, partition, self._settings.flush, transaction_records(version))
        return TransactionPartition(log, self._clock, self.markers, self._storage.producer_ids.take, version)

    def start(self) -> None:
        """Begin to load transactional ids, and to forget them when they expire. Needs an open storage."""
        if self._topic.open():
            self._tasks.start(self._load(), "load transactions")
        self._tasks.start(self._expire(), "expire transactional ids")

    def close(self) -> None:
        """Stop all timers. What is in the log is there at the next start."""
        self._topic.close()
        self.markers.close()

    def begin(self) -> None:
        """Make sure that there is somewhere to put them. Raises `KafkaError` (COORDINATOR_NOT_AVAILABLE)."""
        self._topic.begin()

    def of(self, transactional_id: str) -> TransactionPartition:
        """The partition that has this id.

        Raises `KafkaError`: INVALID_REQUEST for an empty id, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR.
        """
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "the transactional id is empty")
        return self._topic.of(transactional_id)

    def being_added(self, transactional_id: str) -> asyncio.Future[Outcome] | None:
        """What was added last to the transaction, if that is not on the disk yet."""
        return (
            None if self._settings.flush is Flush.os else self._topic.of(transactional_id).being_added(transactional_id)
        )

    def unmarked(self, known: Transaction) -> frozenset[TopicPartition]:
        """The partitions of a transaction, without those that have its marker."""
        if known.state not in PREPARED:
            return known.partitions
        return frozenset(where for where in known.partitions if self._is_open(where, known.producer_id))

    def _is_open(self, where: TopicPartition, producer_id: int) -> bool:
        found = self._storage.partition(*where)
        return found is not None and any(
            producer.producer_id == producer_id and producer.first_offset >= 0 for producer in found.log.producers
        )

    @property
    def partitions(self) -> Iterable[TransactionPartition]:
        """All partitions, also those that are not loaded yet."""
        return self._topic.partitions

    async def _load(self) -> None:
        started = self._clock.monotonic()
        if await self._topic.load():
            self._abort_unknown()
        known = sum(1 for partition in self.partitions for _known in partition)
        seconds = round(self._clock.monotonic() - started, 3)
        _log.info("transactions loaded", transactional_ids=known, seconds=seconds)

    def _abort_unknown(self) -> None:
        """Abort what is open in a partition and what no transactional id has.

        A loss of power leaves such transactions: a batch may be on the disk before the record that its partition is in
        the transaction. Nothing of them was committed.
        """
        open_ones: set[tuple[int, TopicPartition]] = set()
        for partition in self.partitions:
            for _transactional_id, known in partition:
                if known.state is TransactionState.ongoing or known.state in PREPARED:
                    open_ones.update((known.producer_id, one) for one in known.partitions)
        for where, found in self._storage.items():
            for producer in tuple(found.log.producers):
                if producer.first_offset >= 0 and (producer.producer_id, where) not in open_ones:
                    _log.warning("unknown transaction aborted", partition=where, producer_id=producer.producer_id)
                    marker = Marker(
                        Ids(producer.producer_id, producer.epoch),
                        commits=False,
                        coordinator_epoch=found.log.leader_epoch,
                    )
                    self.markers.write(marker, [where], lambda: None)

    async def _expire(self) -> None:
        while True:
            await self._clock.sleep(self._settings.transactional_id_check_interval)
            retention_ms = int(self._settings.transactional_id_expiry * 1000)
            for partition in self.partitions:
                if partition.refusal is None:
                    partition.expire(retention_ms)
                await asyncio.sleep(0)
