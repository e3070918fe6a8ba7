"""Kafka's primitive types for messages that are framed by hand. Reading checks every length."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ingestd.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NO_UUID", "BodyReader", "array_length", "error_code", "nullable_string", "string", "uuid_bytes", "uvarint"]

NO_UUID: Final = UUID(int=0)
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


def uvarint(value: int) -> bytes:
    """An unsigned variable-length integer."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def array_length(length: int, *, flexible: bool) -> bytes:
    """The length before an array, bytes or records. In flexible versions it is a uvarint, and one larger."""
    return uvarint(length + 1) if flexible else _INT32.pack(length)


def string(value: str, *, flexible: bool) -> bytes:
    """A string with its length."""
    encoded = value.encode()
    return (uvarint(len(encoded) + 1) if flexible else _INT16.pack(len(encoded))) + encoded


def nullable_string(value: str | None, *, flexible: bool) -> bytes:
    """A string that may be null."""
    if value is not None:
        return string(value, flexible=flexible)
    return b"\x00" if flexible else b"\xff\xff"


def uuid_bytes(value: UUID | None) -> bytes:
    """A UUID; all zeros for None."""
    return (value or NO_UUID).bytes


def error_code(code: int) -> ErrorCode:
    """The error code; UNKNOWN_SERVER_ERROR for a code that this package does not know."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error


class BodyReader:
    """Reads one message body from front to back, without copying.

    Everything here raises `ProtocolError` for bytes that do not follow the protocol. A length beyond the end is found
    before memory is taken for it.
    """

    __slots__ = ("_end", "_position", "_view", "flexible")

    def __init__(self, body: memoryview, *, flexible: bool) -> None:
        self._view = body
        self._position = 0
        self._end = len(body)
        self.flexible = flexible

    def _advance(self, size: int) -> int:
        start = self._position
        if size < 0 or size > self._end - start:
            raise ProtocolError(f"{size} bytes announced at byte {start}, {self._end - start} are left")
        self._position = start + size
        return start

    def rest(self) -> memoryview:
        """What has not been read yet."""
        return self._view[self._position :]

    def int8(self) -> int:
        """A signed byte."""
        value = self._view[self._advance(1)]
        return value - 256 if value > 127 else value

    def int16(self) -> int:
        """A signed 16-bit integer."""
        return int(_INT16.unpack_from(self._view, self._advance(2))[0])

    def int32(self) -> int:
        """A signed 32-bit integer."""
        return int(_INT32.unpack_from(self._view, self._advance(4))[0])

    def int64(self) -> int:
        """A signed 64-bit integer."""
        return int(_INT64.unpack_from(self._view, self._advance(8))[0])

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """Several fixed-size fields at once."""
        return layout.unpack_from(self._view, self._advance(layout.size))

    def uvarint(self) -> int:
        """An unsigned variable-length integer of at most 32 bits."""
        value = shift = 0
        while True:
            byte = self._view[self._advance(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise ProtocolError(f"variable-length integer longer than 5 bytes at byte {self._position}")
        if value >= 1 << 32:
            raise ProtocolError(f"variable-length integer beyond 32 bits at byte {self._position}")
        return value

    def array_length(self, smallest: int) -> int:
        """How many elements follow, each of at least `smallest` bytes; 0 for a null array."""
        length = self.uvarint() - 1 if self.flexible else self.int32()
        if length <= 0:
            if length < -1:
                raise ProtocolError(f"array of {length} elements at byte {self._position}")
            return 0
        if length * smallest > self._end - self._position:
            raise ProtocolError(f"array of {length} elements announced, {self._end - self._position} bytes are left")
        return length

    def nullable_string(self) -> str | None:
        """A string, or None."""
        length = self.uvarint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        start = self._advance(length)
        try:
            return str(self._view[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"string at byte {start} is not UTF-8") from error

    def string(self) -> str:
        """A string that must not be null."""
        value = self.nullable_string()
        if value is None:
            raise ProtocolError(f"null where a string must be, before byte {self._position}")
        return value

    def nullable_bytes(self) -> memoryview | None:
        """A view of bytes or records, or None."""
        length = self.uvarint() - 1 if self.flexible else self.int32()
        if length == -1:
            return None
        start = self._advance(length)
        return self._view[start : start + length]

    def uuid(self) -> UUID | None:
        """A UUID; None for all zeros."""
        start = self._advance(16)
        value = UUID(bytes=bytes(self._view[start : start + 16]))
        return None if value == NO_UUID else value

    def tagged_fields(self) -> Iterator[tuple[int, BodyReader]]:
        """Each tagged field's number, with a reader of its content only. None come if the version has none."""
        if not self.flexible:
            return
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            start = self._advance(self.uvarint())
            yield tag, BodyReader(self._view[start : self._position], flexible=True)

    def skip_tagged_fields(self) -> None:
        """Skip all tagged fields."""
        if not self.flexible:
            return
        for _ in range(self.uvarint()):
            self.uvarint()
            self._advance(self.uvarint())
