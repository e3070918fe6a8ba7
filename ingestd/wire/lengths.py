"""Makes a message readable for kio: checks every length, and removes tagged fields that kio does not know.

kio reserves memory for as many elements as an array announces. A wrong length makes its native code abort the process.
kio also refuses unknown tagged fields, which newer brokers may add to a version that both sides speak (KIP-482). Both
were seen with kio 0.6.5.

For each kio entity a function is made once. It passes over the entity's bytes as fast as Python can.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args, get_origin

from ingestd.errors import ProtocolError

if TYPE_CHECKING:
    from dataclasses import Field

    from ingestd.wire.codec import Buffer

__all__ = ["readable"]

Skip: TypeAlias = Callable[["Buffer", int], int]
"""Given the buffer and where a value begins, gives the position after it. That may be beyond the end: `readable` and
the next array check it."""

Edit: TypeAlias = tuple[int, int, bytes]
"""The bytes between two positions are replaced by these bytes."""


class _Edits(threading.local):
    """The changes to the message that this thread is passing over, in order of position."""

    def __init__(self) -> None:
        self.all: list[Edit] = []


_edits: Final = _Edits()

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_FIXED: Final = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


def readable(entity_type: Any, body: Buffer) -> Buffer:
    """`body` without the tagged fields that kio does not know; `body` itself if there are none.

    Raises `ProtocolError` unless every array and string of the entity lies within it.
    """
    edits = _edits.all = []
    try:
        end = _entity(entity_type)[0](body, 0)
    except (IndexError, struct.error) as error:
        raise ProtocolError(f"{entity_type.__name__} version {entity_type.__version__}: ends too early") from error
    if end > len(body):
        raise ProtocolError(f"{entity_type.__name__} version {entity_type.__version__}: {end - len(body)} bytes short")
    return _edited(body, edits) if edits else body


def _edited(body: Buffer, edits: list[Edit]) -> bytes:
    parts: list[Buffer] = []
    position = 0
    view = memoryview(body)
    for start, end, replacement in edits:
        parts += (view[position:start], replacement)
        position = end
    return b"".join((*parts, view[position:]))


@lru_cache(maxsize=1024)
def _entity(entity_type: Any) -> tuple[Skip, int]:
    """A function that passes over an entity, and the fewest bytes that the entity can have."""
    flexible: bool = entity_type.__flexible__
    steps: list[Skip | int] = []
    smallest = 0
    tagged: dict[int, Skip] = {}
    for field in fields(entity_type):
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = _as_skip(_field(field, flexible=flexible)[0])
            continue
        step, least = _field(field, flexible=flexible)
        smallest += least
        if isinstance(step, int) and steps and isinstance(steps[-1], int):
            steps[-1] += step  # neighbours of fixed size are passed over at once
        else:
            steps.append(step)
    if flexible:
        steps.append(_tagged_fields(tagged))
        smallest += 1
    return _sequence(steps), smallest


def _sequence(steps: list[Skip | int]) -> Skip:
    def skip(buffer: Buffer, position: int) -> int:
        for step in steps:
            position = position + step if step.__class__ is int else step(buffer, position)  # type: ignore[operator]
        return position

    return skip


def _as_skip(step: Skip | int) -> Skip:
    return _sequence([step]) if isinstance(step, int) else step


def _field(field: Field[Any], *, flexible: bool) -> tuple[Skip | int, int]:
    """A function that passes over one field, or its number of bytes; and the fewest bytes that it can have."""
    nullable = isinstance(field.type, UnionType)
    kind: Any = field.type
    if isinstance(field.type, UnionType):
        (kind,) = (part for part in get_args(field.type) if part is not NoneType)
    if get_origin(kind) is tuple:
        element: Any = get_args(kind)[0]
        if _is_entity(element):
            skip, smallest = _entity(element)
            return _array(skip, max(1, smallest), flexible=flexible), 1 if flexible else 4
        step, smallest = _primitive(field.metadata["kafka_type"], flexible=flexible)
        return _array(step, smallest, flexible=flexible), 1 if flexible else 4
    if _is_entity(kind):
        skip, smallest = _entity(kind)
        return (_nullable_entity(skip), 1) if nullable else (skip, smallest)
    return _primitive(field.metadata["kafka_type"], flexible=flexible)


def _is_entity(kind: Any) -> bool:
    return is_dataclass(kind)


def _primitive(kafka_type: str, *, flexible: bool) -> tuple[Skip | int, int]:
    size = _FIXED.get(kafka_type)
    if size is not None:
        return size, size
    if flexible:
        return _compact_bytes, 1
    return (_short_bytes, 2) if kafka_type == "string" else (_long_bytes, 4)


def _uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    value = buffer[position]
    if value < 0x80:
        return value, position + 1
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise ProtocolError(f"variable-length integer longer than 5 bytes at byte {position}")


def _compact_bytes(buffer: Buffer, position: int) -> int:
    length = buffer[position]
    if length < 0x80:
        return position + length if length else position + 1
    length, position = _uvarint(buffer, position)
    return position + length - 1


def _short_bytes(buffer: Buffer, position: int) -> int:
    length: int = _INT16.unpack_from(buffer, position)[0]
    return position + 2 + max(0, length)


def _long_bytes(buffer: Buffer, position: int) -> int:
    length: int = _INT32.unpack_from(buffer, position)[0]
    return position + 4 + max(0, length)


def _array(element: Skip | int, smallest: int, *, flexible: bool) -> Skip:
    def skip(buffer: Buffer, position: int) -> int:
        if flexible:
            length, position = _uvarint(buffer, position)
            length -= 1
        else:
            length = _INT32.unpack_from(buffer, position)[0]
            position += 4
        if length <= 0:
            return position
        if length * smallest > len(buffer) - position:
            raise ProtocolError(f"array of {length} elements announced, {len(buffer) - position} bytes are left")
        if isinstance(element, int):
            return position + length * element
        for _ in range(length):
            position = element(buffer, position)
        return position

    return skip


def _nullable_entity(entity: Skip) -> Skip:
    def skip(buffer: Buffer, position: int) -> int:
        # A signed byte: negative for null, else 1.
        return position + 1 if buffer[position] >= 0x80 else entity(buffer, position + 1)

    return skip


def _tagged_fields(known: dict[int, Skip]) -> Skip:
    def skip(buffer: Buffer, position: int) -> int:
        if buffer[position] == 0:
            return position + 1
        edits = _edits.all
        start, before = position, len(edits)
        count, position = _uvarint(buffer, position)
        behind_count, unknown = position, 0
        for _ in range(count):
            field, before_field = position, len(edits)
            tag, size_at = _uvarint(buffer, position)
            size, position = _uvarint(buffer, size_at)
            if tag not in known:
                unknown += 1
                edits.append((field, position + size, b""))
            elif known[tag](buffer, position) != position + size:
                raise ProtocolError(f"tagged field {tag} has another length than announced")
            elif len(edits) > before_field:
                grown = sum(len(replacement) - (end - begin) for begin, end, replacement in edits[before_field:])
                edits.insert(before_field, (size_at, position, _as_uvarint(size + grown)))
            position += size
        if unknown:
            edits.insert(before, (start, behind_count, _as_uvarint(count - unknown)))
        return position

    return skip


def _as_uvarint(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
