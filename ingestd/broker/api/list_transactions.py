"""ListTransactions (KIP-664): transactional ids by state, producer id, duration (KIP-994) and pattern (KIP-1152)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingestd.broker.messages import NO_THROTTLE, messages
from ingestd.broker.patterns import matching
from ingestd.broker.request import Answer
from ingestd.broker.transactions.transaction import TransactionState
from ingestd.errors import ErrorCode, KafkaError
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.request import Request
    from ingestd.broker.session import Context
    from ingestd.broker.transactions.transaction import Transaction

API: Final = Api.list_transactions
VERSIONS: Final = range(3)

_STATES: Final = {"PrepareEpochFence", *(state.shown for state in TransactionState)}
"""The first of them is one of Kafka's that no transaction is in for longer than a moment."""


@dataclass(frozen=True, slots=True)
class _Filter:
    """What a transaction must be like. An empty set takes any. `longer_than_ms` < 0 takes any duration."""

    states: frozenset[str]
    producer_ids: frozenset[int]
    longer_than_ms: int

    def takes(self, known: Transaction, now_ms: int) -> bool:
        # As in Kafka, a transaction that has not begun has the start -1, so it is older than all others.
        return (
            (not self.states or known.state.shown in self.states)
            and (not self.producer_ids or known.producer_id in self.producer_ids)
            and (self.longer_than_ms < 0 or now_ms - known.started_ms > self.longer_than_ms)
        )


def handle(context: Context, request: Request) -> Answer:
    """Those that this node coordinates. While one of its partitions is not loaded, the answer is an error."""
    schema = messages(API, request.version)
    asked = schema.decode(request.body)
    error = ErrorCode.none
    unknown = tuple(name for name in dict.fromkeys(asked.state_filters) if name not in _STATES)
    found: dict[str, Transaction] = {}
    try:
        found = _found(context, asked)
    except KafkaError as refused:
        error, unknown = refused.code, ()
    states = tuple(
        schema.make(
            "TransactionState",
            transactional_id=transactional_id,
            producer_id=known.producer_id,
            transaction_state=known.state.shown,
        )
        for transactional_id, known in found.items()
    )
    body = schema.encode(
        throttle_time=NO_THROTTLE,
        error_code=error,
        unknown_state_filters=unknown,
        transaction_states=states,
    )
    return Answer([body], error)


def _found(context: Context, asked: Any) -> dict[str, Transaction]:
    wanted = _Filter(
        frozenset(asked.state_filters), frozenset(asked.producer_id_filters), getattr(asked, "duration_filter", -1)
    )
    now_ms = int(context.broker.clock.wall() * 1000)
    found = {
        transactional_id: known
        for partition in context.transaction_partitions()
        for transactional_id, known in partition
        if wanted.takes(known, now_ms)
    }
    pattern = getattr(asked, "transactional_id_pattern", None)
    if not pattern:
        return found
    names = matching([pattern], found.keys())[pattern]
    return {transactional_id: known for transactional_id, known in found.items() if transactional_id in names}
