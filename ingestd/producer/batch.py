"""The batch that flows through the stages, and what its errors mean for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from ingestd.errors import (
    CorruptBatch,
    ErrorCode,
    IngestdError,
    KafkaError,
    UnsupportedCodec,
    UnsupportedVersion,
    is_retriable,
)
from ingestd.producer.delivery import SplitEnds
from ingestd.producer.identity import NO_SEQUENCE

if TYPE_CHECKING:
    from ingestd.producer.delivery import Delivered

__all__ = ["Batch", "Verdict", "is_record_refused", "judge", "surely_refused"]


@dataclass(slots=True, eq=False)
class Batch:
    """A whole v2 record batch on its way. Created by whoever accepts it, ended by its partition producer.

    `data` belongs to the caller again once `done` was called. Times are of the monotonic clock, in seconds.
    """

    data: memoryview
    records: int
    done: Delivered | None
    accepted_at: float
    deadline: float
    """No attempt begins after it."""
    generation: int
    """Of the ledger, for flushes."""
    reserved: int = 0
    """Bytes of the producer's buffer that it holds."""
    sequence: int = NO_SEQUENCE
    """Its first record's sequence under the partition's present identity; NO_SEQUENCE before its first attempt."""
    attempts: int = 0
    uncertain: bool = False
    """An attempt under the present sequence ended, and it is not known whether the batch was appended."""
    corrupt: int = 0
    """Attempts that the leader found corrupt."""
    error: IngestdError | None = None
    """The error of the last attempt, until the partition producer has decided what to do."""


class Verdict(Enum):
    """What follows from the error that a batch came back with."""

    RETRY = auto()
    """Send it again as it is."""
    RENUMBER = auto()
    """The broker misses the sequence before it, or does not know the producer."""
    SPLIT = auto()
    """The batch is too large, but its halves may not be; or some of its records are refused, and shall be alone."""
    FAIL = auto()
    """It can never be appended."""
    FATAL = auto()
    """Nothing of this producer can ever be appended."""


_OUT_OF_SEQUENCE: Final = frozenset({ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id})
"""The broker misses the sequence before the batch's, or does not know the producer (any more)."""
_TOO_LARGE: Final = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})
_RECORDS_REFUSED: Final = frozenset({ErrorCode.invalid_record, ErrorCode.invalid_timestamp})
"""The topic does not take one or more of the batch's records."""

_CORRUPT_ATTEMPTS: Final = 5
"""A checksum can fail because of a damaged transfer. After so many failures the batch itself is damaged."""

# The leader looks at these before it appends. Any other error may follow an append (a leader that steps down while it
# waits for its replicas answers NOT_LEADER_OR_FOLLOWER).
_BEFORE_APPEND: Final = (
    _OUT_OF_SEQUENCE
    | _TOO_LARGE
    | {
        ErrorCode.corrupt_message,
        ErrorCode.invalid_record,
        ErrorCode.invalid_required_acks,
        ErrorCode.invalid_timestamp,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.not_enough_replicas,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.unsupported_compression_type,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.producer_fenced,
        ErrorCode.concurrent_transactions,
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transactional_id_authorization_failed,
    }
)


def surely_refused(error: IngestdError) -> bool:
    """Whether it is certain that the attempt which ended with `error` appended nothing."""
    if isinstance(error, KafkaError):
        return error.code in _BEFORE_APPEND
    return isinstance(error, (UnsupportedCodec, UnsupportedVersion, CorruptBatch))  # never sent


def is_record_refused(error: IngestdError) -> bool:
    """Whether a batch of one record failed because of the record: its size, its time, or that it has no key."""
    return isinstance(error, KafkaError) and error.code in _RECORDS_REFUSED | _TOO_LARGE


def judge(batch: Batch, error: IngestdError, *, numbered: bool) -> Verdict:
    """What follows from `error` for `batch`; `numbered`: whether the producer is idempotent."""
    if not isinstance(error, KafkaError):
        return Verdict.RETRY if is_retriable(error) else Verdict.FAIL
    if error.code in _OUT_OF_SEQUENCE and numbered:
        return Verdict.RENUMBER
    if batch.records > 1 and (error.code in _TOO_LARGE or (error.code in _RECORDS_REFUSED and _shall_be_alone(batch))):
        return Verdict.SPLIT
    if error.fatal:
        return Verdict.FATAL
    if error.code is ErrorCode.corrupt_message and batch.corrupt >= _CORRUPT_ATTEMPTS:
        return Verdict.FAIL
    return Verdict.RETRY if error.retriable else Verdict.FAIL


def _shall_be_alone(batch: Batch) -> bool:
    """Whether its refused records shall be alone. Not if an earlier attempt may have been appended, as a whole."""
    return isinstance(batch.done, SplitEnds) and batch.done.alone and not batch.uncertain
