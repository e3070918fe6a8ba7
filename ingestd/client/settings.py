"""Client settings: one frozen value, with units and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ingestd.checks import check_kinds, require_at_least, require_positive_seconds
from ingestd.retry import Backoff
from ingestd.wire.connection import ConnectionSettings

__all__ = ["ClientSettings"]

_TIMEOUTS: Final = (
    "connect_timeout",
    "request_timeout",
    "metadata_request_timeout",
    "metadata_hedge",
    "metadata_timeout",
    "retry_initial",
    "retry_maximum",
    "reconnect_initial",
    "reconnect_maximum",
)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a `Client`. Times are in seconds. Raises `ConfigurationError` naming the setting.

    connection: client id, limits and security of every connection.
    connect_timeout: for one attempt to connect to one address and negotiate versions.
    request_timeout: for one request of the client's own (coordinators, administration) to be answered.
    metadata_request_timeout: for one broker to answer a metadata request; then the next one is asked.
    metadata_hedge: if a broker has not answered for so long, the next one is asked as well; if neither answers, a
        third one after twice as long, and so on.
    metadata_timeout: for finding a leader, coordinator or controller, retries included, if the caller gives no timeout.
    metadata_max_age: known metadata is refreshed after this long without another reason; 0: never.
    metadata_idle: a topic that nobody asked for in this time, and that nobody uses, is not refreshed any more.
    metadata_minimum_interval: the least time between two metadata requests that nobody waits for.
    metadata_attempts: how often one refresh asks if answers have partial errors (no leader yet, unknown topic).
    retry_initial, retry_maximum: backoff between attempts to get metadata, or to find a coordinator or controller.
    reconnect_initial, reconnect_maximum: backoff between attempts to connect to one broker.
    retry_authentication: whether to try again after brokers refused this client, or a secret could not be read. For
        programs that run while an operator repairs accounts and certificates. Otherwise calls raise
        `AuthenticationFailed` or `ConfigurationError` at once.
    """

    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    connect_timeout: float = 10.0
    request_timeout: float = 30.0
    metadata_request_timeout: float = 5.0
    metadata_hedge: float = 0.5
    metadata_timeout: float = 60.0
    metadata_max_age: float = 300.0
    metadata_idle: float = 300.0
    metadata_minimum_interval: float = 0.1
    metadata_attempts: int = 5
    retry_initial: float = 0.05
    retry_maximum: float = 1.0
    reconnect_initial: float = 0.05
    reconnect_maximum: float = 1.0
    retry_authentication: bool = False

    def __post_init__(self) -> None:
        check_kinds(self, {"connection": ConnectionSettings})
        require_positive_seconds(self, _TIMEOUTS)
        require_at_least(self, 0, "seconds", ("metadata_max_age", "metadata_idle", "metadata_minimum_interval"))
        require_at_least(self, 1, "a number", ("metadata_attempts",))

    def retry_backoff(self) -> Backoff:
        """A new backoff for metadata, and for finding coordinators and controllers."""
        return Backoff(self.retry_initial, self.retry_maximum)

    def reconnect_backoff(self) -> Backoff:
        """A new backoff for one broker's connection."""
        return Backoff(self.reconnect_initial, self.reconnect_maximum)
