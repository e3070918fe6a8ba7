"""TCP sockets: connected within a deadline, and ended so that nothing more leaves them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import socket
import sys
from typing import TYPE_CHECKING, Any, Final, cast

from ingestd.errors import ConnectionLost, DeadlineExceeded
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from ingestd.wire.codec import Buffer

    AddressInfo: TypeAlias = tuple[int, int, int, str, Any]

__all__ = ["connect", "end_socket", "send_parts"]

WRITELINES_NEVER_PAUSES: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
"""Whether asyncio's own `writelines` never pauses the writer, however much is unsent (CVE-2024-12254)."""

_KEEPALIVE_IDLE_S = 60
_KEEPALIVE_INTERVAL_S = 15
_KEEPALIVE_PROBES = 4


async def connect(host: str, port: int, send_buffer: int, receive_buffer: int, deadline: Deadline) -> socket.socket:
    """A connected, non-blocking socket. Tries every address of `host`.

    Addresses of the resolver's first family come first. Those of one family come in random order: if one accepts
    connections and then says nothing, the next attempt may begin with another. The remaining time is shared among the
    remaining addresses, so that one that drops packets does not take all of it. Raises `ConnectionLost` as soon as all
    addresses have refused, and `DeadlineExceeded`.
    """
    addresses = await _resolve(host, port, deadline)
    failures: list[OSError] = []
    for number, address in enumerate(addresses):
        share = Deadline.after(deadline.remaining / (len(addresses) - number))
        try:
            return await _connect_to(address, send_buffer, receive_buffer, share, f"{host}:{port}")
        except OSError as error:  # DeadlineExceeded is one
            failures.append(error)
    if failures and all(isinstance(error, DeadlineExceeded) for error in failures):
        raise DeadlineExceeded(f"{host}:{port}: not connected within {deadline.shown} s") from failures[-1]
    reasons = "; ".join(dict.fromkeys(_reason(error) for error in failures))
    raise ConnectionLost(f"{host}:{port}: {reasons or 'no address'}") from (failures[-1] if failures else None)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


async def _resolve(host: str, port: int, deadline: Deadline) -> list[AddressInfo]:
    with contextlib.suppress(socket.gaierror):
        # An address in digits needs no resolver, and thus no thread.
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    loop = asyncio.get_running_loop()
    try:
        found = await deadline.wait_for(
            loop.getaddrinfo(host, port, type=socket.SOCK_STREAM), f"{host}: looking up the address"
        )
    except socket.gaierror as error:
        raise ConnectionLost(f"{host}: {error.strerror}") from error
    families = list(dict.fromkeys(int(family) for family, *_ in found))
    return sorted(random.sample(found, len(found)), key=lambda address: families.index(int(address[0])))


async def _connect_to(
    address: AddressInfo, send_buffer: int, receive_buffer: int, deadline: Deadline, name: str
) -> socket.socket:
    family, kind, protocol, _, target = address
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)  # noqa: FBT003 - the standard library's signature
        _tune(made, send_buffer, receive_buffer)
        await deadline.wait_for(asyncio.get_running_loop().sock_connect(made, target), f"{name}: connecting")
        _refuse_itself(made)
    except BaseException:
        made.close()
        raise
    return made


def _refuse_itself(made: socket.socket) -> None:
    """Linux connects a socket to itself if the kernel happens to choose the port that nobody listens on."""
    if made.getsockname() == made.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def _tune(made: socket.socket, send_buffer: int, receive_buffer: int) -> None:
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
    ):
        if hasattr(socket, option):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if send_buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    if receive_buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)


def end_socket(ended: socket.socket) -> None:
    """Shut the socket down in both directions. A later write fails, so no memory that is used again can be sent."""
    with contextlib.suppress(OSError):  # already down
        ended.shutdown(socket.SHUT_RDWR)


def send_parts(transport: asyncio.Transport, parts: Sequence[Buffer]) -> None:
    """Send `parts` as they are. The transport pauses its writer if the kernel does not take all of them.

    If asyncio's `writelines` does not do that, they are joined first. That is a copy, which uvloop does not need.
    """
    if WRITELINES_NEVER_PAUSES and type(transport).__module__.startswith("asyncio."):
        transport.write(b"".join(parts))
    else:
        transport.writelines(cast("list[bytes]", parts))
