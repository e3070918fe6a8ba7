"""Rotation: what rotated and compressed files are called. Names are hints: they decide no more than an order."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CODECS",
    "beginnings_of",
    "codec_of",
    "date_of",
    "families_of",
    "family_of",
    "is_rotated_from",
    "is_rotation_of",
    "may_have_been",
    "names_of",
    "plain_of",
    "possible_originals",
    "rotated_from",
]

CODECS: Final = ("", "gz", "bz2", "xz", "zst", "lz4")
"""How a file may be compressed, by the ending of its name; "" if it is not."""

_ADDED: Final = re.compile(r"\d|\b(old|prev|bak|rotate)\b|~$")
"""What rotation adds to a name."""

_MADE_OF_ONE: Final = (".tar", ".tgz", ".md5", ".sha1", ".sha256", ".sha512", ".sig", ".asc")
"""What a file is called that somebody made of a rotated one: an archive, a checksum, a signature."""

_CURRENT: Final = "current"
_TAI64N: Final = re.compile(r"@[0-9a-f]{24}(\.[stu])?")
"""What svlogd, multilog and s6-log write to, and what they rotate it to."""

_VARIES: Final = re.compile(r"[-._]*(\d[\d._T:-]*\d|\d|old|prev|bak|rotate)(?=[-._]|$)|~$")

_PART: Final = re.compile(r"[-._]*(\d+|\b(old|prev|bak|rotate)\b)(?=[-._T:]|$)|~$")
"""One number of those."""

_DATE: Final = re.compile(
    r"(?<!\d)(19|20)\d\d[-._]?[01]\d[-._]?[0-3]\d([-._T]?[0-2]\d[-._:]?[0-5]\d([-._:]?[0-5]\d)?)?(?!\d)"
)
"""A day, with a time or without, as rotation adds it to a name."""

_COUNT: Final = re.compile(r"[-._](\d+)(?=[-._]|$)")
"""What follows a date where there are several files of one date."""


def date_of(path: str) -> tuple[str, tuple[str, int]] | None:
    """What a path is without the date in its name, and that date. None: there is no date in the name.

    The date is its digits, with the time if there is one, and the number that follows it, else 0. Of
    /d/0.log.20260101-120000.gz: ("/d/0.log.", ("20260101120000", 0)). Of /d/app-2026-01-01.12.log: ("/d/app-.log",
    ("20260101", 12)).
    """
    directory, name = os.path.split(plain_of(path))
    date = _DATE.search(name)
    if date is None:
        return None
    count = _COUNT.match(name, date.end())
    end = date.end() if count is None else count.end()
    rest = os.path.join(directory, name[: date.start()] + name[end:])
    return rest, (re.sub(r"\D", "", date[0]), 0 if count is None else int(count[1]))


def codec_of(name: str) -> str:
    """How a file is compressed, as its name or path tells: one of `CODECS`."""
    stem, _, ending = name.rpartition("/")[2].rpartition(".")
    return ending if stem and ending in CODECS else ""


def plain_of(name: str) -> str:
    """The name or path that a compressed file had before; that of another one as it is."""
    codec = codec_of(name)
    return name[: -len(codec) - 1] if codec else name


def beginnings_of(original: str) -> tuple[str, ...]:
    """What all names begin with that `is_rotation_of(…, original)` holds for."""
    stem = original.rpartition(".")[0] or original
    return (stem, "@") if original == _CURRENT else (stem,)


def is_rotation_of(name: str, original: str) -> bool:
    """Whether a file name looks like a rotated `original`.

    So do access.log.1, access.log-20260101, access-20260101.log and access1.log of access.log, compressed (.gz) or not,
    and what svlogd calls @400000006917a2b512345678.s of current.
    """
    stem = original.rpartition(".")[0]
    numbered = stem and not stem[-1].isdigit() and name.startswith(stem) and name[len(stem) :][:1].isdigit()
    return _is_separated(name, original) or bool(numbered and _has_ending_of(name, original))


def _is_separated(name: str, original: str) -> bool:
    """Whether it looks like one, with something between what it has of `original` and what was added."""
    if plain_of(name).endswith(_MADE_OF_ONE):
        return False
    if name.startswith(original):
        return name != original
    if original == _CURRENT:
        return _TAI64N.fullmatch(plain_of(name)) is not None
    stem = original.rpartition(".")[0]
    return bool(stem) and name.startswith((stem + "-", stem + ".", stem + "_")) and _has_ending_of(name, original)


def _has_ending_of(name: str, original: str) -> bool:
    return plain_of(name).endswith(f".{original.rpartition('.')[2]}")


def family_of(name: str) -> str:
    """What a name has in common with those that it is rotated to: numbers, dates and compressed endings left out."""
    plain = plain_of(name)
    return _CURRENT if _TAI64N.fullmatch(plain) else _VARIES.sub("", plain)


@lru_cache(maxsize=4096)
def families_of(name: str) -> tuple[str, ...]:
    """What files have in common by their names, from the widest to the narrowest: without numbers, or the last ones.

    app.log, app-6.log and app-6-5.log of app-6-5.log; log.log, log-19.log and log-19.log.3 of log-19.log.3.gz.
    """
    plain = plain_of(name)
    parts = [*_PART.finditer(plain)]
    shorter = []
    for first in range(len(parts)):
        ends = [part.end() for part in parts[first:]]
        begins = [*(part.start() for part in parts[first + 1 :]), len(plain)]
        kept = "".join(plain[end:begin] for end, begin in zip(ends, begins, strict=True))
        shorter.append(plain[: parts[first].start()] + kept)
    return tuple(dict.fromkeys((family_of(name), *shorter, plain)))


def rotated_from(path: str) -> list[str]:
    """The paths that a file at `path` may have been rotated from.

    Its name has a number, a date, or `old` added, or no more than the ending of a compressed file.
    """
    directory, name = os.path.split(path)
    return [os.path.join(directory, original) for original in _originals(name)]


def names_of(path: str) -> frozenset[str]:
    """The base name of a file, and all that it may have been called before it was rotated."""
    name = os.path.basename(path)
    return frozenset((name, *_originals(name)))


@lru_cache(maxsize=20_000)
def may_have_been(name: str, original: str) -> bool:
    """Whether `original` is one of `names_of(name)`, of base names."""
    return name == original or _may_be(name, original)


@lru_cache(maxsize=20_000)
def _originals(name: str) -> tuple[str, ...]:
    return tuple(original for original in possible_originals(name) if _may_be(name, original))


def is_rotated_from(path: str, original: str) -> bool:
    """Whether `original` is one of `rotated_from(path)`."""
    (directory, name), (beside, original_name) = os.path.split(path), os.path.split(original)
    return directory == beside and _may_be(name, original_name)


def is_numbered(path: str, original: str) -> bool:
    """Whether a file at `path`, in any directory, is called like a rotation of `original` with a number or a date."""
    names = os.path.basename(path), os.path.basename(original)
    return _may_be(*names) and any(map(str.isdigit, _added(*names)))


def _may_be(name: str, original: str) -> bool:
    """Whether a file may be read as a rotation for its name alone. web2.log beside web.log may well be another log."""
    plain = plain_of(name)
    return bool((plain == original or _ADDED.search(_added(plain, original))) and _is_separated(name, original))


def _added(name: str, original: str) -> str:
    return name[len(os.path.commonprefix((name, original))) :]  # noqa: RUF071 - these are no paths


def possible_originals(name: str) -> Iterator[str]:
    """All names that `is_rotation_of(name, …)` holds for, and some more."""
    if _TAI64N.fullmatch(plain_of(name)):
        yield _CURRENT
    stem, dot, extension = plain_of(name).rpartition(".")
    for end in range(len(name) - 1, 0, -1):
        yield name[:end]
        glued = name[end].isdigit() and not name[end - 1].isdigit()
        if dot and end < len(stem) and (name[end] in "-._" or glued):
            yield name[:end] + dot + extension
