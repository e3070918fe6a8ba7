"""Channel: the messages between the supervisor and a worker on another host, each with a proof of who wrote it.

The key comes to the worker with its task, by Spark's own way. It is for one connection. Messages are not encrypted.
They are about partitions and files, positions and metadata. Record bytes and secrets never go here.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ingestd.daemon.control import ControlChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.daemon.control import Configure

__all__ = ["ID_BYTES", "LIFE", "Beat", "Hello", "KeyedChannel", "Offer", "Sign"]

ID_BYTES: Final = 16
LIFE: Final = 20.0
"""Seconds that a worker goes on after it sent a `Sign` that was answered. Less than the supervisor's `SILENCE`: who is
called dead is."""

_NUMBER: Final = struct.Struct("=cQ")
_LARGEST: Final = 1 << 30
_LARGEST_FIRST: Final = 64 << 10
"""Bytes of the first message that the supervisor takes: until its proof fits, anybody may have sent it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a task gets: where the supervisor is, and what the worker is to be. Pickles. Its repr shows no secret."""

    host: str
    port: int
    connection: bytes
    """Names the connection, in clear."""
    key: bytes = field(repr=False)
    arena_bytes: int
    configure: Configure = field(repr=False)


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a worker: its process, the host's name and boot, and the time on its monotonic clock.

    `slow`: see `slow_interpreter`.
    """

    pid: int
    host: str
    boot: str
    now: float
    slow: str = ""


@dataclass(frozen=True, slots=True)
class Sign:
    """The worker's main loop runs. `now` is of its monotonic clock."""

    now: float


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a `Sign`, with the time that was in it."""

    now: float


class KeyedChannel(ControlChannel):
    """One end of a connection. A message that the other end did not write, in this order, ends it.

    Invariant: nothing is unpickled before its proof was checked.
    """

    _header: ClassVar[struct.Struct] = struct.Struct("=I32s")

    def __init__(
        self, key: bytes, *, supervisor: bool, received: Callable[[Any], None], lost: Callable[[], None]
    ) -> None:
        super().__init__(received, lost)
        self._key = key
        self._ours, self._theirs = (b"s", b"w") if supervisor else (b"w", b"s")
        self._sent = self._taken = 0
        self._largest = _LARGEST_FIRST if supervisor else _LARGEST

    def _header_of(self, body: bytes) -> bytes:
        proof = self._proof(self._ours, self._sent, body)
        self._sent += 1
        return self._header.pack(len(body), proof)

    def _is_theirs(self, body: bytes, proof: bytes = b"") -> bool:
        if not hmac.compare_digest(proof, self._proof(self._theirs, self._taken, body)):
            return False
        self._taken += 1
        self._largest = _LARGEST
        return True

    def _proof(self, direction: bytes, number: int, body: bytes) -> bytes:
        return hmac.digest(self._key, _NUMBER.pack(direction, number) + body, "sha256")
