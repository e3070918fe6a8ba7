"""What a SASL mechanism is: a name, and an exchange of messages with the broker."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, TypeAlias

__all__ = ["Exchange", "SaslMechanism"]

Exchange: TypeAlias = Generator[bytes, bytes, None]
"""One authentication: yields what the client says, is sent what the broker answers, and returns when it is content.

It raises `AuthenticationFailed` when the broker's answer is not right; without the broker's name, which is added.
"""


class SaslMechanism(Protocol):
    """A mechanism with the identity that it proves. One object serves every connection of a client.

    Others than those of this package can be written against this protocol.
    """

    @property
    def name(self) -> str:
        """The name that brokers know it by (`SCRAM-SHA-512`)."""
        ...

    @property
    def needs_tls(self) -> bool:
        """Whether it sends a secret as it is, so that a connection without TLS is refused."""
        ...

    async def begin(self) -> Exchange:
        """Begin one authentication, with everything at hand that takes time (a token).

        Raises `ConfigurationError` where a secret can not be read, `AuthenticationFailed` where whoever gives out
        tokens refuses, `ConnectionLost` and `DeadlineExceeded` where it can not be reached.
        """
        ...
