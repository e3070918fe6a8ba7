"""Known: what is stored of one generation of a log, so that it is known again whatever it is called then."""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

from ingestd.tail.content import HEAD_BYTES
from ingestd.tail.file_id import FileId
from ingestd.tail.lines import line_end
from ingestd.tail.rotation import CODECS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingestd.tail.text import Text

__all__ = [
    "WITNESS_BYTES",
    "Known",
    "Sample",
    "Witness",
    "birth_of",
    "digest_of",
    "name_source",
    "printable",
    "stored_path",
    "witness_before",
]

WITNESS_BYTES: Final = 256
"""A witness covers at most this many bytes before its position, and as many where a long line begins."""

_LINE_SEARCH_BYTES: Final = 4096
"""Where a line that is longer than this begins is not looked for."""

_DIGEST_BYTES: Final = 16
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_HEXADECIMAL: Final = re.compile(r"[0-9a-f-]*")
_SIGNED: Final = (1 << 63) - 1
_UNSIGNED: Final = (1 << 64) - 1
_NOT_UTF8: Final = "bytes:"

_Check: TypeAlias = "tuple[str, Any, type, Callable[[Any], object], str]"


def _number_check(key: str, default: int | None = 0, *, least: int = 0, most: int = _SIGNED) -> _Check:
    return key, default, int, range(least, most + 1).__contains__, f"a whole number from {least} to {most}"


_CHECKS: Final[tuple[_Check, ...]] = (
    _number_check("device", None, most=_UNSIGNED),
    _number_check("inode", None, most=_UNSIGNED),
    _number_check("birth"),
    _number_check("size"),
    _number_check("links", 1, least=1),
    _number_check("modified", least=-_SIGNED),
    _number_check("read_size"),
    _number_check("read_modified", least=-_SIGNED),
    _number_check("met"),
    ("handle", "", str, _HEXADECIMAL.fullmatch, "hexadecimal digits"),
    ("volume", "", str, _HEXADECIMAL.fullmatch, "hexadecimal digits"),
    ("codec", "", str, CODECS.__contains__, f"one of {', '.join(filter(None, CODECS))}"),
    ("done", False, bool, lambda _: True, "true or false"),
    ("copy_of", "", str, lambda _: True, "the name of a source"),
    ("apart", False, bool, lambda _: True, "true or false"),
    ("begun", False, bool, lambda _: True, "true or false"),
    ("deleted", False, bool, lambda _: True, "true or false"),
)
"""Of a detail: key, default, type (True is no number), what else holds for a value, how both are called."""


class _Births:
    """Numbers of sources: larger for those named later. Room is left between them, see `birth_between`.

    Each is the time (ns) at which it was given, or a later one: the clock may be set back.
    """

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def next(self) -> int:
        """A new one."""
        born = max(self._next, time.time_ns())
        self._next = born + (1 << 12)
        return born

    def come_after(self, born: int) -> None:
        """All later ones are larger than this one."""
        self._next = max(self._next, born + (1 << 12))


_births = _Births()


class Sample(NamedTuple):
    """What stands in a text before position `at`: its `last` bytes, and the `first` ones of a line longer than these.

    Lines may all end alike: the same fields in JSON, or padding. That they begin alike too is rare. `line`: so many
    bytes before `at` stand the `first` ones; 0 if there are none.
    """

    at: int
    last: bytes
    line: int = 0
    first: bytes = b""

    @classmethod
    def of(cls, at: int, data: bytes | memoryview, before: Sample | None = None) -> Sample:
        """Of `data`, which ends at position `at`; `before`: the sample of what came before it."""
        last = bytes(data[-WITNESS_BYTES:])
        rest = len(data) - len(last)
        if before is not None and before.at == at - len(data):
            last = (before.last + last)[-WITNESS_BYTES:]
        begin = rest if b"\n" in last[:-1] else line_end(data, 0, rest)
        if begin == rest:
            return cls(at, last)
        return cls(at, last, len(data) - begin, bytes(data[begin : min(begin + WITNESS_BYTES, rest)]))

    def is_in(self, text: Text) -> bool:
        """Whether a text has these bytes there. Raises `OSError`."""
        if self.first and text.read(self.at - self.line, len(self.first)) != self.first:
            return False
        return text.read(self.at - len(self.last), len(self.last)) == self.last


