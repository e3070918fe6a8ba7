"""`ingestd pipeline`: a configured pipeline on Spark."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ingestd.cli.starts import BeforeEnd, parse_start
from ingestd.consumer.settings import AtTime, Edge
from ingestd.errors import ConfigurationError
from ingestd.figures import in_count
from ingestd.logs import configure_logs, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ingestd.daemon.configuration import ClusterSettings, Configuration
    from ingestd.daemon.pipelines import PipelineSettings
    from ingestd.spark.pipelines.batch import PipelineResult
    from ingestd.spark.pipelines.checking import PipelineCheck, PipelinePlan
    from ingestd.spark.pipelines.progress import BatchProgress
    from ingestd.spark.pipelines.streaming import StreamResult

__all__ = ["Choices", "check_configured", "plan_configured", "run_configured", "summary_line"]

_NOBODY = ("127.0.0.1:9",)
"""An address for what asks no broker."""


@dataclass(frozen=True, slots=True)
class _Configured:
    """A pipeline of a configuration."""

    settings: PipelineSettings
    clusters: Mapping[str, Mapping[str, str]]
    """Options of the data source that reach its clusters."""
    modules: Path
    """The directory of the configuration, which may have the steps' modules of Python."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the command line says instead of the configuration, or beside it."""

    once: bool = False
    """A stream ends when it has taken what is there."""
    start: str | None = None
    """Where to begin: an offset of each partition, `earliest`, `latest`, `@TIME`, or JSON with offsets."""
    checkpoint: str | None = None
    """Another checkpoint."""
    master: str | None = None
    """Another master."""


def run_configured(
    configuration: Configuration, name: str, choices: Choices, stopped: Callable[[], bool]
) -> PipelineResult | StreamResult:
    """Run `[pipelines.NAME]`. Raises `ConfigurationError` (no such pipeline, no PySpark), `PipelineFailed`.

    stopped: whether a stream shall end; asked once a second.
    """
    configure_logs(configuration.daemon.log_level, configuration.daemon.log_format)
    found = _found(configuration, name, choices, asking=True)
    if found.settings.source.files and choices.start is not None:
        raise ConfigurationError(f"--from: pipelines.{name} reads files, from their beginnings")
    start = None if choices.start is None else _start(found, choices.start)
    if not found.settings.is_stream:
        if choices.once and not found.settings.source.files:
            raise ConfigurationError(f"--once: pipelines.{name} has no checkpoint, and so takes what is there once")
        result: PipelineResult = _spark("batch").run(found.settings, found.clusters, start=start, modules=found.modules)
        return result
    streamed: StreamResult = _spark("streaming").run_stream(
        found.settings,
        found.clusters,
        once=choices.once,
        start=start,
        modules=found.modules,
        stopped=stopped,
        patience=configuration.daemon.drain_timeout,
        progress=_say,
    )
    return streamed


def summary_line(result: PipelineResult | StreamResult) -> str:
    """What a run did."""
    from ingestd.spark.pipelines.streaming import StreamResult  # noqa: PLC0415 - an extra, which made the result

    letters = [] if result.dead_letters is None else [in_count(result.dead_letters, "dead letter")]
    if isinstance(result, StreamResult):
        rows = [f"{in_count(result.rows, 'record')} read"]
        late = [f"at least {in_count(result.late_rows, 'late row')} dropped"] if result.late_rows else []
        where = [f"in {in_count(result.batches, 'micro-batch')},", *(f"{each}," for each in (*late, *letters))]
    else:
        rows = [] if result.rows is None else [f"{in_count(result.rows, 'row')} written"]
        where = [f"to {result.path}", *(f"and {each}" for each in letters), "in"]
    return " ".join([f"{result.name}:", *rows, *where, f"{result.seconds:.1f} s"])


def _say(progress: BatchProgress) -> None:
    if not progress.rows and not progress.dead_letters:
        return
    # Spark asks for no end of a topic where it runs a micro-batch again.
    lag = {"lag": dict(progress.lag)} if progress.lag else {}
    get_logger("ingestd.pipeline").info(
        "micro-batch done",
        pipeline=progress.pipeline,
        batch=progress.batch,
        rows=progress.rows,
        seconds=round(progress.seconds, 1),
        rows_per_second=round(progress.rows_per_second),
        **lag,
        state_rows=progress.state_rows,
        late_rows=progress.late_rows,
        dead_letters=progress.dead_letters,
    )


def check_configured(configuration: Configuration, name: str) -> PipelineCheck:
    """What `[pipelines.NAME]` would make of its source. Raises what `run_configured` does."""
    found = _found(configuration, name, Choices(), asking=False)
    checked: PipelineCheck = _spark("checking").check(found.settings, found.clusters, modules=found.modules)
    return checked


def plan_configured(configuration: Configuration, name: str) -> PipelinePlan:
    """How `[pipelines.NAME]` would run now. Raises what `run_configured` does."""
    found = _found(configuration, name, Choices(), asking=True)
    planned: PipelinePlan = _spark("checking").plan(found.settings, found.clusters, modules=found.modules)
    return planned


def _found(configuration: Configuration, name: str, choices: Choices, *, asking: bool) -> _Configured:
    """A pipeline, and its clusters with their secrets; without `asking`, with addresses of nobody."""
    settings = configuration.pipelines.get(name)
    if settings is None:
        known = ", ".join(configuration.pipelines) or "none is configured"
        raise ConfigurationError(f"{configuration.file}: no such [pipelines.NAME]: {name} ({known})")
    settings = replace(
        settings, checkpoint=choices.checkpoint or settings.checkpoint, master=choices.master or settings.master
    )
    for key, problem in settings.unfit():
        raise ConfigurationError(f"{configuration.file}: pipelines.{name}.{'.'.join(key)}: {problem}")
    options: Callable[[ClusterSettings, Sequence[str]], dict[str, str]] = _spark("clusters").cluster_options
    wanted = {settings.source.cluster, settings.sink.cluster}
    clusters = {}
    for cluster in sorted(filter(None, wanted)):
        try:
            bootstrap = configuration.bootstrap(cluster) if asking else _NOBODY
            clusters[cluster] = options(configuration.cluster(cluster), bootstrap)
        except ConfigurationError as error:
            place = "" if str(error).startswith(str(configuration.file)) else f"{configuration.file}: "
            raise ConfigurationError(f"{place}{error}") from error
    return _Configured(settings, clusters, configuration.file.absolute().parent)


def _start(found: _Configured, text: str) -> str:
    """What a person wrote as `source.starting` takes it. Raises `ConfigurationError`."""
    if text.startswith("{"):
        return text
    start = parse_start(text)
    if isinstance(start, Edge):
        return start.value
    if isinstance(start, AtTime):
        return datetime.fromtimestamp(start.timestamp_ms / 1_000, UTC).isoformat()
    if isinstance(start, BeforeEnd):
        raise ConfigurationError(f"--from {text}: expected an offset, not one before the end")
    partitions: Callable[[PipelineSettings, Mapping[str, str]], Mapping[str, int]] = _spark("source").partitions
    counts = partitions(found.settings, found.clusters[found.settings.source_cluster])
    return json.dumps({topic: {str(each): start for each in range(count)} for topic, count in counts.items()})


def _spark(module: str) -> Any:
    """A module of pipelines; an extra that may not be installed."""
    try:
        return importlib.import_module(f"ingestd.spark.pipelines.{module}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in {"pyspark", "pyarrow"}:
            raise ConfigurationError(f"pipelines need {error.name}: pip install 'ingestd[spark]'") from error
        raise
