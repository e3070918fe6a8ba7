"""`ingestd check` finds in one round what is wrong: no fault hides another that is independent of it.

And what of the files and directories named will not do, as far as this user sees.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.cli.main import main
from ingestd.daemon import listening
from ingestd.daemon.configuration import (
    ClusterSettings,
    DaemonSettings,
)
from ingestd.daemon.pipelines import PipelineSettings, PipelineSink, PipelineSource
from ingestd.daemon.positions import PositionStore
from ingestd.daemon.security import SaslSettings
from ingestd.daemon.source import StoredPosition
from ingestd.mirror.route import MirrorRoute
from ingestd.tail.file_id import FileId
from ingestd.tail.known import Known
from ingestd.tail.route import TailRoute
from ingestd.wire import secret
from ingestd.wire.secret import Secret
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Check = Callable[[Mapping[str, Mapping[str, str]]], set[str]]

GOOD = {
    "daemon": {"state": "'/tmp/state'"},
    "clusters.far": {"bootstrap": "['k:1']", "tls": "{}"},
    "clusters.near": {"embedded": "true"},
    "clusters.who": {"bootstrap": "['k:1']", "tls": "{}"},
    "tails.a": {"paths": "['/a/*.log']", "cluster": "'near'", "topic": "'a'"},
    "tails.b": {"paths": "['/b/*.log']", "cluster": "'near'", "topic": "'b'"},
    "mirrors.m": {"source": "'near'", "target": "'far'", "topics": "['a']"},
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
    "mirrors.m": {
        "source": "'nowhere'",
        "target": "7",
        "topics": "['a(']",
        "naming": "'copy'",
        "start": "'now'",
        "group": "''",
        "delivery": "'exactly-once'",
        "replication_factr": "3",
    },
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
        said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("ingestd: warning: ")]
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
        ("mirrors.m", "", MirrorRoute),
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


@pytest.mark.parametrize("path", ["~/x.log", "${HOME}/x.log"])
def test_a_path_with_what_a_shell_expands_is_refused_with_why(check: Check, path: str) -> None:
    (said,) = check(with_faults({"tails.a": {"paths": f"['{path}']"}}))
    assert said.endswith("; ~ and $NAME are not expanded here")
    (said,) = check(with_faults({"tails.a": {"paths": "['x.log']"}}))
    assert "expanded" not in said


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    directory = tmp_path / "logs"
    directory.mkdir()
    for name in ("a.log", "b.log", "c.txt"):
        (directory / name).write_text("line\n")
    return directory


@pytest.fixture
def warned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], list[str]]:
    """The warnings about a good configuration, `state` of which is a directory to come."""

    def warned(text: str, state: Path | None = None) -> list[str]:
        file = tmp_path / "ingestd.toml"
        file.write_text(f"[daemon]\nstate = '{state or tmp_path / 'state'}'\n[clusters.c]\nembedded = true\n{text}")
        assert main(["check", str(file)]) == 0
        written = capsys.readouterr()
        said = [line.removeprefix(f"ingestd: warning: {file}: ") for line in written.err.splitlines()]
        plural = "" if len(said) == 1 else "s"
        assert written.out.startswith(f"{file}: good{f', with {len(said)} warning{plural}' if said else ''} (")
        return said

    return warned


def tail(name: str, *paths: object) -> str:
    return f"[tails.{name}]\ncluster = 'c'\ntopic = 't'\npaths = {[str(path) for path in paths]}\n"


def test_files_that_are_there_and_no_others_tails_are_good(warned: Callable[[str], list[str]], logs: Path) -> None:
    assert warned(tail("one", logs / "*.log") + tail("two", logs / "*.txt")) == []


def test_a_directory_a_socket_and_what_is_not_there_are_no_files_of_a_tail(
    warned: Callable[[str], list[str]], logs: Path
) -> None:
    (logs / "dangling").symlink_to("nowhere")
    said = warned(tail("one", logs, logs / "none.log", logs / "*.gone", "/dev/null", logs / "dangling"))
    assert said == [
        f'tails.one.paths: {logs} is a directory; expected files, as in "{logs}/*"',
        "tails.one.paths: /dev/null is no regular file",
        f"tails.one.paths: {logs}/dangling: a symbolic link that leads nowhere",
        f"tails.one.paths: {logs}/none.log: no such file",
        f"tails.one.paths: {logs}/*.gone: no file matches it yet",
    ]


def test_a_directory_that_is_missing_is_named(warned: Callable[[str], list[str]], logs: Path) -> None:
    # It was said to be a file that is missing.
    assert warned(tail("one", logs / "web" / "shop" / "app.log", logs / "web" / "*.log", logs / "none.log")) == [
        f"tails.one.paths: {logs}/web/shop/app.log: no such file: the directory {logs}/web is missing",
        f"tails.one.paths: {logs}/web/*.log: no file matches it yet: the directory {logs}/web is missing",
        f"tails.one.paths: {logs}/none.log: no such file",
    ]


def test_where_rotated_files_can_not_be_is_said(warned: Callable[[str], list[str]], logs: Path) -> None:
    """Lines were lost before anybody saw that `rotated` has a mistake."""
    (logs / "old").mkdir()
    globs = [f"{logs}/old", f"{logs}/odl/*", f"{logs}/old/*", f"{logs}/old/none.log"]
    assert warned(tail("one", logs / "*.log") + f"rotated = {globs}\n") == [
        f'tails.one.rotated: {logs}/old: a directory; expected files, as in "{logs}/old/*"',
        f"tails.one.rotated: {logs}/odl/*: no file matches it yet: the directory {logs}/odl is missing",
    ]


@pytest.mark.parametrize(
    ("log", "rotated", "fits"),
    [
        ("app.log", "2026-12-01.1", False),
        ("app.log", "app.log.save", False),
        ("app.log", "app.log", True),
        ("app.log", "app.log-20261201.gz", True),
        ("app-2026-12-01.log", "app-2026-11-30.log", True),
        ("current", "@400000006917a2b512345678.s", True),
    ],
)
def test_rotated_files_that_have_no_names_of_logs_are_said(
    warned: Callable[[str], list[str]], logs: Path, log: str, rotated: str, fits: bool
) -> None:
    (logs / "old").mkdir()
    (logs / "old" / "another.log.1").touch()
    (logs / "old" / rotated).touch()
    (logs / log).touch()
    warnings = warned(tail("one", logs / log) + f'rotated = ["{logs}/old/*"]\n')
    assert [each.partition(" is called as ")[0] for each in warnings] == (
        [] if fits else [f"tails.one.rotated: {logs}/old/*: no file that it matches"]
    )


def test_a_directory_without_space_for_what_is_written_there_is_said(
    warned: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was good, and the start after it failed.
    free = {str(tmp_path): 9, str(tmp_path / "data"): 0}
    (tmp_path / "data").mkdir()
    disk = {"f_frsize": 4096, "f_blocks": 999}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free[str(path)], **disk))
    said = warned(f"data = '{tmp_path}/data'\n")
    rest = "KiB are free on its disk, 1024 KiB are needed; make room there"
    assert said == [
        f"daemon.state: not enough space in {tmp_path}/state: 36 {rest}",
        f"clusters.c.data: not enough space in {tmp_path}/data: 0 {rest}",
    ]
    free = dict.fromkeys(free, 256)
    assert warned(f"data = '{tmp_path}/data'\n") == []


def test_a_directory_where_the_kernel_shows_things_is_said_to_keep_no_files(warned: Callable[..., list[str]]) -> None:
    # It was said to have 0 KiB free, and to need room.
    *_, said = warned("", Path("/proc/ingestd"))
    where = "/proc/ingestd is on a file system without any space, as /proc is one"
    assert said == f"daemon.state: {where}; expected one on a disk"


@pytest.mark.parametrize(
    ("exclude", "said"),
    [
        ("*", "all 2 files that paths matches now, as {logs}/a.log"),
        ("{logs}/**", "all 2 files that paths matches now, as {logs}/a.log"),
        ("a*", None),
    ],
)
def test_an_exclude_that_leaves_no_file_is_said(
    warned: Callable[[str], list[str]], logs: Path, exclude: str, said: str | None
) -> None:
    # Such a tail was good, and read nothing for ever.
    keys = f"exclude = ['{exclude.format(logs=logs)}']\n"
    expected = (
        [] if said is None else [f"tails.one.exclude: leaves nothing to take: it matches {said.format(logs=logs)}"]
    )
    assert warned(tail("one", logs / "*.log") + keys) == expected


def test_an_exclude_of_the_only_file_names_it_and_none_is_said_where_there_is_no_file(
    warned: Callable[[str], list[str]], logs: Path
) -> None:
    keys = "exclude = ['*.txt']\n"
    assert warned(tail("one", logs / "c*") + keys) == [
        f"tails.one.exclude: leaves nothing to take: it matches {logs}/c.txt"
    ]
    assert warned(tail("one", logs / "d*") + keys) == [f"tails.one.paths: {logs}/d*: no file matches it yet"]


def test_a_file_of_two_tails_is_said_with_who_takes_it(warned: Callable[[str], list[str]], logs: Path) -> None:
    (logs / "link").symlink_to("b.log")
    said = warned(tail("one", logs / "*.log", logs / "a*") + tail("two", logs / "a.log", logs / "link"))
    assert said == [
        f"tails.two.paths: {logs}/a.log is [tails.one]'s too, which takes it",
        f"tails.two.paths: {logs}/link is [tails.one]'s too, which takes it",
    ]


def test_what_this_user_may_not_read_or_write_is_said(
    warned: Callable[..., list[str]], logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests run as root, who may read and write everything. So this answers instead of the kernel."""
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name in ("b.log", "ingestd.toml"))
    assert warned(tail("one", logs / "*.log"), logs) == [
        f"daemon.state: {logs} can not be written by this user",
        f"tails.one.paths: {logs}/a.log can not be read by this user",
    ]
    assert warned("", logs / "state" / "of") == [f"daemon.state: {logs}/state/of can not be created by this user"]


