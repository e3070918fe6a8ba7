"""Text: the bytes of one open file at their positions, compressed or not."""

from __future__ import annotations

import errno
import os
import zlib
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from zstandard import ZstdDecompressionObj

__all__ = ["CompressedText", "PlainText", "Text", "length_of_copy", "open_text"]

_BLOCK_BYTES: Final = 64 * 1024
"""Compressed bytes read at once, and text decoded at once."""

_WINDOW_BYTES: Final = 2 << 20
"""So much of what was decoded last is kept, and at most twice that."""

_MEMORY_BYTES: Final = 128 << 20
"""A decoder may need so much memory. xz -9 takes 65 MiB; zstandard has the same limit by itself."""

_MARK_BYTES: Final = 2
"""All members, frames or streams of a file begin with the same bytes: at least so many of them."""

_CUT_OFF: Final = "it is cut off, or not written to its end yet"
_BEHIND: Final = "what follows its end is no compressed data (trailing garbage, as gzip says); all before that is read"


class Text(Protocol):
    """One open file as text, closed at the end of a `with`. For one thread at a time."""

    @property
    def descriptor(self) -> int:
        """The open file."""

    @property
    def size(self) -> int:
        """Bytes of text; of a compressed file, as far as they were decoded. Raises `OSError`."""

    @property
    def complete(self) -> bool:
        """Whether it is compressed and was decoded to its end, as that was then."""

    @property
    def packed(self) -> int:
        """Bytes of the compressed file that were taken in; 0 of another one."""

    def read_into(self, view: memoryview, position: int) -> int:
        """Fill `view` from a position; the number of bytes, fewer only at the end, 0 at or behind it.

        Raises `OSError`: EBADMSG where the rest of a compressed file is damaged, cut off, or not written yet.
        """

    def read(self, position: int, length: int) -> bytes:
        """The bytes from a position, fewer only at the end. Raises `OSError` as `read_into` does."""

    def status(self) -> os.stat_result:
        """What the file is now. Raises `OSError`."""

    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def open_text(file: str | int, codec: str = "") -> Text:
    """The text of a file: of the one at a path, or of an open one, which `Text.close` closes.

    Never blocks on a FIFO. `codec`: one of `rotation.CODECS`. Raises `OSError`; `ValueError` for another codec.
    """
    decoding = _decoding(codec) if codec else None
    if isinstance(file, str):
        file = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    return PlainText(file) if decoding is None else CompressedText(file, *decoding)


class _Open:
    """What is the same for both."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def status(self) -> os.stat_result:
        """What the file is now. Raises `OSError`."""
        return os.fstat(self.descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PlainText(_Open):
    """A file that is not compressed."""

    complete = False
    packed = 0

    @property
    def size(self) -> int:
        """Bytes in the file. Raises `OSError`."""
        return os.fstat(self.descriptor).st_size

    def read_into(self, view: memoryview, position: int) -> int:
        """See `Text.read_into`."""
        return os.preadv(self.descriptor, [view], position)

    def read(self, position: int, length: int) -> bytes:
        """See `Text.read`."""
        return os.pread(self.descriptor, length, position)


class CompressedText(_Open):
    """A compressed file, decoded forward: a position far back means to begin again.

    Invariants
        Memory is bounded, whatever the file holds: no step of a decoder gives more than 128 KiB of text.
        Where the file ends too early, reading goes on once it has grown.
    """

    def __init__(self, descriptor: int, decoder: Callable[[], _Decoder], errors: _Errors) -> None:
        """`decoder` makes one for each member, frame or stream in the file; it fails with `errors`."""
        super().__init__(descriptor)
        self._make = decoder
        self._errors = errors
        self.size = 0
        self.packed = 0
        self.complete = False
        self._rewind()

    def _rewind(self) -> None:
        self._offset = 0  # in the file, behind `_input`
        self._input = b""
        self._decoder = self._make()
        self._window = bytearray()
        self._start = 0  # of the window, in the text
        self._damage: str | None = None
        self._behind = False  # what is next stands behind the end of a member, and does not begin as the file does

    def read(self, position: int, length: int) -> bytes:
        """See `Text.read`."""
        data = bytearray(length)
        return bytes(data[: self.read_into(memoryview(data), position)])

    def read_into(self, view: memoryview, position: int) -> int:
        """See `Text.read_into`."""
        if position < self._start:
            self._rewind()
        filled = 0
        while filled < len(view):
            at = position + filled - self._start
            with memoryview(self._window) as window:
                piece = window[at : at + len(view) - filled]
                view[filled : filled + len(piece)] = piece
                filled += len(piece)
                del piece  # else the window could not grow
            try:
                if filled < len(view) and not self._decode():
                    break
            except OSError:
                if not filled:
                    raise
                break
        return filled

    def _decode(self) -> bool:
        """Append some text to the window; False at the end. Raises `OSError`."""
        text = b""
        while not text:
            if self._damage is not None:
                raise OSError(errno.EBADMSG, self._damage)
            decoder = self._decoder
            if decoder.eof:
                if not self._next():
                    return False
            elif decoder.needs_input and not self._input and not self._load():
                raise OSError(errno.EBADMSG, _BEHIND if self._behind else _CUT_OFF)
            else:
                text = self._step()
        self._window += text
        if len(self._window) > 2 * _WINDOW_BYTES:
            surplus = len(self._window) - _WINDOW_BYTES
            del self._window[:surplus]
            self._start += surplus
        self.size = max(self.size, self._start + len(self._window))
        return True

    def _step(self) -> bytes:
        data, self._input = self._input, b""
        try:
            text = self._decoder.decompress(data, _BLOCK_BYTES)
        except self._errors as error:
            self._damage = _BEHIND if self._behind else f"it is damaged: {error}"
            return b""
        self._behind = self._behind and not text
        return text

    def _load(self) -> bool:
        self._input = os.pread(self.descriptor, _BLOCK_BYTES, self._offset)
        self._offset += len(self._input)
        self.packed = max(self.packed, self._offset)
        return bool(self._input)

    def _next(self) -> bool:
        """Begin with the next member, frame or stream, if there is one; NUL bytes in between are padding."""
        rest = (self._decoder.unused_data or b"").lstrip(b"\0")
        while not rest and self._load():
            rest = self._input.lstrip(b"\0")
        self._input = rest
        self.complete = not rest
        if rest:
            self._decoder = self._make()
            self._behind = not os.pread(self.descriptor, _MARK_BYTES, 0).startswith(rest[:_MARK_BYTES])
        return bool(rest)


class _Decoder(Protocol):
    """One member, frame or stream; as `bz2.BZ2Decompressor`."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


