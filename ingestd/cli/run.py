"""`ingestd run`: the daemon in the foreground, with what it does on a terminal, and a summary at its end."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ingestd.cli.figures import in_bytes, in_count, in_rate
from ingestd.daemon.supervisor import run
from ingestd.logs import configure_logs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.daemon.configuration import Configuration
    from ingestd.daemon.status import DaemonStatus
    from ingestd.daemon.summary import Summary

__all__ = ["Progress", "print_summary", "ran_well", "run_configuration", "summary_lines"]


def run_configuration(configuration: Configuration, *, once: bool) -> Summary:
    """Run the daemon, logging to standard error; on a terminal with a table of its routes below the log."""
    settings = configuration.daemon
    console = Console(stderr=True)
    if not console.is_terminal or settings.log_format == "json":
        configure_logs(settings.log_level, settings.log_format, process="supervisor")
        return run(configuration, once=once)
    progress = Progress()
    with Live(progress.table, console=console, auto_refresh=False, transient=True) as live:
        # Only now: Live puts something in the place of standard error that keeps log lines above the table.
        configure_logs(settings.log_level, settings.log_format, process="supervisor")

        def show(status: DaemonStatus) -> None:
            progress.take(status)
            live.update(progress.table, refresh=True)

        return run(configuration, once=once, progress=show)


class Progress:
    """The daemon's routes as a table: lines, rate, lag and what is acknowledged."""

    def __init__(self) -> None:
        self._acknowledged: dict[str, int] = {}
        self._at = time.monotonic()
        self.table = _progress_table()

    def take(self, status: DaemonStatus, now: float | None = None) -> None:
        """Make the table anew from a status. Rates are those since the last one."""
        now = time.monotonic() if now is None else now
        elapsed, self._at = now - self._at, now
        self.table = _progress_table()
        for route in status.routes:
            before = self._acknowledged.get(route.name, 0)
            self._acknowledged[route.name] = route.bytes_acknowledged
            lag = route.bytes_read - route.bytes_acknowledged + sum(source.unread for source in route.sources)
            errors = sum(route.errors.values())
            self.table.add_row(
                route.name,
                in_count(len(route.sources)),
                in_count(route.records),
                in_bytes(route.bytes_acknowledged),
                in_rate(route.bytes_acknowledged - before, elapsed),
                in_bytes(max(0, lag)),
                in_count(errors) if errors else "",
            )
        troubles = [f"{cluster.name}: {cluster.error}" for cluster in status.clusters if cluster.error]
        self.table.caption = "\n".join(troubles) or None


def _progress_table() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), caption_justify="left", caption_style="red")
    table.add_column("route")
    for heading in ("sources", "lines acknowledged", "bytes", "rate", "lag", "errors"):
        table.add_column(heading, justify="right")
    return table


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
            f", {route.helped_bytes / route.bytes:.0%} encoded by helpers" if route.helped_bytes and route.bytes else ""
        )
        lines.append(
            f"{route.name:<{width}}  {in_count(route.sources, 'file')}, {in_count(route.records, 'line')}, "
            f"{in_bytes(route.bytes)}{ratio}{helped}"
        )
        if route.failure is not None:
            lines.append(f"{route.name:<{width}}  stopped: {route.failure}")
    size = sum(route.bytes for route in summary.routes)
    lines.append(
        f"{summary.seconds:.2f} s ({in_rate(size, summary.seconds)}), {summary.cpu_seconds:.2f} CPU seconds"
        + (f" ({summary.cpu_seconds / size * 1e9:.2f} per GB)" if size else "")
    )
    if summary.unacknowledged:
        lines.append(f"files with lines not acknowledged, which are read again next time: {summary.unacknowledged}")
    lines.extend(f"failed: {failure}" for failure in summary.failures)
    return lines


def print_summary(summary: Summary) -> None:
    """Print the summary to standard output."""
    for line in summary_lines(summary):
        print(line, file=sys.stdout)
