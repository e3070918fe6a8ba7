"""`ingestd pipeline`: a configured pipeline on Spark."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from ingestd.daemon.configuration import Configuration
    from ingestd.daemon.pipelines import PipelineSettings
    from ingestd.spark.pipelines.batch import PipelineResult
    from ingestd.spark.pipelines.checking import PipelinePlan

__all__ = ["check_configured", "plan_configured", "run_configured"]

_NOBODY = ("127.0.0.1:9",)
"""An address for what asks no broker."""


@dataclass(frozen=True, slots=True)
class _Configured:
    """A pipeline of a configuration."""

    settings: PipelineSettings
    modules: Path
    """The directory of the configuration, which may have the steps' modules of Python."""


def run_configured(configuration: Configuration, name: str) -> PipelineResult:
    """Run `[pipelines.NAME]` once. Raises `ConfigurationError` (no such pipeline, no PySpark), `PipelineFailed`."""
    found = _found(configuration, name)
    bootstrap = configuration.bootstrap(found.settings.source.cluster)
    result: PipelineResult = _spark("batch").run(found.settings, bootstrap, modules=found.modules)
    return result


def check_configured(configuration: Configuration, name: str) -> tuple[tuple[str, str], ...]:
    """The columns that `[pipelines.NAME]` would write, with their types. Raises what `run_configured` does."""
    found = _found(configuration, name)
    columns: tuple[tuple[str, str], ...] = _spark("checking").check(found.settings, _NOBODY, modules=found.modules)
    return columns


def plan_configured(configuration: Configuration, name: str) -> PipelinePlan:
    """How `[pipelines.NAME]` would run now. Raises what `run_configured` does."""
    found = _found(configuration, name)
    bootstrap = configuration.bootstrap(found.settings.source.cluster)
    planned: PipelinePlan = _spark("checking").plan(found.settings, bootstrap, modules=found.modules)
    return planned


def _found(configuration: Configuration, name: str) -> _Configured:
    settings = configuration.pipelines.get(name)
    if settings is None:
        known = ", ".join(configuration.pipelines) or "none is configured"
        raise ConfigurationError(f"{configuration.file}: no such [pipelines.NAME]: {name} ({known})")
    cluster = configuration.cluster(settings.source.cluster)
    if cluster.tls is not None or cluster.sasl is not None:
        raise ConfigurationError(
            f"{configuration.file}: pipelines.{name}.source.cluster = {cluster.name!r}: expected a cluster without tls "
            "and sasl: the Spark source can not do either yet"
        )
    return _Configured(settings, configuration.file.absolute().parent)


def _spark(module: str) -> Any:
    """A module of pipelines; an extra that may not be installed."""
    try:
        return importlib.import_module(f"ingestd.spark.pipelines.{module}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in {"pyspark", "pyarrow"}:
            raise ConfigurationError(f"pipelines need {error.name}: pip install 'ingestd[spark]'") from error
        raise
