"""Keys and values that are numbers in binary, as text: what a format like `>iq s` reads from bytes."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final

from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Unpacking", "parse_unpackings"]

_TOKEN: Final = re.compile(r"[<>]|[bBhHiIqQ]|[cs$ ]")
_NUMBERS: Final = "bBhHiIqQ"
_EXPECTED: Final = (
    "> and < (the order of the bytes that follow; > unless told), b B h H i I q Q (whole numbers of 1, 2, 4 and 8 "
    "bytes, capitals unsigned), c (one byte), s (all that is left), $ (nothing is left), or a space, written as it is"
)


class Unpacking:
    """Makes text of bytes, by kcat's format characters. Raises `ConfigurationError` for others, and for none."""

    def __init__(self, form: str) -> None:
        self._steps: list[str | struct.Struct] = []
        order = ">"
        if not form or _TOKEN.sub("", form):
            raise ConfigurationError(f"--unpack {form!r}: expected {_EXPECTED}")
        for character in form:
            if character in "<>":
                order = character
            elif character in _NUMBERS:
                self._steps.append(struct.Struct(order + character))
            else:
                self._steps.append(character)

    def unpack(self, data: bytes) -> bytes:
        """The text, without what the format leaves over, but for `$`. Raises `ValueError`, which says what lacks."""
        at = 0
        out: list[bytes] = []
        for step in self._steps:
            if isinstance(step, struct.Struct):
                if len(data) - at < step.size:
                    raise ValueError(f"expected {step.size} bytes at byte {at}, of {len(data)}")
                (number,) = step.unpack_from(data, at)
                out.append(b"%d" % number)
                at += step.size
            elif step == "c":
                if at == len(data):
                    raise ValueError(f"expected a byte at byte {at}, of {len(data)}")
                out.append(data[at : at + 1])
                at += 1
            elif step == "s":
                out.append(data[at:])
                at = len(data)
            elif step == "$":
                if at < len(data):
                    raise ValueError(f"expected its end at byte {at}, of {len(data)}")
            else:
                out.append(b" ")
        return b"".join(out)


def parse_unpackings(texts: Iterable[str]) -> tuple[Unpacking | None, Unpacking | None]:
    """For keys and for values, from `key=FORMAT`, `value=FORMAT`, or `FORMAT` for both. Raises `ConfigurationError`."""
    key: Unpacking | None = None
    value: Unpacking | None = None
    for text in texts:
        of, equals, form = text.partition("=")
        unpacking = Unpacking(form if equals and of in ("key", "value") else text)
        if not equals or of == "key":
            key = unpacking
        if not equals or of == "value":
            value = unpacking
    return key, value
