"""A user's SCRAM credential (RFC 5802): what proves that somebody knows the password, and is not the password."""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

__all__ = ["FEWEST_ITERATIONS", "ITERATIONS", "MOST_ITERATIONS", "Credential", "Mechanism", "credential_of"]

FEWEST_ITERATIONS: Final = 4_096
MOST_ITERATIONS: Final = 16_384
"""The bounds that Kafka has for `iterations`. The broker works as long for each PLAIN authentication."""
ITERATIONS: Final = 8_192
"""Of credentials that are made here."""
_SALT_BYTES: Final = 32


class Mechanism(IntEnum):
    """A SCRAM mechanism, with its number in Kafka's requests."""

    scram_sha_256 = 1
    scram_sha_512 = 2

    @property
    def label(self) -> str:
        """Its name for SASL (`SCRAM-SHA-256`)."""
        return self.name.upper().replace("_", "-")

    @property
    def hash(self) -> str:
        """The name of its hash for `hashlib`."""
        return self.name.removeprefix("scram_").replace("_", "")


@dataclass(frozen=True, slots=True)
class Credential:
    """What is stored of a user for one mechanism. Whoever has it can not log in with it, but can try passwords."""

    mechanism: Mechanism
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of_salted(cls, mechanism: Mechanism, iterations: int, salt: bytes, salted_password: bytes) -> Credential:
        """From what an administrator's client has made of the password."""
        client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash)
        server_key = hmac.digest(salted_password, b"Server Key", mechanism.hash)
        return cls(mechanism, iterations, salt, hashlib.new(mechanism.hash, client_key).digest(), server_key)

    def proven_by(self, password: str) -> bool:
        """Whether this is the password. Takes some 10 ms of CPU, without the interpreter's lock."""
        raw = password.encode(errors="surrogatepass")
        made = _salted(self.mechanism, raw, self.salt, self.iterations)
        tried = Credential.of_salted(self.mechanism, self.iterations, self.salt, made)
        return hmac.compare_digest(tried.stored_key, self.stored_key)

    def signature(self, message: bytes) -> bytes:
        """With which the broker proves that it knows this credential."""
        return hmac.digest(self.server_key, message, self.mechanism.hash)

    def accepts(self, proof: bytes, message: bytes) -> bool:
        """Whether a client's proof for `message` was made with the password."""
        signature = hmac.digest(self.stored_key, message, self.mechanism.hash)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.new(self.mechanism.hash, client_key).digest(), self.stored_key)


def credential_of(mechanism: Mechanism, password: str, iterations: int = ITERATIONS) -> Credential:
    """A credential with a new salt. As in Kafka, nothing of the password is normalized."""
    salt = os.urandom(_SALT_BYTES)
    return Credential.of_salted(mechanism, iterations, salt, _salted(mechanism, password.encode(), salt, iterations))


def _salted(mechanism: Mechanism, password: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(mechanism.hash, password, salt, iterations)
