"""One TOML file to one `Configuration`: first each table by itself, then what must fit between tables."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ingestd.checks import parse_address
from ingestd.daemon.configuration import (
    ClusterSettings,
    Configuration,
    DaemonSettings,
    holds_an_arena,
)
from ingestd.daemon.fields import RestOfFile, is_address
from ingestd.daemon.pipelines import PipelineSettings, same_directory
from ingestd.daemon.tables import Document, Fault, FaultyConfiguration, dotted

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from ingestd.daemon.source import Route

__all__ = ["file_class", "load"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TWICE: Final = re.compile(r"Cannot declare \((.*)\) twice")
_QUOTED: Final = re.compile(r"'([^']*)'")
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - to be compared with
_LOCAL: Final = {"localhost": "127.0.0.1"}
_FILES: Final = (
    ("tls", "ca_file"),
    ("tls", "certificate_file"),
    ("tls", "key_file"),
    ("tls", "key_password", "file"),
    ("sasl", "password", "file"),
    ("sasl", "client_secret", "file"),
    ("sasl", "token_ca_file"),
)
"""Keys of a cluster that name a file to read."""


def load(path: str | Path, kinds: Mapping[str, type[Route]]) -> Configuration:
    """Read and check a configuration file.

    `kinds` has the route class for each kind of table: `{"tails": TailRoute}` for `[tails.NAME]`. Only those of tables
    in the file are looked up. A route class is a dataclass. Its fields, except `name`, are the table's keys (see
    `ingestd.daemon.fields`). It may raise `WrongSetting` from `__post_init__` for values that do not go together.
    Nothing outside the file is looked at. Raises `FaultyConfiguration` with all faults.
    """
    path = Path(path)
    document = Document(str(path), _parse(path))
    tables = [(section, name) for section in ("clusters", *kinds, "pipelines") for name in _names(document, section)]
    for section, name in tables:
        if document.look_up((section, name, "name")) is not None:
            document.fault((section, name, "name"), "unknown key")
    met = {section: kinds[section] if section in document.content else Any for section in kinds}
    _refuse_dots(document, {"clusters": ClusterSettings, **met, "pipelines": PipelineSettings})
    read = document.read(file_class(met), _rest_of_file(document.content))
    for section, name in tables:
        if not _NAME.fullmatch(name):
            document.fault((section, name), "expected a name of letters, digits, '.', '_' and '-'", show=False)
    _check_routes(document, kinds, read)
    _check_data(document, read.daemon, read.clusters)
    _check_addresses(document, read.daemon, read.clusters)
    _check_files(document)
    _check_pipelines(document, read.pipelines)
    if not document.faults and not tables:
        expected = f"expected [clusters.NAME], and what uses it, as [{[*kinds, 'pipelines'][0]}.NAME] does"
        document.fault((), f"nothing to do in it; {expected}", show=False)
    if document.faults:
        raise FaultyConfiguration(document.faults)
    routes = [route for section in kinds for route in getattr(read, section).values()]
    return Configuration(path, read.daemon, read.clusters, tuple(routes), read.pipelines)


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
            return tomllib.loads(raw.decode("utf-8-sig"))  # some editors begin a file with its mark
        except UnicodeDecodeError as error:
            problem = f"is not UTF-8 at byte {error.start}; expected a TOML file"
        except (ValueError, RecursionError) as error:  # also an integer with too many digits, or arrays nested too deep
            problem = f"is not TOML: {_in_our_words(str(error))}"
    raise FaultyConfiguration([Fault(str(path), "", None, problem)])


def _in_our_words(problem: str) -> str:
    """What `tomllib` says of what is there twice, or not in quotes, as the writer of a configuration sees it."""
    if "Illegal character '\\n'" in problem:
        return f"{problem}; a closing quote may be missing in that line"
    if "Unescaped '\\'" in problem:
        return f"{problem}; a regular expression stands in single quotes"
    problem = problem.replace("Cannot overwrite a value", "a key is there a second time")
    problem = problem.replace("Invalid value", "this is no value; text stands in quotes")
    return _TWICE.sub(lambda found: f"[{'.'.join(_QUOTED.findall(found[1]))}] is there a second time", problem)


def file_class(kinds: Mapping[str, Any]) -> type:
    """The class of a whole file: `[daemon]`, and the named tables of each section, by the class of these."""
    sections: dict[str, Any] = {"clusters": ClusterSettings, **kinds, "pipelines": PipelineSettings}
    tables: list[Any] = [
        (each, Mapping[str, kind], field(default_factory=dict))  # type: ignore[valid-type]
        for each, kind in sections.items()
    ]
    return make_dataclass("File", [("daemon", DaemonSettings, field(default_factory=DaemonSettings)), *tables])


def _names(document: Document, section: str) -> list[str]:
    tables = document.look_up((section,))
    return list(tables) if isinstance(tables, dict) else []


def _refuse_dots(document: Document, kinds: Mapping[str, Any]) -> None:
    """Say once what is wrong with `[tails.a.b]`. TOML reads a table `b` in `[tails.a]`, where all keys are missing."""
    for section, kind in kinds.items():
        for name in _names(document, section):
            tables = document.look_up((section, name))
            if _holds_only_tables(tables) and tables.keys().isdisjoint(each.name for each in fields(kind)):
                for each in tables:
                    quoted = dotted((section, f"{name}.{each}"))
                    document.fault((section, name, each), f"a name with a dot needs quotes: [{quoted}]", show=False)
                document.unclear.add((section, name))


def _holds_only_tables(given: Any) -> bool:
    return isinstance(given, dict) and bool(given) and all(isinstance(each, dict) for each in given.values())


def _rest_of_file(content: dict[str, Any]) -> RestOfFile:
    clusters, daemon = content.get("clusters", {}), content.get("daemon", {})
    size = daemon.get("arena_bytes", DaemonSettings().arena_bytes) if isinstance(daemon, dict) else None
    size_is_known = isinstance(size, int) and holds_an_arena(size)
    return RestOfFile(clusters if isinstance(clusters, dict) else None, size if size_is_known else None)


def _check_pipelines(document: Document, pipelines: Mapping[str, PipelineSettings]) -> None:
    owners: dict[str, str] = {}
    for name, settings in pipelines.items():
        table = ("pipelines", name)
        if settings.checkpoint is not None:
            owner = owners.setdefault(same_directory(settings.checkpoint), name)
            if owner != name:
                problem = f"[pipelines.{owner}] has the same one, and neither would read all; expected one of its own"
                document.fault((*table, "checkpoint"), problem)
        if document.unclear.isdisjoint({(*table, "source"), (*table, "sink"), (*table, "checkpoint")}):
            for key, problem in settings.unfit():
                document.fault((*table, *key), problem)


def _check_routes(document: Document, sections: Iterable[str], read: Any) -> None:
    """No two routes have one name, whatever their kind, and no two of a kind claim the same."""
    names: dict[str, str] = {}
    owners: dict[tuple[str, str, Hashable], str] = {}
    for section in sections:
        for route in getattr(read, section).values():
            for key, problem in route.unfit(read.clusters):
                document.fault((section, route.name, key), problem)
            for claim in route.claims:
                place = (section, route.name, claim.key)
                if not document.unclear.isdisjoint((section, route.name, key) for key in claim.beside):
                    continue
                owner = owners.setdefault((section, claim.key, claim.thing), route.name)
                if owner != route.name and place not in document.unclear:
                    document.fault(place, f"[{section}.{owner}] takes {claim.name} too; expected one of its own")
        for name in _names(document, section):
            if names.setdefault(name, section) != section:
                document.fault((section, name), f"[{names[name]}.{name}] has the same name", show=False)


def _check_files(document: Document) -> None:
    """A service is started in another directory than `check`: a relative path would lead elsewhere."""
    for name in _names(document, "clusters"):
        for keys in _FILES:
            key = ("clusters", name, *keys)
            path = document.look_up(key)
            is_clear = document.unclear.isdisjoint(key[:steps] for steps in range(2, len(key) + 1))
            if is_clear and isinstance(path, str) and not path.startswith("/"):
                document.fault(key, 'expected an absolute path, as in "/etc/ingestd/NAME"')


def _check_data(document: Document, daemon: DaemonSettings, clusters: Mapping[str, ClusterSettings]) -> None:
    """No embedded broker in the directory of another one, or around one: each takes what is there for its own."""
    state = os.path.normpath(daemon.state)
    owners: dict[str, str] = {}
    for name, settings in clusters.items():
        if settings.embedded:
            directory = os.path.normpath(settings.data_directory(daemon.state))
            problem = f"the daemon's state, {state}, is there too" if _is_in(state, directory) else None
            for other, owner in owners.items():
                if other == directory:
                    problem = f"[clusters.{owner}] has the same directory, {directory}"
                elif problem is None and (_is_in(other, directory) or _is_in(directory, other)):
                    problem = f"{directory} and that of [clusters.{owner}], {other}, are one in the other"
            owners.setdefault(directory, name)
            if problem is not None:
                document.fault(("clusters", name, "data"), f"{problem}; expected one of its own", show=False)


def _is_in(path: str, directory: str) -> bool:
    """Whether it is the directory, or below it."""
    return os.path.commonpath((path, directory)) == directory


def _check_addresses(document: Document, daemon: DaemonSettings, clusters: Mapping[str, ClusterSettings]) -> None:
    """No two listen at one address: the second could not start."""
    addresses: dict[tuple[str, ...], str] = {("daemon", "http"): daemon.http}
    addresses |= {("clusters", name, "listen"): each.listen for name, each in clusters.items() if each.embedded}
    for (one, first), (other, second) in combinations(addresses.items(), 2):
        is_clear = document.unclear.isdisjoint({one, other}) and is_address(first) and is_address(second)
        if is_clear and _collide(first, second):
            document.fault(other, f"[{dotted(one[:-1])}] listens at {first}; expected an address of its own")


def _collide(first: str, second: str) -> bool:
    (host, port), (other_host, other_port) = parse_address(first), parse_address(second)
    hosts = {_LOCAL.get(host, host), _LOCAL.get(other_host, other_host)}
    return port == other_port != 0 and (len(hosts) == 1 or not _EVERYWHERE.isdisjoint(hosts))
