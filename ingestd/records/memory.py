"""Memory for what batches become: each thread's large buffers, used again once nobody looks at them.

Fresh memory costs more than what is done with it: the kernel clears it page by page.
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
    """A view of `size` bytes of undefined content. It may go to another thread; its memory comes back by itself."""
    return _memory.buffers.take(size)
