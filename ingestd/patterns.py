"""Patterns that run on data: regular expressions as RE2 reads them, in time that grows with the text and no faster.

Python's own `re` backtracks. One line is enough to keep it busy for hours, and nothing can interrupt it.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Spans = Sequence[tuple[int, int]]
    Search = Callable[[bytes, int, int], Spans]

__all__ = ["BytesPattern", "WrongPattern", "pattern_problem", "text_matcher"]

_INSTEAD: Final = (
    (r"perl operator: \(\?<?[=!]", "has no look-around; match what stands there too, outside of the group that counts"),
    (r"escape sequence: \\[1-9]|perl operator: \(\?P$", "has no back references; write the expression again"),
    (r"perl operator: \(\?>", "needs no atomic groups, since it never backtracks; write (?:...)"),
    (r"repetition operator: .+\+$", "needs no possessive repeats, since it never backtracks; leave out the last +"),
    (r"escape sequence: \\Z", r"ends a text with \z; write that"),
    (r"escape sequence: \\[uU]", "has no such escape; write the character itself"),
    (r"perl operator: \(\?#", "has no comments; leave it out"),
    (r"perl operator: \(\?[aLux]", "has the flags i, m, s and U; leave out others"),
    (r"repetition size: \{\d{4,}", "repeats up to 1000 times; write *, + or {N,}"),
)
"""What RE2 says of an expression that Python's `re` takes, and what a person can do about it."""
_NO_LEAST: Final = re.compile(r"(?:^|[^\\])(?:\\\\)*\{,\d+\}")


class WrongPattern(ValueError):
    """No pattern of RE2's. The message says why, and what to write instead where that is known."""


class BytesPattern:
    """A pattern for bytes of any encoding: a dot is one byte, and characters beyond ASCII are those of UTF-8.

    groups: how many there are.
    names: their numbers by their names.
    search: for a text, and where to begin and end in it: start and end of the first match, and of each group; -1
        where there is none.
    """

    __slots__ = ("groups", "names", "search")

    groups: int
    names: Mapping[str, int]
    search: Search

    def __init__(self, pattern: str) -> None:
        """Raises `WrongPattern`."""
        import re2  # noqa: PLC0415 - few tails have patterns

        compiled = _compile(pattern, encoding=re2.Options.Encoding.LATIN1)
        self.groups = compiled.groups
        self.names = {name.decode(): number for name, number in compiled.groupindex.items()}
        # The public `search` does more in Python: a key in each line would cost 17 instead of 9 s of CPU a GB.
        self.search = partial(compiled._regexp.Match, re2._Anchor.UNANCHORED)  # noqa: SLF001


def text_matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether one of several patterns matches a whole text. Raises `WrongPattern`."""
    import re2  # noqa: PLC0415 - few mirrors have filters

    compiled = _compile("|".join(f"(?:{pattern})" for pattern in patterns), never_capture=True)
    match = partial(compiled._regexp.Match, re2._Anchor.ANCHOR_BOTH)  # noqa: SLF001 - as in `BytesPattern`

    def matches(text: str) -> bool:
        data = text.encode()
        return bool(match(data, 0, len(data))[0][0] == 0)

    return matches


def pattern_problem(pattern: str) -> str | None:
    """Why RE2 does not take a pattern, or takes it for another one, and what to write instead; None: all is well."""
    if _NO_LEAST.search(pattern):
        return "{,N}: RE2 takes it for text; write {0,N}"
    try:
        _compile(pattern)
    except WrongPattern as error:
        return str(error)
    return None


def _compile(pattern: str, **chosen: Any) -> Any:
    import re2  # noqa: PLC0415 - what runs without patterns does without it

    options = re2.Options()
    options.log_errors = False
    for name, value in chosen.items():
        setattr(options, name, value)
    try:
        return re2.compile(pattern.encode(errors="surrogateescape"), options)
    except re2.error as error:
        said = error.args[0]
        why = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise WrongPattern(_explained(why)) from None


def _explained(why: str) -> str:
    for said, instead in _INSTEAD:
        if re.search(said, why):
            return f"{why.rpartition(': ')[2]}: RE2 {instead}"
    return why
