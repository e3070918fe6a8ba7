"""Options of a query that writes to topics: text in, frozen values out. Names are those of Spark's Kafka connector."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ingestd.errors import IngestdError
from ingestd.producer.settings import ProducerSettings
from ingestd.spark.cluster import CLUSTER_OPTIONS, REFUSED, Cluster, cluster_of
from ingestd.spark.given import Given
from ingestd.spark.read_options import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Guarantee", "WriteOptions", "write_options"]

_NAMES: Final = (
    *CLUSTER_OPTIONS,
    "topic",
    "rows",
    "delivery",
    "group",
    "includeHeaders",
    "checkpointLocation",
    "queryName",
    "path",
    "kafka.acks",
    "kafka.batch.size",
    "kafka.compression.type",
    "kafka.delivery.timeout.ms",
    "kafka.enable.idempotence",
    "kafka.max.block.ms",
    "kafka.max.request.size",
    "kafka.request.timeout.ms",
    "kafka.transaction.timeout.ms",
)
_NO_EFFECT: Final = ("includeHeaders", "kafka.batch.size")
_REFUSED: Final = REFUSED | {
    "kafka.key.serializer": "the columns key and value are bytes or text, as with Spark's Kafka connector",
    "kafka.value.serializer": "the columns key and value are bytes or text, as with Spark's Kafka connector",
    "kafka.transactional.id": "expected delivery = exactly-once, which names its transactions itself",
}


_TRANSACTION_SECONDS: Final = 900.0
"""What a transaction may take by default: as long as brokers allow by default. It is open until all tasks are done."""


class Guarantee(Enum):
    """What a query that fails and runs again leaves in its topics."""

    at_least_once = "at-least-once"
    """Every row; rows of what ran again twice."""
    exactly_once = "exactly-once"
    """For readers of committed records: every row once."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where and how rows are written. Pickles. Its repr shows no secret."""

    cluster: Cluster
    producer: ProducerSettings
    topic: str | None
    """The topic of all rows. None: the column `topic` says it."""
    rows: Rows
    guarantee: Guarantee
    group: str | None
    """The group whose offsets are committed with the rows, where every row is written once."""


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options; names in any case. Logs those that have no effect. Raises `ConfigurationError`."""
    given = Given("ingestd sink", options, _NAMES, _REFUSED)
    rows = given.choice("rows", {each.value: each for each in Rows}, default=Rows.records)
    given.warn_of_unused(*_NO_EFFECT, *(["kafka.compression.type"] if rows is Rows.batches else []))
    guarantee = given.choice("delivery", {each.value: each for each in Guarantee}, default=Guarantee.at_least_once)
    group = given.text("group")
    if group is not None and guarantee is not Guarantee.exactly_once:
        raise given.error("option group is for delivery = exactly-once; expected that beside it")
    if given.text("topic") == "":
        raise given.wrong("topic", "a topic's name")
    return WriteOptions(cluster_of(given), _producer(given, guarantee), given.text("topic"), rows, guarantee, group)


def _producer(given: Given, guarantee: Guarantee) -> ProducerSettings:
    found: dict[str, Any] = {
        "acks": given.text("kafka.acks"),
        "compression": given.text("kafka.compression.type"),
        "delivery_timeout": given.seconds("kafka.delivery.timeout.ms"),
        "metadata_timeout": given.seconds("kafka.max.block.ms"),
        "batch_bytes": given.number("kafka.max.request.size"),
        "request_timeout": given.seconds("kafka.request.timeout.ms"),
        "transaction_timeout": given.seconds("kafka.transaction.timeout.ms")
        or (_TRANSACTION_SECONDS if guarantee is Guarantee.exactly_once else None),
        "idempotent": given.boolean("kafka.enable.idempotence", default=True)
        if given.text("kafka.acks") is None
        else None,
    }
    try:
        return ProducerSettings(**{name: value for name, value in found.items() if value is not None})
    except IngestdError as error:
        raise given.error(f"kafka options: {error}") from None
