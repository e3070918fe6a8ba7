"""Frames: cuts what a socket receives into answers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ingestd.wire.buffers import AnswerBuffers

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AnswerFrames"]

_INBOX_BYTES: Final = 16 * 1024
_INT32: Final = struct.Struct(">i")


class AnswerFrames:
    """The answers that one connection receives. Each follows its size, and may arrive in any pieces.

    Invariants
        An answer up to 16 KiB is received into a shared buffer and copied out, because that is cheaper than a second
        receive call. A larger one gets its own memory: its first bytes are copied there, and the rest is received
        straight into it.
        No memory is taken for an answer larger than `limit`. `wrong_size` is set then, and nothing more is read.
    """

    __slots__ = ("_buffers", "_filled", "_inbox", "_large", "_large_filled", "_limit", "wrong_size")

    def __init__(self, limit: int, memory: int) -> None:
        self.wrong_size: int | None = None
        self._limit = limit
        self._buffers = AnswerBuffers(memory)
        self._inbox = memoryview(bytearray(_INBOX_BYTES))
        self._filled = 0
        self._large: memoryview | None = None
        self._large_filled = 0

    def get_buffer(self) -> memoryview:
        """The memory for the next bytes; never empty."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._inbox[self._filled :]

    def received(self, nbytes: int) -> Iterator[memoryview]:
        """The answers that are whole after `nbytes` more. Iterate it to its end."""
        if self._large is None:
            self._filled += nbytes
            return self._cut()
        self._large_filled += nbytes
        if self._large_filled < len(self._large):
            return iter(())
        answer, self._large = self._large, None
        return iter((answer,))

    def _cut(self) -> Iterator[memoryview]:
        inbox, filled = self._inbox, self._filled
        position = 0
        while filled - position >= 4:
            size: int = _INT32.unpack_from(inbox, position)[0]
            if not 4 <= size <= self._limit:
                self.wrong_size = size
                return
            start, end = position + 4, position + 4 + size
            if end <= filled:
                position = end
                yield memoryview(bytes(inbox[start:end]))
                continue
            if 4 + size > _INBOX_BYTES:
                self._large = self._buffers.take(size)
                self._large_filled = filled - start
                self._large[: self._large_filled] = inbox[start:filled]
                position = filled
            break
        rest = filled - position
        if position and rest:
            inbox[:rest] = bytes(inbox[position:filled])
        self._filled = rest
