"""Records as bytes for a terminal, a file or another program: raw values, JSON lines, or a format of one's own."""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from ingestd.errors import ConfigurationError, IngestdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingestd.cli.unpacking import Unpacking
    from ingestd.records.columns import BinaryColumn, Columns

    Record = tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]
    Field = Callable[[bytes, bytes, Record, bytes], bytes]

__all__ = [
    "FormattedRecords",
    "JsonRecords",
    "Layout",
    "RawValues",
    "Rendering",
    "rendering_of",
    "unescape",
    "values_of",
]


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


@dataclass(frozen=True, slots=True)
class Layout:
    """What a person said of how records are to be shown. Of `form` and the delimiters, `form` counts."""

    form: str | None = None
    delimiter: str = r"\n"
    key_delimiter: str | None = None
    show_null: bool = False
    key: Unpacking | None = None
    value: Unpacking | None = None


def rendering_of(layout: Layout, *, as_json: bool) -> Rendering:
    """The rendering that does it. Raises `ConfigurationError`."""
    if as_json:
        return JsonRecords(layout.key, layout.value)
    delimiter = unescape(layout.delimiter)
    if layout.form is not None:
        pieces = list(_pieces(layout.form))
    elif layout.key_delimiter is not None:
        pieces = [_FIELDS["k"], unescape(layout.key_delimiter), _FIELDS["s"], delimiter]
    elif layout.show_null or layout.value is not None:
        pieces = [_FIELDS["s"], delimiter]
    else:
        return RawValues(delimiter)
    return FormattedRecords(pieces, layout.key, layout.value, null=b"NULL" if layout.show_null else b"")


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

    def __init__(self, key: Unpacking | None = None, value: Unpacking | None = None) -> None:
        self._unpackings = key, value

    def render(self, topic: str, partition: int, columns: Columns, count: int) -> bytes:
        """See `Rendering`."""
        lines = []
        for offset, timestamp, key, value, headers in _unpacked(topic, partition, columns, count, *self._unpackings):
            record: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset, "timestamp": timestamp}
            record |= _text("key", key) | _text("value", value)
            if headers:
                record["headers"] = [
                    {"key": name.decode(errors="replace")} | _text("value", held) for name, held in headers
                ]
            lines.append(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        return b"".join(lines)


class FormattedRecords:
    """Records as pieces of text and fields in between; a null key or value is `null`."""

    def __init__(
        self, pieces: list[bytes | Field], key: Unpacking | None = None, value: Unpacking | None = None, *, null: bytes
    ) -> None:
        self._pieces = pieces
        self._unpackings = key, value
        self._null = null

    def render(self, topic: str, partition: int, columns: Columns, count: int) -> bytes:
        """See `Rendering`."""
        name, number, null = topic.encode(), b"%d" % partition, self._null
        out: list[bytes] = []
        for record in _unpacked(topic, partition, columns, count, *self._unpackings):
            out += [piece if isinstance(piece, bytes) else piece(name, number, record, null) for piece in self._pieces]
        return b"".join(out)


def _unpacked(
    topic: str, partition: int, columns: Columns, count: int, key: Unpacking | None, value: Unpacking | None
) -> Iterator[Record]:
    """The records with their keys and values as text; as they are where nothing is said of them."""
    records = _records(columns, count)
    if key is None and value is None:
        yield from records
        return
    for offset, timestamp, held_key, held_value, headers in records:
        place = f"{topic}-{partition}, offset {offset}"
        yield (
            offset,
            timestamp,
            _as_text(f"{place}: its key", held_key, key),
            _as_text(f"{place}: its value", held_value, value),
            headers,
        )


def _as_text(place: str, held: bytes | None, unpacking: Unpacking | None) -> bytes | None:
    if held is None or unpacking is None:
        return held
    try:
        return unpacking.unpack(held)
    except ValueError as error:
        raise IngestdError(f"{place} does not fit --unpack: {error}") from None


def _records(columns: Columns, count: int) -> Iterator[Record]:
    headers = columns.headers
    ends = memoryview(headers.offsets).cast("B").cast("i")[: count + 1].tolist()
    names = [name or b"" for name in values_of(headers.keys, headers.count)]
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
_FIELDS: Final[dict[str, Field]] = {
    "t": lambda topic, _partition, _record, _null: topic,
    "p": lambda _topic, partition, _record, _null: partition,
    "o": lambda _topic, _partition, record, _null: b"%d" % record[0],
    "T": lambda _topic, _partition, record, _null: b"%d" % record[1],
    "k": lambda _topic, _partition, record, null: null if record[2] is None else record[2],
    "s": lambda _topic, _partition, record, null: null if record[3] is None else record[3],
    "K": lambda _topic, _partition, record, _null: b"%d" % _length(record[2]),
    "S": lambda _topic, _partition, record, _null: b"%d" % _length(record[3]),
    "R": lambda _topic, _partition, record, _null: struct.pack(">i", _length(record[3])),
    "h": lambda _topic, _partition, record, _null: b",".join(name + b"=" + (held or b"") for name, held in record[4]),
}
"""%t topic, %p partition, %o offset, %T timestamp (ms), %k key, %s value, %K and %S their lengths in bytes (-1: null),
%R the value's length as four bytes, the highest first, %h headers (a=b,c=d): kcat's tokens."""


def _length(held: bytes | None) -> int:
    return -1 if held is None else len(held)


def _pieces(text: str) -> Iterator[bytes | Field]:
    r"""A format of tokens, of %% for a per cent sign, and \n, \r, \t, \0, \\ and \xHH as in C.

    Raises `ConfigurationError`.
    """
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
