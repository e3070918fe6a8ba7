"""How a stream of bytes becomes lines, however it arrives."""

from __future__ import annotations

import io
from typing import BinaryIO, cast

import pytest

from ingestd.cli import produce
from ingestd.cli.produce import Production, read_lines
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
