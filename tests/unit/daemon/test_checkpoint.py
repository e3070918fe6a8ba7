"""Checkpoint: whatever keeps the position file from being written, the loop turns, and what moved is stored later."""

import asyncio
import sqlite3
import time

import pytest
import structlog

from ingestd.daemon import checkpoint
from ingestd.daemon.checkpoint import Checkpoint
from ingestd.daemon.positions import PositionStore, StoredRoute
from ingestd.daemon.source import StoredPosition
from ingestd.retry import Deadline


@pytest.fixture
def path(tmp_path):
    return tmp_path / "positions.sqlite"


@pytest.fixture
def store(path):
    opened = PositionStore(path)
    yield opened
    opened.close()


@pytest.fixture
def backup(path, store):
    """Another program that has the file locked until it rolls back."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield other
    other.close()


@pytest.fixture
def failed():
    return []


@pytest.fixture
def kept(store, failed):
    return Checkpoint(store, failed.append)


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def positions(store, route="r"):
    return {stored.source: stored.position for stored in store.read().get(route, StoredRoute()).positions}


async def test_a_locked_file_does_not_hold_the_loop_up_and_gets_the_newest_positions_when_it_is_free(
    kept, store, backup
):
    began = time.monotonic()
    for position in (1, 2, 3):
        kept.remember("r", StoredPosition("a", position, {}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    # SQLite's own waiting for a lock is that of a thread that has nothing else to do: five seconds of it before.
    assert time.monotonic() - began < 1
    assert positions(store) == {}
    backup.execute("ROLLBACK")
    await until(lambda: positions(store))
    assert positions(store) == {"a": 3}


async def test_a_short_lock_is_no_news(kept, failed, store, backup):
    with structlog.testing.capture_logs() as logs:
        kept.remember("r", StoredPosition("a", 1, {}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert kept.failing is None
        backup.execute("ROLLBACK")
        await until(lambda: positions(store))
    assert (logs, failed) == ([], [])


async def test_a_lock_that_stays_is_said_once_and_counted_and_its_end_is_said(kept, failed, store, backup, monkeypatch):
    monkeypatch.setattr(checkpoint, "LOCK_PATIENCE", 0.0)
    monkeypatch.setattr(checkpoint, "STORE_INTERVAL", 0.01)
    with structlog.testing.capture_logs() as logs:
        kept.remember("r", StoredPosition("a", 1, {}))
        kept.remember("s", StoredPosition("b", 1, {}))
        await until(lambda: len(failed) >= 6)
        assert kept.failing is not None
        assert kept.failing.endswith("positions.sqlite: positions can not be written: another program has it locked")
        backup.execute("ROLLBACK")
        await until(lambda: kept.failing is None)
    assert set(failed) == {"r", "s"}
    assert [entry["event"] for entry in logs] == [
        "positions can not be stored; lines may be sent again after a restart",
        "positions are stored again",
    ]
    assert (positions(store), positions(store, "s")) == ({"a": 1}, {"b": 1})


async def test_a_file_that_is_removed_is_noticed_though_nothing_moves_and_written_again_once_it_is_back(
    kept, failed, store, path, monkeypatch
):
    # `rm -rf` of the state: SQLite went on writing to a file without a name, and the next start sent everything again.
    monkeypatch.setattr(checkpoint, "STORE_INTERVAL", 0.01)
    kept.note_run(["r", "s"])
    path.rename(path.with_name("moved"))
    with structlog.testing.capture_logs() as logs:
        kept.look()
        await until(lambda: kept.failing is not None)
        assert f"{path}: positions can not be stored: the file is not there any more" in kept.failing
        assert set(failed) == {"r", "s"}
        kept.remember("r", StoredPosition("a", 1, {}))
        reason = await kept.finish(Deadline.after(30))
        assert reason is not None
        assert reason.startswith(f"1 position could not be stored: {path}")
        path.with_name("moved").rename(path)
        kept.look()
        kept.remember("r", StoredPosition("a", 2, {}))
        await until(lambda: kept.failing is None)
    assert [entry["event"] for entry in logs] == [
        "positions can not be stored; lines may be sent again after a restart",
        "positions are stored again",
    ]
    assert positions(store) == {"a": 2}


async def test_the_end_says_that_the_file_is_gone_though_all_was_stored(kept, path):
    path.unlink()
    reason = await kept.finish(Deadline.after(30))
    assert reason is not None
    assert reason.startswith(f"{path}: positions can not be stored: the file is not there any more")


async def test_that_routes_have_run_is_stored_when_the_lock_is_gone(kept, store, backup):
    # A tail that starts at files' ends would take its next start for the first one, and skip what came in between.
    kept.note_run(["r"])
    assert "r" not in store.read()
    backup.execute("ROLLBACK")
    await until(lambda: "r" in store.read())


async def test_that_routes_have_run_is_stored_with_what_they_found_at_once(kept, store):
    kept.remember("r", StoredPosition("a", 1, {}))
    kept.note_run(["r", "s"])
    assert positions(store) == {"a": 1}
    assert "s" in store.read()


async def test_the_end_waits_for_a_lock(kept, store, backup):
    kept.remember("r", StoredPosition("a", 1, {}))
    finishing = asyncio.create_task(kept.finish(Deadline.after(30)))
    await asyncio.sleep(0.01)
    assert not finishing.done()
    backup.execute("ROLLBACK")
    assert await asyncio.wait_for(finishing, 5) is None
    assert positions(store) == {"a": 1}


@pytest.mark.parametrize("why", ["the deadline passes", "somebody is in a hurry", "the file can not be written at all"])
async def test_the_end_waits_no_longer_than_it_may_or_than_there_is_hope(kept, store, backup, why):
    kept.remember("r", StoredPosition("a", 1, {}))
    if why == "somebody is in a hurry":
        kept.hurry()
    if why == "the file can not be written at all":
        store.close()
    deadline = Deadline.after(0.15 if why == "the deadline passes" else 30)
    reason = await asyncio.wait_for(kept.finish(deadline), 5)
    assert reason is not None
    assert reason.startswith("1 position could not be stored: ")
    assert "positions.sqlite" in reason


async def test_the_end_has_nothing_to_do_when_all_is_stored(kept, store, backup):
    assert await kept.finish(Deadline.after(30)) is None


@pytest.fixture
def transactions(store, monkeypatch):
    """What each call to write was given."""
    written = []
    write = store.write

    def noted(positions=(), *, forgotten=(), run=()):
        written.append(([(route, stored.source) for route, stored in positions], list(forgotten), set(run)))
        write(positions, forgotten=forgotten, run=run or {})

    monkeypatch.setattr(store, "write", noted)
    return written


async def test_until_when_all_was_found_is_stored_with_what_changes_next_and_at_the_end(kept, store):
    kept.note_run(["r"])
    kept.note_found("r", 100.0)
    await asyncio.sleep(0)
    assert store.read()["r"].since == 0.0, "it costs no write of its own"
    kept.remember("r", StoredPosition("a", 1, {}))
    await asyncio.sleep(0)
    assert store.read()["r"].since == 100.0
    kept.note_found("r", 101.0)
    assert await kept.finish(Deadline.after(1)) is None
    assert store.read()["r"].since == 101.0


async def test_all_that_is_said_in_one_turn_of_the_loop_is_one_transaction(kept, store, transactions):
    # A file that was renamed: what is stored of it moves from one name to another, or stays where it was.
    store.write([("r", StoredPosition("old", 5, {}))])
    transactions.clear()
    kept.remember("r", StoredPosition("new", 5, {}))
    kept.forget("r", "old")
    kept.remember("s", StoredPosition("other", 1, {}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert transactions == [([("r", "new"), ("s", "other")], [("r", "old")], set())]
    assert positions(store) == {"new": 5}


async def test_the_last_word_on_a_source_is_what_is_stored(kept, store):
    kept.remember("r", StoredPosition("gone", 1, {}))
    kept.forget("r", "gone")
    kept.forget("r", "back")
    kept.remember("r", StoredPosition("back", 2, {}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert positions(store) == {"back": 2}


async def test_who_waits_for_a_write_is_called_behind_it(kept, store):
    called = []
    kept.remember("r", StoredPosition("a", 1, {}))
    kept.then(lambda: called.append(positions(store)))
    assert called == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert called == [{"a": 1}]


async def test_who_waits_for_a_write_waits_no_longer_than_for_one_that_fails(kept, store, backup):
    called = []
    kept.remember("r", StoredPosition("a", 1, {}))
    kept.then(lambda: called.append(positions(store)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert called == [{}]
    backup.execute("ROLLBACK")


async def test_what_is_forgotten_while_the_file_is_locked_is_forgotten_later(kept, store, path):
    store.write([("r", StoredPosition("a", 1, {}))])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    kept.forget("r", "a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert positions(store) == {"a": 1}
    other.execute("ROLLBACK")
    other.close()
    await until(lambda: not positions(store))
