"""`ingestd pipeline`: a configured pipeline on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from ingestd.daemon.configuration import Configuration
    from ingestd.spark.pipeline import PipelineResult

__all__ = ["run_configured"]


def run_configured(configuration: Configuration, name: str) -> PipelineResult:
    """Run `[pipelines.NAME]` once. Raises `ConfigurationError` (no such pipeline, no PySpark), `PipelineFailed`."""
    settings = configuration.pipelines.get(name)
    if settings is None:
        known = ", ".join(configuration.pipelines) or "none is configured"
        raise ConfigurationError(f"{configuration.file}: no such [pipelines.NAME]: {name} ({known})")
    try:
        from ingestd.spark.pipeline import run  # noqa: PLC0415 - an extra that may not be installed
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in {"pyspark", "pyarrow"}:
            raise ConfigurationError(f"pipelines need {error.name}: pip install 'ingestd[spark]'") from error
        raise
    cluster = configuration.cluster(settings.source.cluster)
    if cluster.tls is not None or cluster.sasl is not None:
        raise ConfigurationError(
            f"{configuration.file}: pipelines.{name}.source.cluster = {cluster.name!r}: expected a cluster without tls "
            "and sasl: the Spark source can not do either yet"
        )
    return run(settings, configuration.bootstrap(cluster.name))
