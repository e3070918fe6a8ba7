"""Session: one connection's client. Which listener took the connection, who the client is, what it may ask now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.node import Node

__all__ = ["ANONYMOUS", "AuthenticationStep", "Context", "Listener", "Session"]

ANONYMOUS: Final = "User:ANONYMOUS"
"""Kafka's principal for a client that did not have to authenticate."""


class AuthenticationStep(Enum):
    """How far a client has authenticated (KIP-43, KIP-152): it names a mechanism, then exchanges its messages."""

    handshake = "handshake"
    exchange = "exchange"
    complete = "complete"


_ALLOWED: Final = {
    AuthenticationStep.handshake: frozenset({Api.api_versions, Api.sasl_handshake}),
    AuthenticationStep.exchange: frozenset({Api.api_versions, Api.sasl_authenticate}),
}


@dataclass(frozen=True, slots=True)
class Listener:
    """An address on which connections are taken. `authenticates`: clients must authenticate before all else."""

    name: str
    node: Node
    authenticates: bool = False


class Session:
    """One connection's client. It lives as long as the connection, and no state of the broker may live in it.

    `local` is the address that the client reached. `client_id` is that of the last request.
    """

    __slots__ = ("client_id", "listener", "local", "peer_host", "peer_port", "principal", "step")

    def __init__(self, listener: Listener, local: tuple[str, int] = ("", 0), peer_port: int = 0) -> None:
        self.listener = listener
        self.local = local
        self.peer_port = peer_port
        self.peer_host = ""
        self.client_id: str | None = None
        self.step = AuthenticationStep.handshake if listener.authenticates else AuthenticationStep.complete
        self.principal = "" if listener.authenticates else ANONYMOUS
        """Empty until the client has authenticated."""

    def allows(self, api: int) -> bool:
        """Whether the client may ask this now."""
        return self.step is AuthenticationStep.complete or api in _ALLOWED[self.step]


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler works with: the broker, the node of the connection's listener, and the connection's client."""

    broker: Broker
    node: Node
    session: Session
