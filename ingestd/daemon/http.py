"""The daemon's HTTP endpoint: /metrics, /healthz, /readyz and /status, answered by the supervisor's own event loop.

An answer is itself the proof that this loop turns. Nothing here changes anything; whoever can connect may read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import orjson
from aiohttp import web

from ingestd.daemon.configuration import parse_address
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingestd.daemon.metrics import Metrics

__all__ = [
    "ClusterStatus",
    "DaemonStatus",
    "DaemonView",
    "HttpServer",
    "RouteStatus",
    "SourceStatus",
    "WorkerStatus",
    "serve",
]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker slot. `pid` is None while the slot waits for a restart."""

    slot: int
    pid: int | None
    incarnation: int
    restarts: int
    cpu_seconds: float
    arena_bytes: int
    arena_used_bytes: int


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source: bytes there and not yet read, and the position before which all is acknowledged."""

    source: str
    label: str
    unread: int
    position: int


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """One route: acknowledged records and bytes, bytes read, errors, since the daemon's start; and its sources now."""

    name: str
    cluster: str
    topic: str
    records: int
    bytes_read: int
    bytes_acknowledged: int
    errors: Mapping[str, int] = field(default_factory=dict)
    sources: Sequence[SourceStatus] = ()


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """One cluster as the supervisor knows it: the brokers' addresses; `error` while none can be reached."""

    name: str
    embedded: bool
    brokers: Sequence[str] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """What /status answers, as JSON with these names."""

    version: str
    pid: int
    uptime_seconds: float
    ready: bool
    workers: Sequence[WorkerStatus] = ()
    routes: Sequence[RouteStatus] = ()
    clusters: Sequence[ClusterStatus] = ()


class DaemonView(Protocol):
    """What the endpoint sees of the supervisor. No call waits."""

    @property
    def metrics(self) -> Metrics:
        """The collector."""
        ...

    def unhealthy(self) -> str | None:
        """Why the daemon does not work as it should (a worker is down and not yet back), or None."""
        ...

    def not_ready(self) -> str | None:
        """Why the first assignment of sources to workers is not done, or None."""
        ...

    def status(self) -> DaemonStatus:
        """All of it."""
        ...


class HttpServer:
    """The endpoint while it serves."""

    def __init__(self, runner: web.AppRunner, host: str) -> None:
        self._runner = runner
        self._host = host

    @property
    def address(self) -> str:
        """`HOST:PORT` as bound: the port that the system chose where 0 was asked for."""
        port = self._runner.addresses[0][1]
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"

    async def close(self) -> None:
        """Stop listening and end the connections. Safe to call twice."""
        await self._runner.cleanup()


async def serve(address: str, view: DaemonView) -> HttpServer:
    """Serve at `HOST:PORT`. Raises `ConfigurationError` when that address can not be had."""
    host, port = parse_address(address)
    runner = web.AppRunner(_application(view), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigurationError(f"daemon.http: can not listen at {address}: {error.strerror or error}") from error
    return HttpServer(runner, host)


def _application(view: DaemonView) -> web.Application:
    async def metrics(request: web.Request) -> web.Response:
        content_type, body = view.metrics.exposition(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def health(_request: web.Request) -> web.Response:
        return _verdict(view.unhealthy())

    async def ready(_request: web.Request) -> web.Response:
        return _verdict(view.not_ready())

    async def status(_request: web.Request) -> web.Response:
        body = orjson.dumps(view.status(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        return web.Response(body=body, content_type="application/json")

    application = web.Application()
    application.add_routes(
        [
            web.get("/metrics", metrics),
            web.get("/healthz", health),
            web.get("/readyz", ready),
            web.get("/status", status),
        ]
    )
    return application


def _verdict(reason: str | None) -> web.Response:
    if reason is None:
        return web.Response(text="ok\n")
    return web.Response(text=reason + "\n", status=503)