class Witness(NamedTuple):
    """The hash of a `Sample` with this `at` and `line`, and `length` last bytes.

    head: the hash of the first `head_bytes` of the text; empty if these were not read. Reports that are made anew each
    day may all have one length, and end alike.
    """

    at: int
    length: int
    digest: str
    line: int = 0
    head: str = ""
    head_bytes: int = 0

    @classmethod
    def of(cls, sample: Sample, before: Witness | None = None) -> Witness:
        """The witness of a sample. `before`: one of the same text, whose head is known perhaps."""
        digest = hashlib.blake2b(sample.first, digest_size=_DIGEST_BYTES)
        digest.update(sample.last)
        head = ("", 0) if before is None else (before.head, before.head_bytes)
        return cls(sample.at, len(sample.last), digest.hexdigest(), sample.line, *head)

    @staticmethod
    def check(detail: Mapping[str, Any]) -> None:
        """Raise `ValueError`, which names the key at fault, where a detail that has a witness has no good one."""
        at = _number(detail, "witness_at", _SIGNED)
        length = _number(detail, "witness_bytes", min(at, WITNESS_BYTES))
        digest = detail["witness"]
        if type(digest) is not str or not _DIGEST.fullmatch(digest):
            _refuse(detail, "witness", "32 hexadecimal digits")
        if "witness_line" in detail:
            _number(detail, "witness_line", at, least=length + 1)
        if "head" in detail:
            _number(detail, "head_bytes", HEAD_BYTES, least=1)
            if type(detail["head"]) is not str or not _DIGEST.fullmatch(detail["head"]):
                _refuse(detail, "head", "32 hexadecimal digits")

    def with_head(self, head: bytes) -> Witness:
        """The same, of a text that begins so."""
        return self._replace(head=digest_of(head), head_bytes=len(head)) if head else self

    def fits(self, text: Text) -> bool:
        """Whether a text has these bytes at its beginning and there. Raises `OSError`."""
        return self.begins(text.read(0, self.head_bytes)) and self.ends(text)

    def begins(self, head: bytes) -> bool:
        """Whether a text begins as this one: `head` are at least `head_bytes` of it, if it is so long."""
        return not self.head or digest_of(head[: self.head_bytes]) == self.head

    def ends(self, text: Text) -> bool:
        """Whether a text has the bytes before `at`, whatever it begins with. Raises `OSError`."""
        first = text.read(self.at - self.line, min(WITNESS_BYTES, self.line - self.length)) if self.line else b""
        last = text.read(self.at - self.length, self.length)
        return Witness.of(Sample(self.at, last, self.line, first)).digest == self.digest


class Known(NamedTuple):
    """One generation of a log.

    log: the path that it was written under. path: where it was seen last. size: bytes of text when last looked at.
    modified: nanoseconds since 1970. codec: as `rotation.codec_of` has it. done: it was read to its end and rotated
    away; it is remembered so that it is not sent again. copy_of: the source that it repeats, as long as that one may
    still be another log that only begins alike. apart: it is none, since it was made where no log is written; it is not
    read, however long it repeats that source. links: the most names that its file had. If it had several, it may be in
    any directory of the tail. read_size, read_modified: of a compressed file, its bytes and `modified` when it was read
    to its end; 0 if it was not yet. begun: of a compressed file, it was whole when it was examined, and is to be read.
    met: of a log that was there before the tail, when its first generation was met (nanoseconds since 1970), else 0.
    deleted: its last name was gone when it was read last, and nothing had been written to it since that was removed.
    """

    log: str
    path: str
    file: FileId
    witness: Witness | None = None
    size: int = 0
    modified: int = 0
    codec: str = ""
    done: bool = False
    copy_of: str = ""
    apart: bool = False
    links: int = 1
    read_size: int = 0
    read_modified: int = 0
    begun: bool = False
    met: int = 0
    deleted: bool = False

    @property
    def read(self) -> int:
        """So many bytes of the text are known to have been read: those that the witness stands behind."""
        return 0 if self.witness is None else self.witness.at

    def holds(self, text: Text) -> bool:
        """Whether a text has the bytes of the witness, as this generation has. Raises `OSError`."""
        return self.witness is None or self.witness.fits(text)

    def to_detail(self) -> dict[str, Any]:
        """As JSON values, for `Found.detail`."""
        file, witness = self.file, self.witness
        detail: dict[str, Any] = {
            "log": _to_store(self.log),
            "path": _to_store(self.path),
            "device": file.device,
            "inode": file.inode,
        }
        rest = (
            ("birth", file.birth),
            ("handle", file.handle),
            ("volume", file.volume),
            ("size", self.size),
            ("modified", self.modified),
            ("codec", self.codec),
            ("read_size", self.read_size),
            ("read_modified", self.read_modified),
            ("done", self.done),
            ("copy_of", self.copy_of),
            ("apart", self.apart),
            ("begun", self.begun),
            ("met", self.met),
            ("deleted", self.deleted),
        )
        detail.update([pair for pair in rest if pair[1]])
        if self.links > 1:
            detail["links"] = self.links
        if witness is not None:
            detail |= {"witness": witness.digest, "witness_at": witness.at, "witness_bytes": witness.length}
            if witness.line:
                detail["witness_line"] = witness.line
            if witness.head:
                detail |= {"head": witness.head, "head_bytes": witness.head_bytes}
        return detail

    @classmethod
    def from_detail(cls, detail: Mapping[str, Any]) -> Known:
        """From what `to_detail` made, now or in an older format. Raises `ValueError` that names the key at fault."""
        path = _path(detail, "path")
        log = _path(detail, "log") if "log" in detail else _path(detail, "origin", path)
        for key, default, kind, fits, expected in _CHECKS:
            if type(value := detail.get(key, default)) is not kind or not fits(value):
                _refuse(detail, key, expected)
        if "witness" in detail:
            Witness.check(detail)
        return cls.told({**detail, "log": _to_store(log)})

    @classmethod
    def told(cls, detail: Mapping[str, Any]) -> Known:
        """From what `to_detail` made in this run, in whatever process: it needs no check."""
        get = detail.get
        file = FileId(detail["device"], detail["inode"], get("birth", 0), get("handle", ""), get("volume", ""))
        witness = None
        if "witness" in detail:
            at, length = detail["witness_at"], detail["witness_bytes"]
            head = (detail["head"], detail["head_bytes"]) if "head" in detail else ()
            witness = Witness(at, length, detail["witness"], get("witness_line", 0), *head)
        log, path = stored_path(detail["log"]), stored_path(detail["path"])
        done, copy_of, apart = get("done", False), get("copy_of", ""), get("apart", False)
        size, modified, codec, links = get("size", 0), get("modified", 0), get("codec", ""), get("links", 1)
        read = get("read_size", 0), get("read_modified", 0)
        rest = get("begun", False), get("met", 0), get("deleted", False)
        return cls(log, path, file, witness, size, modified, codec, done, copy_of, apart, links, *read, *rest)


