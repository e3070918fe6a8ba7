"""Files into a topic: which lines are refused, and whose error an error is."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.errors import ConnectionLost, IngestdError
from ingestd.records import loops
from ingestd.spark.pipelines import dead_letters, line_files
from ingestd.spark.pipelines.text_files import TextFile
from ingestd.spark.write_options import write_options
from ingestd.tail.text import open_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST = 10


def lines_of(file: Path) -> list[bytes]:
    with open_text(str(file)) as text:
        return b"".join(bytes(piece) for piece in line_files._whole_lines(text, str(file), LONGEST)).splitlines()


@pytest.mark.parametrize("before", range(40))
@pytest.mark.parametrize("end", [b"\n", b"", b"\nz\n"])
def test_a_line_is_refused_for_its_length_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, end: bytes
) -> None:
    """It depended on where the line was: one whose newline was read together with it was sent."""
    monkeypatch.setattr(line_files, "_READ_BYTES", 16)
    short = (b"abcd\n" * 8)[:before]
    file = tmp_path / "a.log"
    line = b"x" * LONGEST
    at = short.rfind(b"\n") + 1
    file.write_bytes(short[:at] + line + end)
    assert lines_of(file) == (short[:at] + line + end).splitlines()
    file.write_bytes(short[:at] + line + b"x" + end)
    with pytest.raises(IngestdError, match=f"a.log: the line at byte {at} of its text has more than {LONGEST} bytes"):
        lines_of(file)


def test_a_cluster_that_is_gone_is_no_error_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ConnectionLost` is an `OSError` too. It was reported as `source.files: a.log: None`."""

    class Lost:
        def partitions(self, topic: str) -> int:
            return 1

        def send(self, *_: object) -> None:
            raise ConnectionLost("k:9092: connection refused")

    @contextmanager
    def lent(_: object) -> Iterator[Lost]:
        yield Lost()

    monkeypatch.setattr(line_files, "lent_outflow", lent)
    file = tmp_path / "a.log"
    file.write_bytes(b"a\n")
    options = write_options({"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"})
    with pytest.raises(ConnectionLost, match="k:9092: connection refused"):
        line_files._send_file(options, TextFile(f"file:{file}", 2))


@pytest.mark.parametrize(("kind", "more"), [(line_files._FileSender, ()), (dead_letters._Diversion, (Counter(),))])
def test_an_executor_in_plain_python_is_said(monkeypatch: pytest.MonkeyPatch, kind: Any, more: tuple[Any, ...]) -> None:
    """Of rows it was said. Lines of files, and dead letters, are encoded by the same loops."""
    said: set[str] = set()
    slow: Any = SimpleNamespace(add=said.update)
    sender = kind(write_options({"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"}), *more, slow)
    unpack, arguments = sender.__reduce__()
    unpack(*arguments)
    assert said == set()
    monkeypatch.setattr(loops, "COMPILED", False)
    there = unpack(*arguments)
    assert isinstance(there, kind)
    (interpreter,) = said
    assert interpreter.startswith(f"{loops.__file__} of {sys.executable} on ")


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    options = write_options({"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"})
    with pytest.raises(IngestdError, match=r"source.files: \S+/a.log: No such file or directory"):
        line_files._send_file(options, TextFile(f"file:{tmp_path}/a.log", 2))
