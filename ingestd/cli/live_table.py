"""The daemon's routes as a table on the terminal, below its log, while it runs."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TextIO, cast

from rich.live import Live
from rich.table import Table

from ingestd.cli.standard_error import StandardError
from ingestd.daemon.supervisor import run
from ingestd.figures import in_bytes, in_count, in_rate
from ingestd.logs import configure_logs
from ingestd.records.loops import say_if_plain

if TYPE_CHECKING:
    from ingestd.daemon.configuration import Configuration
    from ingestd.daemon.status import DaemonStatus
    from ingestd.daemon.summary import Summary

__all__ = ["LiveTable", "run_with_live_table"]


def run_with_live_table(configuration: Configuration, *, once: bool) -> Summary:
    """Run the daemon with the table on standard error, a terminal, and the log of all its processes above it."""
    settings = replace(configuration.daemon, log_format="text")  # what its children see is no terminal any more
    configuration = replace(configuration, daemon=settings)
    live_table = LiveTable()
    with (
        StandardError() as errors,
        Live(live_table.table, console=errors.console, auto_refresh=False, transient=True) as live,
    ):
        log = partial(configure_logs, settings.log_level, settings.log_format, process="supervisor")
        log(stream=cast("TextIO", errors.lines))
        say_if_plain()

        def show(status: DaemonStatus) -> None:
            errors.relay()
            live_table.take(status)
            live.update(live_table.table, refresh=True)

        try:
            return run(configuration, once=once, progress=show, fork=True)
        finally:
            errors.relay_rest()
            log(stream=sys.__stderr__)


class LiveTable:
    """The daemon's routes as a table: lines or records, their rate, lag, and what is acknowledged."""

    def __init__(self) -> None:
        self._acknowledged: dict[str, int] = {}
        self._at = time.monotonic()
        self.table = _empty_table()

    def take(self, status: DaemonStatus, now: float | None = None) -> None:
        """Make the table anew from a status. Rates are those since the last one."""
        now = time.monotonic() if now is None else now
        elapsed, self._at = now - self._at, now
        self.table = _empty_table()
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


def _empty_table() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), caption_justify="left", caption_style="red")
    table.add_column("route")
    for heading in ("sources", "records", "bytes", "rate", "lag", "errors"):
        table.add_column(heading, justify="right")
    return table
