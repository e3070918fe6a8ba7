"""`ingestd run`: the daemon in the foreground, with what it does on a terminal, and a summary at its end."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from ingestd.daemon.supervisor import run
from ingestd.errors import ConfigurationError
from ingestd.figures import in_bytes, in_count, in_rate
from ingestd.logs import configure_logs
from ingestd.output import unhindered
from ingestd.records.loops import say_if_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingestd.daemon.configuration import Configuration
    from ingestd.daemon.summary import Summary

__all__ = ["print_summary", "ran_well", "run_configuration", "run_on_spark", "spark_settings", "summary_lines"]


def spark_settings(given: Sequence[str]) -> dict[str, str]:
    """Settings of Spark from texts `spark.NAME=VALUE`. Raises `ConfigurationError` for another text."""
    settings = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (equals and name.startswith("spark.")):
            raise ConfigurationError(f"--conf {each}: expected spark.NAME=VALUE")
        settings[name] = value
    return settings


def run_on_spark(configuration: Configuration, *, once: bool, master: str, spark: Mapping[str, str]) -> Summary:
    """Run the daemon in this process with its workers on Spark's executors. Raises what `supervisor.run` raises.

    spark: settings of Spark.
    """
    try:
        from ingestd.spark.workers.engine import started  # noqa: PLC0415 - an extra that may not be installed
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in {"pyspark", "pyarrow"}:
            raise ConfigurationError(f"--engine spark needs {error.name}: pip install 'ingestd[spark]'") from error
        raise
    settings = configuration.daemon
    configure_logs(settings.log_level, settings.log_format, process="supervisor")
    with started(master, spark) as engine:
        return run(replace(configuration, daemon=engine.settings(settings)), once=once, hire=engine)


def run_configuration(configuration: Configuration, *, once: bool) -> Summary:
    """Run the daemon, logging to standard error; on a terminal with a table of its routes below the log."""
    settings = configuration.daemon
    gc.freeze()  # what is there by now lives as long as the process
    gc.enable()
    sys.setswitchinterval(0.001)  # a thread that looks at thousands of files leaves the loop its turn
    if sys.stderr.isatty() and settings.log_format != "json":
        from ingestd.cli.live_table import run_with_live_table  # noqa: PLC0415 - rich is a tenth of the daemon's start

        return run_with_live_table(configuration, once=once)
    configure_logs(settings.log_level, settings.log_format, process="supervisor")
    say_if_plain()
    return run(configuration, once=once, fork=True)


def ran_well(summary: Summary, *, once: bool) -> bool:
    """Whether the run did what it was for: with `once`, everything; otherwise, to stop, when told to, unfailed."""
    if once:
        return summary.complete
    return not summary.failures and all(route.failure is None for route in summary.routes)


def summary_lines(summary: Summary) -> Sequence[str]:
    """What was moved and at what cost, a line for each route and one for the whole."""
    lines = []
    width = max((len(route.name) for route in summary.routes), default=0)
    for route in summary.routes:
        ratio = f", {in_bytes(route.compressed_bytes)} sent" if route.compressed_bytes else ""
        helped = (
            f", {route.helped_bytes / route.bytes:.0%} encoded by idle workers"
            if route.helped_bytes and route.bytes
            else ""
        )
        lines.append(
            f"{route.name:<{width}}  {in_count(route.sources, route.words.source)}, "
            f"{in_count(route.records, route.words.record)}, "
            f"{in_bytes(route.bytes)}{ratio}{helped}"
        )
        if route.failure is not None:
            lines.append(f"{route.name:<{width}}  stopped: {route.failure}")
        if route.unacknowledged_sources:
            sources = in_count(route.unacknowledged_sources, route.words.source)
            left = f"{in_bytes(route.unacknowledged_bytes)} of {sources}"
            lines.append(f"{route.name:<{width}}  not acknowledged: {left}, read and sent again at the next start")
        for file, left_bytes in route.deleted.items():
            lines.append(f"{route.name:<{width}}  not delivered: {in_bytes(left_bytes)} of {file}, which is deleted")
    size = sum(route.bytes for route in summary.routes)
    lines.append(
        f"{summary.seconds:.2f} s ({in_rate(size, summary.seconds)}), {summary.cpu_seconds:.2f} CPU seconds"
        + (f", {summary.cpu_seconds / size * 1e9:.2f} for each GB" if size >= 1e9 else "")
    )
    if summary.unacknowledged:
        lines.append(f"sources with records not acknowledged, which are read again next time: {summary.unacknowledged}")
    lines.extend(f"failed: {failure}" for failure in summary.failures)
    return lines


def print_summary(summary: Summary) -> None:
    """Print the summary to standard output. Whether anybody reads it says nothing of the run."""
    if sys.stdout is not None:  # else the process was started with it closed
        unhindered(sys.stdout).write("".join(f"{line}\n" for line in summary_lines(summary)))
