"""No length in a message can hurt: every message of every API in every version, whole, cut and damaged.

kio's native reader reserves memory for the length that an array announces; `INT32_MAX` there aborts the process.
"""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import _serialize
from kio.static.constants import EntityType
from kio.static.primitive import uvarint

from ingestd.errors import ProtocolError
from ingestd.wire.codec import decode_entity, encode_entity
from ingestd.wire.lengths import readable

write_count = _serialize.write_unsigned_varint
APIS = sorted(api_key_map.values())
VALUES = {
    "bool": lambda source: source.random() < 0.5,
    "error_code": lambda source: source.choice(list(ErrorCode)),
    "float64": lambda source: float(source.randrange(100)),
    "uuid": lambda source: UUID(int=source.randrange(1, 1 << 128)),
    "timedelta_i32": lambda source: dt.timedelta(milliseconds=source.randrange(1 << 20)),
    "timedelta_i64": lambda source: dt.timedelta(milliseconds=source.randrange(1 << 20)),
    "datetime_i64": lambda source: dt.datetime.fromtimestamp(source.randrange(1 << 30), dt.UTC),
    "string": lambda source: "s" * source.choice([0, 1, 5, 126, 127, 128, 300]),
    "bytes": lambda source: bytes(source.choice([0, 1, 126, 127, 300])),
    "records": lambda source: bytes(source.choice([0, 1, 126, 127, 300])),
}


def value(kind: Any, kafka_type: str | None, source: random.Random) -> Any:
    if isinstance(kind, UnionType):
        if source.random() < 0.3:
            return None
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is tuple:
        return tuple(value(get_args(kind)[0], kafka_type, source) for _ in range(source.choice([0, 1, 2, 3])))
    if is_dataclass(kind):
        return made(kind, source)
    assert kafka_type is not None
    if kafka_type in VALUES:
        return VALUES[kafka_type](source)
    return source.randrange(100)


def made(schema: Any, source: random.Random) -> Any:
    return schema(
        **{field.name: value(field.type, field.metadata.get("kafka_type"), source) for field in fields(schema)}
    )


def schemas(api: str) -> list[Any]:
    return [
        load_entity_schema(api, version, kind)
        for version in schema_name_map[api]
        for kind in (EntityType.request, EntityType.response)
    ]


@pytest.mark.parametrize("api", APIS)
def test_every_message_as_kio_writes_it_passes_and_one_cut_short_does_not(api: str) -> None:
    source = random.Random(api)
    for schema in schemas(api):
        entity = made(schema, source)
        body = encode_entity(entity)
        assert readable(schema, body) is body
        assert decode_entity(schema, memoryview(body)) == entity
        for cut in {0, len(body) // 2, len(body) - 1} - {len(body)}:
            if cut >= 0:
                with pytest.raises(ProtocolError):
                    readable(schema, body[:cut])


@pytest.mark.parametrize("api", APIS)
def test_damaged_messages_are_read_or_refused_and_never_abort_the_process(api: str) -> None:
    source = random.Random(api)
    for schema in schemas(api):
        body = encode_entity(made(schema, source))
        for _ in range(40 if body else 0):
            damaged = bytearray(body)
            for _ in range(source.randrange(1, 4)):
                at = source.randrange(len(damaged))
                damaged[at : at + 4] = source.choice(
                    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x07", b"\xff", b"\x00", b"\x80"]
                )
            try:
                decode_entity(schema, memoryview(damaged))
            except ProtocolError:
                continue


def test_an_array_that_announces_more_than_there_is_is_refused() -> None:
    schema = load_entity_schema("api_versions", 0, EntityType.response)
    with pytest.raises(ProtocolError, match="array of 2147483647 elements"):
        decode_entity(schema, b"\0\0\x7f\xff\xff\xff")


@pytest.mark.parametrize("api", APIS)
def test_tagged_fields_that_a_newer_broker_adds_anywhere_are_left_out(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(api)

    def two_more(buffer: Any, count: int) -> None:
        """Kio is about to write the number of an entity's tagged fields: two unknown ones go before them."""
        write_count(buffer, uvarint(count + 2))
        for tag in (b"\x5a", b"\x82\x01"):
            buffer.write(tag + source.choice([b"\0", b"\x03new", b"\x81\x01" + bytes(129)]))

    for schema in schemas(api):
        entity = made(schema, source)
        body = encode_entity(entity)
        with monkeypatch.context() as patch:
            patch.setattr(_serialize, "write_unsigned_varint", two_more)
            extended = encode_entity(entity)
        assert (len(extended) > len(body)) is schema.__flexible__
        assert readable(schema, extended) == body
        assert decode_entity(schema, extended) == entity
