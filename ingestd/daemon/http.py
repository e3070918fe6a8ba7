"""The daemon's HTTP endpoint: /metrics, /healthz, /readyz and /status, answered by the supervisor's own event loop.

An answer proves that this loop turns. No endpoint changes anything. Everybody who can connect may read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from ingestd import __version__
from ingestd.checks import address_text, parse_address
from ingestd.daemon.listening import can_not_listen
from ingestd.daemon.metrics import Metrics
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from ingestd.daemon.status import DaemonView

__all__ = ["HttpServer", "serve"]

_ENDPOINTS = f"""ingestd {__version__}

/metrics  for Prometheus
/healthz  200 while every worker runs, else 503 and which does not: for a liveness probe
/readyz   200 while every tail can deliver, else 503 and why not, a line for each reason: for alerts
/status   workers, tails with their files, losses and files not taken, clusters: as JSON
"""


class HttpServer:
    """The endpoint while it serves."""

    def __init__(self, runner: web.AppRunner, host: str) -> None:
        self._runner = runner
        self._host = host

    @property
    def address(self) -> str:
        """`HOST:PORT` as bound. If port 0 was asked for, this has the port that the system chose."""
        port = self._runner.addresses[0][1]
        return address_text(self._host, port)

    async def close(self) -> None:
        """Stop listening and end the connections. Safe to call twice."""
        await self._runner.cleanup()


async def serve(address: str, view: DaemonView) -> HttpServer:
    """Serve at `HOST:PORT`. Raises `ConfigurationError` if it can not listen there."""
    host, port = parse_address(address)
    runner = web.AppRunner(_application(view), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigurationError(can_not_listen("daemon.http", address, error)) from error
    return HttpServer(runner, host)


def _application(view: DaemonView) -> web.Application:
    shown = Metrics(view.totals)

    async def endpoints(_request: web.Request) -> web.Response:
        return web.Response(text=_ENDPOINTS)

    async def metrics(request: web.Request) -> web.Response:
        content_type, body = shown.exposition(request.headers.get("Accept", ""))
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
            web.get("/", endpoints),
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