EMBEDDED = "[clusters.c]\nembedded = true\n"
REMEDY = "gives the daemon's user all of it"


def test_files_of_the_state_that_this_user_may_not_write_are_refused_as_a_start_refuses_them(
    refused_alike: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial as root left them; then the directory alone was given to the daemon's user.

    Such a run delivered everything and stored no position, or ended with `Permission denied`.
    """
    path = positions_in(tmp_path / "state")
    state = path.parent
    for name in ("lock", "host", "backup-of-somebody"):
        (state / name).write_text("x")
    (state / "broker" / "c").mkdir(parents=True)
    (state / "broker" / "c" / ".lock").touch()
    left, allowed = {path.name, "lock", ".lock", "backup-of-somebody"}, os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (Path(path).name in left and mode & os.W_OK) and allowed(path, mode)
    )
    named = ", ".join(f"{state}/{name}" for name in ("lock", path.name, "broker/c/.lock"))
    before = path.read_bytes()
    said = f"daemon.state: {named} can not be written by this user; chown -R USER {state} {REMEDY}"
    assert refused_alike(EMBEDDED, state) == [said]
    assert path.read_bytes() == before


def test_a_state_on_a_disk_that_is_mounted_read_only_is_refused_with_its_remedy(
    refused_alike: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chown` was said to help."""
    path = positions_in(tmp_path / "state")
    allowed, disk = os.access, os.statvfs(tmp_path)
    monkeypatch.setattr(
        os, "access", lambda given, mode: not (given == path and mode & os.W_OK) and allowed(given, mode)
    )
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*disk[:8], disk.f_flag | os.ST_RDONLY, disk[9])))
    assert refused_alike(EMBEDDED, path.parent) == [
        f"daemon.state: {path.parent} is mounted read-only; mount it to be written to (`rw`), or name another one"
    ]


