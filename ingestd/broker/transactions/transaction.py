"""Transaction: what is known of one transactional id, as a value. The words and the states are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "COMPLETE",
    "EPOCH_BUMP",
    "LAST_EPOCH",
    "NONE",
    "PREPARED",
    "Ids",
    "TopicPartition",
    "Transaction",
    "TransactionState",
    "by_topic",
]

TopicPartition: TypeAlias = "tuple[str, int]"
NONE: Final = -1
"""What there is instead of an id, an epoch or a time."""
LAST_EPOCH: Final = 32_766
"""The highest epoch that a producer gets. One more is left for the marker that ends its last transaction."""
EPOCH_BUMP: Final = 2
"""From this `transaction.version` on, each end of a transaction raises the epoch (KIP-890)."""


class TransactionState(Enum):
    """The state of a transactional id. The values are those of the records, the names give those of tools.

    Kafka also has PrepareEpochFence (7), on the way to PrepareAbort. It is never stored.
    """

    empty = 0
    ongoing = 1
    prepare_commit = 2
    prepare_abort = 3
    complete_commit = 4
    complete_abort = 5
    dead = 6

    @property
    def shown(self) -> str:
        """The name that tools show."""
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED: Final = frozenset({TransactionState.prepare_commit, TransactionState.prepare_abort})
"""The end of the transaction is decided, and its markers are being written."""
COMPLETE: Final = frozenset({TransactionState.complete_commit, TransactionState.complete_abort})


@dataclass(frozen=True, slots=True)
class Ids:
    """A producer id with an epoch."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id: its producer, and its transaction.

    `timeout_ms`: how long a transaction may take. `updated_ms` and `started_ms`: milliseconds since the epoch.
    `previous_producer_id` is the one of the state before. `next_producer_id` is the one that the producer gets when its
    transaction has ended. `last_epoch` is the one that the producer had before, if it asked for the next one itself: it
    may ask again. It is not stored. `version` is the `transaction.version` that the client goes by.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.empty
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = NONE
    started_ms: int = NONE
    previous_producer_id: int = NONE
    next_producer_id: int = NONE
    last_epoch: int = NONE
    version: int = 0

    @property
    def ids(self) -> Ids:
        """The producer id and its epoch."""
        return Ids(self.producer_id, self.epoch)

    @property
    def exhausted(self) -> bool:
        """Whether the producer id has no next epoch."""
        return self.epoch >= LAST_EPOCH

    @property
    def commits(self) -> bool:
        """Whether the transaction was committed, or is being."""
        return self.state in {TransactionState.prepare_commit, TransactionState.complete_commit}

    def times_out_ms(self) -> int:
        """When an ongoing transaction is aborted: milliseconds since the epoch."""
        return self.started_ms + self.timeout_ms


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The numbers of the partitions of each topic, in order."""
    grouped: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        grouped.setdefault(topic, []).append(number)
    return grouped
