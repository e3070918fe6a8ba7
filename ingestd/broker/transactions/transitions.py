"""Transitions: what a request makes of a `Transaction`. Pure functions from the value before to the one after.

A request that changes nothing gets the same object back. One that is refused raises `KafkaError`. The rules are those
of Kafka 4.3: KIP-98, KIP-360 (a producer goes on after an error), KIP-890 (each end raises the epoch).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ingestd.broker.transactions.transaction import (
    COMPLETE,
    EPOCH_BUMP,
    LAST_EPOCH,
    NONE,
    PREPARED,
    Ids,
    Transaction,
    TransactionState,
)
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ingestd.broker.transactions.transaction import TopicPartition

__all__ = ["End", "Start", "check_member", "completed", "ended", "fenced", "initialized", "with_partitions"]


@dataclass(frozen=True, slots=True)
class Start:
    """A producer asks for its id. `expected` is what it had before, if it goes on after an error (KIP-360).

    `version` is the broker's `transaction.version`.
    """

    timeout_ms: int
    version: int
    expected: Ids | None = None


@dataclass(frozen=True, slots=True)
class End:
    """A producer ends its transaction. `version` is the `transaction.version` that its request goes by."""

    ids: Ids
    commits: bool
    version: int


def initialized(known: Transaction | None, asked: Start, new_id: Callable[[], int], now_ms: int) -> Transaction:
    """The producer's next epoch, or id. If a transaction is open, that is aborted first: then it is in PrepareAbort.

    `new_id` gives a producer id. Raises `KafkaError`: CONCURRENT_TRANSACTIONS, PRODUCER_FENCED.
    """
    if known is None:
        return Transaction(new_id(), 0, asked.timeout_ms, updated_ms=now_ms)
    if known.state in PREPARED:
        raise _concurrent(known)
    expected = asked.expected
    if expected is not None and not _may_go_on(known, expected):
        raise _fenced_out(known, expected)
    if known.state is TransactionState.ongoing:
        return fenced(known, asked.version, now_ms)
    empty = replace(
        known,
        state=TransactionState.empty,
        partitions=frozenset(),
        timeout_ms=asked.timeout_ms,
        updated_ms=now_ms,
        started_ms=NONE,
        previous_producer_id=known.producer_id,
    )
    if known.exhausted and (expected is None or expected.epoch == known.epoch):
        return replace(empty, producer_id=new_id(), epoch=0, last_epoch=NONE if expected is None else known.epoch)
    if expected is None:
        return replace(empty, epoch=known.epoch + 1, last_epoch=NONE)
    if expected.epoch == known.epoch:
        return replace(empty, epoch=known.epoch + 1, last_epoch=known.epoch)
    if expected.epoch == known.last_epoch:
        return empty  # It asks again.
    raise _fenced_out(known, expected)


def _may_go_on(known: Transaction, expected: Ids) -> bool:
    """Whether the producer is this one. Its epoch is looked at later. It may not have heard of a new id."""
    again = expected.producer_id == known.previous_producer_id and expected.epoch >= LAST_EPOCH
    return expected.producer_id == known.producer_id or again


def fenced(known: Transaction, version: int, now_ms: int) -> Transaction:
    """An ongoing transaction is aborted without its producer, whose epoch is over."""
    return replace(
        known,
        state=TransactionState.prepare_abort,
        epoch=known.epoch + 1,
        last_epoch=known.epoch if version >= EPOCH_BUMP else NONE,
        updated_ms=now_ms,
        previous_producer_id=known.producer_id,
        version=version,
    )


def check_member(known: Transaction | None, ids: Ids) -> Transaction:
    """The transactional id, if the producer is its present one and no end is under way.

    Raises `KafkaError`: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    if known is None or known.producer_id != ids.producer_id:
        raise _unknown(known, ids)
    if known.epoch != ids.epoch:
        raise _fenced_out(known, ids)
    if known.state in PREPARED:
        raise _concurrent(known)
    return known


