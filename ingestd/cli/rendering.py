"""Records as bytes for a terminal, a file or another program: raw values, JSON lines, or a format of one's own."""

from __future__ import annotations

import base64
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingestd.records.columns import BinaryColumn, Columns

__all__ = ["FormattedRecords", "JsonRecords", "RawValues", "Rendering", "unescape", "values_of"]


class Rendering(Protocol):
    """How records are shown."""

    def render(self, topic: str, partition: int, columns: Columns, count: int) -> bytes:
        """The first `count` records of `columns`."""
        ...


def values_of(column: BinaryColumn, count: int) -> list[bytes | None]:
    """The first `count` values of a column; None where a value is null."""
    ends = memoryview(column.offsets).cast("B").cast("i")[: count + 1].tolist()
    if not count:
        return []
    first = ends[0]
    data = memoryview(column.data)[first : ends[-1]].tobytes()
    values: list[bytes | None]
    values = [data[start - first : end - first] for start, end in pairwise(ends)]
    if column.validity is not None:
        validity = memoryview(column.validity).cast("B")
        for index in range(count):
            if not validity[index >> 3] >> (index & 7) & 1:
                values[index] = None
    return values


def _numbers(buffer: Any, count: int) -> list[int]:
    return memoryview(buffer).cast("B").cast("q")[:count].tolist()


class RawValues:
    """Values only, each followed by a delimiter; null is empty. The whole batch becomes one block of bytes."""

    def __init__(self, delimiter: bytes = b"\n") -> None:
        self._delimiter = delimiter

    def render(self, topic: str, partition: int, columns: Columns, count: int) -> bytes:
        """See `Rendering`."""
        del topic, partition
        values = [value or b"" for value in values_of(columns.values, count)]
        values.append(b"")
        return self._delimiter.join(values)


class JsonRecords:
    """One JSON object a line. Bytes that are no UTF-8 stand in base64 under `key_base64`, `value_base64`."""

    def render(self, topic: str, partition: int, columns: Columns, count: int) -> bytes:
        """See `Rendering`."""
        lines = []
        for offset, timestamp, key, value, headers in _records(columns, count):
            record: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset, "timestamp": timestamp}
            record |= _text("key", key) | _text("value", value)
            if headers:
                record["headers"] = [
                    {"key": name.decode(errors="replace")} | _text("value", held) for name, held in headers
                ]
            lines.append(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        return b"".join(lines)


class FormattedRecords:
    r"""Records by a format with kcat's tokens.

    %t topic, %p partition, %o offset, %T timestamp (ms), %k key, %s value, %K and %S their lengths (-1: null),
    %h headers (a=b,c=d), %% a per cent sign; \n, \r, \t, \0, \\ and \xHH as in C. Raises `ConfigurationError`.
    """

    def __init__(self, text: str) -> None:
        self._pieces = list(_pieces(text))

    def render(self, topic: str, partition: int, columns: Columns, count: int) -> bytes:
        """See `Rendering`."""
        name, number = topic.encode(), b"%d" % partition
        out: list[bytes] = []
        for record in _records(columns, count):
            out += [piece if isinstance(piece, bytes) else piece(name, number, record) for piece in self._pieces]
        return b"".join(out)


def _records(columns: Columns, count: int) -> Iterator[tuple[int, int, bytes | None, bytes | None, list[Any]]]:
    headers = columns.headers
    ends = memoryview(headers.offsets).cast("B").cast("i")[: count + 1].tolist()
    names = values_of(headers.keys, headers.count)
    held = values_of(headers.values, headers.count)
    for index, (offset, timestamp, key, value) in enumerate(
        zip(
            _numbers(columns.offsets, count),
            _numbers(columns.timestamps, count),
            values_of(columns.keys, count),
            values_of(columns.values, count),
            strict=True,
        )
    ):
        entries = list(zip(names[ends[index] : ends[index + 1]], held[ends[index] : ends[index + 1]], strict=True))
        yield offset, timestamp, key, value, entries


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


_TOKEN: Final = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_FIELDS: Final[dict[str, Callable[[bytes, bytes, Any], bytes]]] = {
    "t": lambda topic, _partition, _record: topic,
    "p": lambda _topic, partition, _record: partition,
    "o": lambda _topic, _partition, record: b"%d" % record[0],
    "T": lambda _topic, _partition, record: b"%d" % record[1],
    "k": lambda _topic, _partition, record: record[2] or b"",
    "s": lambda _topic, _partition, record: record[3] or b"",
    "K": lambda _topic, _partition, record: b"%d" % (-1 if record[2] is None else len(record[2])),
    "S": lambda _topic, _partition, record: b"%d" % (-1 if record[3] is None else len(record[3])),
    "h": lambda _topic, _partition, record: b",".join(name + b"=" + (held or b"") for name, held in record[4]),
}


def _pieces(text: str) -> Iterator[bytes | Callable[[bytes, bytes, Any], bytes]]:
    at = 0
    for token in _TOKEN.finditer(text):
        yield text[at : token.start()].encode(errors="surrogateescape")
        at = token.end()
        field, hexadecimal, escape = token.groups()
        if hexadecimal is not None:
            yield bytes.fromhex(hexadecimal)
        elif field == "%":
            yield b"%"
        elif field is not None and field in _FIELDS:
            yield _FIELDS[field]
        elif escape is not None and escape in _ESCAPES:
            yield _ESCAPES[escape]
        else:
            known = ", ".join(f"%{name}" for name in _FIELDS)
            raise ConfigurationError(f"format {text!r}: {token[0]!r} is unknown; expected {known}, %%, or an escape")
    yield text[at:].encode(errors="surrogateescape")


def unescape(text: str) -> bytes:
    r"""A delimiter as typed: `\n`, `\t`, `\0`, `\x1e` or plain text. Raises `ConfigurationError`."""
    pieces = list(_pieces(text.replace("%", "%%")))
    return b"".join(piece for piece in pieces if isinstance(piece, bytes))
