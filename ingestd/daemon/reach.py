"""Reach: whether one cluster answers, and what the log says of it. Values and times come in; nothing is asked here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Reach"]

SILENCE: Final = 3.0
"""Seconds without an answer after which a cluster counts as unreachable."""

BETWEEN_WARNINGS: Final = 30.0
"""The least time between two warnings, in seconds: of a cluster that comes and goes, or whose reason changed."""

OUTAGE: Final = 10.0
"""Seconds of silence whose end is said although their beginning was not, because of the bound on warnings."""

REPEAT: Final = 600.0
"""Seconds after which the same reason is said again."""

_REASONS_SHOWN: Final = 5


class Reach:
    """What is known of one cluster. Times are seconds of one monotonic clock.

    Invariants
        Every silence that is said has an end that is said. So has every silence of at least `OUTAGE`, and no other.
        There are never two warnings within `BETWEEN_WARNINGS`.
    """

    def __init__(self, bootstrap: Sequence[str], log: Any, now: float) -> None:
        self._bootstrap = list(bootstrap)
        self._log = log
        self._answered_at = now
        self._warned_at: float | None = None
        self._said: frozenset[str] | None = None
        """The reasons in the last warning of the present silence; None where there was none."""
        self.reachable = False
        """Whether the cluster answered when it was last asked. Not yet, before it was asked."""
        self.reason: str | None = None
        """Why it does not answer, once it has been silent for `SILENCE`."""

    def answered(self, now: float) -> None:
        """The cluster answered."""
        silent = now - self._answered_at
        if self.reason is not None and (self._said is not None or silent >= OUTAGE):
            self._log.info("cluster answers again", after_seconds=round(silent, 1), reason=self.reason)
        self._answered_at = now
        self._said = None
        self.reachable = True
        self.reason = None

    def failed(self, error: str, now: float) -> None:
        """The cluster was asked and did not answer. `error` has what each broker refused with, apart by `; `."""
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
        self._log.warning(
            "cluster does not answer", bootstrap=self._bootstrap, reason=self.reason, silent_seconds=round(silent, 1)
        )

    def silent_for(self, now: float) -> float:
        """Seconds since its last answer; 0 while it counts as reachable."""
        return 0.0 if self.reachable else now - self._answered_at


def _shortened(reasons: list[str]) -> str:
    more = len(reasons) - _REASONS_SHOWN
    return "; ".join(reasons[:_REASONS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
