"""One TOML file to one `Configuration`: every fault in it is found, named by its key, and none is guessed around.

The file is checked as JSON by pydantic in strict mode: TOML's arrays become tuples and its strings paths, but nothing
else is turned into anything: `"1"` is not 1, and 1 is not true.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from ingestd.daemon.arena import largest_batch
from ingestd.daemon.configuration import (
    ClusterSettings,
    Configuration,
    DaemonSettings,
    Fault,
    FaultyConfiguration,
    PipelineSettings,
    WrongSetting,
)
from ingestd.daemon.security import SaslSettings
from ingestd.errors import IngestdError
from ingestd.wire.secret import Secret, warn_if_others_can_read
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails

    from ingestd.daemon.source import Route

    Key = tuple[str | int, ...]

__all__ = ["read_configuration"]

Value = TypeVar("Value")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_SECRET_KEY: Final = re.compile(r"passw|secret|token|credential|private|sasl|auth", re.IGNORECASE)
_OPEN_KEYS: Final = frozenset(
    {each.name for kind in (TlsSettings, SaslSettings, Secret) for each in dataclasses.fields(kind)}
    - {"key_password", "password", "client_secret", "extensions", "value"}
)
"""Of a cluster's `tls` and `sasl`: the keys whose values may be shown. Others may be secrets with a slip in the key."""
_SECRET_IN_URL: Final = re.compile(r"://[^/\s]*@")
_LONGEST_VALUE: Final = 120
_NOT_BUILT_TABLES: Final = {"mirrors": "mirrors from topic to topic"}


def read_configuration(path: Path, kinds: Mapping[str, type[Route]]) -> Configuration:
    """The configuration in the file at `path`. Raises `FaultyConfiguration` with all faults."""
    document = _parse(path)
    reading = _Reading(str(path), document)
    configuration = _validate(reading, path, kinds)
    if reading.faults:
        raise FaultyConfiguration(reading.faults)
    return configuration


