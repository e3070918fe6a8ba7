"""Position store: durable, all or nothing, and clear about what keeps it from its work."""

import errno
import os
import sqlite3
import stat
import subprocess
import time
from types import SimpleNamespace

import pytest

from ingestd.daemon import positions
from ingestd.daemon.positions import PositionsDamaged, PositionStore, PositionsUnavailable, StoredRoute
from ingestd.daemon.source import StoredPosition, WrongDetail

BEFORE_VERSIONS = """
CREATE TABLE position (
    route TEXT NOT NULL, source TEXT NOT NULL, position INTEGER NOT NULL, detail BLOB NOT NULL, updated REAL NOT NULL,
    PRIMARY KEY (route, source)
) WITHOUT ROWID
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "positions.sqlite"


def change(path, statement, *values):
    with sqlite3.connect(path) as database:
        database.execute(statement, values)
    database.close()


def stored(path):
    store = PositionStore(path)
    try:
        return store.read()
    finally:
        store.close()


def fill(path, **moved):
    store = PositionStore(path)
    store.write([("r", StoredPosition(source, position, {})) for source, position in moved.items()])
    store.close()


def test_what_is_stored_is_there_after_a_reopening(path):
    store = PositionStore(path)
    store.write([("r", StoredPosition("a", 10, {"path": "/a"})), ("r", StoredPosition("b", 2**40, {}))])
    store.write([("r", StoredPosition("a", 11, {"path": "/c"})), ("s", StoredPosition("a", 5, {}))])
    store.close()
    read = stored(path)
    assert read["r"].positions == [StoredPosition("a", 11, {"path": "/c"}), StoredPosition("b", 2**40, {})]
    assert read["s"].positions == [StoredPosition("a", 5, {})]
    assert "t" not in read


def test_a_route_has_run_once_it_looked_even_if_it_found_nothing(path):
    store = PositionStore(path)
    assert store.read() == {}
    store.write(run={"r": 100.0})
    store.write(run={"r": 101.5, "s": None})
    store.write(run={"r": None})
    store.write([("ended too soon", StoredPosition("a", 5, {}))])
    store.close()
    read = stored(path)
    assert read["r"] == StoredRoute(since=101.5)
    assert read["s"] == StoredRoute()
    assert read["ended too soon"] == StoredRoute([StoredPosition("a", 5, {})], has_run=False)
    for wrong, shown in (("'today'", "'today'"), ("9e999", "inf"), ("-1", "-1.0")):
        change(path, f"UPDATE run SET since = {wrong} WHERE route = 's'")
        with pytest.raises(PositionsDamaged, match=f"route 's': table run: since is not a Unix time, but {shown}\n"):
            stored(path)


def test_what_is_stored_and_what_is_forgotten_is_one_write(path):
    fill(path, old=7, kept=3)
    store = PositionStore(path)
    store.write([("r", StoredPosition("new", 0, {}))], forgotten=[("r", "old"), ("r", "nobody")], run={"r": 100.0})
    assert [position.source for position in store.read()["r"].positions] == ["kept", "new"]
    change(path, "CREATE TRIGGER refuse BEFORE DELETE ON position BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    with pytest.raises(PositionsUnavailable, match="disk is full"):
        store.write([("r", StoredPosition("newer", 0, {}))], forgotten=[("r", "kept")], run={"s": 100.0})
    assert [position.source for position in store.read()["r"].positions] == ["kept", "new"]
    assert "s" not in store.read()
    store.close()


def test_what_is_missing_is_forgotten_when_it_has_been_so_for_long_and_was_never_seen_meanwhile(path):
    fill(path, away=1, back=1, here=1)
    store = PositionStore(path)
    assert store.note_missing("r", ["away", "back"], 3600) == 0
    assert store.read()["r"].missing == {"away", "back"}
    store.write([("r", StoredPosition("back", 1, {}))])
    # The next start, of which the clock says that it is long after.
    assert store.note_missing("r", ["away", "back"], -1) == 2
    assert [position.source for position in store.read()["r"].positions] == ["here"]
    store.close()


def test_when_a_source_began_to_be_missing_is_kept_over_starts(path):
    fill(path, away=1)
    store = PositionStore(path)
    store.note_missing("r", ["away"], 3600)
    change(path, "UPDATE position SET missing = ?", time.time() - 3000)
    assert store.note_missing("r", ["away"], 3600) == 0
    assert store.note_missing("r", ["away"], 2000) == 1
    store.close()


def test_the_file_is_for_its_owner_only(path):
    PositionStore(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(PositionsUnavailable, match="nowhere"):
        PositionStore(tmp_path / "nowhere" / "positions.sqlite")


def test_a_disk_that_is_full_at_the_start_is_named_by_the_path(path, monkeypatch):
    def full(*arguments, **named):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(PositionsUnavailable, match=r"positions\.sqlite: positions can not be kept here: .*is full"):
        PositionStore(path)


def failed(text, code):
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("free", "error", "said"),
    [
        (0, failed("disk I/O error", sqlite3.SQLITE_IOERR_WRITE), "disk I/O error: the disk is full; make room in {}"),
        (1, failed("disk I/O error", sqlite3.SQLITE_IOERR_WRITE), "disk I/O error"),
        (1, failed("database or disk is full", sqlite3.SQLITE_FULL), "database or disk is full; make room in {}"),
        (0, OSError(errno.ENOSPC, "No space left on device"), "No space left on device; make room in {}"),
        (1, OSError(errno.EIO, "Input/output error"), r"\[Errno 5\] Input/output error"),
    ],
)
def test_an_error_of_a_disk_that_is_full_says_so_and_what_to_do(path, monkeypatch, free, error, said):
    # SQLite said "disk I/O error" alone, which sends people to look for a dying disk.
    def fail(*arguments, **named):
        raise error

    monkeypatch.setattr(sqlite3, "connect", fail)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free))
    with pytest.raises(PositionsUnavailable, match=f"can not be kept here: {said.format(path.parent)}$"):
        PositionStore(path)


def test_a_write_that_fails_stores_nothing_of_it_and_the_next_one_works(path):
    store = PositionStore(path)
    store.write([("r", StoredPosition("a", 1, {}))])
    change(
        path,
        "CREATE TRIGGER refuse BEFORE INSERT ON position WHEN NEW.source = 'bad' "
        "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END",
    )
    with pytest.raises(PositionsUnavailable, match="database or disk is full"):
        store.write([("r", StoredPosition("a", 2, {})), ("r", StoredPosition("bad", 1, {}))])
    assert store.read()["r"].positions == [StoredPosition("a", 1, {})]
    store.write([("r", StoredPosition("a", 3, {}))])
    assert store.read()["r"].positions == [StoredPosition("a", 3, {})]
    store.close()


# Versions.


@pytest.mark.parametrize("noted_runs", [True, False])
def test_what_an_ingestd_before_versions_wrote_is_taken_over(path, noted_runs):
    change(path, BEFORE_VERSIONS)
    change(path, "INSERT INTO position VALUES ('r', 'a', 5, '{\"path\":\"/a\"}', 1.0)")
    if noted_runs:
        change(path, "CREATE TABLE run (route TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID")
        change(path, "INSERT INTO run VALUES ('s')")
    read = stored(path)
    assert read["r"] == StoredRoute([StoredPosition("a", 5, {"path": "/a"})])
    assert ("s" in read) is noted_runs
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (3,)
    database.close()
    assert stored(path) == read


def test_a_file_that_was_dumped_and_loaded_again_has_lost_its_version(path):
    fill(path, a=5)
    change(path, "PRAGMA user_version = 0")
    assert stored(path)["r"] == StoredRoute([StoredPosition("a", 5, {})])


def test_what_a_later_ingestd_wrote_is_refused_and_left_as_it_is(path):
    fill(path, a=5)
    change(path, "PRAGMA user_version = 4")
    before = path.read_bytes()
    with pytest.raises(PositionsDamaged) as refused:
        PositionStore(path)
    said = str(refused.value)
    assert said.startswith(f"{path}: a later ingestd wrote this file (its format is 4; this one knows 3)\n")
    assert "run that version, put back the backup from before the upgrade, or start over: move the file away" in said
    assert path.read_bytes() == before


# Damage.


def test_an_empty_file_is_damage_and_no_first_run(path):
    # It was taken for one: everything was sent again, without a word.
    path.touch()
    beside = path.with_name("positions.sqlite-wal")
    beside.write_bytes(b"what may still be saved")
    with pytest.raises(PositionsDamaged) as refused:
        PositionStore(path)
    assert str(refused.value) == (
        f"{path}: the file is empty: what was in it is gone\n"
        "put back a copy of it, or start over: "
        "move the file away; every route then begins as if it had never run, and lines are sent again"
    )
    assert beside.exists()


def test_a_first_start_that_is_cut_short_leaves_no_empty_file(path, monkeypatch):
    def full(database):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(positions, "_bring_up", full)
        with pytest.raises(PositionsUnavailable, match="is full"):
            PositionStore(path)
    assert not path.exists()
    assert stored(path) == {}


def test_the_log_of_a_file_that_was_moved_away_is_not_read_into_the_new_one(path, tmp_path):
    # As after a kill: the file's newest rows are in the log beside it.
    store = PositionStore(path)
    store.write([("r", StoredPosition("a", 1, {}))])
    wal = path.with_name("positions.sqlite-wal").read_bytes()
    store.close()
    path.rename(tmp_path / "moved away")
    path.with_name("positions.sqlite-wal").write_bytes(wal)
    assert stored(path) == {}


def test_a_file_that_is_no_database_is_named_with_what_to_do(path):
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(PositionsDamaged, match=r"positions\.sqlite: file is not a database\n.*move the file away"):
        PositionStore(path)


def test_a_torn_database_is_named_with_what_to_do(path):
    store = PositionStore(path)
    store.write([("r", StoredPosition(str(number), 1, {"x": "y" * 100})) for number in range(1000)])
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(PositionsDamaged, match=r"malformed\n.*move the file away"):
        stored(path)


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (["CREATE TABLE bookmarks (url)"], "not ingestd's positions, but a database of bookmarks"),
        (["CREATE TABLE position (route, source)"], "table position has no column detail, position, updated"),
        ([BEFORE_VERSIONS, "PRAGMA user_version = 2"], "table position has no column missing"),
        (
            [BEFORE_VERSIONS, "ALTER TABLE position ADD COLUMN missing REAL", "PRAGMA user_version = 2"],
            "it has no table run",
        ),
    ],
)
def test_a_database_of_something_else_is_refused_and_left_as_it_is(path, statements, problem):
    for statement in statements:
        change(path, statement)
    before = path.read_bytes()
    with pytest.raises(PositionsDamaged) as refused:
        PositionStore(path)
    assert str(refused.value).startswith(f"{path}: {problem}\n")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("detail", b"{broken", "detail is not JSON, but b'{broken'"),
        ("detail", b"[1]", "detail is not a JSON object, but b'[1]'"),
        ("detail", 7, "detail is not JSON, but 7"),
        ("position", "far", "position is not a whole number of 0 or more, but 'far'"),
        ("position", 1.5, "position is not a whole number of 0 or more, but 1.5"),
        ("position", -1, "position is not a whole number of 0 or more, but -1"),
        ("source", b"\xff\x00", "source is not UTF-8 text, but b'\\xff\\x00'"),
        ("route", b"r", "route is not UTF-8 text, but b'r'"),
    ],
)
def test_a_damaged_row_is_named_and_the_remedy_works(path, column, value, problem):
    fill(path, a=5, **{"it's": 6})
    change(path, f"UPDATE position SET {column} = ? WHERE source = ?", value, "it's")
    store = PositionStore(path)
    with pytest.raises(PositionsDamaged) as refused:
        store.read()
    first, remedy, then = str(refused.value).splitlines()
    source = ascii(value) if column == "source" else "'it's'"
    route = ascii(value) if column == "route" else "'r'"
    assert first == f"{path}: route {route}, source {source}: {problem}"
    assert then == "its file is then read again from its start, and its lines are sent again"
    # `sqlite3` may not be installed here: its arguments are what a shell gives it.
    command = remedy.removeprefix("drop that row: sqlite3 ")
    _, statement = subprocess.run(
        f"printf '%s\\n' {command}", shell=True, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    change(path, statement)
    assert store.read()["r"].positions == [StoredPosition("a", 5, {})]
    store.close()


def test_text_that_is_not_utf8_is_a_damaged_row(path):
    fill(path, a=5)
    change(path, "UPDATE position SET source = CAST(x'ff61' AS TEXT)")
    with pytest.raises(PositionsDamaged) as refused:
        stored(path)
    said = str(refused.value)
    assert "source is not UTF-8 text, but " in said
    assert """ "DELETE FROM position WHERE route = 'r' AND source = CAST(x'ff61' AS TEXT)"\n""" in said
    assert said.isascii()


def test_a_detail_that_its_route_can_not_understand_is_a_damaged_row(path):
    store = PositionStore(path)
    with pytest.raises(PositionsDamaged) as refused, store.naming("r"):
        raise WrongDetail("a", "inode: expected a number of 0 or more, not -3")
    first, remedy, _ = str(refused.value).splitlines()
    assert first.endswith("its detail can not be understood: inode: expected a number of 0 or more, not -3")
    assert remedy.endswith(""" "DELETE FROM position WHERE route = 'r' AND source = 'a'\"""")
    expected = r"route 'r': a detail can not be understood: a: no path\n.*start over"
    with pytest.raises(PositionsDamaged, match=expected), store.naming("r"):
        raise ValueError("a: no path")
    store.close()


def test_nothing_is_written_to_a_file_that_another_one_replaced(path):
    # A backup that was put back while the daemon ran.
    fill(path, a=1)
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    store = PositionStore(path)
    copy.rename(path)
    with pytest.raises(
        PositionsUnavailable, match="another file was put in its place; put back the one that was there"
    ):
        store.write([("r", StoredPosition("a", 2, {}))])
    store.close()


def test_a_directory_in_the_files_place_is_named_as_one(path):
    path.mkdir()
    with pytest.raises(PositionsUnavailable, match="positions can not be kept here: it is a directory"):
        PositionStore(path)
