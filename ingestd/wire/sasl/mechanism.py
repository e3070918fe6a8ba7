"""What a SASL mechanism is: a name, and an exchange of messages with the broker."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, TypeAlias

__all__ = ["Exchange", "SaslMechanism"]

Exchange: TypeAlias = Generator[bytes, bytes, None]
"""One authentication, as a generator: yields the client's messages, gets the broker's answers, returns at the end.

It raises `AuthenticationFailed` if the broker's answer is wrong. The caller adds the broker's name.
"""


class SaslMechanism(Protocol):
    """A mechanism with the account that it proves. One object serves all connections of a client.

    Users may write mechanisms of their own for this protocol.
    """

    @property
    def name(self) -> str:
        """The mechanism's name for brokers (`SCRAM-SHA-512`)."""
        ...

    @property
    def needs_tls(self) -> bool:
        """Whether it sends a secret as it is. Then a connection without TLS is refused."""
        ...

    async def begin(self) -> Exchange:
        """Begin one authentication. What takes long (to get a token) is done before this returns.

        Raises `ConfigurationError` if a secret can not be read, `AuthenticationFailed` if the token endpoint refuses,
        `ConnectionLost` and `DeadlineExceeded` if it can not be reached.
        """
        ...
