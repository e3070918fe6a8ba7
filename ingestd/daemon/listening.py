"""Listening: whether the addresses of a configuration are of this machine, known before anything is started."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from ingestd.checks import parse_address
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.daemon.configuration import Configuration

__all__ = ["can_not_listen", "require_listenable", "unlistenable"]


def require_listenable(configuration: Configuration) -> None:
    """Raises `ConfigurationError` if there is anything `unlistenable`."""
    problems = list(unlistenable(configuration))
    if problems:
        raise ConfigurationError("\n".join(problems))


def unlistenable(configuration: Configuration) -> Iterator[str]:
    """The addresses at which this machine can not listen, whatever listens there now. Looks up names of hosts."""
    addresses = {"daemon.http": configuration.daemon.http} if configuration.daemon.http else {}
    for name, cluster in configuration.clusters.items():
        if cluster.embedded:
            addresses[f"clusters.{name}.listen"] = cluster.listen
    for key, address in addresses.items():
        error = _error_at(*parse_address(address))
        if error is not None:
            yield can_not_listen(key, address, error)


def can_not_listen(key: str, address: str, error: OSError) -> str:
    """What is said of an address, the value of `key`, that can not be listened at."""
    # asyncio's message repeats the address; errors of name resolution have negative numbers
    number = error.errno or 0
    reason = os.strerror(number) if number > 0 else error.strerror or error
    none = ', or "" for none' if key == "daemon.http" else ""
    return f"{key}: can not listen at {address}: {reason}; choose another address{none}"


def _error_at(host: str, port: int) -> OSError | None:
    """Why a server can not listen; None if it can at one of the host's addresses, or something else listens there."""
    failed: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return error
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            failed = error
        else:
            return None
    return failed
