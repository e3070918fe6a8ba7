"""Positions: the stored position of every source on this host. One SQLite file, which only the supervisor writes."""

from __future__ import annotations

import errno
import math
import os
import shlex
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from ingestd.daemon.source import StoredPosition, WrongDetail
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "PositionFile",
    "PositionStore",
    "PositionsDamaged",
    "PositionsLocked",
    "PositionsUnavailable",
    "StoredRoute",
]

FORMAT: Final = 3
"""`PRAGMA user_version` of the file. 0: from before the file had a version."""

_PATIENCE: Final = 5.0
"""Seconds that opening the file, and reading it at the start, wait for another program's lock."""

_COLUMNS: Final = {
    "position": {"route", "source", "position", "detail", "updated"},
    "run": {"route"},
}
"""The tables, and the columns that each had in the first format."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS position (
    route    TEXT NOT NULL,
    source   TEXT NOT NULL,
    position INTEGER NOT NULL,
    detail   BLOB NOT NULL,
    updated  REAL NOT NULL,
    PRIMARY KEY (route, source)
) WITHOUT ROWID
"""

_SCHEMA_OF_RUNS: Final = "CREATE TABLE IF NOT EXISTS run (route TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID"
"""The routes that have looked once for all their sources, even if they found none."""

_ADDED: Final = {("position", "missing"): 1, ("run", "since"): 3}
"""Columns by table and name, with the format that they came with. Both are Unix times, REAL.

missing: of the first start at which the source was absent; NULL: it was there at the last start.
since: all that came before then was found; NULL: not noted.
"""


class PositionsUnavailable(IngestdError):
    """The position file can not be read or written; the message names it and says why."""


class PositionsLocked(PositionsUnavailable):
    """Another program has the position file locked now: a backup, a `sqlite3` with an open transaction."""


class PositionsDamaged(IngestdError):
    """The position file holds something that this daemon did not write. The message says what to do."""


@dataclass(frozen=True, slots=True)
class StoredRoute:
    """What is stored of a route.

    missing: the sources that were absent at the last start. since: the Unix time before which all that came was found;
    0.0: not known. has_run: whether it has looked once for all its sources.
    """

    positions: list[StoredPosition] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    since: float = 0.0
    has_run: bool = True


