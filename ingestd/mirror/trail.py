"""Trail: where on the target the records of one partition went, as the target's answers say. Belongs to its worker."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.mirror.passing import split_offsets
from ingestd.mirror.stretches import Stretch

if TYPE_CHECKING:
    from ingestd.mirror.passing import Offsets

__all__ = ["Step", "Trail"]

UNANSWERED: Final = -2


@dataclass(slots=True, eq=False)
class Step:
    """A batch that is with the producer. `offsets`: of its records at the source, as (first, how many)."""

    offsets: Offsets
    base: int = UNANSWERED


class Trail:
    """Makes stretches of what is acknowledged, in the order of the source's log.

    A batch may be acknowledged without an offset: an answer was lost, and the one for a later batch said enough. Such a
    batch counts as if it began behind the one before it. That is where it is, unless somebody else writes to the
    partition too. Then the offset is smaller than the right one, and nothing is skipped.
    """

    def __init__(self, end: int) -> None:
        """`end`: behind the last record that is known on the target."""
        self._end = max(0, end)
        self._steps: deque[Step] = deque()
        self._made: list[Stretch] = []

    def sent(self, offsets: Offsets) -> Step:
        """A batch goes to the producer. Its end is told to `acknowledged`."""
        step = Step(offsets)
        self._steps.append(step)
        return step

    def split(self, step: Step, at: int) -> tuple[Step, Step]:
        """A batch has become two: its first `at` records, and the others."""
        first, second = split_offsets(step.offsets, at)
        step.offsets = first
        other = Step(second)
        self._steps.insert(self._steps.index(step) + 1, other)
        return step, other

    def left_out(self, step: Step) -> None:
        """A batch never comes to the target."""
        step.offsets = ()
        self.acknowledged(step, -1)

    def acknowledged(self, step: Step, base: int) -> None:
        """A batch is on the target, at this offset; -1: the answer did not say where."""
        step.base = base
        while self._steps and self._steps[0].base != UNANSWERED:
            done = self._steps.popleft()
            target = self._end if done.base < 0 else done.base
            for source, records in done.offsets:
                self._note(source, target, records)
                target += records
            self._end = target

    def _note(self, source: int, target: int, records: int) -> None:
        if self._made:
            last = self._made[-1]
            if (last.source + last.records, last.target + last.records) == (source, target):
                self._made[-1] = Stretch(last.source, last.target, last.records + records)
                return
        self._made.append(Stretch(source, target, records))

    def take(self) -> list[Stretch]:
        """What is new since the last call."""
        made, self._made = self._made, []
        return made
