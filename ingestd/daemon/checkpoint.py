"""Checkpoint: stores changed positions in the position file, at once. If that fails, it tries again."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from ingestd.daemon.positions import PositionsLocked, PositionsUnavailable
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingestd.daemon.positions import PositionStore
    from ingestd.daemon.source import PositionKeeper, StoredPosition
    from ingestd.retry import Deadline

__all__ = ["Checkpoint"]

STORE_INTERVAL: Final = 0.5
"""Seconds between two attempts, after one has failed."""

LOCKED_INTERVAL: Final = 0.1
"""The same while another program's lock on the file is new, and while the daemon ends."""

LOCK_PATIENCE: Final = 1.0
"""Seconds that another program may have the file locked until that is logged. Most locks end sooner."""


class Checkpoint:
    """Positions that wait to be stored or forgotten, for each source the newest. Owned by the supervisor.

    Invariants
        Nothing waits for the file. While it is locked, or the disk is full, a timer tries again.
        All changes are one transaction. What could not be stored waits for the next one.
        That routes have run is stored together with what they found, never before.
        A route whose positions are kept elsewhere has none in the file.
    """

    def __init__(self, positions: PositionStore, failed: Callable[[str], None]) -> None:
        """`failed` gets each route whose positions could not be stored, at each attempt; all routes if none moved."""
        self.failing: str | None = None
        """Why positions can not be stored now, as it was logged; None while they can."""
        self._positions = positions
        self._failed = failed
        self._log = get_logger("ingestd.supervisor")
        self._changed: dict[tuple[str, str], StoredPosition | None] = {}
        self._elsewhere: dict[str, PositionKeeper] = {}
        self._run: set[str] = set()
        self._found_until: dict[str, float] = {}
        self._routes: set[str] = set()
        """All routes that have run."""
        self._tried: list[Callable[[], None]] = []
        self._attempt: asyncio.Handle | None = None
        self._since: float | None = None
        self._hurried = False

    @property
    def failing_seconds(self) -> float:
        """For how long positions could not be stored, up to now; 0.0 if they could at the last attempt."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def keep_elsewhere(self, route: str, keeper: PositionKeeper) -> None:
        """Let `keeper` have what is to be stored of a route from now on."""
        self._elsewhere[route] = keeper

    def remember(self, route: str, stored: StoredPosition) -> None:
        """Store a position, together with what else changes in this turn of the loop."""
        if route in self._elsewhere:
            self._elsewhere[route].remember(stored)
            return
        self._changed[route, stored.source] = stored
        self._try_soon()

    def forget(self, route: str, source: str) -> None:
        """Drop a position, together with what else changes in this turn of the loop."""
        if route in self._elsewhere:
            self._elsewhere[route].forget(source)
            return
        self._changed[route, source] = None
        self._try_soon()

    def then(self, call: Callable[[], None]) -> None:
        """Call `call` once the changes so far are stored, or could not be."""
        self._tried.append(call)
        self._try_soon()

    def note_run(self, routes: Iterable[str]) -> None:
        """Store now what changed, and that these routes have completed a scan."""
        noted = set(routes)
        self._routes |= noted
        self._run |= noted
        self._try()

    def note_found(self, route: str, until: float) -> None:
        """All that came before this Unix time is found. Stored together with what changes next, or at the end."""
        self._found_until[route] = until

    def look(self) -> None:
        """Try soon although nothing changed, to notice that the file is gone."""
        self._try_soon()

    async def finish(self, deadline: Deadline) -> str | None:
        """Store the rest; wait for another program's lock until the deadline. Returns why it could not, or None."""
        kept = await asyncio.gather(*(keeper.finish(deadline) for keeper in self._elsewhere.values()))
        reasons = [reason for reason in (*kept, await self._finish_file(deadline)) if reason is not None]
        return "; ".join(reasons) or None

    async def _finish_file(self, deadline: Deadline) -> str | None:
        while True:
            self._cancel()
            error = self._store(last=True)
            if error is None:
                return None
            if self._hurried or deadline.expired or not isinstance(error, PositionsLocked):
                break
            await asyncio.sleep(min(LOCKED_INTERVAL, deadline.remaining))
        if not self._changed:
            return str(error)
        count = len(self._changed)
        return f"{count} position{'s' if count > 1 else ''} could not be stored: {error}"

    def hurry(self) -> None:
        """Make `finish` stop waiting."""
        self._hurried = True

    def _cancel(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None

    def _try_soon(self) -> None:
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().call_soon(self._try)

    def _try(self) -> None:
        self._cancel()
        if self._store() is not None:
            delay = LOCKED_INTERVAL if self.failing is None else STORE_INTERVAL
            self._attempt = asyncio.get_running_loop().call_later(delay, self._try)
        tried, self._tried = self._tried, []
        for call in tried:
            call()

    def _store(self, *, last: bool = False) -> PositionsUnavailable | None:
        found = self._found_until if self._changed or self._run or last else {}
        try:
            self._positions.write(
                [(route, stored) for (route, _), stored in self._changed.items() if stored is not None],
                forgotten=[name for name, stored in self._changed.items() if stored is None],
                run={**dict.fromkeys(self._run), **found},
            )
        except PositionsUnavailable as error:
            self._tell(error)
            return error
        self._changed.clear()
        self._run.clear()
        found.clear()
        if self.failing is not None:
            self._log.info("positions are stored again")
        self.failing = self._since = None
        return None

    def _tell(self, error: PositionsUnavailable) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if isinstance(error, PositionsLocked) and now - self._since < LOCK_PATIENCE:
            return
        if self.failing is None:
            self._log.error("positions can not be stored; lines may be sent again after a restart", error=str(error))
        for route in {route for route, _ in self._changed} or self._routes:
            self._failed(route)
        self.failing = str(error)
