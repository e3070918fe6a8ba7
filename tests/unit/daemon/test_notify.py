"""What systemd hears: real datagrams, at a path and at an abstract name."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import pytest
import structlog

from ingestd.daemon.notify import Notifier

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path):
    """A socket as systemd listens at, and its name as NOTIFY_SOCKET gives it."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.settimeout(5)
    if request.param == "path":
        name = str(tmp_path / "notify")
        listening.bind(name)
    else:
        name = f"@ingestd-test-{os.getpid()}"
        listening.bind("\0" + name[1:])
    yield listening, name
    listening.close()


def heard(listening: socket.socket) -> list[str]:
    return listening.recv(4096).decode().split("\n")


def test_each_state_is_one_datagram(systemd) -> None:
    listening, name = systemd
    notifier = Notifier(name)
    assert notifier.enabled
    notifier.ready("2 workers,\n3 files")
    assert heard(listening) == ["READY=1", "STATUS=2 workers, 3 files"]
    notifier.status("10 MB/s")
    assert heard(listening) == ["STATUS=10 MB/s"]
    notifier.alive()
    assert heard(listening) == ["WATCHDOG=1"]
    notifier.stopping()
    assert heard(listening)[0] == "STOPPING=1"
    notifier.close()
    notifier.close()


async def test_the_watchdog_is_fed_by_the_running_loop(systemd) -> None:
    listening, name = systemd
    notifier = Notifier(name, watchdog_seconds=0.02)
    assert notifier.watchdog_interval == 0.01
    listening.setblocking(False)
    feeding = asyncio.create_task(notifier.feed_watchdog())
    loop = asyncio.get_running_loop()
    for _ in range(3):
        assert await asyncio.wait_for(loop.sock_recv(listening, 100), 5) == b"WATCHDOG=1"
    feeding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await feeding
    notifier.close()


def test_the_environment_says_where_and_is_not_handed_on() -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    notifier = Notifier.from_environment(environment)
    assert notifier.enabled
    assert notifier.watchdog_interval == 15
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize("changed", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}])
def test_a_watchdog_that_is_not_meant_for_us_is_not_fed(changed: dict[str, str]) -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000"} | changed
    assert Notifier.from_environment(environment).watchdog_interval is None


async def test_without_systemd_nothing_happens() -> None:
    notifier = Notifier.from_environment({"WATCHDOG_USEC": "30000000"})
    assert not notifier.enabled
    notifier.ready("x")
    await notifier.feed_watchdog()
    notifier.close()


def test_a_socket_that_is_gone_is_logged_and_borne(tmp_path: Path) -> None:
    notifier = Notifier(str(tmp_path / "gone"))
    with structlog.testing.capture_logs() as logs:
        notifier.alive()
    notifier.close()
    assert logs[0]["log_level"] == "warning"
    assert logs[0]["message"] == "WATCHDOG=1"