def with_partitions(
    known: Transaction | None, ids: Ids, partitions: Collection[TopicPartition], version: int, now_ms: int
) -> Transaction:
    """The transaction with these partitions. It begins with its first.

    Raises `KafkaError`: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    known = check_member(known, ids)
    ongoing = known.state is TransactionState.ongoing
    if ongoing and known.partitions.issuperset(partitions):
        return known
    return replace(
        known,
        state=TransactionState.ongoing,
        partitions=known.partitions.union(partitions) if ongoing else frozenset(partitions),
        updated_ms=now_ms,
        started_ms=known.started_ms if ongoing else now_ms,
        previous_producer_id=known.producer_id,
        version=version,
    )


def ended(known: Transaction | None, asked: End, new_id: Callable[[], int], now_ms: int) -> Transaction:
    """The transaction on its way to its end; the same object if it has ended so before, for a request that comes again.

    Raises `KafkaError`: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE.
    """
    if asked.version >= EPOCH_BUMP:
        return _ended_with_bump(known, asked, new_id, now_ms)
    known = check_member(known, asked.ids)
    if known.state is TransactionState.ongoing:
        return _prepared(known, asked, known.epoch, now_ms)
    if known.state in COMPLETE and known.commits is asked.commits:
        return known
    raise _wrong_state(known, asked)


def _ended_with_bump(known: Transaction | None, asked: End, new_id: Callable[[], int], now_ms: int) -> Transaction:
    """KIP-890: an end raises the epoch. A request that comes again has the epoch before. Nothing may be aborted."""
    if known is not None and known.state in PREPARED:
        raise _concurrent(known)
    if known is None or (known.producer_id != asked.ids.producer_id and not _rotated(known, asked.ids)):
        raise _unknown(known, asked.ids)
    complete = known.state in COMPLETE
    again = complete and (known.epoch == asked.ids.epoch + 1 or _rotated(known, asked.ids))
    if again:
        if known.commits is asked.commits:
            return known
        raise _wrong_state(known, asked)
    if known.epoch != asked.ids.epoch:
        raise _fenced_out(known, asked.ids)
    ongoing = known.state is TransactionState.ongoing
    if asked.commits and not ongoing:
        raise _wrong_state(known, asked)
    prepared = _prepared(known, asked, known.epoch + 1, now_ms)
    return replace(
        prepared,
        next_producer_id=new_id() if known.exhausted else NONE,
        last_epoch=known.epoch,
        started_ms=known.started_ms if ongoing else now_ms,
    )


def _rotated(known: Transaction, ids: Ids) -> bool:
    """Whether the producer has a new id since it had these, because their epoch was the last one."""
    return known.previous_producer_id == ids.producer_id and ids.epoch == LAST_EPOCH and known.epoch == 0


def _prepared(known: Transaction, asked: End, epoch: int, now_ms: int) -> Transaction:
    return replace(
        known,
        state=TransactionState.prepare_commit if asked.commits else TransactionState.prepare_abort,
        epoch=epoch,
        updated_ms=now_ms,
        previous_producer_id=known.producer_id,
        version=asked.version,
    )


def completed(known: Transaction, now_ms: int) -> Transaction:
    """All markers are written. A producer whose epochs are used up goes on with its next id."""
    rotates = known.next_producer_id != NONE
    return replace(
        known,
        state=TransactionState.complete_commit if known.commits else TransactionState.complete_abort,
        partitions=frozenset(),
        producer_id=known.next_producer_id if rotates else known.producer_id,
        epoch=0 if rotates else known.epoch,
        previous_producer_id=known.producer_id,
        next_producer_id=NONE,
        updated_ms=now_ms,
    )


# Refusals.


def _unknown(known: Transaction | None, ids: Ids) -> KafkaError:
    has = "no such transactional id" if known is None else f"it is that of producer {known.producer_id}"
    return KafkaError(ErrorCode.invalid_producer_id_mapping, f"producer {ids.producer_id}: {has}")


def _fenced_out(known: Transaction, ids: Ids) -> KafkaError:
    return KafkaError(
        ErrorCode.producer_fenced,
        f"producer {ids.producer_id} with epoch {ids.epoch}: now it is {known.producer_id} with {known.epoch}",
    )


def _concurrent(known: Transaction) -> KafkaError:
    return KafkaError(ErrorCode.concurrent_transactions, f"the transaction before is in {known.state.shown}")


def _wrong_state(known: Transaction, asked: End) -> KafkaError:
    what = "commit" if asked.commits else "abort"
    return KafkaError(ErrorCode.invalid_txn_state, f"{what} in state {known.state.shown}")
