"""What is stored of a generation comes back as it was, or is refused in words."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.tail.file_id import FileId
from ingestd.tail.known import Known, Sample, Witness, birth_of, name_source, printable, stored_path, witness_before
from ingestd.tail.text import open_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ingestd.tail.text import Text

DIGEST = "0123456789abcdef" * 2
FULL = Known(
    "/a",
    "/b.gz",
    FileId(1, 2, 3, "01ff", "0a-1b"),
    Witness(300, 256, DIGEST, 0, DIGEST, 200),
    7,
    1_700_000_000_000_000_000,
    "gz",
    True,
    "1-2-3",
    True,
    links=2,
)

# As version 0.1 stored it.
FORMER = {
    "path": "/var/log/a.log.1",
    "origin": "/var/log/a.log",
    "device": 65024,
    "inode": 9978196,
    "fingerprint": DIGEST,
    "fingerprint_bytes": 1024,
    "size": 5000,
    "copy": True,
    "witness": DIGEST,
    "witness_at": 4000,
    "witness_bytes": 256,
}

numbers = st.integers(0, 2**63 - 1)
paths = st.binary(min_size=1).filter(lambda path: b"\0" not in path).map(os.fsdecode)
hexadecimal = st.binary(max_size=20).map(bytes.hex)
witnesses = st.builds(Sample.of, st.integers(1000, 2**63 - 1), st.binary(min_size=1, max_size=1000)).map(Witness.of)
knowns = st.builds(
    Known,
    log=paths,
    path=paths,
    file=st.builds(FileId, numbers, numbers, numbers, hexadecimal, hexadecimal),
    witness=st.none() | witnesses,
    size=numbers,
    modified=st.integers(-(2**62), 2**62),
    codec=st.sampled_from(["", "gz", "bz2", "xz", "zst", "lz4"]),
    done=st.booleans(),
    copy_of=st.sampled_from(["", "1-2-3"]),
    apart=st.booleans(),
    links=st.integers(1, 2**16),
    read_size=numbers,
    read_modified=st.integers(-(2**62), 2**62),
    met=numbers,
    deleted=st.booleans(),
)


def through_json(known: Known) -> dict[str, Any]:
    return dict(json.loads(json.dumps(known.to_detail()).encode()))


@given(known=knowns)
def test_it_survives_json_whatever_its_path(known: Known) -> None:
    assert Known.from_detail(through_json(known)) == known
    assert Known.told(known.to_detail()) == known


def test_what_version_0_1_stored_is_taken_over() -> None:
    expected = Known(
        "/var/log/a.log", "/var/log/a.log.1", FileId(65024, 9978196), Witness(4000, 256, DIGEST), size=5000
    )
    assert Known.from_detail(FORMER) == expected
    without = {key: FORMER[key] for key in ("path", "device", "inode", "fingerprint", "fingerprint_bytes")}
    assert Known.from_detail(without) == Known("/var/log/a.log.1", "/var/log/a.log.1", FileId(65024, 9978196))


NUMBERS = ["device", "inode", "birth", "size", "witness_at", "witness_bytes", "witness_line"]
WORDS = ["log", "path", "handle", "volume", "codec", "witness"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in NUMBERS for value in (-1, 1.5, "1", True, None, [], 1 << 64)),
        *((key, value) for key in WORDS for value in (1, None, [], {}, "bytes:xyz", "bytes:", "\ud800")),
        *((key, value) for key in ("log", "path") for value in ("", "a\0b", "bytes:00")),
        *(("done", value) for value in (1, "yes", None)),
        ("modified", "today"),
        ("modified", None),
        ("codec", "rar"),
        ("handle", "xyz"),
        ("witness", DIGEST[1:]),
        ("witness", DIGEST[1:] + "z"),
        ("witness_at", 0),
        ("witness_bytes", 0),
        ("witness_bytes", 257),
        ("witness_line", 255),
        ("witness_line", 301),
    ],
)
def test_damage_is_refused_with_the_key_and_what_was_expected(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{key}: expected .*, found "):
        Known.from_detail(FULL.to_detail() | {key: value})


@pytest.mark.parametrize("key", ["path", "device", "inode", "witness_at", "witness_bytes", "head_bytes"])
def test_a_missing_key_is_named(key: str) -> None:
    detail = FULL.to_detail()
    del detail[key]
    with pytest.raises(ValueError, match=f"^{key}: expected .*, it is missing"):
        Known.from_detail(detail)


def test_a_witness_can_not_begin_before_the_file() -> None:
    with pytest.raises(ValueError, match=r"^witness_bytes: expected a whole number from 1 to 255, found 256"):
        Known.from_detail(FULL.to_detail() | {"witness_at": 255})


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(DIGEST)


@given(changes=st.dictionaries(st.sampled_from(sorted(FULL.to_detail() | FORMER)), anything, max_size=4))
def test_whatever_is_stored_is_known_or_refused(changes: dict[str, Any]) -> None:
    for detail in (FULL.to_detail() | changes, FORMER | changes):
        try:
            known = Known.from_detail(detail)
        except ValueError:
            continue
        assert Known.from_detail(through_json(known)) == known


@pytest.fixture
def text(tmp_path: Path) -> Iterator[Text]:
    (tmp_path / "a.log").write_bytes(b"0123456789" * 100)
    with open_text(os.fspath(tmp_path / "a.log")) as text:
        yield text


@pytest.mark.parametrize(("position", "length"), [(1, 1), (255, 255), (256, 256), (257, 256), (1000, 256)])
def test_a_witness_is_of_the_last_bytes_before_a_position(text: Text, position: int, length: int) -> None:
    witness = witness_before(text, position)
    assert witness is not None
    assert (witness.at, witness.length) == (position, length)
    assert witness == Witness.of(Sample.of(position, text.read(0, position)))
    assert FULL._replace(witness=witness).holds(text)
    assert FULL._replace(witness=witness.with_head(text.read(0, 20))).holds(text)
    assert not FULL._replace(witness=witness.with_head(b"1" + text.read(1, 19))).holds(text)


@pytest.mark.parametrize(
    ("data", "line", "first"),
    [
        (b"a" * 256, 0, b""),
        (b"a" * 255 + b"\n" + b"b" * 255, 0, b""),
        (b"a\n" + b"b" * 255 + b"\n", 0, b""),
        (b"a\n" + b"bc" + b"d" * 255 + b"\n", 258, b"bc"),
        (b"a\n" + b"b" * 300 + b"c" * 300 + b"\n", 601, b"b" * 256),
    ],
)
def test_of_a_long_line_the_beginning_is_kept_too(tmp_path: Path, data: bytes, line: int, first: bytes) -> None:
    sample = Sample.of(1000, data)
    assert (sample.last, sample.line, sample.first) == (data[-256:], line, first)
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * (1000 - len(data)) + data)
    witness = Witness.of(sample)
    with open_text(os.fspath(path)) as text:
        assert sample.is_in(text)
        assert witness.fits(text)
    path.write_bytes(path.read_bytes().replace(b"b", b"e", 1))
    with open_text(os.fspath(path)) as text:
        assert sample.is_in(text) == witness.fits(text) == (b"b" not in sample.first + sample.last)


def test_a_short_piece_is_kept_with_what_came_before_it() -> None:
    before = Sample.of(500, b"one\n")
    assert Sample.of(504, b"two\n", before) == Sample(504, b"one\ntwo\n")
    assert Sample.of(505, b"two\n", before) == Sample(505, b"two\n")


@pytest.mark.parametrize("position", [0, 1001, 5000])
def test_there_is_no_witness_of_bytes_that_are_not_there(text: Text, position: int) -> None:
    assert witness_before(text, position) is None


def test_a_text_that_grew_holds_and_one_that_was_written_anew_or_is_too_short_does_not(
    text: Text, tmp_path: Path
) -> None:
    known = FULL._replace(witness=witness_before(text, 1000))
    path = tmp_path / "a.log"
    with path.open("ab") as file:
        file.write(b"more")
    assert known.holds(text)
    os.truncate(path, 999)
    assert not known.holds(text)
    path.write_bytes(b"0123456780" * 200)
    assert not known.holds(text)
    assert FULL._replace(witness=None).holds(text)


def test_names_of_sources_are_never_given_twice_and_know_which_is_younger() -> None:
    names = [name_source(FileId(1, 2)) for _ in range(100)]
    assert len(set(names)) == 100
    assert sorted(names, key=birth_of) == names
    assert birth_of("by another program") == 0
    assert birth_of("fd00-984194-0123abcd-18b6e2c5f1a2b3c4") == 0x18B6E2C5F1A2B3C4, "as version 0.1 named them"


@given(path=paths)
def test_paths_can_be_printed_and_stored(path: str) -> None:
    assert printable(path).encode()
    detail = Known(path, path, FileId(1, 2)).to_detail()
    assert stored_path(json.loads(json.dumps(detail))["log"]) == path
