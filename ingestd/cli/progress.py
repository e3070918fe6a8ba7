"""The daemon's routes as a table on the terminal, below its log, while it runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ingestd.cli.figures import in_bytes, in_count, in_rate
from ingestd.daemon.supervisor import run
from ingestd.logs import configure_logs

if TYPE_CHECKING:
    from ingestd.daemon.configuration import Configuration
    from ingestd.daemon.status import DaemonStatus
    from ingestd.daemon.summary import Summary

__all__ = ["Progress", "run_showing_progress"]


def run_showing_progress(configuration: Configuration, *, once: bool) -> Summary:
    """Run the daemon with the table on standard error, a terminal, and the log above it."""
    settings = configuration.daemon
    progress = Progress()
    with Live(progress.table, console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        # Only now: Live puts something in the place of standard error that keeps log lines above the table.
        configure_logs(settings.log_level, settings.log_format, process="supervisor")

        def show(status: DaemonStatus) -> None:
            progress.take(status)
            live.update(progress.table, refresh=True)

        return run(configuration, once=once, progress=show, fork=True)


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
