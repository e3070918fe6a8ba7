"""Steps: a pipeline's transformations, each from the DataFrame of the step before to the next. Nothing is read here."""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import TYPE_CHECKING, Final

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from ingestd.errors import ConfigurationError, IngestdError
from ingestd.spark.pipelines.failures import reason_of
from ingestd.spark.pipelines.parsing import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ingestd.daemon.pipelines import DeduplicateStep, JoinStep, PipelineStep, WindowStep
    from ingestd.spark.pipelines.dead_letters import DeadLetters

__all__ = ["VIEW", "apply_steps"]

VIEW: Final = "source"
"""The view that a step's SQL reads: the rows of the step before."""

_LOGICAL: Final = "org.apache.spark.sql.catalyst.plans.logical"
_COMMANDS: Final = (f"{_LOGICAL}.Command", f"{_LOGICAL}.ParsedStatement")
_WATERMARK: Final = "spark.watermarkDelayMs"


def apply_steps(
    rows: DataFrame,
    steps: Mapping[str, PipelineStep],
    modules: Path | None = None,
    letters: DeadLetters | None = None,
) -> DataFrame:
    """The rows after all steps. Leaves the view `source` in the session of the rows.

    steps: by their names, which errors and letters say. modules: a directory that has modules of Python which steps
    name. letters: where rows go that can not be typed; without it, one ends the query. Raises `ConfigurationError`.
    """
    for name, step in steps.items():
        try:
            rows = parse(rows, step.parse, name, letters) if step.parse else _applied(rows, step, modules)
        except (ConfigurationError, PySparkException) as error:
            raise ConfigurationError(f"{name}: {reason_of(error)}") from error
    return rows


def _applied(rows: DataFrame, step: PipelineStep, modules: Path | None) -> DataFrame:
    if step.sql is not None:
        _require_query(rows.sparkSession, step.sql)
        rows.createOrReplaceTempView(VIEW)
        return rows.sparkSession.sql(step.sql)
    if step.python is not None:
        return _called(step.python, modules, rows)
    if step.window is not None:
        return _windows(rows, step.window)
    if step.deduplicate is not None:
        return _deduplicated(rows, step.deduplicate)
    assert step.join is not None, "a step has one key"
    return _joined(rows, step.join)


def _require_query(spark: SparkSession, text: str) -> None:
    """Refuse a command, which Spark would carry out at once, in `ingestd pipeline check` too."""
    unread = [spark._jsparkSession.sessionState().sqlParser().parsePlan(text)]  # noqa: SLF001 - nothing public parses
    while unread:
        plan = unread.pop()
        if any(is_instance_of(spark.sparkContext._gateway, plan, each) for each in _COMMANDS):  # noqa: SLF001
            raise ConfigurationError(f"it is a command, {plan.nodeName()}; expected a query")
        children = plan.children()
        unread += [children.apply(index) for index in range(children.size())]


def _called(name: str, modules: Path | None, rows: DataFrame) -> DataFrame:
    function = _function(name, modules)
    try:
        result = function(rows)
    except (IngestdError, PySparkException):
        raise
    except Exception as error:  # whatever a user's function raises
        raise ConfigurationError(f"{name}: {_said(error, modules)}") from error
    if not isinstance(result, DataFrame):
        raise ConfigurationError(f"{name} returned {type(result).__name__}; expected a DataFrame")
    return result


def _function(name: str, modules: Path | None) -> Callable[[DataFrame], object]:
    module_name, _, function_name = name.partition(":")
    if modules is not None and str(modules) not in sys.path:
        sys.path.append(str(modules))
    try:
        module = importlib.import_module(module_name)
        function: Callable[[DataFrame], object] = getattr(module, function_name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{name}: {error}") from error
    except Exception as error:  # whatever a user's module raises
        raise ConfigurationError(f"{name}: {_said(error, modules)}") from error
    if not callable(function):
        raise ConfigurationError(f"{name} is {function!r}; expected a function")
    if modules is not None and (module.__file__ or "").startswith(f"{modules}/"):
        # Executors do not have the file.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return function


def _said(error: Exception, modules: Path | None) -> str:
    """What was raised, and at which line of which of the user's files."""
    of_user = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(f"{modules}/")]
    place = f" ({of_user[-1].filename}, line {of_user[-1].lineno})" if of_user else ""
    return f"{type(error).__name__}: {error}{place}"


def _windows(rows: DataFrame, step: WindowStep) -> DataFrame:
    window = sql.window(step.time, step.size, step.slide)
    grouped = _watermarked(rows, step.time, step.late).groupBy(window, *step.by)
    counted = grouped.agg(*(sql.expr(text).alias(name) for name, text in step.aggregates.items()))
    bounds = (sql.col(f"window.{end}").alias(f"window_{end}") for end in ("start", "end"))
    return counted.select(*bounds, *step.by, *step.aggregates)


def _deduplicated(rows: DataFrame, step: DeduplicateStep) -> DataFrame:
    if not rows.isStreaming:
        return rows.dropDuplicates(list(step.columns))
    return _watermarked(rows, step.time, step.late).dropDuplicatesWithinWatermark(list(step.columns))


def _watermarked(rows: DataFrame, time: str, late: str) -> DataFrame:
    """Spark refuses a second watermark of a column."""
    known = {field.name: field.metadata for field in rows.schema.fields}
    return rows if _WATERMARK in known.get(time, {}) else rows.withWatermark(time, late)


def _joined(rows: DataFrame, step: JoinStep) -> DataFrame:
    reader = rows.sparkSession.read.format(step.format)
    if step.columns is not None:
        reader = reader.schema(step.columns)
    if step.format == "csv":
        reader = reader.option("header", "true").option("enforceSchema", "false")
    return rows.join(reader.load(step.path), list(step.on), step.how)