def _parse(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        problem = "no such file"
    except IsADirectoryError:
        problem = "is a directory; expected a TOML file"
    except OSError as error:
        problem = f"can not be read: {error.strerror}"
    else:
        try:
            return tomllib.loads(raw.decode())
        except UnicodeDecodeError as error:
            problem = f"is not UTF-8 at byte {error.start}; expected a TOML file"
        except tomllib.TOMLDecodeError as error:
            problem = f"is not TOML: {error}"
    raise FaultyConfiguration([Fault(str(path), "", None, problem)])


class _Reading:
    """One file being read: its document, and the faults found so far."""

    def __init__(self, file: str, document: dict[str, Any]) -> None:
        self.file = file
        self.document = document
        self.faults: list[Fault] = []

    def fault(self, key: Key, problem: str, *, show: bool = True) -> None:
        """Note what is wrong at `key`; its value is shown if there is one and it can not be a secret."""
        found, value = self.look_up(key)
        text = _shown(key, value) if show and found else None
        fault = Fault(self.file, _dotted(key), text, problem)
        if fault not in self.faults:
            self.faults.append(fault)

    def tables(self, section: str) -> dict[str, dict[str, Any]]:
        """The tables `[section.NAME]` by name; what is no such table, or has a name that can not be one, is a fault."""
        given = self.document.get(section, {})
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
        """A `kind` from a table, or None and faults. `name` fills the field `name`, which is no key of the table.

        A class checks its values once all of them have the right type. So what has not is replaced, for what else is
        wrong to be found; and what is wrong beside a replaced value is not said, since nobody knows yet.
        """
        given = copy.deepcopy(dict(table))
        if name is not None:
            if "name" in given:
                self._unknown_key((*key, "name"), kind)
            given["name"] = name
        model = create_model("Table", __config__=_STRICT, value=(kind, ...))
        replaced: set[Key] = set()
        while True:
            try:
                value: Value = model.model_validate_json(json.dumps({"value": given}, default=_no_date)).value  # type: ignore[attr-defined]
            except ValidationError as error:
                errors = error.errors(include_url=False)
            except IngestdError as error:
                if not replaced:
                    self.fault(key, str(error), show=False)
                return None
            else:
                return None if replaced else value
            self._invalid(kind, key, errors, replaced)
            wrong = {field for error in errors for field in self._fields(kind, key, error)} - replaced
            if not wrong or () in wrong:  # the table's own checks were made: there is nothing behind them
                return None
            for field in sorted(wrong, key=len, reverse=True):
                _replace(kind, given, field)
            replaced |= wrong

    def _is_other_form(self, place: Key, errors: Sequence[ErrorDetails], key: Key) -> bool:
        """Whether a table stands where a string could too: then what is wrong in it is what matters."""
        _, value = self.look_up(place)
        if not isinstance(value, dict):
            return False
        others = ((self._written(key, error["loc"][1:]), error["type"]) for error in errors)
        return any(
            other[: len(place)] == place and (len(other) > len(place) or kind != "string_type")
            for other, kind in others
        )

    def _fields(self, kind: type, key: Key, error: ErrorDetails) -> Iterator[Key]:
        """The field of `kind`, or of a table in it, that an error is about; () where it is about the whole.

        Of a key that is not known also the field that it may be meant for, where that is not given.
        """
        place = self._written(key, error["loc"][1:])[len(key) :]
        if error["type"] == "missing":
            place = (*place, error["loc"][-1])
        depth = next((at for at in range(len(place)) if _kind_at(kind, place[:at]) is None), len(place))
        yield place[:depth]
        if error["type"] == "unexpected_keyword_argument":
            meant = _closest(str(place[-1]), _keys_of(_kind_at(kind, place[:-1])))
            if meant is not None and not self.look_up((*key, *place[:-1], meant))[0]:
                yield (*place[:-1], meant)

    def _invalid(self, kind: type, key: Key, errors: Sequence[ErrorDetails], replaced: Collection[Key]) -> None:
        """Say what is wrong, but for what is where something was `replaced`, or wrong beside that."""
        expected: dict[Key, list[str]] = {}
        for error in errors:
            place = self._written(key, error["loc"][1:])
            if replaced and error["type"] != "value_error":
                continue
            if error["type"] == "string_type" and self._is_other_form(place, errors, key):
                continue
            match error["type"]:
                case "unexpected_keyword_argument":
                    self._unknown_key(place, _kind_at(kind, place[len(key) : -1]))
                case "missing":
                    place = (*place, str(error["loc"][-1]))
                    self.fault(place, "missing, and has no default")
                case "value_error":
                    self._refused(place, error["ctx"]["error"], {(*key, *field) for field in replaced})
                case _:
                    expected.setdefault(place, []).append(_expectation(error))
        for place, alternatives in expected.items():
            self.fault(place, "expected " + " or ".join(dict.fromkeys(alternatives)) + self._meant(place, alternatives))

    def _refused(self, place: Key, error: Exception, replaced: Collection[Key]) -> None:
        if not isinstance(error, WrongSetting):
            if not replaced:  # else it may be about what was put there
                self.fault(place, str(error), show=False)
            return
        for wrong in (error, *error.also):
            if not any(_overlap((*place, key), other) for key in (wrong.key, *wrong.beside) for other in replaced):
                self.fault((*place, wrong.key), f"expected {wrong.expected}")

    def _unknown_key(self, key: Key, kind: type | None) -> None:
        self.fault(key, "unknown key" + _did_you_mean(str(key[-1]), _keys_of(kind)))

    def _written(self, key: Key, location: Sequence[str | int]) -> Key:
        """The part of pydantic's location that is in the file: it also names the branches of a union."""
        for step in location:
            found, _ = self.look_up((*key, step))
            if found:
                key = (*key, step)
        return key

    def look_up(self, key: Key) -> tuple[bool, Any]:
        """Whether the document has something at `key`, and what."""
        value: Any = self.document
        for step in key:
            if isinstance(value, dict) and step in value:
                value = value[str(step)]
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return False, None
        return True, value

    def _meant(self, place: Key, expectations: Sequence[str]) -> str:
        _, value = self.look_up(place)
        if not isinstance(value, str):
            return ""
        if "a valid array" in expectations and (shown := _shown(place, value)).startswith('"'):
            return f", as in [{shown}]"
        choices = [choice for text in expectations for choice in re.findall(r"'([^']*)'", text)]
        return _did_you_mean(value, choices)


_STRICT: Final = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _validate(reading: _Reading, path: Path, kinds: Mapping[str, type[Route]]) -> Configuration:
    _check_sections(reading, kinds)
    daemon = _daemon(reading)
    clusters = _clusters(reading)
    routes = [route for section, kind in kinds.items() for route in _routes(reading, section, kind)]
    pipelines = _pipelines(reading)
    _check_unique(reading, kinds)
    _check_room(reading, daemon, kinds)
    return Configuration(path, daemon, clusters, tuple(routes), pipelines)


def _check_sections(reading: _Reading, kinds: Mapping[str, type[Route]]) -> None:
    known = ["daemon", "clusters", *kinds, "pipelines"]
    for section in reading.document:
        if section in known:
            continue
        if section in _NOT_BUILT_TABLES:
            reading.fault((section,), f"{_NOT_BUILT_TABLES[section]} are not built yet", show=False)
        else:
            reading.fault((section,), "unknown table" + _did_you_mean(section, known), show=False)


def _daemon(reading: _Reading) -> DaemonSettings:
    table = reading.document.get("daemon", {})
    if not isinstance(table, dict):
        reading.fault(("daemon",), "expected a table [daemon]")
        return DaemonSettings()
    settings = reading.construct(DaemonSettings, table, ("daemon",)) or DaemonSettings()
    return dataclasses.replace(settings, state=settings.state.expanduser().absolute())


def _clusters(reading: _Reading) -> dict[str, ClusterSettings]:
    clusters = {}
    for name, table in reading.tables("clusters").items():
        key = ("clusters", name)
        foreign = _keys_of_the_other_kind(reading, key, table)
        given = {each: value for each, value in table.items() if each not in foreign}
        settings = reading.construct(ClusterSettings, given, key, name)
        if settings is not None:
            clusters[name] = settings
            if any(secret.value is not None for secret in settings.secrets().values()):
                warn_if_others_can_read(Path(reading.file))
    return clusters


def _keys_of_the_other_kind(reading: _Reading, key: Key, table: Mapping[str, Any]) -> Sequence[str]:
    """The keys that only an embedded cluster has, or only another one. None where it is not clear which one it is."""
    embedded = table.get("embedded", False)
    if not isinstance(embedded, bool) or embedded is ("bootstrap" in table):
        return ()
    foreign = [each for each in (("tls", "sasl") if embedded else ("listen", "data", "partitions")) if each in table]
    for each in foreign:
        if embedded:
            reading.fault((*key, each), "an embedded cluster has no such key", show=False)
        else:
            reading.fault((*key, each), "only an embedded cluster has this key")
    return foreign


def _routes(reading: _Reading, section: str, kind: type[Route]) -> list[Route]:
    routes = []
    fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name, table in reading.tables(section).items():
        key = (section, name)
        given = dict(table)
        if given.get("delivery") == "exactly-once":
            problem = 'exactly-once delivery is not built yet; expected "at-least-once"'
            reading.fault((*key, "delivery"), problem)
            del given["delivery"]
        elif "delivery" not in fields and given.get("delivery") == "at-least-once":
            del given["delivery"]
        _check_cluster(reading, key)
        topic = given.get("topic")
        if isinstance(topic, str) and not _TOPIC.fullmatch(topic):
            reading.fault((*key, "topic"), "expected 1 to 249 of letters, digits, '.', '_' and '-'")
        route = reading.construct(kind, given, key, name)
        if route is not None:
            routes.append(route)
    return routes


def _pipelines(reading: _Reading) -> dict[str, PipelineSettings]:
    pipelines = {}
    for name, table in reading.tables("pipelines").items():
        _check_cluster(reading, ("pipelines", name, "source"))
        settings = reading.construct(PipelineSettings, table, ("pipelines", name), name)
        if settings is not None:
            pipelines[name] = settings
    return pipelines


def _check_cluster(reading: _Reading, key: Key) -> None:
    """Whether the cluster that the table at `key` names is configured (rightly or wrongly: its own faults tell)."""
    configured = reading.document.get("clusters", {})
    found, name = reading.look_up((*key, "cluster"))
    if not found or not isinstance(name, str) or not isinstance(configured, dict) or name in configured:
        return
    expected = ", ".join(configured) if configured else "none is configured"
    reading.fault((*key, "cluster"), f"no such [clusters.NAME] ({expected})" + _did_you_mean(name, configured))


def _check_unique(reading: _Reading, kinds: Mapping[str, type[Route]]) -> None:
    """No two routes of one name, whatever their kind; no two that take the same files."""
    names: dict[str, str] = {}
    claims: dict[tuple[str, str], tuple[str, str]] = {}
    for section in kinds:
        for name, table in reading.tables(section).items():
            if name in names:
                reading.fault((section, name), f"[{names[name]}.{name}] has the same name", show=False)
            names[name] = section
            paths = table.get("paths", ())
            exclude = json.dumps(table.get("exclude", ()), default=str)
            for path in dict.fromkeys(paths if isinstance(paths, list) else ()):
                claim = (json.dumps(path, default=str), exclude)
                other = claims.setdefault(claim, (section, name))
                if other != (section, name):
                    problem = f"[{_dotted(other)}] takes {claim[0]} too; a file belongs to one route"
                    reading.fault((section, name, "paths"), problem)


def _check_room(reading: _Reading, daemon: DaemonSettings, kinds: Mapping[str, type[Route]]) -> None:
    """A batch that its worker's arena has no room for would never be read, and nothing would ever say so."""
    if any(fault.key == "daemon.arena_bytes" for fault in reading.faults):
        return  # nobody knows how much room there is to be
    found, given_bytes = reading.look_up(("daemon", "arena_bytes"))
    arena_bytes = given_bytes if found else daemon.arena_bytes  # with another fault in it, `daemon` is the defaults
    most = largest_batch(arena_bytes)
    for section in kinds:
        for name, table in reading.tables(section).items():
            given = table.get("batch_bytes")
            if isinstance(given, int) and given > most:
                problem = f"expected at most {most} bytes with an arena_bytes of {arena_bytes} in [daemon]"
                reading.fault((section, name, "batch_bytes"), problem)


def _overlap(one: Key, other: Key) -> bool:
    """Whether one of two places is in the other."""
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def _replace(kind: type, table: dict[str, Any], field: Key) -> None:
    """Put something of the right type where a table has something wrong, or nothing: the default if there is one."""
    for step in field[:-1]:
        table = table.setdefault(str(step), {})
    name = str(field[-1])
    table.pop(name, None)
    owner = _kind_at(kind, field[:-1])
    known = {} if owner is None else {each.name: each for each in dataclasses.fields(owner)}
    if owner is not None and name in known and _is_required(known[name]):
        table[name] = _stand_in(get_type_hints(owner)[name])


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _stand_in(kind: Any) -> Any:
    """Something of a field's type; None where it is none that a setting has."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return {each.name: _stand_in(hints[each.name]) for each in dataclasses.fields(kind) if _is_required(each)}
    choices = get_args(kind)
    origin = get_origin(kind)
    if origin is Literal:
        return choices[0]
    if origin is tuple:
        return [_stand_in(choices[0])]
    if choices and origin is not dict:
        return _stand_in(choices[0])
    return {str: "/x", Path: "/x", int: 1, float: 1.0, bool: False, dict: {}}.get(kind)


def _kind_at(kind: Any, location: Sequence[str | int]) -> type | None:
    """The dataclass that the field at `location` holds, to name its keys; None where it is not plainly one."""
    for step in location:
        kind = get_type_hints(kind).get(str(step))
        alternatives = [each for each in get_args(kind) if dataclasses.is_dataclass(each)]
        if len(alternatives) == 1:
            kind = alternatives[0]
        if not dataclasses.is_dataclass(kind):
            return None
    return kind if isinstance(kind, type) else None


def _no_date(value: object) -> dict[str, str]:
    """What stands in JSON for TOML's dates and times, which no setting takes: something that no string is."""
    return {"date": str(value)}


def _expectation(error: ErrorDetails) -> str:
    """Pydantic's message as what comes after "expected"."""
    if error["type"] == "dataclass_type":
        return "a table"
    message = error["msg"]
    for opening in ("Input should be an instance of ", "Input should be "):
        if message.startswith(opening):
            return message.removeprefix(opening)
    return f"something else ({message})"


def _keys_of(kind: type | None) -> Sequence[str]:
    """The keys that a table has that becomes a `kind`; `name` stands in its header."""
    known = [] if kind is None else [field.name for field in dataclasses.fields(kind) if field.init]
    return [name for name in known if name != "name"]


def _closest(given: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(given, list(known), n=1)), None)


def _did_you_mean(given: str, known: Iterable[str]) -> str:
    close = _closest(given, known)
    return "" if close is None else f"; did you mean {close!r}?"


def _dotted(key: Key) -> str:
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
    """A value as a person wrote it, on one line; hidden where its key, or a key in it, says that it is a secret."""
    if _may_be_secret(key, value):
        return "(hidden)"
    text = json.dumps(value, default=str, ensure_ascii=False)
    if _SECRET_IN_URL.search(text) or (isinstance(value, (dict, list)) and _SECRET_KEY.search(text)):
        return "(hidden)"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
