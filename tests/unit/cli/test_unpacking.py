"""Binary numbers as text, by kcat's format characters."""

from __future__ import annotations

import pytest

from ingestd.cli.unpacking import Unpacking, parse_unpackings
from ingestd.errors import ConfigurationError

DATA = b"\x00\x00\x00\x07AB\xff\xffrest"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("i", b"7"),
        ("<i", b"117440512"),
        (">i<h", b"7" + b"16961"),
        ("icch", b"7AB-1"),
        ("i c c H s", b"7 A B 65535 rest"),
        ("iccHs$", b"7AB65535rest"),
        ("b", b"0"),
        ("q", b"31159681023"),
        ("Qs", b"31159681023rest"),
        ("s", DATA),
        ("ss", DATA),
    ],
)
def test_a_format_takes_what_it_names_from_the_left(form: str, text: bytes) -> None:
    assert Unpacking(form).unpack(DATA) == text


@pytest.mark.parametrize(
    ("form", "message"),
    [("qq", "expected 8 bytes at byte 8, of 12"), ("sc", "expected a byte at byte 12"), ("i$", "expected its end")],
)
def test_bytes_that_do_not_fit_are_refused(form: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Unpacking(form).unpack(DATA)


@pytest.mark.parametrize("form", ["", "x", "i,i", "key:i"])
def test_an_unknown_character_is_refused(form: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--unpack .*: expected > and <"):
        Unpacking(form)


def test_keys_and_values_have_their_own() -> None:
    key, value = parse_unpackings(["key=q", "value=s"])
    assert key is not None
    assert value is not None
    assert key.unpack(b"\0" * 8) == b"0"
    assert value.unpack(b"text") == b"text"
    assert parse_unpackings([]) == (None, None)
    both = parse_unpackings(["i"])
    assert both[0] is both[1] is not None
