"""What the HTTP endpoint answers, over a real loopback socket."""

from __future__ import annotations

import socket

import aiohttp
import orjson
import pytest

from ingestd.daemon.http import serve
from ingestd.daemon.losses import LossStatus
from ingestd.daemon.status import DaemonStatus, RouteStatus, SourceStatus, WorkerStatus
from ingestd.daemon.totals import Totals
from ingestd.errors import ConfigurationError


class ToyDaemon:
    def __init__(self) -> None:
        self.totals = Totals()
        self.trouble: str | None = None
        self.waiting: str | None = "3 of 4 sources have no worker yet"

    def unhealthy(self) -> str | None:
        return self.trouble

    def not_ready(self) -> str | None:
        return self.waiting

    def status(self) -> DaemonStatus:
        worker = WorkerStatus(0, 4711, 1, 1, 0.5, 65536, 0)
        source = SourceStatus("dev-1", "/a", 3, 100, "/pods/a.1")
        loss = LossStatus("2026-07-01T12:00:00+00:00", "/b", "deleted", 100, 50, at_least=True)
        route = RouteStatus("access", "local", "t", 10, 2000, 2000, {"vanished": 1}, [source], [loss])
        return DaemonStatus("0.1.0", 4710, 1.5, True, [worker], [route])


@pytest.fixture
async def daemon():
    return ToyDaemon()


@pytest.fixture
async def get(daemon: ToyDaemon):
    server = await serve("127.0.0.1:0", daemon)
    async with aiohttp.ClientSession(f"http://{server.address}") as session:

        async def get(path: str, **headers: str) -> tuple[int, str, bytes]:
            async with session.get(path, headers=headers) as answer:
                return answer.status, answer.headers["Content-Type"], await answer.read()

        yield get
    await server.close()
    await server.close()


async def test_metrics_in_the_format_asked_for(get) -> None:
    status, content_type, body = await get("/metrics", Accept="text/plain")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    assert b"ingestd_workers_alive 0.0" in body
    _, content_type, body = await get("/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


async def test_healthy_or_why_not(get, daemon: ToyDaemon) -> None:
    assert (await get("/healthz"))[::2] == (200, b"ok\n")
    daemon.trouble = "worker 1 is down"
    assert (await get("/healthz"))[::2] == (503, b"worker 1 is down\n")


async def test_ready_or_why_not(get, daemon: ToyDaemon) -> None:
    assert (await get("/readyz"))[::2] == (503, b"3 of 4 sources have no worker yet\n")
    daemon.waiting = None
    assert (await get("/readyz"))[::2] == (200, b"ok\n")


async def test_status_is_json(get) -> None:
    status, content_type, body = await get("/status")
    assert (status, content_type) == (200, "application/json")
    shown = orjson.loads(body)
    assert shown["routes"][0]["sources"][0] == {
        "source": "dev-1",
        "label": "/a",
        "unread": 3,
        "position": 100,
        "path": "/pods/a.1",
        "lag": None,
    }
    assert shown["routes"][0]["losses"][0] == {
        "time": "2026-07-01T12:00:00+00:00",
        "file": "/b",
        "reason": "deleted",
        "start": 100,
        "bytes": 50,
        "at_least": True,
        "offsets": 0,
    }
    assert shown["workers"][0]["pid"] == 4711


async def test_the_root_lists_the_endpoints_and_each_of_them_is_there(get) -> None:
    status, content_type, body = await get("/")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    listed = [line.split()[0] for line in body.decode().splitlines() if line.startswith("/")]
    assert listed == ["/metrics", "/healthz", "/readyz", "/status"]
    assert all([(await get(path))[0] != 404 for path in listed])


async def test_anything_else_is_not_there(get) -> None:
    assert (await get("/nowhere"))[0] == 404


async def test_an_address_in_use_is_named(daemon: ToyDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            ConfigurationError, match=f"^daemon.http: can not listen at {address}: Address already in use; "
        ):
            await serve(address, daemon)
    with pytest.raises(ConfigurationError, match=r"can not listen at nowhere.invalid:1: [^;]+; choose another address"):
        await serve("nowhere.invalid:1", daemon)