class PositionFile:
    """Reads the position file. It writes nothing to it, and makes no file beside it. A daemon may have it open."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened yet."""
        self.path = path

    def check(self) -> Mapping[str, StoredRoute]:
        """All routes that have run, if a daemon would start with this file.

        Raises `PositionsUnavailable`, and `PositionsDamaged`, as `PositionStore` and its `read` do.
        """
        self._check_kind()
        try:
            self._check_filled()
            with closing(self._connect()) as database:
                self._check_format(database)
        except (OSError, sqlite3.Error) as error:
            self._check_whole(error)
            raise self._refused("read", error) from error
        return self.read()

    def _connect(self) -> sqlite3.Connection:
        # Of a file that nobody has open, SQLite would make the two files beside it, and leave them there.
        how = "mode=ro" if self.path.with_name(f"{self.path.name}-wal").exists() else "immutable=1"
        return sqlite3.connect(f"{self.path.absolute().as_uri()}?{how}", uri=True, timeout=_PATIENCE)

    def _check_kind(self) -> None:
        if self.path.is_dir():
            problem = "positions can not be kept here: it is a directory; move it away"
            raise PositionsUnavailable(f"{self.path}: {problem}")

    def _check_filled(self) -> None:
        if not self.path.stat().st_size:
            raise self._damaged("the file is empty: what was in it is gone")

    def _check_format(self, database: sqlite3.Connection) -> int:
        """The file's format, if this program can read it. Raises `PositionsDamaged` if it can not."""
        ((version,),) = database.execute("PRAGMA user_version")
        if version > FORMAT:
            raise PositionsDamaged(
                f"{self.path}: a later ingestd wrote this file (its format is {version}; this one knows {FORMAT})\n"
                f"run that version, put back the backup from before the upgrade, or start over: {self._start_over}"
            )
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "position" not in tables:
            others = ", ".join(sorted(tables)) or "no tables"
            raise self._damaged(f"not ingestd's positions, but a database of {others}")
        for table in tables & _COLUMNS.keys():
            added = {name for (of, name), since in _ADDED.items() if of == table and since <= version}
            if lacking := (_COLUMNS[table] | added) - _columns(database, table):
                raise self._damaged(f"table {table} has no column {', '.join(sorted(lacking))}")
        if version and (lacking := _COLUMNS.keys() - tables):
            raise self._damaged(f"it has no table {', '.join(sorted(lacking))}")
        return int(version)

    def read(self) -> Mapping[str, StoredRoute]:
        """All routes that have run, or have positions. It has a connection of its own, so it may be called in a thread.

        Raises `PositionsUnavailable`, and `PositionsDamaged`, which names the first row that can not be understood.
        """
        try:
            with closing(self._connect()) as database:
                database.execute("PRAGMA query_only = 1")
                database.text_factory = _text
                routes: dict[str, StoredRoute] = {}
                if columns := _columns(database, "run"):
                    since = "since" if "since" in columns else "NULL"
                    for route, noted in database.execute(f"SELECT route, {since} FROM run"):  # noqa: S608 - one of two words
                        if noted is not None and not (isinstance(noted, float) and 0 <= noted < math.inf):
                            problem = f"table run: since is not a Unix time, but {_shown(noted)}"
                            raise self._damaged(f"route {_shown(route)}: {problem}")
                        routes[str(route)] = StoredRoute(since=noted or 0.0)
                missing = "missing" if "missing" in _columns(database, "position") else "NULL"
                for row in database.execute(f"SELECT route, source, position, detail, {missing} FROM position"):  # noqa: S608 - one of two words
                    self._take(row, routes)
        except sqlite3.Error as error:
            self._check_whole(error)
            raise self._refused("read", error) from error
        return routes

    def _take(self, row: tuple[Any, Any, Any, Any, Any], routes: dict[str, StoredRoute]) -> None:
        """Add a row to its route's. Raises `PositionsDamaged`."""
        route, source, position, detail, missing = row
        if not (_is_text(route) and _is_text(source)):
            name, value = ("source", source) if _is_text(route) else ("route", route)
            raise self._damaged_row(route, source, f"{name} is not UTF-8 text, but {_shown(value)}")
        if not isinstance(position, int) or position < 0:
            problem = f"position is not a whole number of 0 or more, but {_shown(position)}"
            raise self._damaged_row(route, source, problem)
        try:
            value = orjson.loads(detail)
        except (ValueError, TypeError):
            raise self._damaged_row(route, source, f"detail is not JSON, but {_shown(detail)}") from None
        if not isinstance(value, dict):
            raise self._damaged_row(route, source, f"detail is not a JSON object, but {_shown(detail)}")
        known = routes.get(route)
        if known is None:
            known = routes[route] = StoredRoute(has_run=False)
        known.positions.append(StoredPosition(source, position, value))
        if missing is not None:
            known.missing.add(source)

    # What goes wrong, in words.

    @contextmanager
    def naming(self, route: str) -> Iterator[None]:
        """Around a block that reads details of a route: turns a `ValueError` in it into `PositionsDamaged`."""
        try:
            yield
        except WrongDetail as error:
            problem = f"its detail can not be understood: {error.problem}"
            raise self._damaged_row(route, error.source, problem) from error
        except ValueError as error:
            raise PositionsDamaged(
                f"{self.path}: route {_shown(route)}: a detail can not be understood: {error}\n"
                f"drop its row from table position, or start over: {self._start_over}"
            ) from error

    def _refused(self, done: str, error: Exception) -> PositionsUnavailable:
        if isinstance(error, sqlite3.Error) and _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return PositionsLocked(f"{self.path}: positions can not be {done}: another program has it locked")
        return PositionsUnavailable(f"{self.path}: positions can not be {done}: {_why(error, self.path)}")

    def _check_whole(self, error: Exception) -> None:
        """Raises `PositionsDamaged` if SQLite says that the file is no database, or is damaged."""
        if isinstance(error, sqlite3.Error) and _code(error) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise self._damaged(str(error)) from error

    def _damaged(self, problem: str) -> PositionsDamaged:
        return PositionsDamaged(f"{self.path}: {problem}\nput back a copy of it, or start over: {self._start_over}")

    @property
    def _start_over(self) -> str:
        return "move the file away; every route then begins as if it had never run, and lines are sent again"

    def _damaged_row(self, route: object, source: object, problem: str) -> PositionsDamaged:
        """The error for a row that can not be understood: which one, what is wrong, and how to drop it."""
        row = f"route = {_literal(route)} AND source = {_literal(source)}"
        statement = f"DELETE FROM position WHERE {row}"  # noqa: S608 - for a person to run
        return PositionsDamaged(
            f"{self.path}: route {_shown(route)}, source {_shown(source)}: {problem}\n"
            f"drop that row: sqlite3 {shlex.quote(str(self.path))} {_quoted(statement)}\n"
            "its file is then read again from its start, and its lines are sent again"
        )