def digest_of(data: bytes) -> str:
    """The hash of bytes, as a `Witness` has it."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def witness_before(text: Text, position: int) -> Witness | None:
    """The witness of the bytes before a position; None where the text has none there. Raises `OSError`."""
    length = min(position, _LINE_SEARCH_BYTES)
    data = text.read(position - length, length)
    return Witness.of(Sample.of(position, data)) if data and len(data) == length else None


def name_source(file: FileId, birth: int = 0) -> str:
    """A name for a generation. `birth`: that of what it replaces, whose place in the order it takes.

    For a generation found for the first time, no two calls give the same.
    """
    return f"{file.device:x}-{file.inode:x}-{birth or _births.next():x}"


def name_later_than(source: str) -> None:
    """What is named from now on is named later than this source, also where the clock was set back meanwhile."""
    _births.come_after(birth_of(source))


def birth_between(earlier: str, later: str) -> int:
    """A birth for a generation that is found later than both, and comes between them; 0 if there is no room.

    earlier, later: names of sources; empty `earlier`: none comes before.
    """
    first, last = birth_of(earlier), birth_of(later)
    birth = (first + last) // 2 + 1  # no generation of another log, found between them, has this one
    return birth if first < birth < last else 0


def birth_of(source: str) -> int:
    """A number that is larger for sources named later; 0 for a name that is not of `name_source`."""
    try:
        return int(source.rpartition("-")[2], 16)
    except ValueError:
        return 0


def printable(path: str) -> str:
    """A path that may not be UTF-8, for people."""
    return path if path.isascii() else os.fsencode(path).decode(errors="backslashreplace")


def stored_path(text: str) -> str:
    """A path from what is stored for it in a detail. Raises `ValueError` for what no path is stored as."""
    return os.fsdecode(bytes.fromhex(text.removeprefix(_NOT_UTF8))) if text.startswith(_NOT_UTF8) else text


def _to_store(path: str) -> str:
    """A path as JSON can hold it: as it is, or its bytes if they are not UTF-8."""
    plain = path.isascii() or printable(path) == path
    return path if plain and not path.startswith(_NOT_UTF8) else _NOT_UTF8 + os.fsencode(path).hex()


def _refuse(detail: Mapping[str, Any], key: str, expected: str) -> NoReturn:
    found = f"found {detail[key]!r}" if key in detail else "it is missing"
    raise ValueError(f"{key}: expected {expected}, {found}")


def _number(detail: Mapping[str, Any], key: str, most: int, *, least: int = 1) -> int:
    value = detail.get(key)
    if type(value) is not int or not least <= value <= most:
        _refuse(detail, key, f"a whole number from {least} to {most}")
    return value


def _path(detail: Mapping[str, Any], key: str, default: str | None = None) -> str:
    text = detail.get(key, _to_store(default) if default else None)
    if type(text) is not str or not _is_path(text):
        _refuse(detail, key, "a path")
    return stored_path(text)


def _is_path(text: str) -> bool:
    if text.isascii() and not text.startswith(_NOT_UTF8):
        return "\0" not in text and bool(text)
    try:
        return b"\0" not in os.fsencode(stored_path(text)) and bool(text.removeprefix(_NOT_UTF8))
    except ValueError:
        return False
