"""Lines over the limit are cut or split in bounded memory; all others stay as they are."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.tail.lines import TRUNCATED_MARK, cut_at, has_long_line, line_end, shorten

LIMIT = 40
lines = st.lists(st.binary(max_size=100).map(lambda line: line.replace(b"\n", b"")), max_size=20)


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 30_000])
def test_the_last_newline_is_found_however_far_back(length: int) -> None:
    view = memoryview(b"ab\n" + b"x" * length)
    assert line_end(view, 0, len(view)) == 3
    assert line_end(view, 3, len(view)) == 3


@given(lines=lines, rest=st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"")))
def test_a_long_line_is_seen_and_none_other(lines: list[bytes], rest: bytes) -> None:
    raw = b"".join(line + b"\n" for line in lines) + rest
    expected = any(len(line) > LIMIT for line in [*lines, rest])
    assert has_long_line(memoryview(raw), len(raw), LIMIT) is expected


@given(lines=lines)
def test_truncated_lines_keep_their_beginning_and_get_a_mark(lines: list[bytes]) -> None:
    out = memoryview(bytearray(4000))
    done = shorten(b"".join(line + b"\n" for line in lines), LIMIT, "truncate", out)
    shown = bytes(out[: done.length]).split(b"\n")[:-1]
    assert len(shown) == len(lines)
    assert done.lines == sum(len(line) > LIMIT for line in lines)
    for line, given_line in zip(shown, lines, strict=True):
        if len(given_line) <= LIMIT:
            assert line == given_line
        else:
            assert line.endswith(TRUNCATED_MARK)
            assert given_line.startswith(line.removesuffix(TRUNCATED_MARK))
            assert LIMIT - 3 <= len(line) <= LIMIT


@given(lines=lines)
def test_split_lines_together_are_the_line(lines: list[bytes]) -> None:
    raw = b"".join(line + b"\n" for line in lines)
    out = memoryview(bytearray(8000))
    done = shorten(raw, LIMIT, "split", out)
    shown = bytes(out[: done.length]).split(b"\n")[:-1]
    assert b"".join(shown) == b"".join(lines)
    assert done.consumed == len(raw)
    assert done.lines == sum(len(line) > LIMIT for line in lines)
    assert all(len(line) <= LIMIT for line in shown)


@pytest.mark.parametrize("policy", ["truncate", "split"])
@given(lines=lines, room=st.integers(LIMIT + 1, 200))
def test_what_does_not_fit_stays_for_the_next_time(
    policy: Literal["truncate", "split"], lines: list[bytes], room: int
) -> None:
    raw = b"".join(line + b"\n" for line in lines)
    whole = memoryview(bytearray(8000))
    everything = bytes(whole[: shorten(raw, LIMIT, policy, whole).length])
    gathered, at, within = b"", 0, False
    while at < len(raw):
        out = memoryview(bytearray(room))
        done = shorten(raw[at:], LIMIT, policy, out, within=within)
        assert done.consumed > 0
        gathered += bytes(out[: done.length])
        at += done.consumed
        within = done.within
    assert gathered == everything


def test_no_utf8_character_is_torn() -> None:
    text = ("é" * 50).encode()
    assert cut_at(text, 41) == 40
    text = ("𝄞" * 50).encode()
    assert cut_at(text, 43) == 40
    assert cut_at(b"\x80" * 50, 41) == 41, "what is not UTF-8 is cut where the limit is"
