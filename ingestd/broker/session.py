"""Session: one connection's client. Which listener took the connection, who the client is, what it may ask now."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from ingestd.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ingestd.checks import address_text
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.broker import Broker
    from ingestd.broker.groups.group_partition import GroupPartition
    from ingestd.broker.node import Node
    from ingestd.broker.security.exchanges import Exchange
    from ingestd.broker.storage import Partition
    from ingestd.broker.transactions.transaction_partition import TransactionPartition

__all__ = ["ANONYMOUS", "MOST_SHOWN", "AuthenticationStep", "Context", "Listener", "Session"]

ANONYMOUS: Final = "User:ANONYMOUS"
"""Kafka's principal for a client that did not have to authenticate."""
MOST_SHOWN: Final = 64
"""Characters of a name that a stranger chose, in the log."""
_log = get_logger(__name__)


class AuthenticationStep(Enum):
    """How far a client has authenticated (KIP-43, KIP-152): it names a mechanism, then exchanges its messages."""

    handshake = "handshake"
    exchange = "exchange"
    complete = "complete"


_ALLOWED: Final = {
    AuthenticationStep.handshake: frozenset({Api.api_versions, Api.sasl_handshake}),
    AuthenticationStep.exchange: frozenset({Api.api_versions, Api.sasl_handshake, Api.sasl_authenticate}),
}
"""What is handed to its handler. In the exchange, the handlers of the first two refuse."""


@dataclass(frozen=True, slots=True)
class Listener:
    """An address on which connections are taken. With `mechanisms`, clients authenticate by one before all else."""

    name: str
    node: Node
    mechanisms: tuple[str, ...] = ()


class Session:
    """One connection's client. It lives as long as the connection, and no state of the broker may live in it.

    `local` is the address that the client reached. `client_id` is that of the last request.
    """

    __slots__ = (
        "authenticated", "bare", "client_id", "exchange", "expires", "failure", "listener", "local", "mechanism",
        "peer_host", "peer_port", "principal", "step",
    )  # fmt: skip

    def __init__(self, listener: Listener, local: tuple[str, int] = ("", 0), peer_port: int = 0) -> None:
        self.listener = listener
        self.local = local
        self.peer_port = peer_port
        self.peer_host = ""
        self.client_id: str | None = None
        self.step = AuthenticationStep.handshake if listener.mechanisms else AuthenticationStep.complete
        self.principal = "" if listener.mechanisms else ANONYMOUS
        """Empty until the client has authenticated."""
        self.mechanism = ""
        """The one that the client named last."""
        self.exchange: Exchange | None = None
        """The messages of authentication, while they are exchanged."""
        self.bare = False
        """Whether these messages come and go without the protocol's header (SaslHandshake version 0)."""
        self.failure = ErrorCode.none
        """The error that the request in hand shall be answered with, because a test wants it."""
        self.authenticated = -math.inf
        """When the client authenticated last, on the monotonic clock."""
        self.expires = math.inf
        """When it must have authenticated again (KIP-368), on the monotonic clock."""

    @property
    def peer(self) -> str:
        """`HOST:PORT` of the client, for logs."""
        return address_text(self.peer_host, self.peer_port)

    def allows(self, api: int, now: float) -> bool:
        """Whether the client may ask this now."""
        if self.step is not AuthenticationStep.complete:
            return api in _ALLOWED[self.step]
        return now <= self.expires or api == Api.sasl_handshake

    def log_refusal(self, reason: str) -> None:
        """Say in the log that this client did not get in."""
        user = "" if self.exchange is None else self.exchange.user[:MOST_SHOWN]
        _log.warning("authentication failed", mechanism=self.mechanism, user=user, peer=self.peer, reason=reason)

    def begin(self, mechanism: str, exchange: Exchange, *, bare: bool = False) -> None:
        """Both sides have agreed on a mechanism. Now come its messages, and nothing else."""
        self.step = AuthenticationStep.exchange
        self.mechanism = mechanism
        self.exchange = exchange
        self.bare = bare

    def complete(self, principal: str, now: float, lifetime: float) -> None:
        """The client has proven who it is. `lifetime` is in seconds; 0: for ever."""
        self.step = AuthenticationStep.complete
        self.principal = principal
        self.exchange = None
        self.bare = False
        self.authenticated = now
        self.expires = now + lifetime if lifetime else math.inf


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler works with: the broker, the node of the connection's listener, and the connection's client."""

    broker: Broker
    node: Node
    session: Session

    def led(self, topic: str, number: int) -> Partition:
        """A partition that this node leads.

        Raises `KafkaError`: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER.
        """
        self._fail()
        partition = self.broker.partition(topic, number)
        self.broker.cluster.check_leader(self.node, topic, number)
        return partition

    def replica(self, topic: str, number: int) -> Partition:
        """A partition that this node has.

        Raises `KafkaError`: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER.
        """
        self._fail()
        partition = self.broker.partition(topic, number)
        self.broker.cluster.check_replica(self.node, topic, number)
        return partition

    def group_partition(self, group_id: str) -> GroupPartition:
        """What has a group. Raises `KafkaError`: NOT_COORDINATOR for another node's, as `GroupCoordinator.of`."""
        self._fail()
        self.broker.cluster.check_coordinator(self.node, OFFSETS_TOPIC, group_id)
        return self.broker.groups.of(group_id)

    def members_partition(self, group_id: str) -> GroupPartition:
        """The same for what is asked of groups with a name. Raises `KafkaError`, as `GroupCoordinator.of_members`."""
        self._fail()
        self.broker.cluster.check_coordinator(self.node, OFFSETS_TOPIC, group_id)
        return self.broker.groups.of_members(group_id)

    def transaction_partition(self, transactional_id: str) -> TransactionPartition:
        """What has a transactional id that this node coordinates.

        Raises `KafkaError`: NOT_COORDINATOR, as `TransactionCoordinator.of`.
        """
        self._fail()
        self.broker.cluster.check_coordinator(self.node, TRANSACTIONS_TOPIC, transactional_id)
        return self.broker.transactions.of(transactional_id)

    def transaction_partitions(self) -> list[TransactionPartition]:
        """All that have transactional ids which this node coordinates.

        Raises `KafkaError` if one is not loaded: COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
        """
        self._fail()
        found = []
        for number, partition in enumerate(self.broker.transactions.partitions):
            if self.broker.cluster.leads(self.node, TRANSACTIONS_TOPIC, number):
                if partition.refusal is not None:
                    raise KafkaError(partition.refusal, f"{TRANSACTIONS_TOPIC}-{number} is not loaded")
                found.append(partition)
        return found

    def _fail(self) -> None:
        if self.session.failure:
            raise KafkaError(self.session.failure, "a test wants it")
