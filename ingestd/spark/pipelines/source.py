"""Sources of pipelines: their settings as options of the data source."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ingestd.spark.pipelines.failures import failing
from ingestd.spark.planner import Planner
from ingestd.spark.planning import require_all, subscribed
from ingestd.spark.read_options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.daemon.pipelines import PipelineSettings, PipelineSource

__all__ = ["batch_source", "partitions", "starting", "stream_source"]


def starting(start: str) -> dict[str, str]:
    """Where a query begins: `earliest`, `latest`, a time with its zone, or offsets as Spark's JSON has them."""
    if start in ("earliest", "latest") or start.startswith("{"):
        return {"startingOffsets": start}
    milliseconds = int(datetime.fromisoformat(start).timestamp() * 1_000)
    return {"startingTimestamp": str(milliseconds), "startingOffsetsByTimestampStrategy": "latest"}


def batch_source(pipeline: PipelineSettings, cluster: Mapping[str, str], start: str | None = None) -> dict[str, str]:
    """Options of a batch query. `start`: where it begins instead of where the settings say."""
    return _common(pipeline.source, cluster) | _start(pipeline.source, start)


def stream_source(pipeline: PipelineSettings, cluster: Mapping[str, str], start: str | None = None) -> dict[str, str]:
    """Options of a stream. `start`: where it begins, without a checkpoint, instead of where the settings say."""
    source, found = pipeline.source, _common(pipeline.source, cluster)
    if pipeline.sink.delivery == "exactly-once":
        # The sink commits to the group, with markers of its own.
        return found | starting(start or source.start) | {"includePosition": "true"} | _limit(source)
    group = {} if source.group is None else {"commitTo": source.group}
    return found | _start(source, start) | group | _limit(source)


def partitions(pipeline: PipelineSettings, cluster: Mapping[str, str]) -> dict[str, int]:
    """How many partitions each topic of the source has. Raises `PipelineFailed`."""
    topics = pipeline.source.topics
    options = read_options({**cluster, "subscribe": ",".join(topics)})
    with failing(pipeline), Planner(options.cluster, options.consumer) as planner:
        found = require_all(subscribed(options.subscription, planner)).partitions
    return {topic: sum(each.topic == topic for each in found) for topic in topics}


def _common(source: PipelineSource, cluster: Mapping[str, str]) -> dict[str, str]:
    return {
        **cluster,
        "subscribe": ",".join(source.topics),
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
    }


def _start(source: PipelineSource, start: str | None) -> dict[str, str]:
    if source.group is None or start is not None:
        return starting(start or source.start)
    otherwise = "latest" if source.start == "latest" else "earliest"
    return {
        "startingOffsets": "group",
        "kafka.group.id": source.group,
        "startingOffsetsByGroupStrategy": otherwise,
    }


def _limit(source: PipelineSource) -> dict[str, str]:
    return {} if source.max_offsets is None else {"maxOffsetsPerTrigger": str(source.max_offsets)}
