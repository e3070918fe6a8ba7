"""Lines: where whole lines end in a buffer, and what becomes of those over the length limit."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

__all__ = ["TRUNCATED_MARK", "Shortened", "cut_at", "find_newline", "has_long_line", "line_end", "shorten"]

NEWLINE: Final = b"\n"

TRUNCATED_MARK: Final = b"...[truncated]"
"""Stands at the end of a line that was truncated, within the length limit."""

_WINDOW: Final = 4096
"""Bytes copied to look for a newline in a memoryview, which can not search; most lines end well within."""

_SEARCHED: Final = 64 * 1024
"""The same where no newline is expected soon."""


def line_end(view: memoryview | bytes, start: int, end: int) -> int:
    """The position behind the last newline in [start, end), or `start` when there is none."""
    window = _WINDOW
    stop = end
    while stop > start:
        begin = max(start, stop - window)
        found = bytes(view[begin:stop]).rfind(NEWLINE)
        if found >= 0:
            return begin + found + 1
        stop = begin
        window *= 4
    return start


def find_newline(view: memoryview, end: int) -> int:
    """The position of the first newline in [0, end), or -1. What it copies to search stays in the processor's cache."""
    for begin in range(0, end, _SEARCHED):
        found = bytes(view[begin : min(end, begin + _SEARCHED)]).find(NEWLINE)
        if found >= 0:
            return begin + found
    return -1


def has_long_line(view: memoryview, end: int, limit: int) -> bool:
    """Whether a line in [0, end), a last one without newline included, has more than `limit` bytes before its newline.

    Hops from one newline to the last one within reach, so it looks at few bytes when lines are far below the limit.
    """
    start = 0
    while end - start > limit:
        reached = line_end(view, start, start + limit + 1)
        if reached == start:
            return True
        start = reached
    return False


def cut_at(line: bytes, limit: int) -> int:
    """Where to cut a line so that at most `limit` bytes stay, and no UTF-8 character is torn (if it is UTF-8)."""
    for back in range(4):
        at = limit - back
        if at <= 0:
            break
        if at >= len(line) or line[at] & 0xC0 != 0x80:
            return at
    return limit


class Shortened(NamedTuple):
    """What `shorten` did: bytes written, input bytes they stand for, lines cut, and whether it ended within one."""

    length: int
    consumed: int
    lines: int
    within: bool


def shorten(
    raw: bytes, limit: int, policy: Literal["truncate", "split"], out: memoryview, *, within: bool = False
) -> Shortened:
    """Write the lines of `raw` to `out`, those over `limit` bytes shortened, until `raw` ends or `out` is full.

    With `split`, what stands at the end without newline is taken too as long as it is over the limit: it is a line
    that is longer than the buffer, and each part is a line of its own. `within`: `raw` begins in a line that was split
    before, which is counted already.
    """
    at = written = lines = 0
    while at < len(raw):
        newline = raw.find(NEWLINE, at)
        end = newline if newline >= 0 else len(raw)
        long = end - at > limit
        if newline < 0 and not (long and policy == "split"):
            break
        if not long:
            piece, step = raw[at:end], end + 1 - at
        elif policy == "truncate":
            kept = cut_at(raw[at : at + limit], limit - len(TRUNCATED_MARK))
            piece, step = raw[at : at + kept] + TRUNCATED_MARK, end + 1 - at
        else:
            step = cut_at(raw[at : at + limit + 1], limit)
            piece = raw[at : at + step]
        if written + len(piece) + 1 > len(out):
            break
        out[written : written + len(piece)] = piece
        out[written + len(piece)] = 0x0A
        written += len(piece) + 1
        at += step
        lines += long and not within
        within = long and policy == "split"
    return Shortened(written, at, lines, within)
