"""The tables of a TOML file to settings, by pydantic; and all that is wrong with them, in words of ours.

A settings class is a plain dataclass. pydantic makes it of a table by the types of its fields: TOML's arrays become
tuples. If the field asks for it, its strings become paths and its integers floats. Nothing else is converted: `"1"` is
not 1, and 1 is not true.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from ingestd.checks import closest, did_you_mean
from ingestd.daemon.security import SaslSettings
from ingestd.errors import ConfigurationError, WrongSetting
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ingestd.daemon.fields import RestOfFile

    Key = tuple[str | int, ...]
    Wrong = dict[str, Any]

__all__ = ["Document", "Fault", "FaultyConfiguration", "dotted"]

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_SECRET_KEY: Final = re.compile(r"passw|secret|token|credential|private|sasl|auth", re.IGNORECASE)
_OPEN_KEYS: Final = frozenset(
    {each.name for kind in (TlsSettings, SaslSettings, Secret) for each in dataclasses.fields(kind)}
    - {"key_password", "password", "client_secret", "extensions", "value"}
)
"""Keys of a cluster's `tls` and `sasl` whose values may be shown. Any other key may be a misspelt name of a secret."""
_SECRET_IN_ADDRESS: Final = re.compile(r"""://[^/\s]*@|"[^"/\s]*:[^"/\s]*@|"jdbc:[^"]*(?:@|(?i:passw|pwd))""")
_LONGEST_VALUE: Final = 120
_EXPECTED: Final = {
    "bool_type": "true or false",
    "dataclass_type": "a table",
    "dict_type": "a table",
    "finite_number": "a finite number of seconds, as in 0.05",
    "float_type": "a finite number of seconds, as in 0.05",
    "int_type": "a whole number",
    "path_type": "a path",
    "string_type": "a string",
    "tuple_type": "an array",
}
"""What a value of a wrong type should have been, by pydantic's type of the error."""
_BYTES: Final = "a whole number of bytes, as in 1048576"
_INSTEAD: Final = (
    ("tails", re.compile("multi_?line"), "; lines are not joined: do that in what consumes the topic"),
    ("tails", re.compile("header"), "; tails add no headers"),
    ("clusters", re.compile("skip_?verify|insecure_"), '; with `tls = {verify = "none"}` nothing is verified'),
)
"""What there is in place of keys that other shippers have: by section and key."""
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_ALTERNATIVE: Final = "\0alternative "
"""How a step into an alternative of a union begins, among pydantic's steps to what is wrong."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One fault in a configuration file. `value` is None if there is none to show, or if it may hold a secret."""

    file: str
    key: str
    value: str | None
    problem: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}" if self.key else self.file
        return f"{place}: {self.problem}" if self.value is None else f"{place} = {self.value}: {self.problem}"


