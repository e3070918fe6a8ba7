"""systemd notification: tells systemd the state of the daemon, by datagrams to a socket (sd_notify(3)).

Without that socket (the daemon was started by hand) no call does anything.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Self

__all__ = ["Notifier"]

_logger = get_logger(__name__)


class Notifier:
    """The daemon's side of `Type=notify` and `WatchdogSec=`.

    If a datagram can not be sent, that is logged and the daemon goes on. If nothing arrives any more, systemd's
    watchdog notices.
    """

    def __init__(self, address: str | None = None, watchdog_seconds: float | None = None) -> None:
        """`address`: a path or, with a leading `@`, an abstract name. `watchdog_seconds`: how long systemd waits."""
        self._address = "\0" + address[1:] if address is not None and address.startswith("@") else address
        self._watchdog_seconds = watchdog_seconds if address is not None else None
        self._socket: socket.socket | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """The notifier for systemd's variables. Removes them, so that no child process notifies for the daemon."""
        address = environment.pop("NOTIFY_SOCKET", None)
        microseconds = environment.pop("WATCHDOG_USEC", None)
        pid = environment.pop("WATCHDOG_PID", None)
        if microseconds is None or not microseconds.isdigit() or (pid is not None and pid != str(os.getpid())):
            return cls(address)
        return cls(address, int(microseconds) / 1e6 or None)

    @property
    def enabled(self) -> bool:
        """Whether systemd listens."""
        return self._address is not None

    @property
    def watchdog_interval(self) -> float | None:
        """Seconds between two signs of life, half of what systemd allows; None if it does not watch."""
        return None if self._watchdog_seconds is None else self._watchdog_seconds / 2

    def ready(self, status: str) -> None:
        """The start is done."""
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={_line(text)}")

    def alive(self) -> None:
        """A sign of life for the watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The daemon drains and will exit."""
        self._send("STOPPING=1\nSTATUS=Stopping")

    async def feed_watchdog(self) -> None:
        """Give signs of life until cancelled. It runs in the supervisor's own loop: if that hangs, they stop."""
        if self.watchdog_interval is None:
            return
        while True:
            self.alive()
            await asyncio.sleep(self.watchdog_interval)

    def close(self) -> None:
        """Close the socket. Safe to call twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(
                    socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                )
            self._socket.sendto(message.encode(), self._address)
        except OSError as error:
            _logger.warning("systemd can not be notified", message=message, error=str(error))


def _line(text: str) -> str:
    """`text` on one line, because the protocol has one assignment per line."""
    return " ".join(text.split())
