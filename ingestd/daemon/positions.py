"""Positions: where every source stands, durably, on this host. One SQLite file, written by the supervisor alone."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from ingestd.daemon.source import StoredPosition
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence
    from pathlib import Path

__all__ = ["PositionStore", "PositionsLocked", "PositionsUnavailable"]

_OPENING: Final = 5.0
"""Seconds that opening waits for another program's lock."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS position (
    route    TEXT NOT NULL,
    source   TEXT NOT NULL,
    position INTEGER NOT NULL,
    detail   BLOB NOT NULL,
    updated  REAL NOT NULL,
    PRIMARY KEY (route, source)
) WITHOUT ROWID
"""

_SCHEMA_OF_RUNS = "CREATE TABLE IF NOT EXISTS run (route TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID"
"""Routes that have looked once for all their sources, whether there were any or not."""


class PositionsUnavailable(IngestdError):
    """The position file can not be read or written; the message names it and says why."""


class PositionsLocked(PositionsUnavailable):
    """Another program has the position file locked now: a backup, a `sqlite3` with an open transaction."""


class PositionStore:
    """The position file. `synchronous=NORMAL` in WAL mode: a power cut may lose the newest moves, never tear one.

    A lost move means lines sent again, never lines skipped: that is what at-least-once allows.
    Once it is open nothing here waits for a lock: what is refused for one raises `PositionsLocked` at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.touch(mode=0o600, exist_ok=True)
            self._database = sqlite3.connect(path, isolation_level=None, timeout=_OPENING)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute(_SCHEMA)
            self._database.execute(_SCHEMA_OF_RUNS)
            self._database.execute("PRAGMA busy_timeout = 0")
        except (OSError, sqlite3.Error) as error:
            raise PositionsUnavailable(f"{path}: positions can not be kept here: {error}") from error

    def stored(self, route: str) -> list[StoredPosition]:
        """All positions of a route."""
        rows = self._read("SELECT source, position, detail FROM position WHERE route = ?", route)
        return [StoredPosition(source, position, orjson.loads(detail)) for source, position, detail in rows]

    def has_run(self, route: str) -> bool:
        """Whether a route has looked for its sources before, be it that it found none (`note_run`)."""
        return bool(
            self._read(
                "SELECT 1 FROM run WHERE route = ? UNION ALL SELECT 1 FROM position WHERE route = ? LIMIT 1",
                route,
                route,
            )
        )

    def note_run(self, routes: Iterable[str]) -> None:
        """Note that these routes have found what was there. Raises `PositionsUnavailable`."""
        self._write("INSERT OR IGNORE INTO run VALUES (?)", [(route,) for route in routes])

    def _read(self, query: str, *values: object) -> list[Any]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._refused("read", error) from error

    def store(self, route_positions: Iterable[tuple[str, StoredPosition]]) -> None:
        """Store (route, position) pairs, all or none. Raises `PositionsUnavailable` when none could be."""
        now = time.time()
        rows = [
            (route, stored.source, stored.position, orjson.dumps(dict(stored.detail)), now)
            for route, stored in route_positions
        ]
        self._write("INSERT OR REPLACE INTO position VALUES (?, ?, ?, ?, ?)", rows)

    def forget_absent(self, route: str, present: Container[str], seconds: float) -> None:
        """Drop the positions of sources that are not `present` and have not moved for so many seconds.

        Both, since a source may be away for a while, with a file system that is not mounted, and come back.
        """
        query = "SELECT source FROM position WHERE route = ? AND updated < ?"
        old = self._read(query, route, time.time() - seconds)
        gone = [(route, source) for (source,) in old if source not in present]
        self._write("DELETE FROM position WHERE route = ? AND source = ?", gone)

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        if not rows:
            return
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.executemany(statement, rows)
                self._database.execute("COMMIT")
            except sqlite3.Error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._refused("written", error) from error

    def _refused(self, done: str, error: sqlite3.Error) -> PositionsUnavailable:
        # Python's own refusals have no code. The low byte is the kind, without what SQLite adds to it.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return PositionsLocked(f"{self.path}: positions can not be {done}: another program has it locked")
        return PositionsUnavailable(f"{self.path}: positions can not be {done}: {error}")

    def close(self) -> None:
        """Close the file, its log folded in."""
        self._database.close()