class FaultyConfiguration(ConfigurationError):
    """All faults in one configuration file. The message has one line for each."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class Document:
    """One file that is being read: its content, and the faults found so far.

    unclear: keys with faults, and keys that may be right once another one is.
    """

    def __init__(self, file: str, content: dict[str, Any]) -> None:
        self.file = file
        self.content = content
        self.faults: list[Fault] = []
        self.unclear: set[Key] = set()
        self._refused: set[Key] = set()

    def fault(self, key: Key, problem: str, *, show: bool = True) -> None:
        """Note a fault at `key`. Its value is shown if there is one and it can not be a secret."""
        value = self.look_up(key)
        shown = None if value is None or not show else _shown(key, value)
        fault = Fault(self.file, dotted(key), shown, problem)
        self._doubt(key)
        if fault not in self.faults:
            self.faults.append(fault)

    def _doubt(self, key: Key) -> None:
        """Take a key out; with it the whole array that it is in."""
        self.unclear |= {key, tuple(itertools.takewhile(lambda step: isinstance(step, str), key))}

    def read(self, kind: Any, rest: RestOfFile) -> Any:
        """The whole file as an object of class `kind`. With faults, what is `unclear` has its default, or is empty.

        A class checks what goes together once every value is right by itself. So what is wrong is taken out, and what
        is left is read again, until nothing is wrong.
        """
        validator, tolerant = _validators(kind)
        while True:
            try:
                return validator.validate_python(_left_of(self.content, self.unclear), context=rest)
            except ValidationError as error:
                for wrong in _fitting(error.errors(include_url=False)):
                    self._note(wrong, kind)
                validator = tolerant

    def _note(self, wrong: Wrong, kind: Any) -> None:
        key: Key = tuple(wrong["loc"])
        error = wrong.get("ctx", {}).get("error")
        match wrong["type"]:
            case "missing" if key in self.unclear:
                self._doubt(key[:-1])
            case "missing":
                self.fault(key, "missing, and has no default")
            case "unexpected_keyword_argument":
                table, name = key[:-1], str(key[-1])
                known = _keys(kind, table)
                unknown = "unknown key" if table else "unknown table"
                self.fault(key, unknown + (_instead(key) or did_you_mean(name, known)), show=bool(table))
                given = self.look_up(table)
                self.unclear |= {(*table, meant) for meant in closest(name, known) if meant not in given}
            case _ if isinstance(error, WrongSetting):
                self._note_refusal(key, [error, *error.also])
            case _:
                expected = _expected(wrong)
                assert error or expected, f"{wrong['type']} has no words in _EXPECTED"
                problem = f"{error}{self._remark(key, str(error))}" if error else None
                self.fault(key, problem or f"expected {expected}{self._hint(key, expected)}")

    def _note_refusal(self, key: Key, wrong: Sequence[WrongSetting]) -> None:
        """Note what a class does not take together in the table at `key`, once. Refused again, the table is taken out.

        What is wrong beside a key that is unclear is not said: it may be right. Nor is what an inner table lacks of
        which nothing is left.
        """
        if key in self._refused:
            self._doubt(key)
            return
        self._refused.add(key)
        given = self.look_up(key)
        if len(key) == 2 or not given or _left_of(given, self.unclear, key):
            doubtful = [{(*key, name) for name in (each.key, *each.beside)} for each in wrong]
            said = [each for each, keys in zip(wrong, doubtful, strict=True) if self.unclear.isdisjoint(keys)]
            for each in said:
                self.fault((*key, each.key), f"expected {each.expected}")
            self.unclear = self.unclear.union(*doubtful)

    def _hint(self, key: Key, expected: str) -> str:
        """The end of a message about a refused value: what was probably meant."""
        if len(key) == 2 and expected == _EXPECTED["dataclass_type"]:
            return f"; write [{key[0]}.NAME] above the keys of one"
        if key[-1] == "tls" and expected == _EXPECTED["dataclass_type"]:
            return "; {} will do where this machine trusts the brokers' authority"
        value = self.look_up(key)
        if not isinstance(value, str):
            return ""
        if expected in (_EXPECTED["float_type"], _BYTES):
            return ", without quotes and unit"
        if "array" in expected:
            shown = _shown(key, value)
            if key[-1] == "bootstrap":  # other clients take several in one string
                shown = re.sub(", *", '", "', shown)
            return f", as in [{shown}]" if shown.endswith('"') else ""  # not hidden and not cut off
        return did_you_mean(value, re.findall(r"'([^']*)'", expected))

    def _remark(self, key: Key, problem: str) -> str:
        """The end of a message about a refused address or path: what in it has no meaning here."""
        value = self.look_up(key)
        if not isinstance(value, str):
            return ""
        if "HOST:PORT" in problem and (scheme := _SCHEME.match(value)):
            return f", without {scheme[0]}"
        if "absolute path" in problem and (value.startswith("~") or "$" in value):
            return "; ~ and $NAME are not expanded here"
        return ""

    def look_up(self, key: Sequence[str | int]) -> Any:
        """The value at `key`; None if there is none."""
        value: Any = self.content
        for step in key:
            is_there = step in value if isinstance(value, dict) else isinstance(value, list) and isinstance(step, int)
            if not is_there:
                return None
            value = value[step]
        return value


@functools.cache
def _validators(kind: type) -> tuple[SchemaValidator, SchemaValidator]:
    """What makes a `kind` of a table in which all is right; and of one that keys were taken out of."""
    schema = _changed(TypeAdapter(kind).core_schema, _strict)
    return SchemaValidator(schema), SchemaValidator(_changed(schema, _tolerant))


def _changed(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A schema of pydantic with each node in it changed."""
    if isinstance(schema, dict):
        return change({key: _changed(each, change) for key, each in schema.items()})
    return [_changed(each, change) for each in schema] if isinstance(schema, list) else schema


