"""How a stream of bytes becomes lines, however it arrives."""

from __future__ import annotations

import io
from typing import BinaryIO, cast

import pytest

from ingestd.cli import produce
from ingestd.cli.produce import Production, parse_headers, read_lines
from ingestd.errors import ConfigurationError, IngestdError


class Dribble:
    """Gives its bytes a few at a time, as a pipe does."""

    def __init__(self, data: bytes, size: int) -> None:
        self._stream = io.BytesIO(data)
        self._size = size

    def read(self, _size: int) -> bytes:
        return self._stream.read(self._size)


async def lines_of(data: bytes, size: int, delimiter: bytes = b"\n") -> list[bytes]:
    source = cast("BinaryIO", Dribble(data, size))
    return [line async for lines in read_lines(source, delimiter) for line in lines]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
async def test_lines_do_not_depend_on_how_they_come(size: int) -> None:
    assert await lines_of(b"one\n\ntwo\nlast", size) == [b"one", b"", b"two", b"last"]
    assert await lines_of(b"one\n", size) == [b"one"]
    assert await lines_of(b"", size) == []
    assert await lines_of(b"a\r\nb\r\n\r", size, b"\r\n") == [b"a", b"b", b"\r"]


async def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "_LONGEST_LINE", 10)
    with pytest.raises(IngestdError, match="a line is longer than 10 bytes"):
        await lines_of(b"short\n" + b"x" * 100, 4)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("I/O operation on closed file")])
async def test_an_error_of_the_input_is_raised(error: Exception) -> None:
    class Broken:
        def read(self, _size: int) -> bytes:
            raise error

    with pytest.raises(type(error), match=str(error.args[-1])):
        async for _ in read_lines(cast("BinaryIO", Broken()), b"\n"):
            pass


def test_a_delimiter_has_at_least_a_byte() -> None:
    with pytest.raises(ConfigurationError, match=r"^delimiter: empty"):
        Production("t", delimiter=b"")
    with pytest.raises(ConfigurationError, match=r"^key delimiter: empty"):
        Production("t", key_delimiter=b"")


LINES = [b"a", b"", b"k:", b":v", b"k:v"]


@pytest.mark.parametrize(
    ("production", "records"),
    [
        (Production("t"), [(None, line) for line in LINES]),
        (Production("t", key=b"all"), [(b"all", line) for line in LINES]),
        (Production("t", empty_is_null=True), [(None, line or None) for line in LINES]),
        (
            Production("t", key_delimiter=b":"),
            [(None, b"a"), (None, b""), (b"k", b""), (b"", b"v"), (b"k", b"v")],
        ),
        (
            Production("t", key_delimiter=b":", key=b"all", empty_is_null=True),
            [(b"all", b"a"), (b"all", None), (b"k", None), (b"all", b"v"), (b"k", b"v")],
        ),
    ],
    ids=["values", "a key for all", "null", "keys", "all of it"],
)
def test_what_of_a_line_is_key_and_value(
    production: Production, records: list[tuple[bytes | None, bytes | None]]
) -> None:
    assert list(production.records(LINES)) == records


def test_headers_are_names_and_bytes() -> None:
    assert parse_headers(["a=1", "b=", "a=x=y", "c=\udcff"]) == [("a", b"1"), ("b", b""), ("a", b"x=y"), ("c", b"\xff")]


@pytest.mark.parametrize("text", ["", "a", "=1", "\udcff=1"])
def test_a_header_without_a_name_or_a_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--header .*: expected NAME=VALUE, as in source=shop"):
        parse_headers([text])