def test_a_lock_in_a_brokers_own_directory_that_this_user_may_not_write_is_refused_with_its_key(
    refused_alike: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / ".lock").touch()
    allowed = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (Path(path).name == ".lock" and mode) and allowed(path, mode)
    )
    assert refused_alike(f"{EMBEDDED}data = '{data}'\n") == [
        f"clusters.c.data: {data}/.lock can not be written by this user; chown -R USER {data} {REMEDY}"
    ]


@pytest.mark.parametrize(
    ("names", "said", "takes"),
    [
        (["a.log.1.gz"], "1 file that paths match is", "takes it"),
        (["a.log.1.gz", "a.log.2.zst"], "2 files that paths match are", "takes them"),
    ],
)
def test_compressed_files_that_are_left_alone_are_counted(
    warned: Callable[[str], list[str]], logs: Path, names: list[str], said: str, takes: str
) -> None:
    # A tail of nothing but archives was good, and read nothing.
    for name in names:
        (logs / name).touch()
    (logs / "of.gz").mkdir()
    table = tail("one", logs / "a.log*")
    assert warned(table) == [f'tails.one.paths: {said} compressed and left alone; compressed = "read" {takes}']
    assert warned(table + "compressed = 'read'\n") == []
    assert warned(table + tail("two", logs / "*.[gz]*") + "compressed = 'read'\n") == warned(table), "two takes them"


