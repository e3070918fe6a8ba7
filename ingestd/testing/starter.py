"""The process that forks brokers for tests (`ingestd.testing.forking`), as the tests' process sees it."""

from __future__ import annotations

import atexit
import json
import socket
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BrokerStarter", "broker_starter"]


class BrokerStarter:
    """Has one child, which has imported the broker. So the first broker takes 250 ms, and each further one 20 ms."""

    def __init__(self) -> None:
        from ingestd.daemon.processes import spawn  # noqa: PLC0415 - every pytest imports this module; few need it

        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = spawn("ingestd.testing.forking", [str(theirs.fileno())], [theirs.fileno()])

    def start(self, arguments: Sequence[str], channel: int, log: int) -> None:
        """Fork a broker. It says `pid NUMBER` and `ready HOST PORT` to `channel`. Raises `OSError`."""
        socket.send_fds(self._channel, [json.dumps(arguments).encode()], [channel, log])

    def close(self) -> None:
        """End the child, not its brokers."""
        self._channel.close()
        self._process.wait()


@lru_cache(maxsize=1)
def broker_starter() -> BrokerStarter:
    """The starter of this process. It is made at the first call, and ends with this process."""
    starter = BrokerStarter()
    atexit.register(starter.close)
    return starter
