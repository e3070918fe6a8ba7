"""Task: a worker of the daemon in one of Spark's Python processes. It ends with its connection to the supervisor."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ingestd.daemon.arena import Arena
from ingestd.daemon.worker import Worker, take_descriptors
from ingestd.errors import ConnectionLost
from ingestd.spark.executors import packed, slow_interpreter
from ingestd.spark.workers.channel import LIFE, Beat, Hello, KeyedChannel, Sign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingestd.spark.workers.channel import Offer

__all__ = ["SentWorker", "boot_id", "run_worker"]

_SIGN_INTERVAL: Final = 1.0
_CONNECT_SECONDS: Final = 20.0


class SentWorker:
    """`run_worker` of an offer. Where ingestd is not installed, it says so."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(None, SentWorker, self._offer)

    def __call__(self, nothing: Iterable[int]) -> Iterable[int]:
        """See `run_worker`."""
        return run_worker(self._offer, nothing)


def run_worker(offer: Offer, _: Iterable[int]) -> Iterable[int]:
    """Be the worker of an offer until the supervisor closes the connection, or does not answer.

    Raises `ConnectionLost` if there is no way to the supervisor, and `OSError`.
    """
    import uvloop  # noqa: PLC0415 - only executors need it

    take_descriptors()
    with _connected(offer) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(offer.connection)
        connection.setblocking(False)  # noqa: FBT003 - the standard library's signature
        uvloop.run(_serve(offer, connection))
    return ()


def _connected(offer: Offer) -> socket.socket:
    try:
        return socket.create_connection((offer.host, offer.port), _CONNECT_SECONDS)
    except OSError as error:
        raise ConnectionLost(
            f"{socket.gethostname()} can not connect to the daemon at {offer.host}:{offer.port}: {error}; expected "
            "spark.driver.host and spark.ingestd.port to be an address that executors reach"
        ) from error


def boot_id() -> str:
    """Names this run of this machine's kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def _serve(offer: Offer, connection: socket.socket) -> None:
    arena = Arena.create(offer.arena_bytes)
    # Nobody is ever announced here: workers on several hosts share no memory.
    wiring, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        await Worker(Arena(arena), wiring).run(partial(_open, offer, connection))
    finally:
        other.close()
        os.close(arena)


async def _open(
    offer: Offer, connection: socket.socket, received: Callable[[Any], None], lost: Callable[[], None]
) -> KeyedChannel:
    loop = asyncio.get_running_loop()
    life = _Life(received, lost)
    _, channel = await loop.create_connection(
        lambda: KeyedChannel(offer.key, supervisor=False, received=life.received, lost=life.lost), sock=connection
    )
    received(offer.configure)
    channel.send(Hello(os.getpid(), socket.gethostname(), boot_id(), time.monotonic(), slow_interpreter()))
    life.begin(channel)
    return channel


class _Life:
    """Ends the worker when the supervisor has not answered for too long: it may have called it dead.

    A timer does it. In a process that stood still, timers come before anything else is sent.
    """

    def __init__(self, received: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._channel: KeyedChannel | None = None
        self._end: asyncio.TimerHandle | None = None
        self._next: asyncio.TimerHandle | None = None

    def begin(self, channel: KeyedChannel) -> None:
        self._channel = channel
        self._renew(time.monotonic())
        self._sign()

    def received(self, message: Any) -> None:
        if isinstance(message, Beat):
            self._renew(message.now)
        else:
            self._received(message)

    def lost(self) -> None:
        for timer in (self._end, self._next):
            if timer is not None:
                timer.cancel()
        self._lost()

    def _renew(self, signed: float) -> None:
        assert self._channel is not None, "nothing comes before `begin`"
        if self._end is not None:
            self._end.cancel()
        left = signed + LIFE - time.monotonic()
        self._end = asyncio.get_running_loop().call_later(max(0.0, left), self._channel.abort)

    def _sign(self) -> None:
        assert self._channel is not None, "`begin` has set it"
        self._channel.send(Sign(time.monotonic()))
        self._next = asyncio.get_running_loop().call_later(_SIGN_INTERVAL, self._sign)
