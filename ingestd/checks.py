"""Checks of what callers give, settings and arguments: a slip is named where it was made."""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from enum import Enum, IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ingestd.errors import ConfigurationError, IngestdError, WrongSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    Value = TypeVar("Value")

__all__ = [
    "Checks",
    "address_text",
    "as_path",
    "check_kinds",
    "closest",
    "did_you_mean",
    "is_loopback",
    "is_of",
    "is_text",
    "parse_address",
    "require_all_of",
    "require_at_least",
    "require_client",
    "require_mapping",
    "require_positive_seconds",
    "require_seconds",
    "require_settings",
    "require_several",
    "take_names",
    "take_text",
]

_WORDS: Final = {bool: "True or False", int: "a whole number", float: "a number", str: "a string"}
_SHOWN: Final = (bool, int, float, str, type(None), Enum)
"""What a message may show as it is: of anything else it names the class."""
_CLOSE: Final = 0.65
"""How alike a name must be that was perhaps meant: `tial` and `tails` are, `filename_header` and `leave_after` not."""


_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%\w+)?)\]|([^\s/@:\[\]]+)):([0-9]{1,5})", re.ASCII)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, or of `[HOST]:PORT` for IPv6. The port is 0 to 65535. Raises `ValueError`."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[3]) > 65535:
        if "@" in text:  # what is before it may be a password
            raise ValueError("what has an @ in it is not HOST:PORT; accounts are settings of their own")
        version_6 = text.count(":") > 1 and not text.startswith("[")
        more = "; an IPv6 address stands in brackets, [HOST]:PORT" if version_6 else ""
        raise ValueError(f"{text!r} is not HOST:PORT{more}")
    return found[1] or found[2], int(found[3])


def address_text(host: str, port: int) -> str:
    """What `parse_address` reads: `HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener at `host`. A name other than localhost may be anybody's."""
    import ipaddress  # noqa: PLC0415 - only a broker asks

    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


class Checks:
    """The checks of one settings object: each is made, whatever the others find, and all that is wrong is told at once.

    What is wrong beside a field that is wrong itself is left out: nobody knows yet.
    """

    def __init__(self) -> None:
        self._wrong: list[WrongSetting] = []

    def require(self, key: str, expected: str, *, holds: bool, beside: Iterable[str] = ()) -> None:
        """Note that `key` is wrong unless it `holds`."""
        if not holds:
            self._wrong.append(WrongSetting(key, expected, beside=beside))

    @contextlib.contextmanager
    def noting(self, *, beside: Iterable[str] = ()) -> Iterator[None]:
        """Note the `WrongSetting` that the block ends with, if it does."""
        try:
            yield
        except WrongSetting as wrong:
            self._wrong.append(WrongSetting(wrong.key, wrong.expected, beside={*beside, *wrong.beside} - {wrong.key}))

    def finish(self) -> None:
        """Raise the first `WrongSetting`, which has the others with it, if there is any."""
        if not self._wrong:
            return
        keys = {wrong.key for wrong in self._wrong}
        first, *others = [wrong for wrong in self._wrong if not wrong.beside & keys] or self._wrong
        first.also = tuple(others)
        raise first


def check_kinds(settings: Any, kinds: Mapping[str, type] | None = None, *, or_none: Collection[str] = ()) -> None:
    """Hold each field to the class of its default, or to that in `kinds`; None where it is the default or `or_none`.

    A whole number is a number too, but no other class stands for another: True is not 1, and "1" is not. NaN is no
    number. Raises `ConfigurationError`, naming the field.
    """
    for each in fields(settings):
        kind = (kinds or {}).get(each.name)
        if kind is None and each.default not in (MISSING, None):
            kind = type(each.default)
        value = getattr(settings, each.name)
        if kind is None or (value is None and (each.default is None or each.name in or_none)) or is_of(value, kind):
            continue
        raise ConfigurationError(f"{each.name}: {_shown(value)}; expected {_words(kind)}")


def take_text(settings: Any, name: str, meaning: Callable[[str], object]) -> None:
    """Put what a field's text stands for into its place; what is no text stays.

    `meaning` raises `IngestdError` for what it does not know, which becomes `ConfigurationError`, naming the field.
    """
    value = getattr(settings, name)
    if isinstance(value, str):
        try:
            object.__setattr__(settings, name, meaning(value))
        except IngestdError as error:
            said = str(error)
            raise ConfigurationError(said if said.startswith(name) else f"{name}: {said}") from None


