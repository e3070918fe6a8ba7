"""Content: where the text of a file begins, where its last line does, and whether it is text at all."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["HEAD_BYTES", "last_line_start", "not_text", "text_start"]

HEAD_BYTES: Final = 1024
"""A head is so many bytes from the start of a file, or all of it."""

_COMPRESSED: Final = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"PK\x03\x04")
_LINE_SEARCH_BYTES: Final = 1 << 20
_FIRST_WINDOW_BYTES: Final = 4096
_BLOCK_BYTES: Final = 64 * 1024


def not_text(head: bytes) -> str | None:
    """Why a file with this head is not text, or None. NUL bytes at its very beginning are no reason (`text_start`)."""
    if head.startswith(_COMPRESSED):
        return "a compressed file"
    return "holds NUL bytes, so it is not text" if b"\0" in head.lstrip(b"\0") else None


def text_start(descriptor: int, head: bytes) -> int:
    """The first position that is not NUL.

    A writer that does not append goes on at its old place after its file was truncated: what is before, nobody wrote.
    Raises `OSError`.
    """
    at = 0
    if not head.startswith(b"\0"):
        return at
    if len(head) == HEAD_BYTES and not head.strip(b"\0"):
        try:
            at = os.lseek(descriptor, 0, os.SEEK_DATA)
        except OSError:
            return 0  # all of it is a hole, or the file system does not say
    while block := os.pread(descriptor, _BLOCK_BYTES, at):
        text = block.lstrip(b"\0")
        if text:
            return at + len(block) - len(text)
        at += len(block)
    return at


def last_line_start(descriptor: int, size: int) -> int:
    """The end of the last whole line in the first `size` bytes, or `size` if none is near. Raises `OSError`.

    Reads little where lines are short: a tail that begins at the ends of many files asks for each.
    """
    limit = max(0, size - _LINE_SEARCH_BYTES)
    stop, window = size, _FIRST_WINDOW_BYTES
    while stop > limit:
        begin = max(limit, stop - window)
        found = os.pread(descriptor, stop - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        stop, window = begin, window * 8
    return size if limit else 0