def test_many_files_of_one_fault_are_few_lines(warned: Callable[[str], list[str]], logs: Path) -> None:
    for number in range(30):
        (logs / f"{number:02}.log").mkdir()
    said = warned(tail("one", *sorted(logs.glob("[0-9]*"))))
    assert len(said) == 11
    assert said[-1] == "tails.one.paths: 20 more like these"


def secured(keys: str) -> str:
    return f"[clusters.far]\nbootstrap = ['k:1']\n{keys}\n"


@pytest.fixture
def refused_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """What `check`, and then `run --once`, say of a configuration. Both end with 2."""

    def refused_alike(text: str, state: Path | None = None, http: str = "") -> list[str]:
        file = tmp_path / "ingestd.toml"
        file.write_text(f"[daemon]\nstate = '{state or tmp_path / 'state'}'\nhttp = '{http}'\n{text}")
        assert main(["check", str(file)]) == 2
        checked = capsys.readouterr()
        assert not checked.out
        assert main(["run", "--once", str(file)]) == 2
        ran = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("{")]  # without its log
        said = [line.removeprefix(f"ingestd: {file}: ") for line in checked.err.splitlines()]
        assert [line.removeprefix("ingestd: ").removeprefix(f"{file}: ") for line in ran] == said
        return said

    return refused_alike


def test_secrets_and_certificates_that_can_not_be_read_are_refused_as_a_start_refuses_them(
    refused_alike: Callable[..., list[str]], tmp_path: Path
) -> None:
    """`check` said "good, with 1 warning" and ended with 0. So `check && systemctl restart` ended the service."""
    (tmp_path / "cert.pem").touch()
    certificate = f"certificate_file = '{tmp_path}/cert.pem', key_file = '{tmp_path}/cert.pem'"
    keys = (
        f"tls = {{ca_file = '/nowhere/ca.pem', {certificate}}}\n"
        "sasl = {mechanism = 'SCRAM-SHA-512', username = 'me', password = {file = '/nowhere/p'}}\n"
    )
    tables = secured(keys) + tail("one", tmp_path / "*.log").replace("'c'", "'far'")
    said = refused_alike(tables)
    assert said[:2] == [
        "clusters.far.sasl.password: /nowhere/p: a secret can not be read: No such file or directory",
        "clusters.far.tls.ca_file: /nowhere/ca.pem: can not be read: No such file or directory",
    ]
    assert said[2].startswith(f"clusters.far.tls.certificate_file: {tmp_path}/cert.pem: expected a certificate in PEM")


