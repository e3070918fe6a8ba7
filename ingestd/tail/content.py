"""Content: where the text of a file begins, where its last line does, whether it is text at all, and complete."""

from __future__ import annotations

import os
from typing import Final

from ingestd.tail.rotation import codec_of, plain_of, rotated_from
from ingestd.tail.text import open_text

__all__ = [
    "HEAD_BYTES", "is_compressed", "is_in_the_making", "last_line_start", "not_compressed", "not_text", "text_start",
]  # fmt: skip

HEAD_BYTES: Final = 4096
"""A head is so many bytes from the start of a file, or all of it. A witness covers what of it was read first."""

_COMPRESSED: Final = {
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zst",
    b"\x04\x22\x4d\x18": "lz4",
}
"""What compressed files begin with, and the ending that says so."""

_SKIPPED: Final = b"\x2a\x4d\x18"
"""What zst and lz4 files may begin with instead, behind a byte from 0x50 to 0x5F: a frame that is skipped."""

_ZIP: Final = b"PK\x03\x04"
_LINE_SEARCH_BYTES: Final = 1 << 20
_FIRST_WINDOW_BYTES: Final = 4096
_BLOCK_BYTES: Final = 64 * 1024


def is_compressed(head: bytes) -> bool:
    """Whether a file with this head is compressed, whatever it is called."""
    return head.startswith(tuple(_COMPRESSED))


def not_text(head: bytes) -> str | None:
    """Why a file with this head is not text, and the remedy; or None. NUL bytes at its beginning are no reason."""
    ending = next((ending for begin, ending in _COMPRESSED.items() if head.startswith(begin)), None)
    if ending is not None:
        remedy = f'give its name the ending .{ending} and set compressed = "read", or exclude it'
        return f"compressed, but not called so: {remedy}"
    if head.startswith(_ZIP):
        return "an archive of zip; exclude it"
    if b"\0" in head.lstrip(b"\0"):
        return 'holds NUL bytes, so it is not text; exclude it, or set binary = "accept"'
    return None


def not_compressed(descriptor: int, codec: str) -> str | None:
    """Why a file can not be read as a compressed one; or None. NUL bytes at its beginning may be written over later.

    Raises `OSError`.
    """
    head = os.pread(descriptor, 8, 0)
    begin = next(begin for begin, of in _COMPRESSED.items() if of == codec)
    skipped = codec in {"zst", "lz4"} and head[1:4] == _SKIPPED and head[0] >> 4 == 5
    if skipped or head.startswith((begin, b"\0")) or begin.startswith(head):
        return None
    if is_compressed(head):
        return not_text(head)
    return f"not compressed, though its name ends in .{codec}: give it another name, or exclude it"


def is_in_the_making(path: str) -> bool:
    """Whether a compressed file seems to be made now: what it is made of is beside it, and goes when it is done.

    So does one of no bytes, beside whatever it is: nothing was written to it yet, and nothing of it can be lost.

    Where rotated files were not compressed before, an old one may be beside another generation, compressed: if it has
    the name of a rotated file, and begins otherwise, that one is complete. What can not be decoded yet is not.
    """
    plain = plain_of(path)
    if not os.path.lexists(plain):
        return _is_empty(path)
    if not any(rotated_from(plain)):
        return True
    try:
        with open_text(path, codec_of(path)) as text, open_text(plain) as original:
            head = text.read(0, HEAD_BYTES)
            return original.read(0, len(head)) == head
    except OSError:
        return True


def _is_empty(path: str) -> bool:
    try:
        return not os.stat(path).st_size
    except OSError:
        return False


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
