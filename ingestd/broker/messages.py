"""kio's messages of one API in one version: reads requests, and makes responses independent of the version."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from functools import lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from ingestd.errors import ProtocolError
from ingestd.wire.codec import decode_entity, encode_entity, request_module, response_module

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from ingestd.wire.apis import Api

__all__ = ["NO_THROTTLE", "Messages", "by_topic_id", "messages", "named_as", "seconds"]

NO_THROTTLE: Final = timedelta(0)
_ABSENT: Final = timedelta(milliseconds=-1)


class Messages:
    """The request and response schemas of one API version.

    Version differences are handled here: `make` and `encode` leave out fields that the version does not have.
    """

    __slots__ = ("_fields", "_request", "_response_module", "_response_name")

    def __init__(self, api: Api, version: int) -> None:
        stem = "".join(word.capitalize() for word in api.name.split("_"))
        self._request: type[Any] = getattr(request_module(api.name, version), f"{stem}Request")
        self._response_module = response_module(api.name, version)
        self._response_name = f"{stem}Response"
        self._fields: dict[str, frozenset[str]] = {}

    def decode(self, body: memoryview) -> Any:
        """The request in `body`. Raises `ProtocolError`."""
        # kio reads only read-only memory.
        request = decode_entity(self._request, bytes(body))
        _check_arrays(request)
        return request

    def has(self, entity: str) -> bool:
        """Whether this version's response has this entity."""
        return hasattr(self._response_module, entity)

    def make(self, entity: str, /, **fields: Any) -> Any:
        """An entity of the response, with those of `fields` that this version has."""
        entity_type: type[Any] = getattr(self._response_module, entity)
        known = self._fields.get(entity)
        if known is None:
            known = self._fields[entity] = frozenset(field.name for field in dataclasses.fields(entity_type))
        return entity_type(**{name: value for name, value in fields.items() if name in known})

    def encode(self, **fields: Any) -> bytes:
        """The response's bytes, without a header."""
        return encode_entity(self.make(self._response_name, **fields))


class _Field(NamedTuple):
    """A field that has an array, or entities."""

    name: str
    array: bool
    nullable: bool
    entities: bool


_to_check: Final[dict[type, tuple[_Field, ...]]] = {}
"""Of each entity that was met, the fields that may have null in place of an array. There are a few hundred at most."""


def _fields_to_check(entity: type) -> tuple[_Field, ...]:
    known = _to_check.get(entity)
    if known is not None:
        return known
    found = []
    for name, hint in get_type_hints(entity).items():
        options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        (option,) = [each for each in options if each is not NoneType]
        array = get_origin(option) is tuple
        item = get_args(option)[0] if array else option
        entities = dataclasses.is_dataclass(item)
        if array or entities:
            found.append(_Field(name, array, NoneType in options, entities))
    return _to_check.setdefault(entity, tuple(found))


def _check_arrays(entity: object) -> None:
    """Raise `ProtocolError` for null where the protocol has an array. kio takes it for any."""
    for field in _fields_to_check(type(entity)):
        value = getattr(entity, field.name)
        if value is None:
            if not field.nullable:
                raise ProtocolError(f"{type(entity).__name__}: {field.name} is null; expected an array")
        elif field.entities:
            for each in value if field.array else (value,):
                _check_arrays(each)


@lru_cache(maxsize=512)
def messages(api: Api, version: int) -> Messages:
    """The schemas of one API version. They are imported when first needed, because there are hundreds."""
    return Messages(api, version)


def named_as(topic: Any) -> Any:
    """A topic's id or name, as the request has it: a version has one of both."""
    return getattr(topic, "topic_id", None) or getattr(topic, "name", None)


def seconds(duration: timedelta) -> float | None:
    """A duration that -1 ms stands for the absence of."""
    return None if duration == _ABSENT else duration.total_seconds()


def by_topic_id(partitions: Iterable[tuple[UUID, int]]) -> list[tuple[UUID, tuple[int, ...]]]:
    """Partitions as messages have them: the numbers of each topic, in order."""
    grouped: dict[UUID, list[int]] = {}
    for topic, number in sorted(partitions):
        grouped.setdefault(topic, []).append(number)
    return [(topic, tuple(numbers)) for topic, numbers in grouped.items()]
