"""`ingestd check` finds in one round what is wrong: no fault hides another that is independent of it."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.cli.main import main
from ingestd.daemon.configuration import (
    ClusterSettings,
    DaemonSettings,
    PipelineSettings,
    PipelineSink,
    PipelineSource,
)
from ingestd.daemon.security import SaslSettings
from ingestd.tail.route import TailRoute
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Check = Callable[[Mapping[str, Mapping[str, str]]], set[str]]

GOOD = {
    "daemon": {"state": "'/tmp/state'"},
    "clusters.far": {"bootstrap": "['k:1']", "tls": "{}"},
    "clusters.near": {"embedded": "true"},
    "clusters.who": {"bootstrap": "['k:1']", "tls": "{}"},
    "tails.a": {"paths": "['/a/*.log']", "cluster": "'near'", "topic": "'a'"},
    "tails.b": {"paths": "['/b/*.log']", "cluster": "'near'", "topic": "'b'"},
    "pipelines.p": {"source": "{cluster = 'near', topics = ['a']}", "sink": "{path = '/p'}"},
}

FAULTS = {
    # A value of a wrong type hid what a table's own checks say.
    "daemon": {
        "workers": "'2'",
        "wrokers": "1",
        "drain_timeout": "-1",
        "arena_bytes": "7",
        "once_patience": "0",
        "http": "'nowhere'",
    },
    # Whoever has no broker, or a wrong address, was not told of keys for another kind of cluster, nor of its tls.
    "clusters.far": {
        "bootstrap": "['k']",
        "create_topics": "1",
        "partitions": "0",
        "tls": "{key_file = '/k', key_password = 's', verify = 'nune'}",
    },
    # Of two wrong values the first was said.
    "clusters.near": {"listen": "'x'", "partitions": "0", "sasl": "{}"},
    # A table in the table hid the table's own.
    "clusters.who": {
        "bootstrap": "['k:1', 'k']",
        "sasl": "{mechanism = 'SCRAM-SHA-256', scope = 'x', cleartext = 1}",
    },
    "tails.a": {
        "paths": "['relative', '/up/../and/down']",
        "cluster": "'nowhere'",
        "topic": "'a b'",
        "linger": "-1",
        "start": "'now'",
        "batch_bytes": "1",
        "leave_after": "0",
        "partition": "'key'",
        "compression_level": "99",
        "relase_after": "1",
        "delivery": "'exactly-once'",
        "binary": "7",
    },
    "tails.b": {"topic": "7", "key_pattern": "'('", "poll_interval": "0", "max_line_bytes": "1"},
    "pipelines.p": {"source": "{cluster = 'x', topics = []}", "master": "1", "sink": "{path = 1, mode = 'x'}"},
}


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """What the verb says of a configuration, a fault a line without the file's name; nothing: it is good."""

    def check(tables: Mapping[str, Mapping[str, str]]) -> set[str]:
        file = tmp_path / "ingestd.toml"
        lines = (
            f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())
            for name, keys in tables.items()
        )
        file.write_text("".join(lines))
        code = main(["check", str(file)])
        said = capsys.readouterr().err.splitlines()
        assert code == (2 if said else 0)
        return {line.removeprefix(f"ingestd: {file}: ") for line in said}

    return check