_Errors: TypeAlias = "tuple[type[Exception], ...]"


def _decoding(codec: str) -> tuple[Callable[[], _Decoder], _Errors]:
    """What decodes, and how that fails. Libraries are loaded when they are needed first."""
    match codec:
        case "gz":
            return _Gzip, (zlib.error,)
        case "bz2":
            import bz2  # noqa: PLC0415

            return bz2.BZ2Decompressor, (OSError,)
        case "xz":
            import lzma  # noqa: PLC0415

            return partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _MEMORY_BYTES), (lzma.LZMAError,)
        case "zst":
            import zstandard  # noqa: PLC0415

            return lambda: _Zstandard(zstandard.ZstdDecompressor().decompressobj()), (zstandard.ZstdError,)
        case "lz4":
            import lz4.frame  # noqa: PLC0415

            return cast("Callable[[], _Decoder]", lz4.frame.LZ4FrameDecompressor), (RuntimeError,)
    raise ValueError(f"no way to read {codec!r}: expected gz, bz2, xz, zst or lz4")


class _Gzip:
    """One member of a gzip file (RFC 1952)."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self.eof = False
        self.needs_input = True
        self.unused_data = b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        stream = self._stream
        text = stream.decompress(stream.unconsumed_tail + data, max_length)
        self.eof, self.needs_input, self.unused_data = stream.eof, not stream.unconsumed_tail, stream.unused_data
        return text


class _Zstandard:
    """One frame (RFC 8878). Its blocks are fed one by one, for `zstandard` has no limit to what one call gives."""

    def __init__(self, stream: ZstdDecompressionObj) -> None:
        self._stream = stream
        self._checksum: int | None = None  # bytes of it; None until the frame's header is read
        self._left = 0  # bytes of the header or block that were not fed yet
        self.eof = False
        self.needs_input = True
        self.unused_data = b""

    def decompress(self, data: bytes, _: int) -> bytes:
        data = self.unused_data + data
        self._left = self._left or self._length(data)
        piece = data[: self._left]
        text = self._stream.decompress(piece) if piece else b""
        self._left -= len(piece)
        self.unused_data = data[len(piece) :]
        self.eof = self._stream.eof
        self.needs_input = not piece or not self.unused_data
        return text

    def _length(self, data: bytes) -> int:
        """Bytes of the header or block that these begin with; 0 if they are too few to tell."""
        if self._checksum is None:
            if len(data) < 8:
                return 0
            magic, size, flags = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little"), data[4]
            if magic >> 4 == 0x184D2A5:  # a frame to skip
                return 8 + size
            self._checksum = flags & 4
            single = flags >> 5 & 1  # one segment: its window has no descriptor
            return 5 + 1 - single + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
        if len(data) < 3:
            return 0
        header = int.from_bytes(data[:3], "little")
        last, repeated, size = header & 1, header >> 1 & 3 == 1, header >> 3
        return 3 + (1 if repeated else size) + (self._checksum if last else 0)


def length_of_copy(text: Text, copy: Text) -> int | None:
    """The length of `copy`, if `text` begins with all of it; else None. Raises `OSError`."""
    end = 0
    while data := copy.read(end, _BLOCK_BYTES):
        if text.read(end, len(data)) != data:
            return None
        end += len(data)
    return end
