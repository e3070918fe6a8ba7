"""The records of `__transaction_state`, in Kafka's own format. The messages are in `transaction_entities.py`.

Before each is its version as an int16. A value is written in version 1, or in version 0 if `transaction.version` is 0.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kio.static.primitive import i8, i16, i32, i64

from ingestd.broker.coordinator.coordinator_log import RecordFormat
from ingestd.broker.coordinator.transaction_entities import (
    FlexiblePartitions,
    FlexibleTransactionLogValue,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
)
from ingestd.broker.transactions.transaction import Transaction, TransactionState, by_topic
from ingestd.errors import ProtocolError
from ingestd.wire.codec import decode_entity, encode_entity

if TYPE_CHECKING:
    from ingestd.wire.codec import Buffer

__all__ = ["TransactionRecord", "read_transaction", "transaction_records"]

_VERSION: Final = Struct(">h")
_KEY: Final = 0
_VALUES: Final[dict[int, type[Any]]] = {0: TransactionLogValue, 1: FlexibleTransactionLogValue}

TransactionRecord: TypeAlias = "tuple[str, Transaction | None]"
"""A transactional id and what is known of it. None: it is forgotten."""


def transaction_records(version: int) -> RecordFormat[TransactionRecord]:
    """The format of `__transaction_state` with this `transaction.version`."""
    encode = _encode_flexible if version else _encode_fixed

    def encoded(record: TransactionRecord) -> tuple[bytes, bytes | None]:
        transactional_id, value = record
        return _key(transactional_id), None if value is None else encode(value)

    return RecordFormat(encoded, read_transaction)


def _key(transactional_id: str) -> bytes:
    return _VERSION.pack(_KEY) + encode_entity(TransactionLogKey(transactional_id=transactional_id))


def _encode_fixed(value: Transaction) -> bytes:
    return _VERSION.pack(0) + encode_entity(
        TransactionLogValue(**_fields(value), transaction_partitions=_partitions(TransactionPartitions, value))
    )


def _encode_flexible(value: Transaction) -> bytes:
    return _VERSION.pack(1) + encode_entity(
        FlexibleTransactionLogValue(
            **_fields(value),
            transaction_partitions=_partitions(FlexiblePartitions, value),
            previous_producer_id=i64(value.previous_producer_id),
            next_producer_id=i64(value.next_producer_id),
            client_transaction_version=i16(value.version),
        )
    )


def _fields(value: Transaction) -> dict[str, Any]:
    return {
        "producer_id": i64(value.producer_id),
        "producer_epoch": i16(value.epoch),
        "transaction_timeout_ms": i32(value.timeout_ms),
        "transaction_status": i8(value.state.value),
        "transaction_last_update_timestamp_ms": i64(value.updated_ms),
        "transaction_start_timestamp_ms": i64(value.started_ms),
    }


def _partitions(entity: type[Any], value: Transaction) -> tuple[Any, ...] | None:
    if value.state is TransactionState.empty:
        return None
    return tuple(
        entity(topic=topic, partition_ids=tuple(map(i32, numbers)))
        for topic, numbers in by_topic(value.partitions).items()
    )


def read_transaction(key: Buffer | None, value: Buffer | None) -> TransactionRecord | None:
    """The record; None for one about something that this broker does not know, which a newer one wrote.

    Raises `ProtocolError` for bytes that are no such record.
    """
    if key is None:
        raise ProtocolError("a record of a coordinator without a key")
    version, named = _versioned(key)
    if version != _KEY:
        return None
    transactional_id = decode_entity(TransactionLogKey, named).transactional_id
    return transactional_id, None if value is None else _read_value(value)


def _versioned(content: Buffer) -> tuple[int, memoryview]:
    view = memoryview(content)
    if len(view) < _VERSION.size:
        raise ProtocolError(f"a record of a coordinator with {len(view)} bytes, which hold no version")
    return _VERSION.unpack_from(view)[0], view[_VERSION.size :]


def _read_value(content: Buffer) -> Transaction:
    version, body = _versioned(content)
    if version not in _VALUES:
        raise ProtocolError(f"TransactionLogValue version {version}: expected 0 or 1")
    value = decode_entity(_VALUES[version], body)
    try:
        state = TransactionState(value.transaction_status)
    except ValueError as error:
        raise ProtocolError(f"TransactionLogValue: status {value.transaction_status}") from error
    return Transaction(
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        state,
        frozenset((one.topic, number) for one in value.transaction_partitions or () for number in one.partition_ids),
        value.transaction_last_update_timestamp_ms,
        value.transaction_start_timestamp_ms,
        getattr(value, "previous_producer_id", -1),
        getattr(value, "next_producer_id", -1),
        version=getattr(value, "client_transaction_version", 0),
    )
