"""Position store: durable, all or nothing, and clear about what keeps it from its work."""

import sqlite3
import stat

import pytest

from ingestd.daemon.positions import PositionStore, PositionsUnavailable
from ingestd.daemon.source import StoredPosition


def test_what_is_stored_is_there_after_a_reopening(tmp_path):
    path = tmp_path / "positions.sqlite"
    store = PositionStore(path)
    store.store([("r", StoredPosition("a", 10, {"path": "/a"})), ("r", StoredPosition("b", 2**40, {}))])
    store.store([("r", StoredPosition("a", 11, {"path": "/c"})), ("s", StoredPosition("a", 5, {}))])
    store.close()
    store = PositionStore(path)
    assert store.stored("r") == [StoredPosition("a", 11, {"path": "/c"}), StoredPosition("b", 2**40, {})]
    assert store.stored("s") == [StoredPosition("a", 5, {})]
    assert store.stored("t") == []
    store.close()


def test_a_route_has_run_once_it_looked_even_if_it_found_nothing(tmp_path):
    path = tmp_path / "positions.sqlite"
    store = PositionStore(path)
    assert not store.has_run("r")
    store.note_run(["r"])
    store.note_run(["r", "s"])
    store.store([("older than the note", StoredPosition("a", 5, {}))])
    store.close()
    store = PositionStore(path)
    assert [store.has_run(route) for route in ("r", "s", "t", "older than the note")] == [True, True, False, True]
    store.close()


def test_only_what_is_both_absent_and_old_is_forgotten(tmp_path):
    store = PositionStore(tmp_path / "positions.sqlite")
    store.store(
        [("r", StoredPosition(name, 1, {})) for name in ("absent", "present")] + [("s", StoredPosition("a", 1, {}))]
    )
    store.forget_absent("r", {"present"}, 3600)
    assert len(store.stored("r")) == 2
    store.forget_absent("r", {"present"}, -1)
    assert [stored.source for stored in store.stored("r")] == ["present"]
    assert [stored.source for stored in store.stored("s")] == ["a"]
    store.close()


def test_the_file_is_for_its_owner_only(tmp_path):
    store = PositionStore(tmp_path / "positions.sqlite")
    store.close()
    assert stat.S_IMODE((tmp_path / "positions.sqlite").stat().st_mode) == 0o600


def test_a_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "positions.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(PositionsUnavailable, match=r"positions\.sqlite: positions can not be kept here"):
        PositionStore(path)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(PositionsUnavailable, match="nowhere"):
        PositionStore(tmp_path / "nowhere" / "positions.sqlite")


def test_a_write_that_fails_stores_nothing_of_it_and_the_next_one_works(tmp_path):
    path = tmp_path / "positions.sqlite"
    store = PositionStore(path)
    store.store([("r", StoredPosition("a", 1, {}))])
    with sqlite3.connect(path) as other:
        other.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON position WHEN NEW.source = 'bad' "
            "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )
    other.close()
    with pytest.raises(PositionsUnavailable, match="database or disk is full"):
        store.store([("r", StoredPosition("a", 2, {})), ("r", StoredPosition("bad", 1, {}))])
    assert store.stored("r") == [StoredPosition("a", 1, {})]
    store.store([("r", StoredPosition("a", 3, {}))])
    assert store.stored("r") == [StoredPosition("a", 3, {})]
    store.close()