def with_faults(faults: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    return {name: {**keys, **faults.get(name, {})} for name, keys in GOOD.items()}


def test_all_faults_of_a_file_are_said_as_each_is_by_itself(check: Check) -> None:
    assert check(GOOD) == set()
    alone = set()
    for table, keys in FAULTS.items():
        for key, value in keys.items():
            said = check(with_faults({table: {key: value}}))
            assert said, (table, key)
            alone |= said
    assert check(with_faults(FAULTS)) == alone


@pytest.mark.parametrize(
    ("table", "key", "kind"),
    [
        ("daemon", "", DaemonSettings),
        ("clusters.far", "", ClusterSettings),
        ("clusters.far", "tls", TlsSettings),
        ("clusters.far", "sasl", SaslSettings),
        ("clusters.far", "tls.key_password", Secret),
        ("tails.a", "", TailRoute),
        ("pipelines.p", "", PipelineSettings),
        ("pipelines.p", "source", PipelineSource),
        ("pipelines.p", "sink", PipelineSink),
    ],
)
def test_every_key_is_held_to_its_type(check: Check, table: str, key: str, kind: Any) -> None:
    keys = [f"{key}.{field.name}" if key else field.name for field in fields(kind) if field.name != "name"]
    kept = {each: value for each, value in GOOD[table].items() if not key.startswith(each)}
    said = check({**GOOD, table: {**kept, **dict.fromkeys(keys, "2020-01-01")}})
    assert all(": expected " in fault for fault in said)
    assert {fault.partition(" = ")[0] for fault in said} == {f"{table}.{each}" for each in keys}


@pytest.mark.parametrize(
    ("table", "missing"),
    [("tails.a", "topic"), ("tails.a", "paths"), ("tails.a", "cluster"), ("clusters.far", "bootstrap")],
)
def test_a_missing_key_hides_nothing(check: Check, table: str, missing: str) -> None:
    wrong = {"tails.a": {"linger": "-1", "start": "'now'"}, "clusters.far": {"sasl": "{mechanism = 'PLAIN'}"}}[table]
    tables = with_faults({table: wrong})
    said = check(tables)
    del tables[table][missing]
    more = check(tables) - said
    assert said < check(tables)
    assert [fault.partition(": ")[0] for fault in more] == [f"{table}.{missing}"]


def test_tables_with_names_that_can_not_be_are_looked_into(check: Check) -> None:
    said = check({**GOOD, "clusters.'a b'": {"embedded": "true", "partitions": "0"}})
    assert {fault.partition(" expected")[0] for fault in said} == {
        'clusters."a b":',
        'clusters."a b".partitions = 0:',
    }


@pytest.mark.parametrize(
    ("table", "keys", "faulty"),
    [
        ("tails.a", {"batch_bytes": "'1MiB'", "max_line_bytes": "2000000"}, {"batch_bytes"}),
        ("tails.a", {"batch_bytes": "60000000", "linger": "-1"}, {"batch_bytes", "linger"}),
        ("tails.a", {"batch_bytes": "1", "max_line_bytes": "2"}, {"batch_bytes", "max_line_bytes"}),
        ("tails.a", {"compression": "'zst'", "compression_level": "19"}, {"compression"}),
        ("tails.a", {"compresion": "'zstd'", "compression_level": "19"}, {"compresion"}),
        ("tails.a", {"partition": "'key'", "key_patern": "'(x)'"}, {"key_patern"}),
        ("daemon", {"restart_backoff": "'9'", "restart_backoff_maximum": "0.1"}, {"restart_backoff"}),
        ("clusters.near", {"embedded": "'yes'", "listen": "'h:1'"}, {"embedded"}),
        ("clusters.far", {"tls": "{certificate_file = 1, key_file = '/k'}"}, {"tls.certificate_file"}),
        ("clusters.who", {"sasl": "{mechanism = 'PLIAN', username = 'me', scope = 'x'}"}, {"sasl.mechanism"}),
        ("clusters.who", {"sasl": "{mechanism = 'PLAIN', username = 'me', pasword = 'x'}"}, {"sasl.pasword"}),
    ],
)
def test_what_may_be_right_once_another_key_is_is_not_said(
    check: Check, table: str, keys: Mapping[str, str], faulty: set[str]
) -> None:
    said = check(with_faults({table: keys}))
    assert {fault.split(" = ")[0] for fault in said} == {f"{table}.{key}" for key in faulty}


def test_how_much_room_a_batch_has_is_known_beside_other_faults_of_the_daemon(check: Check) -> None:
    batch = {"tails.a": {"batch_bytes": "20000000"}}
    room = {"arena_bytes": "268435456", "workers": "'2'"}
    assert {fault.split(" = ")[0] for fault in check(with_faults({**batch, "daemon": room}))} == {"daemon.workers"}
    room = {"arena_bytes": "'256 MiB'"}
    assert {fault.split(" = ")[0] for fault in check(with_faults({**batch, "daemon": room}))} == {"daemon.arena_bytes"}
