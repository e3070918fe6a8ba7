"""Tables of a TOML document to dataclasses. Every fault is noted, named by its key; nothing is guessed.

TOML's arrays become tuples. If the field asks for it, its strings become paths and its integers floats. Nothing else is
converted: `"1"` is not 1, and 1 is not true.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import difflib
import functools
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from ingestd.checks import is_of
from ingestd.daemon.configuration import Fault
from ingestd.daemon.security import SaslSettings
from ingestd.errors import IngestdError, WrongSetting
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Key = tuple[str | int, ...]

__all__ = ["Document", "did_you_mean", "dotted"]

Value = TypeVar("Value")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_SECRET_KEY: Final = re.compile(r"passw|secret|token|credential|private|sasl|auth", re.IGNORECASE)
_OPEN_KEYS: Final = frozenset(
    {each.name for kind in (TlsSettings, SaslSettings, Secret) for each in dataclasses.fields(kind)}
    - {"key_password", "password", "client_secret", "extensions", "value"}
)
"""Keys of a cluster's `tls` and `sasl` whose values may be shown. Any other key may be a misspelt name of a secret."""
_SECRET_IN_URL: Final = re.compile(r"://[^/\s]*@")
_LONGEST_VALUE: Final = 120
_TYPES: Final[Mapping[Any, tuple[str, Any]]] = {
    bool: ("true or false", False),
    int: ("a whole number", 1),
    float: ("a finite number", 1.0),
    str: ("a string", "/x"),
    Path: ("a path", Path("/x")),
    tuple[str, ...]: ("an array of strings", ("/x",)),
    Mapping[str, str]: ("a table of strings", {}),
}
"""The types of settings, except `Literal` and dataclasses: what each is called, and an example value."""


class Document:
    """One file that is being read: its content, and the faults found so far."""

    def __init__(self, file: str, document: dict[str, Any]) -> None:
        self.file = file
        self.content = document
        self.faults: list[Fault] = []

    def fault(self, key: Key, problem: str, *, show: bool = True) -> None:
        """Note a fault at `key`. Its value is shown if there is one and it can not be a secret."""
        found, value = self.look_up(key)
        text = _shown(key, value) if show and found else None
        fault = Fault(self.file, dotted(key), text, problem)
        if fault not in self.faults:
            self.faults.append(fault)

    def tables(self, section: str) -> dict[str, dict[str, Any]]:
        """The tables `[section.NAME]` by name. Anything else there, and a name that is not allowed, is a fault."""
        given = self.content.get(section, {})
        if not isinstance(given, dict):
            self.fault((section,), f"expected tables [{section}.NAME]")
            return {}
        tables = {}
        for name, table in given.items():
            if not isinstance(table, dict):
                self.fault((section, name), f"expected a table [{section}.{name}]")
                continue
            if not _NAME.fullmatch(name):
                self.fault((section, name), "expected a name of letters, digits, '.', '_' and '-'", show=False)
            tables[name] = table
        return tables

    def construct(self, kind: type[Value], table: Mapping[str, Any], key: Key, name: str | None = None) -> Value | None:
        """A `kind` from a table, or None and faults. `name` fills the field `name`, which is not a key of the table.

        A class checks its values once all of them have the right type. So values of a wrong type are left out or
        replaced, to find the other faults. Faults that may come from such a replacement are not noted.
        """
        values, unclear = self._values(kind, table, key, {} if name is None else {"name": name})
        if unclear and not values:  # no value has the right type, so there is nothing to check
            return None
        try:
            value = kind(**{**_stand_ins(kind), **values})
        except WrongSetting as error:
            for wrong in (error, *error.also):
                if unclear.isdisjoint({wrong.key, *wrong.beside}):
                    self.fault((*key, wrong.key), f"expected {wrong.expected}")
        except (IngestdError, ValueError) as error:
            if not unclear:  # else it may come from a replacement
                self.fault(key, str(error), show=False)
        else:
            return None if unclear else value
        return None

    def _values(
        self, kind: Any, table: Mapping[str, Any], key: Key, filled: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], set[str]]:
        """The values of a table that have the right type, with those `filled`; and the keys with faults.

        For an unknown key, these include the known key that was probably meant, unless that is given too.
        """
        fields = {name: field for name, field in _fields(kind).items() if name not in filled}
        values = dict(filled)
        unclear: set[str] = set()
        for name, given in table.items():
            if name not in fields:
                self.fault((*key, name), "unknown key" + did_you_mean(name, fields))
                unclear |= {name, *(meant for meant in _closest(name, fields) if meant not in table)}
            elif (value := self._convert(fields[name].type, given, (*key, name))) is None:
                unclear.add(name)
            else:
                values[name] = value
        for name, field in fields.items():
            if field.required and name not in table:
                self.fault((*key, name), "missing, and has no default")
                unclear.add(name)
        return values, unclear

    def _convert(self, kind: Any, value: Any, key: Key) -> Any:
        """TOML's `value` converted for a field of type `kind`; or None, and faults. TOML itself has no None."""
        kinds = _alternatives(kind)
        for each in kinds:
            if isinstance(value, dict) and dataclasses.is_dataclass(each):
                return self.construct(each, value, key)  # type: ignore[arg-type]
            if isinstance(value, list) and get_origin(each) is tuple:
                items = [self._convert(get_args(each)[0], item, (*key, at)) for at, item in enumerate(value)]
                return None if None in items else tuple(items)
            if isinstance(value, dict) and get_origin(each) is Mapping:
                entries = {name: self._convert(get_args(each)[1], item, (*key, name)) for name, item in value.items()}
                return None if None in entries.values() else entries
            if (setting := _leaf(each, value)) is not None:
                return setting
        self.fault(key, "expected " + " or ".join(map(_words, kinds)) + _hint(kinds, key, value))
        return None

    def look_up(self, key: Key) -> tuple[bool, Any]:
        """Whether there is a value at `key`, and the value."""
        value: Any = self.content
        for step in key:
            if isinstance(value, dict) and step in value:
                value = value[str(step)]
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return False, None
        return True, value


