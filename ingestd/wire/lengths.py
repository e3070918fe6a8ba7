"""Checks every length in a message before kio reads it.

kio reserves memory for as many elements as an array announces, and a length that lies makes its native code abort the
process (seen with kio 0.6.5).

For each kio entity a function is made, once, that passes over the entity's bytes as fast as Python can.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args, get_origin

from ingestd.errors import ProtocolError

if TYPE_CHECKING:
    from dataclasses import Field

    from ingestd.wire.codec import Buffer

__all__ = ["check_lengths"]

Skip: TypeAlias = Callable[["Buffer", int], int]
"""Given the buffer and where a value begins, the position behind it; that may lie behind the end, which `check_lengths`
and the next array find out."""

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


def check_lengths(entity_type: Any, body: Buffer) -> None:
    """Raise `ProtocolError` unless every array and string of the entity in `body` lies within it."""
    try:
        end = _entity(entity_type)[0](body, 0)
    except (IndexError, struct.error) as error:
        raise ProtocolError(f"{entity_type.__name__} version {entity_type.__version__}: ends too early") from error
    if end > len(body):
        raise ProtocolError(f"{entity_type.__name__} version {entity_type.__version__}: {end - len(body)} bytes short")


@lru_cache(maxsize=1024)
def _entity(entity_type: Any) -> tuple[Skip, int]:
    """How to pass over an entity, and the fewest bytes it can have."""
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
    """How to pass over one field (a number: so many bytes), and the fewest bytes it can have."""
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
        count = buffer[position]
        if count == 0:
            return position + 1
        count, position = _uvarint(buffer, position)
        for _ in range(count):
            tag, position = _uvarint(buffer, position)
            size, position = _uvarint(buffer, position)
            if tag in known and known[tag](buffer, position) != position + size:
                raise ProtocolError(f"tagged field {tag} has another length than announced")
            position += size
        return position

    return skip
