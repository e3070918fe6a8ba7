"""The DescribeTransactions answer with a start that may be missing.

Kafka says -1 for a transactional id whose transaction has not begun. kio 0.6.5 refuses that as a negative time.
"""

from dataclasses import dataclass, field

from kio.schema.describe_transactions.v0 import response
from kio.static.primitive import TZAware

__all__ = ["DescribeTransactionsResponse", "TopicData", "TransactionState"]

TopicData = response.TopicData


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState(response.TransactionState):
    """What is told of one transactional id."""

    transaction_start_time: TZAware | None = field(metadata={"kafka_type": "datetime_i64"})  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse(response.DescribeTransactionsResponse):
    """The whole answer."""

    transaction_states: tuple[TransactionState, ...]
