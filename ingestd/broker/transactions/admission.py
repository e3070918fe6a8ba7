"""Admission: whether what a producer writes in its transaction may go into a partition (KIP-890).

A partition must be in the transaction before a record is. Otherwise no marker would end the transaction there.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from ingestd.broker.transactions.transaction import EPOCH_BUMP, Ids
from ingestd.broker.transactions.transitions import check_member
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    import asyncio

    from ingestd.broker.log.partition_log import PartitionLog
    from ingestd.broker.transactions.transaction import TopicPartition
    from ingestd.broker.transactions.transaction_coordinator import TransactionCoordinator
    from ingestd.broker.transactions.transaction_partition import Outcome, TransactionPartition
    from ingestd.records.batch import BatchHeader

__all__ = ["Missing", "admit", "admit_batch"]


class Missing(Enum):
    """What a request's version means for a partition that is not in the transaction yet."""

    refused = ErrorCode.invalid_txn_state
    abortable = ErrorCode.transaction_abortable
    added = ErrorCode.none


_ASKED_AGAIN: Final = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
"""Clients may not expect these in answers to Produce. Like Kafka, we say NOT_ENOUGH_REPLICAS: they send again."""


def admit(
    coordinator: TransactionCoordinator,
    transactional_id: str | None,
    ids: Ids,
    where: TopicPartition,
    log: PartitionLog,
    missing: Missing,
) -> asyncio.Future[Outcome] | None:
    """Check that a batch may be appended, and add its partition to the transaction if the client leaves that to us.

    Returns what the batch's answer must wait for, because the transaction is not on the disk yet; None: nothing.
    Raises `KafkaError`: INVALID_TXN_STATE or TRANSACTION_ABORTABLE for a partition that is not in the transaction,
    INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, NOT_ENOUGH_REPLICAS, TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
    """
    if transactional_id is None:
        raise KafkaError(
            ErrorCode.transactional_id_authorization_failed,
            "a transactional batch in a request without transactional id",
        )
    try:
        log.check_producer_epoch(ids.producer_id, ids.epoch)
        if not log.in_transaction(ids.producer_id, ids.epoch):
            _enter(coordinator.of(transactional_id), transactional_id, ids, where, missing)
        return coordinator.being_added(transactional_id)
    except KafkaError as refused:
        raise _as_answered(refused) from refused


def admit_batch(
    coordinator: TransactionCoordinator,
    transactional_id: str | None,
    header: BatchHeader,
    where: TopicPartition,
    log: PartitionLog,
    missing: Missing,
) -> asyncio.Future[Outcome] | None:
    """The same for a batch of records. What comes behind a first batch that was refused does not take its place.

    Raises `KafkaError`, also OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
    ids = Ids(header.producer_id, header.producer_epoch)
    try:
        added = admit(coordinator, transactional_id, ids, where, log, missing)
    except KafkaError as refused:
        if refused.code is ErrorCode.not_enough_replicas:
            log.refused(header)
        raise
    if missing is Missing.added:
        log.check_begins(header)
    return added


def _enter(
    partition: TransactionPartition, transactional_id: str, ids: Ids, where: TopicPartition, missing: Missing
) -> None:
    if missing is Missing.added:
        partition.add(transactional_id, ids, [where], EPOCH_BUMP)
    elif where not in check_member(partition.get(transactional_id), ids).partitions:
        raise KafkaError(missing.value, f"{where[0]}-{where[1]} is not in the transaction")


def _as_answered(refused: KafkaError) -> KafkaError:
    if refused.code is ErrorCode.producer_fenced:
        return KafkaError(ErrorCode.invalid_producer_epoch, refused.detail)
    if refused.code in _ASKED_AGAIN:
        return KafkaError(ErrorCode.not_enough_replicas, refused.detail)
    return refused