def _strict(node: dict[str, Any]) -> dict[str, Any]:
    # pydantic's own strict mode refuses tables for dataclasses, lists for tuples, and strings for paths.
    match node.get("type"):
        case "str" | "int" | "bool":
            return {**node, "strict": True}
        case "float":
            return {**node, "strict": True, "allow_inf_nan": False}
        case "dataclass-args":
            return {**node, "extra_behavior": "forbid"}
        case "union":
            return {**node, "choices": [(each, f"{_ALTERNATIVE}{at}") for at, each in enumerate(node["choices"])]}
    return node


def _tolerant(node: dict[str, Any]) -> dict[str, Any]:
    """Of a table `[section.NAME]`, a key that is missing and has no default is empty or None."""
    if node.get("type") != "dataclass-args" or all(each["name"] != "name" for each in node["fields"]):
        return node
    return {**node, "fields": [{**each, "schema": _with_default(each["schema"])} for each in node["fields"]]}


def _with_default(schema: dict[str, Any]) -> dict[str, Any]:
    inner = schema
    while inner["type"] == "function-after":
        inner = inner["schema"]
    default = () if inner["type"] == "tuple" else None
    return schema if inner["type"] == "default" else {"type": "default", "schema": schema, "default": default}


def _expected(wrong: Wrong) -> str:
    """What was expected in the place of a value of a wrong type; empty if the type is right."""
    if wrong["type"] == "int_type" and str(wrong["loc"][-1]).endswith("_bytes"):
        return _BYTES
    return _EXPECTED.get(wrong["type"]) or str(wrong.get("ctx", {}).get("expected", ""))


def _fitting(found: Iterable[Any]) -> list[Wrong]:
    """What is wrong. Of a union: with the alternative that fits best, or that none has the type of the value."""
    fitting: list[Wrong] = []
    unions: dict[Key, dict[Any, list[Wrong]]] = defaultdict(lambda: defaultdict(list))
    for wrong in found:
        steps = wrong["loc"]
        at = next((at for at, step in enumerate(steps) if str(step).startswith(_ALTERNATIVE)), None)
        if at is None:
            fitting.append(wrong)
        else:
            unions[steps[:at]][steps[at]].append({**wrong, "loc": (*steps[:at], *steps[at + 1 :])})
    for key, by_alternative in unions.items():
        alternatives = [_fitting(each) for each in by_alternative.values()]
        of_its_type = [each for each in alternatives if each[0]["loc"] != key or not _expected(each[0])]
        expected = " or ".join(dict.fromkeys(_expected(each[0]) for each in alternatives))
        best: list[Wrong] = min(of_its_type, key=len, default=[])
        fitting += best or [{"loc": key, "type": "union", "ctx": {"expected": expected}}]
    return fitting


def _instead(key: Key) -> str:
    """The end of a message about an unknown key: what there is in its place, if that is known."""
    found = (said for section, name, said in _INSTEAD if section == key[0] and name.search(str(key[-1])))
    return next(found, "")


def _keys(hint: Any, steps: Sequence[str | int]) -> list[str]:
    """The keys that a table may have, some steps from a value of this type."""
    if not dataclasses.is_dataclass(hint):
        rest = steps[1:] if get_origin(hint) in (Mapping, tuple) else steps
        return [key for each in get_args(hint) for key in _keys(each, rest)]
    if not steps:
        return [each.name for each in dataclasses.fields(hint) if each.name != "name"]
    return _keys(get_type_hints(hint)[str(steps[0])], steps[1:])


def _left_of(table: Any, unclear: set[Key], at: Key = ()) -> Any:
    """What is left of a table `at` some key, without what is unclear; with its name, if it is a `[section.NAME]`."""
    if not isinstance(table, dict):
        return table
    left = {key: _left_of(each, unclear, (*at, key)) for key, each in table.items() if (*at, key) not in unclear}
    return {**left, "name": at[1]} if len(at) == 2 else left


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
    if _may_be_secret(key, value) and not isinstance(value, bool):
        return "(hidden)"
    is_date = isinstance(value, (dt.date, dt.time))  # in quotes it would look like a string
    text = str(value) if is_date else json.dumps(value, default=str, ensure_ascii=False)
    if _SECRET_IN_ADDRESS.search(text) or (isinstance(value, (dict, list)) and _SECRET_KEY.search(text)):
        return "(hidden)"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
