"""Known: what is stored of one generation of a log, so that it is known again whatever it is called then."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingestd.tail.file_id import FileId
from ingestd.tail.rotation import CODECS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingestd.tail.text import Text

__all__ = ["WITNESS_BYTES", "Known", "Witness", "birth_of", "name_source", "printable", "stored_path", "witness_before"]

WITNESS_BYTES: Final = 256
"""A witness covers at most this many bytes."""

_DIGEST_BYTES: Final = 16
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_HEXADECIMAL: Final = re.compile(r"[0-9a-f-]*")
_SIGNED: Final = (1 << 63) - 1
_UNSIGNED: Final = (1 << 64) - 1
_NOT_UTF8: Final = "bytes:"

_births = itertools.count(time.time_ns())


@dataclass(frozen=True, slots=True)
class Witness:
    """The hash of the `length` bytes of text before position `at`."""

    at: int
    length: int
    digest: str

    @classmethod
    def of(cls, at: int, data: bytes | memoryview) -> Witness:
        """The witness of `data`, which ends at position `at`; the last `WITNESS_BYTES` of it count."""
        data = data[-WITNESS_BYTES:]
        return cls(at, len(data), hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest())

    def fits(self, text: Text) -> bool:
        """Whether a text has these bytes there. Raises `OSError`."""
        data = text.read(self.at - self.length, self.length)
        return len(data) == self.length and Witness.of(self.at, data) == self


@dataclass(frozen=True, slots=True)
class Known:
    """One generation of a log.

    log: the path that it was written under. path: where it was seen last. size: bytes of text when last looked at.
    modified: nanoseconds since 1970. codec: as `rotation.codec_of` has it. done: it was read to its end and rotated
    away; it is remembered so that it is not sent again. copy_of: the source that it repeats, as long as that one may
    still be another log that only begins alike.
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

    def holds(self, text: Text) -> bool:
        """Whether a text has the bytes of the witness, as this generation has. Raises `OSError`."""
        return self.witness is None or self.witness.fits(text)

    def to_detail(self) -> dict[str, Any]:
        """As JSON values, for `Found.detail`."""
        file, witness = self.file, self.witness
        detail = {
            "log": _to_store(self.log),
            "path": _to_store(self.path),
            "device": file.device,
            "inode": file.inode,
        }
        rest = {
            "birth": file.birth,
            "handle": file.handle,
            "volume": file.volume,
            "size": self.size,
            "modified": self.modified,
            "codec": self.codec,
            "done": self.done,
            "copy_of": self.copy_of,
        }
        detail |= {key: value for key, value in rest.items() if value}
        if witness is not None:
            detail |= {"witness": witness.digest, "witness_at": witness.at, "witness_bytes": witness.length}
        return detail

    @classmethod
    def from_detail(cls, detail: Mapping[str, Any]) -> Known:
        """From what `to_detail` made, now or in version 0.1. Raises `ValueError` that names the key at fault."""
        witness = None
        if "witness" in detail:
            at = _number(detail, "witness_at", least=1)
            length = _number(detail, "witness_bytes", least=1, most=min(at, WITNESS_BYTES))
            witness = Witness(at, length, _text(detail, "witness", _DIGEST.fullmatch, "32 hexadecimal digits"))
        path = _path(detail, "path")
        return cls(
            log=_path(detail, "log") if "log" in detail else _path(detail, "origin", path),
            path=path,
            file=FileId(
                _number(detail, "device", most=_UNSIGNED),
                _number(detail, "inode", most=_UNSIGNED),
                _number(detail, "birth", 0),
                _text(detail, "handle", _HEXADECIMAL.fullmatch, "hexadecimal digits", ""),
                _text(detail, "volume", _HEXADECIMAL.fullmatch, "hexadecimal digits", ""),
            ),
            witness=witness,
            size=_number(detail, "size", 0),
            modified=_number(detail, "modified", 0, least=-_SIGNED),
            codec=_text(detail, "codec", CODECS.__contains__, f"one of {', '.join(filter(None, CODECS))}", ""),
            done=_truth(detail, "done"),
            copy_of=_text(detail, "copy_of", lambda _: True, "the name of a source", ""),
        )


def witness_before(text: Text, position: int) -> Witness | None:
    """The witness of the bytes before a position; None where the text has none there. Raises `OSError`."""
    length = min(position, WITNESS_BYTES)
    data = text.read(position - length, length)
    return Witness.of(position, data) if data and len(data) == length else None


def name_source(file: FileId) -> str:
    """A name for a generation found for the first time; no two calls give the same."""
    return f"{file.device:x}-{file.inode:x}-{next(_births):x}"


def birth_of(source: str) -> int:
    """A number that is larger for sources named later; 0 for a name that is not of `name_source`."""
    try:
        return int(source.rpartition("-")[2], 16)
    except ValueError:
        return 0


def printable(path: str) -> str:
    """A path that may not be UTF-8, for people."""
    return os.fsencode(path).decode(errors="backslashreplace")


def stored_path(text: str) -> str:
    """A path from what is stored for it in a detail. Raises `ValueError` for what no path is stored as."""
    return os.fsdecode(bytes.fromhex(text.removeprefix(_NOT_UTF8))) if text.startswith(_NOT_UTF8) else text


def _to_store(path: str) -> str:
    """A path as JSON can hold it: as it is, or its bytes if they are not UTF-8."""
    plain = path.isascii() or printable(path) == path
    return path if plain and not path.startswith(_NOT_UTF8) else _NOT_UTF8 + os.fsencode(path).hex()


def _wrong(detail: Mapping[str, Any], key: str, expected: str) -> ValueError:
    found = f"found {detail[key]!r}" if key in detail else "it is missing"
    return ValueError(f"{key}: expected {expected}, {found}")


def _number(
    detail: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 0, most: int = _SIGNED
) -> int:
    value = detail.get(key, default)
    if type(value) is not int or not least <= value <= most:  # True is no number
        raise _wrong(detail, key, f"a whole number from {least} to {most}")
    return value


def _truth(detail: Mapping[str, Any], key: str) -> bool:
    value = detail.get(key, False)
    if not isinstance(value, bool):
        raise _wrong(detail, key, "true or false")
    return value


def _text(
    detail: Mapping[str, Any], key: str, valid: Callable[[str], object], expected: str, default: str | None = None
) -> str:
    value = detail.get(key, default)
    if not isinstance(value, str) or not valid(value):
        raise _wrong(detail, key, expected)
    return value


def _path(detail: Mapping[str, Any], key: str, default: str | None = None) -> str:
    text = _text(detail, key, _is_path, "a path", _to_store(default) if default else None)
    return stored_path(text)


def _is_path(text: str) -> bool:
    if text.isascii() and not text.startswith(_NOT_UTF8):
        return "\0" not in text and bool(text)
    try:
        return b"\0" not in os.fsencode(stored_path(text)) and bool(text.removeprefix(_NOT_UTF8))
    except ValueError:
        return False
