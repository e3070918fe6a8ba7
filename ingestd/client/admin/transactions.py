"""Transactions and producers, seen from outside (KIP-664): find a hanging transaction, and end it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestd.checks import require_several
from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.groups import Listing
from ingestd.client.admin.targets import ToCoordinators, ToLeaders, ToNodes
from ingestd.client.coordinators import CoordinatorKind
from ingestd.client.metadata import TopicPartition
from ingestd.errors import ErrorCode, IngestdError, KafkaError, raise_for_code
from ingestd.retry import Deadline
from ingestd.wire.requests import transaction_admin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = ["PartitionProducers", "ProducerState", "TransactionAdmin", "TransactionDescription", "TransactionListing"]


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id, the producer id behind it, and the state of its transaction ("Ongoing", "Empty", …)."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One transaction, or the error. Times are in milliseconds, -1 if none is open."""

    transactional_id: str
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int = -1
    start_ms: int = -1
    partitions: tuple[TopicPartition, ...] = ()
    error: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer as a partition's leader knows it; `transaction_start` is an offset, -1: no open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start: int


@dataclass(frozen=True, slots=True)
class PartitionProducers:
    """The producers that a partition remembers, or the error."""

    topic: str
    partition: int
    producers: tuple[ProducerState, ...] = ()
    error: IngestdError | None = None


class TransactionAdmin(Administration):
    """Transactions and producers. Coordinators answer for transactions, leaders for producers (Kafka 3.0)."""

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
        timeout: float = 30.0,
    ) -> Listing[TransactionListing]:
        """All transactions. With arguments: only of these states and producer ids, and older than so many milliseconds.

        By duration needs Kafka 3.8, by a pattern (a regular expression) of the transactional id 4.1.
        """
        deadline = Deadline.after(timeout)

        def read(answer: Any, nodes: Sequence[int]) -> Mapping[int, list[TransactionListing]]:
            raise_for_code(answer.error_code, "ListTransactions")
            listed = [
                TransactionListing(one.transactional_id, one.producer_id, one.transaction_state)
                for one in answer.transaction_states
            ]
            return dict.fromkeys(nodes, listed)

        outcomes = await self._items(
            await self._nodes(deadline),
            ToNodes(self._client, int),
            lambda _: transaction_admin.list_transactions(
                states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
            ),
            read,
            deadline,
        )
        transactions: dict[str, TransactionListing] = {}
        errors: dict[int, IngestdError] = {}
        for node, found in outcomes.found.items():
            if isinstance(found, IngestdError):
                errors[node] = found
            else:
                transactions |= {one.transactional_id: one for one in found}
        return Listing(tuple(transactions[name] for name in sorted(transactions)), errors)

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout: float = 30.0
    ) -> list[TransactionDescription]:
        """Describe transactions. TRANSACTIONAL_ID_NOT_FOUND: nobody has used the id."""
        outcomes = await self._items(
            require_several("transactional_ids", transactional_ids),
            ToCoordinators(self._client, CoordinatorKind.transaction),
            transaction_admin.describe_transactions,
            lambda answer, _: {one.transactional_id: _described(one) for one in answer.transaction_states},
            Deadline.after(timeout),
        )
        return [
            TransactionDescription(name, error=found) if isinstance(found, IngestdError) else found
            for name, found in outcomes.found.items()
        ]

    async def describe_producers(
        self, partitions: Iterable[tuple[str, int]], *, timeout: float = 30.0
    ) -> list[PartitionProducers]:
        """The producers that partitions remember. Each leader answers."""
        outcomes = await self._items(
            [TopicPartition(*partition) for partition in partitions],
            ToLeaders(self._client),
            transaction_admin.describe_producers,
            lambda answer, _: {
                TopicPartition(topic.name, one.partition_index): _producers(topic.name, one)
                for topic in answer.topics
                for one in topic.partitions
            },
            Deadline.after(timeout),
        )
        return [
            PartitionProducers(*partition, error=found) if isinstance(found, IngestdError) else found
            for partition, found in outcomes.found.items()
        ]

    async def abort_transaction(
        self, topic: str, partition: int, producer: ProducerState, *, timeout: float = 30.0
    ) -> None:
        """End a transaction that hangs in a partition: one that its coordinator does not know any more.

        `producer` is what `describe_producers` said of it. Never do this to a transaction that its coordinator knows.
        Raises `KafkaError`.
        """
        key = TopicPartition(topic, partition)
        outcomes = await self._items(
            [key],
            ToLeaders(self._client),
            lambda _: transaction_admin.abort_transaction(
                topic,
                partition,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                coordinator_epoch=max(producer.coordinator_epoch, 0),
            ),
            lambda answer, _: {key: _marked(answer, key)},
            Deadline.after(timeout),
        )
        error = outcomes.error(key)
        if error is not None:
            raise error


def _described(one: Any) -> TransactionDescription | IngestdError:
    started = one.transaction_start_time
    return error_of(one.error_code, one.transactional_id) or TransactionDescription(
        one.transactional_id,
        one.transaction_state,
        one.producer_id,
        one.producer_epoch,
        int(one.transaction_timeout.total_seconds() * 1000),
        -1 if started is None else round(started.timestamp() * 1000),
        tuple(sorted(TopicPartition(topic.topic, number) for topic in one.topics for number in topic.partitions)),
    )


def _producers(topic: str, partition: Any) -> PartitionProducers | IngestdError:
    about = f"{topic}-{partition.partition_index}"
    return error_of(partition.error_code, about, partition.error_message) or PartitionProducers(
        topic,
        partition.partition_index,
        tuple(
            ProducerState(
                one.producer_id,
                one.producer_epoch,
                one.last_sequence,
                one.last_timestamp,
                one.coordinator_epoch,
                one.current_txn_start_offset,
            )
            for one in partition.active_producers
        ),
    )


def _marked(answer: Any, key: TopicPartition) -> IngestdError | None:
    codes = [
        one.error_code
        for marker in answer.markers
        for topic in marker.topics
        for one in topic.partitions
        if (topic.name, one.partition_index) == key
    ]
    if not codes:
        return KafkaError(ErrorCode.unknown_server_error, f"{key}: the broker left it out of its answer")
    return error_of(codes[0], str(key))
