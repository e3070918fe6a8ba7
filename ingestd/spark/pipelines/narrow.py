"""Narrow plans: whether each row stays in the task that read it, which an exactly-once topic sink needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

__all__ = ["require_narrow"]

_NARROW: Final = frozenset(
    {
        "CollectMetrics",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        "Project",
        "StreamingRelation",
        "StreamingRelationV2",
        "SubqueryAlias",
        "View",
    }
)
"""Spark's logical operators that leave each row in its task."""


def require_narrow(rows: DataFrame) -> None:
    """Raise `ConfigurationError`, naming the operators, unless every row stays in its task."""
    found = set(_operators(rows._jdf.queryExecution().analyzed()))  # noqa: SLF001 - Spark shows plans as text alone
    wide = sorted(found - _NARROW)
    if wide:
        raise ConfigurationError(
            f"sink.delivery = exactly-once: the steps have {', '.join(wide)}; expected steps that leave each row in "
            "the task that read it: no grouping, sorting, joining, limit or union. At least once takes all steps"
        )


def _operators(plan: Any) -> Iterator[str]:
    yield str(plan.nodeName())
    children = plan.children()
    for number in range(children.size()):
        yield from _operators(children.apply(number))
