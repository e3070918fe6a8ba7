"""Sources of pipelines: their settings as options of the data source."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.daemon.pipelines import PipelineSource

__all__ = ["batch_source"]


def batch_source(source: PipelineSource, bootstrap: Sequence[str]) -> dict[str, str]:
    """Options of a batch query. Where it begins is not among them if a group says it."""
    return {
        "kafka.bootstrap.servers": ",".join(bootstrap),
        "subscribe": ",".join(source.topics),
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
    }