class _Field(NamedTuple):
    type: Any
    required: bool


@functools.cache
def _fields(kind: Any) -> Mapping[str, _Field]:
    """The keys that a table for a `kind` may have."""
    types = get_type_hints(kind)
    return {
        each.name: _Field(types[each.name], each.default is each.default_factory is dataclasses.MISSING)
        for each in dataclasses.fields(kind)
        if each.init
    }


def _alternatives(kind: Any) -> Sequence[Any]:
    """The types of a union, or the one type; without None, which TOML does not have."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return [each for each in kinds if each is not NoneType]


def _leaf(kind: Any, value: Any) -> Any:
    """A `value` that is no array and no table, converted to `kind`; None if it has another type."""
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else None
    if kind is Path:
        return Path(value) if isinstance(value, str) else None
    if kind is float:
        return float(value) if is_of(value, float) and abs(value) <= sys.float_info.max else None
    return value if isinstance(kind, type) and is_of(value, kind) else None


def _stand_ins(kind: Any) -> dict[str, Any]:
    """A value of the right type for each field of a `kind` that has no default."""
    return {name: _stand_in(field.type) for name, field in _fields(kind).items() if field.required}


def _stand_in(kind: Any) -> Any:
    kind = _alternatives(kind)[0]
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    return _TYPES[kind][1] if kind in _TYPES else kind(**_stand_ins(kind))


def _words(kind: Any) -> str:
    """The words for a type, to follow "expected"."""
    if get_origin(kind) is not Literal:
        return _TYPES[kind][0] if kind in _TYPES else "a table"
    *choices, last = map(repr, get_args(kind))
    return f"{', '.join(choices)} or {last}" if choices else last


def _hint(kinds: Sequence[Any], key: Key, value: Any) -> str:
    """The end of a message about a refused string: what was probably meant."""
    if not isinstance(value, str):
        return ""
    if float in kinds:
        return " of seconds, as in 0.05"
    if tuple[str, ...] in kinds:
        shown = _shown(key, value)
        return f", as in [{shown}]" if shown.endswith('"') else ""  # not hidden and not cut off
    return did_you_mean(value, [choice for each in kinds if get_origin(each) is Literal for choice in get_args(each)])


def _closest(given: str, known: Iterable[str]) -> Sequence[str]:
    """The one of `known` that is close to `given`, if there is one."""
    return difflib.get_close_matches(given, list(known), n=1)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of a message about `given`: which one of `known` is close to it, if there is one."""
    return "".join(f"; did you mean {close!r}?" for close in _closest(given, known))


def dotted(key: Key) -> str:
    """A key as TOML writes it. An index into an array follows in brackets."""
    text = ""
    for step in key:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        part = step if _BARE_KEY.fullmatch(step) else json.dumps(step)
        text += f".{part}" if text else part
    return text


def _may_be_secret(key: Key, value: Any) -> bool:
    steps = [step for step in key if isinstance(step, str)]
    if steps[0] == "clusters" and len(steps) > 2 and steps[2] in ("tls", "sasl"):
        return steps[-1] not in _OPEN_KEYS or isinstance(value, (dict, list))
    return any(_SECRET_KEY.search(step) for step in steps)


def _shown(key: Key, value: Any) -> str:
    """A value as a person wrote it, on one line; hidden if its key, or a key in it, suggests a secret."""
    if _may_be_secret(key, value):
        return "(hidden)"
    is_date = isinstance(value, (dt.date, dt.time))  # in quotes it would look like a string
    text = str(value) if is_date else json.dumps(value, default=str, ensure_ascii=False)
    if _SECRET_IN_URL.search(text) or (isinstance(value, (dict, list)) and _SECRET_KEY.search(text)):
        return "(hidden)"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
