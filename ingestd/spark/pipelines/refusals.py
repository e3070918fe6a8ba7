"""Refusals: rows that a topic would refuse go to the dead letters before they reach the sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql

from ingestd.errors import ErrorCode, KafkaError
from ingestd.spark.pipelines.dead_letters import LETTER
from ingestd.spark.planner import Planner
from ingestd.spark.read_options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from ingestd.daemon.pipelines import PipelineSettings
    from ingestd.spark.pipelines.dead_letters import DeadLetters

__all__ = ["TopicLimits", "limits_of", "refusal", "without_refused"]

_OVERHEAD: Final = 100
"""Bytes of a batch with one record, beside its key, value and headers."""
_HEADER_OVERHEAD: Final = 10
"""Bytes of a header beside its key and value."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What a topic takes."""

    partitions: int
    record_bytes: int
    """Bytes of a record, not compressed: `max.message.bytes`."""
    needs_key: bool
    """Whether it is compacted."""


def without_refused(
    rows: DataFrame,
    pipeline: PipelineSettings,
    clusters: Mapping[str, Mapping[str, str]],
    letters: DeadLetters | None,
) -> DataFrame:
    """The rows without those that the topic of the sink would refuse, which become `letters`.

    Where the rows say their topics themselves, those without one are refused, and nothing else is known. The cluster is
    asked. Raises `KafkaError`, `DeadlineExceeded`.
    """
    sink = pipeline.sink
    if letters is None or sink.format != "topic":
        return rows
    if sink.topic is None:
        reason = sql.when(sql.col("topic").isNull(), "its topic is null")
    else:
        reason = refusal(rows, limits_of(clusters[pipeline.sink_cluster], sink.topic))
    place = {}
    if "position" in rows.columns:
        place = {name: sql.col(f"position.{name}") for name in ("topic", "partition", "offset")}
    letter = letters.letter(rows, reason, "value", "sink", place)
    return letters.divert(rows.withColumn(LETTER, sql.when(reason.isNotNull(), letter)))


def limits_of(cluster: Mapping[str, str], topic: str) -> TopicLimits | None:
    """What the topic takes. None: it is not there yet, and will be as the brokers make it."""
    options = read_options({**cluster, "subscribe": topic})
    with Planner(options.cluster, options.consumer) as planner:
        found = planner.describe([topic])[topic]
        if found.error is ErrorCode.unknown_topic_or_partition:
            return None
        if found.error is not ErrorCode.none:
            raise KafkaError(found.error, f"topic {topic}")
        configs = planner.topic_configs(topic, ("max.message.bytes", "cleanup.policy"))
    compacted = "compact" in configs["cleanup.policy"]
    return TopicLimits(len(found.partitions), int(configs["max.message.bytes"]), compacted)


def refusal(rows: DataFrame, limits: TopicLimits | None) -> Column:
    """Why the topic would refuse a row; null: it would not."""
    if limits is None:
        return sql.lit(None).cast("string")
    names = set(rows.columns)
    size = sql.lit(_OVERHEAD)
    for name in {"key", "value"} & names:
        size = size + _bytes(sql.col(name))
    if "headers" in names:
        size = size + sql.coalesce(sql.aggregate("headers", sql.lit(0), _with_header), sql.lit(0))
    too_large = sql.concat(size.cast("string"), sql.lit(f" bytes; expected {limits.record_bytes} at most"))
    reason = sql.when(size > sql.lit(limits.record_bytes), too_large)
    if limits.needs_key:
        no_key = sql.col("key").isNull() if "key" in names else sql.lit(True)  # noqa: FBT003 - a literal of SQL
        reason = reason.when(no_key, "its key is null, and the topic is compacted")
    if "partition" in names:
        partition = sql.col("partition")
        expected = sql.lit(f"; expected 0 to {limits.partitions - 1}")
        wrong = (partition < sql.lit(0)) | (partition >= sql.lit(limits.partitions))
        reason = reason.when(wrong, sql.concat(sql.lit("partition "), partition.cast("string"), expected))
    return reason


def _with_header(total: Column, header: Column) -> Column:
    return total + _bytes(header["key"]) + _bytes(header["value"]) + sql.lit(_HEADER_OVERHEAD)


def _bytes(text: Column) -> Column:
    return sql.coalesce(sql.octet_length(text), sql.lit(0))
