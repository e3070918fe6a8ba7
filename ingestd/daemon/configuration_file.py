"""One TOML file to one `Configuration`: first each table, then what must fit between tables."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ingestd.daemon.arena import largest_batch
from ingestd.daemon.configuration import (
    ClusterSettings,
    Configuration,
    DaemonSettings,
    Fault,
    FaultyConfiguration,
    PipelineSettings,
)
from ingestd.daemon.tables import Document, did_you_mean, dotted
from ingestd.wire.secret import warn_if_others_can_read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingestd.daemon.source import Route
    from ingestd.daemon.tables import Key

__all__ = ["read_configuration"]

_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_CLUSTER_KEYS: Final = ("cluster", "source", "target")
"""Keys of routes that name a cluster."""


def read_configuration(path: Path, kinds: Mapping[str, type[Route]]) -> Configuration:
    """The configuration in the file at `path`. Raises `FaultyConfiguration` with all faults."""
    document = Document(str(path), _parse(path))
    _check_sections(document, kinds)
    daemon = _daemon(document)
    clusters = _clusters(document)
    routes = [route for section, kind in kinds.items() for route in _routes(document, section, kind)]
    pipelines = _pipelines(document)
    _check_unique(document, kinds)
    _check_room(document, daemon, kinds)
    _check_data(document, daemon, clusters)
    _check_something(document, kinds)
    if document.faults:
        raise FaultyConfiguration(document.faults)
    return Configuration(path, daemon, clusters, tuple(routes), pipelines)


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
        except (ValueError, RecursionError) as error:  # also an integer with too many digits, or arrays nested too deep
            problem = f"is not TOML: {error}"
    raise FaultyConfiguration([Fault(str(path), "", None, problem)])


def _check_sections(document: Document, kinds: Mapping[str, type[Route]]) -> None:
    known = ["daemon", "clusters", *kinds, "pipelines"]
    for section in document.content:
        if section in known:
            continue
        document.fault((section,), "unknown table" + did_you_mean(section, known), show=False)


def _daemon(document: Document) -> DaemonSettings:
    table = document.content.get("daemon", {})
    if not isinstance(table, dict):
        document.fault(("daemon",), "expected a table [daemon]")
        return DaemonSettings()
    settings = document.construct(DaemonSettings, table, ("daemon",)) or DaemonSettings()
    return dataclasses.replace(settings, state=_absolute(document, ("daemon", "state"), settings.state))


def _absolute(document: Document, key: Key, path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        document.fault(key, "expected a path; its ~ stands for no user that has a home directory")
        return path


def _clusters(document: Document) -> dict[str, ClusterSettings]:
    clusters = {}
    for name, table in document.tables("clusters").items():
        key = ("clusters", name)
        foreign = _keys_of_the_other_kind(document, key, table)
        given = {each: value for each, value in table.items() if each not in foreign}
        settings = document.construct(ClusterSettings, given, key, name)
        if settings is not None:
            if settings.data is not None:
                settings = dataclasses.replace(settings, data=_absolute(document, (*key, "data"), settings.data))
            clusters[name] = settings
            if any(secret.value is not None for secret in settings.secrets().values()):
                warn_if_others_can_read(Path(document.file))
    return clusters


def _keys_of_the_other_kind(document: Document, key: Key, table: Mapping[str, Any]) -> Sequence[str]:
    """Keys that this cluster can not have: those of an embedded one, or of another. None if its kind is not clear."""
    embedded = table.get("embedded", False)
    if not isinstance(embedded, bool) or embedded is ("bootstrap" in table):
        return ()
    foreign = [each for each in (("tls", "sasl") if embedded else ("listen", "data", "partitions")) if each in table]
    for each in foreign:
        if embedded:
            document.fault((*key, each), "an embedded cluster has no such key", show=False)
        else:
            document.fault((*key, each), "only an embedded cluster has this key")
    return foreign


def _routes(document: Document, section: str, kind: type[Route]) -> list[Route]:
    routes = []
    fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name, table in document.tables(section).items():
        key = (section, name)
        given = dict(table)
        if given.get("delivery") == "exactly-once":
            problem = 'exactly-once delivery is not built yet; expected "at-least-once"'
            document.fault((*key, "delivery"), problem)
            del given["delivery"]
        elif "delivery" not in fields and given.get("delivery") == "at-least-once":
            del given["delivery"]
        for each in _CLUSTER_KEYS:
            if each in fields:
                _check_cluster(document, (*key, each))
        topic = given.get("topic")
        if isinstance(topic, str) and not _TOPIC.fullmatch(topic):
            document.fault((*key, "topic"), "expected 1 to 249 of letters, digits, '.', '_' and '-'")
        route = document.construct(kind, given, key, name)
        if route is not None:
            routes.append(route)
    return routes


def _pipelines(document: Document) -> dict[str, PipelineSettings]:
    pipelines = {}
    for name, table in document.tables("pipelines").items():
        _check_cluster(document, ("pipelines", name, "source", "cluster"))
        settings = document.construct(PipelineSettings, table, ("pipelines", name), name)
        if settings is not None:
            pipelines[name] = settings
    return pipelines


def _check_cluster(document: Document, key: Key) -> None:
    """Note a fault if the cluster that `key` names is not configured. Faults in it are noted elsewhere."""
    configured = document.content.get("clusters", {})
    found, name = document.look_up(key)
    if not found or not isinstance(name, str) or not isinstance(configured, dict) or name in configured:
        return
    expected = ", ".join(configured) if configured else "none is configured"
    document.fault(key, f"no such [clusters.NAME] ({expected})" + did_you_mean(name, configured))


def _check_unique(document: Document, kinds: Mapping[str, type[Route]]) -> None:
    """Check that no two routes have one name, whatever their kind, and that no two take the same files."""
    names: dict[str, str] = {}
    claims: dict[tuple[str, str], tuple[str, str]] = {}
    for section in kinds:
        for name, table in document.tables(section).items():
            if name in names:
                document.fault((section, name), f"[{names[name]}.{name}] has the same name", show=False)
            names[name] = section
            paths = table.get("paths", ())
            exclude = json.dumps(table.get("exclude", ()), default=str)
            for path in paths if isinstance(paths, list) else ():
                claim = (json.dumps(path, default=str), exclude)
                other = claims.setdefault(claim, (section, name))
                if other != (section, name):
                    problem = f"[{dotted(other)}] takes {claim[0]} too; a file belongs to one route"
                    document.fault((section, name, "paths"), problem)


def _check_data(document: Document, daemon: DaemonSettings, clusters: Mapping[str, ClusterSettings]) -> None:
    """No two embedded brokers in one directory: the second would find it locked, whenever it starts."""
    owners: dict[str, str] = {}
    for name, settings in clusters.items():
        if settings.embedded:
            directory = os.path.normpath(settings.data_directory(daemon.state))
            owner = owners.setdefault(directory, name)
            if owner != name:
                problem = f"[clusters.{owner}] has the same directory, {directory}; expected one of its own"
                document.fault(("clusters", name, "data"), problem, show=False)


def _check_something(document: Document, kinds: Mapping[str, type[Route]]) -> None:
    """Refuse a file with nothing in it that could be used: a wrong path, or a first attempt."""
    expected = ["clusters", *kinds, "pipelines"]
    if not document.faults and not any(document.tables(section) for section in expected):
        problem = f"nothing to do in it; expected [clusters.NAME], and what uses it, as [{expected[1]}.NAME] does"
        document.fault((), problem, show=False)


def _check_room(document: Document, daemon: DaemonSettings, kinds: Mapping[str, type[Route]]) -> None:
    """Refuse batches that an arena has no room for: they would never be read, and nothing would say so."""
    if any(fault.key == "daemon.arena_bytes" for fault in document.faults):
        return  # the size of the arena is not known
    found, given_bytes = document.look_up(("daemon", "arena_bytes"))
    arena_bytes = given_bytes if found else daemon.arena_bytes  # with another fault in it, `daemon` is the defaults
    most = largest_batch(arena_bytes)
    for section in kinds:
        for name, table in document.tables(section).items():
            given = table.get("batch_bytes")
            if isinstance(given, int) and given > most:
                problem = f"expected at most {most} bytes with an arena_bytes of {arena_bytes} in [daemon]"
                document.fault((section, name, "batch_bytes"), problem)