class PositionStore(PositionFile):
    """The position file, open. `synchronous=NORMAL` in WAL mode: a power cut may lose newest moves, never half of one.

    A lost move means lines that are sent again, never lines that are skipped. At-least-once allows that.
    Once the file is open, no write waits for a lock: a locked file raises `PositionsLocked` at once.
    Nothing is written to a file that is no longer at its path, because the next start would not find it there.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, or make it if there is none, and bring it to the present format.

        Raises `PositionsUnavailable`; `PositionsDamaged` if the file is empty, not ingestd's, or of a later format.
        """
        super().__init__(path)
        self._check_kind()
        try:
            if not path.exists():
                _make(path)
            self._database = sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE)
            try:
                self._open()
                self._opened = path.stat()
            except BaseException:
                self._database.close()
                raise
        except (OSError, sqlite3.Error) as error:
            self._check_whole(error)
            raise PositionsUnavailable(f"{path}: positions can not be kept here: {_why(error, path)}") from error

    def _open(self) -> None:
        self._check_filled()  # before SQLite opens it, which would delete the write-ahead log beside it
        version = self._check_format(self._database)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        if version < FORMAT:
            _bring_up(self._database)
        self._database.execute("PRAGMA busy_timeout = 0")

    def write(
        self,
        positions: Iterable[tuple[str, StoredPosition]] = (),
        *,
        forgotten: Iterable[tuple[str, str]] = (),
        run: Mapping[str, float | None] | None = None,
    ) -> None:
        """Store (route, position) pairs, drop (route, source) pairs, note that routes have run: all of it or nothing.

        A route has run when it has looked for all its sources, even if it found none. `run` says of each until when, a
        Unix time, all that came was found; None: as stored. Raises `PositionsUnavailable`, also if there is nothing to
        store and the file is no longer at its path.
        """
        now = time.time()
        rows = [
            (route, stored.source, stored.position, orjson.dumps(dict(stored.detail)), now)
            for route, stored in positions
        ]
        store = "INSERT OR REPLACE INTO position (route, source, position, detail, updated) VALUES (?, ?, ?, ?, ?)"
        note = (
            "INSERT INTO run (route, since) VALUES (?, ?) "
            "ON CONFLICT (route) DO UPDATE SET since = coalesce(excluded.since, since)"
        )
        self._transact(
            (store, rows),
            ("DELETE FROM position WHERE route = ? AND source = ?", list(forgotten)),
            (note, list((run or {}).items())),
        )

    def note_missing(self, route: str, sources: Iterable[str], seconds: float) -> int:
        """Note that these sources are absent at this start. Drops those absent for `seconds`; returns how many.

        They are not dropped at once: a source may be absent because its file system is not mounted, and come back.
        Raises `PositionsUnavailable`.
        """
        now = time.time()
        mark = "UPDATE position SET missing = ? WHERE route = ? AND source = ? AND missing IS NULL"
        drop = "DELETE FROM position WHERE missing < ? AND route = ? AND source = ?"
        names = [(route, source) for source in sources]
        return self._transact(
            (mark, [(now, *name) for name in names]),
            (drop, [(now - seconds, *name) for name in names]),
        )

    def _transact(self, *statements: tuple[str, Sequence[tuple[object, ...]]]) -> int:
        """Execute each statement with each of its rows, all or none. Returns how many rows the last one changed."""
        self._check_in_place()
        if not any(rows for _, rows in statements):
            return 0
        changed = 0
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                for statement, rows in statements:
                    changed = self._database.executemany(statement, rows).rowcount
                self._database.execute("COMMIT")
            except sqlite3.Error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._refused("written", error) from error
        return changed

    def _check_in_place(self) -> None:
        """Raises `PositionsUnavailable` if the file at the path is not the one that was opened."""
        try:
            there = self.path.stat()
        except OSError as error:
            raise self._gone(f"the file is not there any more: {error.strerror}") from error
        if not os.path.samestat(there, self._opened):
            raise self._gone("another file was put in its place")

    def _gone(self, problem: str) -> PositionsUnavailable:
        put_back = "put back the one that was there, while the daemon runs"
        without = (
            "a start without it is a first run: every file is read from where `start` says, and lines are sent again"
        )
        return PositionsUnavailable(f"{self.path}: positions can not be stored: {problem}; {put_back}; {without}")

    def close(self) -> None:
        """Close the file. SQLite moves its write-ahead log into it."""
        self._database.close()