def take_names(settings: Any) -> None:
    """Put the member of an enumeration into the place of its name, or of its number; what is neither stays."""
    for each in fields(settings):
        kind, value = type(each.default), getattr(settings, each.name)
        if not issubclass(kind, Enum):
            continue
        if isinstance(value, str) and value in kind.__members__:
            object.__setattr__(settings, each.name, kind[value])
        elif issubclass(kind, IntEnum) and is_of(value, kind):
            object.__setattr__(settings, each.name, kind(value))


def require_at_least(settings: Any, least: float, unit: str, names: Iterable[str]) -> None:
    """Hold fields to a lower bound. Raises `ConfigurationError`, naming the first that is below it."""
    for name in names:
        value = getattr(settings, name)
        if not value >= least:
            raise ConfigurationError(f"{name}: {value}; expected {unit}, {least:g} or more")


def require_positive_seconds(settings: Any, names: Iterable[str]) -> None:
    """Hold fields above 0. Raises `ConfigurationError`, naming the first that is not."""
    for name in names:
        value = getattr(settings, name)
        if not value > 0:
            raise ConfigurationError(f"{name}: {value}; expected seconds, more than 0")


def require_settings(given: Value | None, kind: type[Value]) -> Value:
    """The settings that a constructor was given, the defaults for None. Raises `ConfigurationError` for others."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise ConfigurationError(f"settings: {_shown(given)}; expected {_words(kind)}")
    return given


def require_client(given: object) -> None:
    """Refuse addresses where a `Client` is expected. Raises `ConfigurationError`."""
    if isinstance(given, (str, Collection)):
        raise ConfigurationError(f'client: {_shown(given)}; expected a Client, as in Client(["kafka-1:9092"])')


def require_several(name: str, given: Iterable[Value]) -> Iterable[Value]:
    """Refuse one thing where several are expected, which would be taken apart: the letters of a name, one by one.

    Raises `ConfigurationError`.
    """
    if isinstance(given, (str, bytes)) or hasattr(given, "_fields") or not isinstance(given, Iterable):
        raise ConfigurationError(f"{name}: {given!r}; expected several, as in [{given!r}]")
    return given


def require_mapping(name: str, given: object, example: str) -> None:
    """Refuse what is no mapping. `example` is one that would do. Raises `ConfigurationError`."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{name}: {_shown(given)}; expected a mapping, as in {example}")


def require_seconds(name: str, given: object) -> None:
    """Refuse what is no number of seconds, 0 or more. Raises `ConfigurationError`."""
    if not is_of(given, float) or given < 0:  # type: ignore[operator]
        raise ConfigurationError(f"{name}: {_shown(given)}; expected seconds, 0 or more")


def require_all_of(kind: type[Value], name: str, given: Iterable[Value]) -> list[Value]:
    """Several values, each of one class. Raises `ConfigurationError` for one thing, and for one of another class."""
    several = list(require_several(name, given))
    for each in several:
        if not isinstance(each, kind):
            raise ConfigurationError(f"{name}: {_shown(each)}; expected {_words(kind)}")
    return several


def as_path(name: str, given: Path | str | None) -> Path | None:
    """A path, also from a string. Raises `WrongSetting`."""
    if not isinstance(given, (str, Path, type(None))):
        raise WrongSetting(name, "a path")
    return Path(given) if isinstance(given, str) else given


def is_text(value: object) -> bool:
    """Whether it is a string, and not an empty one: what a type says, and a caller may not have kept to."""
    return isinstance(value, str) and bool(value)


def is_of(value: object, kind: type) -> bool:
    """Whether a value is of a class, as settings go: a whole number is a number too, True is not 1, NaN no number."""
    if kind is float:
        return is_of(value, int) or (isinstance(value, float) and not math.isnan(value))
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if issubclass(kind, IntEnum):
        return isinstance(value, int) and not isinstance(value, bool) and value in set(kind)
    return isinstance(value, kind)


def closest(given: str, known: Iterable[str]) -> list[str]:
    """The one of `known` that is close to `given`, if there is one."""
    return difflib.get_close_matches(given, list(known), n=1, cutoff=_CLOSE)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of a message about `given`: which one of `known` is close to it, if there is one."""
    return "".join(f"; did you mean {close!r}?" for close in closest(given, known))


def _words(kind: type) -> str:
    if issubclass(kind, Enum):
        return " or ".join(repr(member.name) for member in kind)
    return _WORDS.get(kind, f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}")


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, _SHOWN) else f"something of class {type(value).__name__}"
