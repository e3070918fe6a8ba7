"""Coordinator topic: an internal topic whose partitions have a coordinator's state. It is made when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from ingestd.broker.coordinator.placement import coordinating_partition
from ingestd.broker.storage import NewTopic
from ingestd.errors import ErrorCode, IngestdError, KafkaError
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ingestd.broker.storage import Partition, Storage

__all__ = ["CoordinatorPartition", "CoordinatorTopic"]

_CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
"""Kafka's (`offsets.topic.segment.bytes`, `transaction.state.log.segment.bytes`)."""
_log = get_logger(__name__)


class CoordinatorPartition(Protocol):
    """What a coordinator has in one partition. `refusal` is why nothing is answered now; None if it is."""

    refusal: ErrorCode | None

    async def load(self) -> None:
        """Take the state from the log. Raises `IngestdError`, `OSError`; then nothing is answered."""

    def close(self) -> None:
        """Stop all timers."""


P = TypeVar("P", bound=CoordinatorPartition)


class CoordinatorTopic(Generic[P]):
    """The partitions of one internal topic, each with what `make` makes of it.

    Invariants
        Nothing is answered from a partition that is not loaded.
    """

    def __init__(
        self, name: str, count: int, storage: Storage, defaults: Mapping[str, str], make: Callable[[Partition], P]
    ) -> None:
        self.name = name
        self._count = count
        self._storage = storage
        self._defaults = defaults
        self._make = make
        self._partitions: list[P] = []

    @property
    def partitions(self) -> Sequence[P]:
        """All partitions, also those that are not loaded yet. None before the topic is made."""
        return tuple(self._partitions)

    def open(self) -> bool:
        """Take the partitions of a topic that was made before. Returns whether there is one to `load`."""
        if self._storage.topics.named(self.name) is None:
            return False
        self._take_partitions()
        return True

    async def load(self) -> bool:
        """Load each partition. Returns whether all could be read; the log says why one could not."""
        for number, partition in enumerate(self._partitions):
            try:
                await partition.load()
            except (IngestdError, OSError) as error:
                _log.error("coordinator's partition not loaded", partition=f"{self.name}-{number}", error=str(error))
        return all(partition.refusal is None for partition in self._partitions)

    def close(self) -> None:
        """Stop all timers. What is in the log is there at the next start."""
        for partition in self._partitions:
            partition.close()

    def begin(self) -> None:
        """Make the topic, if there is none. Raises `KafkaError` (COORDINATOR_NOT_AVAILABLE)."""
        if self._partitions:
            return
        try:
            self._storage.create([NewTopic(self.name, self._count, _CONFIG, self._defaults)])
        except KafkaError as error:
            raise KafkaError(ErrorCode.coordinator_not_available, f"{self.name}: {error}") from error
        self._take_partitions()
        for partition in self._partitions:
            partition.refusal = None  # there is nothing to load

    def number_of(self, key: str) -> int:
        """The number of the partition that has this key. Raises `KafkaError` (NOT_COORDINATOR) before `begin`."""
        if not self._partitions:
            raise KafkaError(ErrorCode.not_coordinator, f"{key!r}: {self.name} is not there yet; find the coordinator")
        return coordinating_partition(key, len(self._partitions))

    def of(self, key: str) -> P:
        """The partition that has this key. Raises `KafkaError`: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR."""
        partition = self._partitions[self.number_of(key)]
        if partition.refusal is not None:
            raise KafkaError(partition.refusal, f"{key!r}: its partition of {self.name} is not loaded")
        return partition

    def _take_partitions(self) -> None:
        topic = self._storage.topics.named(self.name)
        assert topic is not None
        for number in range(topic.partitions):
            partition = self._storage.partition(self.name, number)
            assert partition is not None
            self._partitions.append(self._make(partition))