def test_what_a_start_does_not_read_or_may_find_elsewhere_is_a_warning(
    warned: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """A start reads nothing of a cluster without routes. A unit of systemd may set variables that a shell has not."""
    assert warned(secured("tls = {ca_file = '/nowhere/ca.pem'}")) == [
        "clusters.far.tls.ca_file: /nowhere/ca.pem: can not be read: No such file or directory"
    ]
    sasl = "sasl = {mechanism = 'SCRAM-SHA-512', username = 'me', password = {environment = 'NOT_SET_HERE'}}\n"
    (tmp_path / "a.log").touch()
    assert warned(secured(sasl) + tail("one", tmp_path / "*.log").replace("'c'", "'far'")) == [
        "clusters.far.sasl.password: environment variable NOT_SET_HERE: empty or not set; expected a secret"
    ]


@pytest.mark.parametrize("name", ["ingestd.toml", "password"])
def test_a_secret_that_everybody_can_read_is_a_warning(
    warned: Callable[[str], list[str]], tmp_path: Path, name: str
) -> None:
    """It was a line without `ingestd: warning:`, and `check` said "good" without a warning."""
    secret.warn_if_others_can_read.cache_clear()
    (tmp_path / "password").write_text("x")
    for file in ("ingestd.toml", "password"):
        (tmp_path / file).touch()
        (tmp_path / file).chmod(0o644 if file == name else 0o600)
    password = "'x'" if name == "ingestd.toml" else f"{{file = '{tmp_path}/password'}}"
    keys = f"sasl = {{mechanism = 'SCRAM-SHA-512', username = 'me', password = {password}}}"
    said = "every user of this machine can read the secret in it; chmod o= would end that"
    assert warned(secured(keys)) == [f"clusters.far: {tmp_path}/{name} (-rw-r--r--): {said}"]


@pytest.mark.parametrize("below", ["", "/state"])
def test_a_state_that_is_a_file_is_refused(tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    file = tmp_path / "ingestd.toml"
    file.write_text(f"[daemon]\nstate = '{tmp_path}/file{below}'\n[clusters.c]\nembedded = true\n")
    assert main(["check", str(file)]) == 2
    said = f"ingestd: {file}: daemon.state: {tmp_path}/file is not a directory; expected one\n"
    assert capsys.readouterr().err == said


def test_two_embedded_clusters_have_two_directories(check: Check) -> None:
    one = {"embedded": "true", "data": "'/srv/broker'"}
    said = check({**GOOD, "clusters.one": one, "clusters.two": {**one, "data": "'/srv/../srv/broker'"}})
    assert said == {"clusters.two.data: [clusters.one] has the same directory, /srv/broker; expected one of its own"}
    said = check({**GOOD, "clusters.one": {**one, "data": "'/tmp/state/broker/near'"}})
    assert len(said) == 1


@pytest.mark.parametrize(
    ("first", "second", "collides"),
    [
        ("127.0.0.1:9092", "127.0.0.1:9092", True),
        ("0.0.0.0:9092", "127.0.0.1:9092", True),
        ("127.0.0.1:9092", "127.0.0.1:9093", False),
        ("127.0.0.1:9092", "127.0.0.2:9092", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_two_embedded_clusters_have_two_addresses(check: Check, first: str, second: str, *, collides: bool) -> None:
    # `check` said "good", and `run` failed: the second broker could not listen.
    one, two = ({"embedded": "true", "insecure": "true", "listen": f"'{each}'"} for each in (first, second))
    said = check({**GOOD, "clusters.one": one, "clusters.two": two})
    refused = f'clusters.two.listen = "{second}": [clusters.one] listens at {first}; expected an address of its own'
    assert said == ({refused} if collides else set())


@pytest.mark.parametrize(
    ("http", "listen", "collides"),
    [
        ("127.0.0.1:9464", "127.0.0.1:9464", True),
        ("localhost:9464", "127.0.0.1:9464", True),
        ("0.0.0.0:9464", "localhost:9464", True),
        ("127.0.0.1:9464", "127.0.0.1:9465", False),
        ("", "127.0.0.1:9464", False),
    ],
)
def test_http_and_an_embedded_cluster_have_two_addresses(
    check: Check, http: str, listen: str, *, collides: bool
) -> None:
    # `check` said "good". `run` ended with 1, so that systemd started it again each second, for ever.
    said = check(
        {**GOOD, "daemon": {"http": f"'{http}'"}, "clusters.one": {"embedded": "true", "listen": f"'{listen}'"}}
    )
    refused = f'clusters.one.listen = "{listen}": [daemon] listens at {http}; expected an address of its own'
    assert said == ({refused} if collides else set())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("/tmp/state", "the daemon's state, /tmp/state, is there too; expected one of its own"),
        ("/tmp/./", "the daemon's state, /tmp/state, is there too; expected one of its own"),
        (
            "/tmp/state/broker/near/x",
            (
                "/tmp/state/broker/near/x and that of [clusters.near], /tmp/state/broker/near, are one in the other; "
                "expected one of its own"
            ),
        ),
        ("/tmp/state/broker/another", None),
        ("/tmp/state-of-it", None),
    ],
)
def test_an_embedded_cluster_has_no_directory_that_others_keep_files_in(
    check: Check, data: str, said: str | None
) -> None:
    # The broker wrote its files among the daemon's own.
    found = check({**GOOD, "clusters.one": {"embedded": "true", "data": f"'{data}'"}})
    assert found == (set() if said is None else {f"clusters.one.data: {said}"})


ELSEWHERE = "192.0.2.1"
"""An address that no machine has (RFC 5737)."""


@pytest.fixture
def no_such_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's answer, without a socket."""

    def answer(host: str, _: int) -> OSError | None:
        return OSError(errno.EADDRNOTAVAIL, "of the system") if host == ELSEWHERE else None

    monkeypatch.setattr(listening, "_error_at", answer)


@pytest.mark.usefixtures("no_such_address")
def test_addresses_of_other_machines_are_refused_as_a_start_refuses_them(
    refused_alike: Callable[..., list[str]],
) -> None:
    # `check` said "good". `run` refused the first, and ended with 1 for the second: systemd started it for ever.
    said = f"can not listen at {ELSEWHERE}:9464: Cannot assign requested address; choose another address"
    embedded = f"{EMBEDDED}insecure = true\nlisten = '{ELSEWHERE}:9464'\n"
    assert refused_alike(embedded) == [f"clusters.c.listen: {said}"]
    assert refused_alike(EMBEDDED, http=f"{ELSEWHERE}:9464") == [f'daemon.http: {said}, or "" for none']


def test_a_damaged_name_of_this_host_is_refused_as_a_start_refuses_it(
    refused_alike: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "host").write_text("two words")
    (said,) = refused_alike(EMBEDDED)
    assert said.endswith(
        "/host: expected this daemon's name among other hosts, found b'two words'; delete it for a new one"
    )


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[Path], tuple[str, str]]:
    """What `check`, and then `run --once`, say of a configuration with this state. Both refuse it."""

    def refused(state: Path) -> tuple[str, str]:
        file = tmp_path / "ingestd.toml"
        file.write_text(
            f"[daemon]\nstate = '{state}'\n[clusters.c]\nembedded = true\n{tail('one', tmp_path / '*.log')}"
        )
        assert main(["check", str(file)]) == 1
        checked = capsys.readouterr()
        assert not checked.out
        assert main(["run", "--once", str(file)]) == 1
        ran = capsys.readouterr().err.splitlines(keepends=True)
        return checked.err, "".join(line for line in ran if not line.startswith("{"))  # without its log

    return refused


DAMAGES = {
    "no database": lambda path: path.write_bytes(b"x" * 5000),
    "empty": lambda path: path.write_bytes(b""),
    "of a later version": lambda path: changed(path, "PRAGMA user_version = 99"),
    "a number below 0": lambda path: changed(path, "UPDATE position SET position = -1"),
    "a detail that says nothing": lambda path: changed(path, "UPDATE position SET detail = '{}'"),
}


def changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(statement)


def positions_in(state: Path) -> Path:
    state.mkdir()
    store = PositionStore(state / "positions.sqlite")
    detail = Known("/var/log/a.log", "/var/log/a.log", FileId(1, 2)).to_detail()
    store.write([("one", StoredPosition("1-2-3", 7, detail))], run={"one": 100.0})
    store.close()
    return store.path


@pytest.mark.parametrize("damage", DAMAGES)
def test_positions_that_a_start_refuses_are_refused_in_the_same_words(
    refused: Callable[[Path], tuple[str, str]], tmp_path: Path, damage: str
) -> None:
    # `check` said "good", and the start after it failed: in an upgrade, with the daemon already stopped.
    path = positions_in(tmp_path / "state")
    DAMAGES[damage](path)
    checked, run = refused(path.parent)
    assert checked == run
    assert str(path) in checked


def test_positions_are_looked_at_and_left_as_they_are(warned: Callable[..., list[str]], tmp_path: Path) -> None:
    path = positions_in(tmp_path / "state")
    before = path.read_bytes()
    assert warned("", path.parent) == []
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_positions_of_a_running_daemon_are_looked_at_as_they_are_now(
    refused: Callable[[Path], tuple[str, str]], warned: Callable[..., list[str]], tmp_path: Path
) -> None:
    path = positions_in(tmp_path / "state")
    store = PositionStore(path)
    store.write(run={"two": 100.0})
    assert warned("", path.parent) == []
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE position SET detail = 'x'")  # It is in the write-ahead log alone.
        assert "detail is not JSON" in refused(path.parent)[0]
    store.close()


def test_positions_of_an_older_format_are_good(warned: Callable[..., list[str]], tmp_path: Path) -> None:
    path = positions_in(tmp_path / "state")
    for statement in ("ALTER TABLE position DROP COLUMN missing", "DROP TABLE run", "PRAGMA user_version = 0"):
        changed(path, statement)
    assert warned(tail("one", tmp_path / "*"), path.parent) == []


def test_positions_that_can_not_be_read_now_are_said(warned: Callable[..., list[str]], tmp_path: Path) -> None:
    path = positions_in(tmp_path / "state")
    path.unlink()
    path.mkdir()
    assert warned("", path.parent) == [
        f"daemon.state: {path}: positions can not be kept here: it is a directory; move it away"
    ]
