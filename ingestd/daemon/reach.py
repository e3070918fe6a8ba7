"""Reach: whether one cluster answers, and what is logged about it. It gets results and times; it asks nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Reach"]

SILENCE: Final = 3.0
"""Seconds without an answer after which a cluster counts as unreachable."""

BETWEEN_WARNINGS: Final = 30.0
"""Least seconds between two warnings, for a cluster that comes and goes, or whose reason changes."""

OUTAGE: Final = 10.0
"""If a cluster was silent this many seconds, the end is logged, also if the beginning was not (`BETWEEN_WARNINGS`)."""

REPEAT: Final = 600.0
"""Seconds after which the same reason is logged again."""

_REASONS_SHOWN: Final = 5


class Reach:
    """Whether one cluster answers. Times are seconds of one monotonic clock.

    Invariants
        The end of a silence is logged if its beginning was logged or it lasted at least `OUTAGE`, and else it is not.
        There are never two warnings within `BETWEEN_WARNINGS`.
    """

    def __init__(self, bootstrap: Sequence[str], log: Any, now: float) -> None:
        self._bootstrap = list(bootstrap)
        self._log = log
        self._answered_at = now
        self._warned_at: float | None = None
        self._said: frozenset[str] | None = None
        """The reasons in the last warning of the present silence; None if there was no warning."""
        self.reachable = False
        """Whether the cluster answered the last check. False before the first check."""
        self.reason: str | None = None
        """Why it does not answer, once it has been silent for `SILENCE`."""

    def answered(self, now: float) -> None:
        """The cluster answered."""
        silent = now - self._answered_at
        if self.reason is not None and (self._said is not None or silent >= OUTAGE):
            self._log.info("cluster answers again", silent_seconds=round(silent, 1), reason=self.reason)
        self._answered_at = now
        self._said = None
        self.reachable = True
        self.reason = None

    def failed(self, error: str, now: float) -> None:
        """The cluster did not answer a check. `error` has the reason of each broker, separated by `; `."""
        self._failed("cluster does not answer", self._log.warning, error, now)

    def refused(self, error: str, now: float) -> None:
        """A broker answered a check, and refused the account, or its own certificate was: somebody must mend that."""
        self._failed("authentication with the cluster failed", self._log.error, error, now)

    def _failed(self, event: str, say: Callable[..., object], error: str, now: float) -> None:
        silent = now - self._answered_at
        if silent < SILENCE:
            return
        self.reachable = False
        reasons = error.split("; ")
        self.reason = _shortened(reasons)
        if self._warned_at is not None:
            repeated = self._said == frozenset(reasons)
            if now - self._warned_at < (REPEAT if repeated else BETWEEN_WARNINGS):
                return
        self._warned_at, self._said = now, frozenset(reasons)
        say(event, bootstrap=self._bootstrap, reason=self.reason, silent_seconds=round(silent, 1))

    def silent_for(self, now: float) -> float:
        """Seconds since its last answer; 0 while it counts as reachable."""
        return 0.0 if self.reachable else now - self._answered_at


def _shortened(reasons: list[str]) -> str:
    more = len(reasons) - _REASONS_SHOWN
    return "; ".join(reasons[:_REASONS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
