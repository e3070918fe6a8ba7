"""Memory for decompressed and decoded batches: each thread's large buffers, used again once no view of them is left.

Fresh memory costs more than the work that is done in it, because the kernel clears it page by page.
"""

from __future__ import annotations

import threading
from typing import Final

from ingestd.wire.buffers import AnswerBuffers

__all__ = ["take"]

_KEPT_BYTES: Final = 32 * 1024 * 1024


class _Memory(threading.local):
    def __init__(self) -> None:
        self.buffers = AnswerBuffers(_KEPT_BYTES)


_memory: Final = _Memory()


def take(size: int) -> memoryview:
    """A view of `size` bytes of undefined content. It may go to another thread. Its memory comes back by itself."""
    return _memory.buffers.take(size)