def _make(path: Path) -> None:
    """Make the file, whole or not at all. So a first start never leaves an empty file behind."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    with closing(sqlite3.connect(fresh, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = MEMORY")  # leaves no file beside it for the next attempt
        _bring_up(database)
    for left in ("-wal", "-shm"):  # of a file that was moved away: SQLite would write that log into this one
        path.with_name(path.name + left).unlink(missing_ok=True)
    fresh.rename(path)


def _bring_up(database: sqlite3.Connection) -> None:
    """Bring a file that has no tables, or an older format, to the present format."""
    database.execute("BEGIN IMMEDIATE")
    for statement in (_SCHEMA, _SCHEMA_OF_RUNS, f"PRAGMA user_version = {FORMAT}"):
        database.execute(statement)
    for table, name in _ADDED:
        if name not in _columns(database, table):
            database.execute(f"ALTER TABLE {table} ADD COLUMN {name} REAL")
    database.execute("INSERT OR IGNORE INTO run (route) SELECT DISTINCT route FROM position")  # older than these notes
    database.execute("COMMIT")


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    """The columns of a table; none if it is not there."""
    return {column for _, column, *_ in database.execute(f"PRAGMA table_info({table})")}


def _code(error: sqlite3.Error) -> int:
    """SQLite's error code. Errors of Python's own have none. The low byte is the kind; SQLite adds details above it."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _why(error: Exception, path: Path) -> str:
    """An error's text, with what to do if the disk is full. SQLite may speak of an I/O error then."""
    make_room = f"make room in {path.parent}"
    if isinstance(error, OSError):
        return f"{error.strerror}; {make_room}" if error.errno == errno.ENOSPC else str(error)
    if isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_FULL:
        return f"{error}; {make_room}"
    with suppress(OSError):
        failed = isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_IOERR
        if failed and not os.statvfs(path.parent).f_bavail:
            return f"{error}: the disk is full; {make_room}"
    return str(error)


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    """A value for people, on one line of at most 80 characters."""
    text = ascii(value) if not isinstance(value, str) or not value.isprintable() else f"'{value}'"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _literal(value: object) -> str:
    """A value as an SQL literal."""
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if not isinstance(value, str):
        return repr(value)
    if value.isprintable():
        return "'{}'".format(value.replace("'", "''"))
    return f"CAST(x'{value.encode(errors='surrogateescape').hex()}' AS TEXT)"


def _quoted(statement: str) -> str:
    """A statement as one argument of a shell command, in the form that is easiest to read."""
    return shlex.quote(statement) if set(statement) & set('"$`\\!') else f'"{statement}"'
