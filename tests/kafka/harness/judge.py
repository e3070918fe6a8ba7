"""The judge of rotations: which lines a daemon must have delivered by when it ran, and which it may deliver again.

A line must have arrived if it stood in some file for `STANDING_SECONDS` while the daemon ran, if it stood there when
the daemon started and still did `START_SECONDS` after it was ready, or if it stands to the end. It comes once; only a
line that had no such time before a kill -9 may come again.
"""

from __future__ import annotations

import gzip
import time
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["STANDING_SECONDS", "START_SECONDS", "Judge", "Line", "Run", "Verdict", "lines_of"]

STANDING_SECONDS = 5.0
START_SECONDS = 2.0

MOST_SHOWN = 8


@dataclass(slots=True)
class Line:
    """One line that was written. Times are the monotonic clock's, in seconds."""

    log: str
    generation: int
    number: int
    """Counted over all generations of its log."""
    written: float
    removed: float = inf
    """When the last file that held it was deleted, truncated or overwritten."""


@dataclass(slots=True)
class Run:
    """One run of the daemon."""

    started: float
    ready: float = inf
    ended: float = inf
    """When it was told to stop, or was killed."""
    gone: float = inf
    """When its last process was gone. After a kill its workers deliver until then what will come again."""
    killed: bool = False

    def must_have(self, line: Line, patience: float) -> float:
        """From when on this run must have delivered a line that stands."""
        if line.written <= self.started:
            return self.ready + START_SECONDS * patience
        return max(line.written, self.ready) + STANDING_SECONDS * patience

    def had_time(self, line: Line, patience: float) -> bool:
        """Whether the line stood long enough in this run."""
        return min(self.ended, line.removed) >= self.must_have(line, patience)


@dataclass(slots=True)
class Verdict:
    """What a topic holds, beside what it must and may hold."""

    lines: int
    arrived: int
    missing: list[Line] = field(default_factory=list)
    twice: list[Line] = field(default_factory=list)
    """More often than kills explain."""
    disordered: list[Line] = field(default_factory=list)
    """First occurrences behind that of a later line of the same generation, in one partition."""
    foreign: list[bytes] = field(default_factory=list)
    repeated: int = 0
    """Second occurrences that a kill explains."""
    overtaken: int = 0
    """First occurrences behind that of a line of a later generation: no fault where lines were written late."""

    def __str__(self) -> str:
        faults = [
            f"{len(self.missing)} missing {_places(self.missing)}" if self.missing else "",
            f"{len(self.twice)} twice {_places(self.twice)}" if self.twice else "",
            f"{len(self.disordered)} out of order {_places(self.disordered)}" if self.disordered else "",
            f"{len(self.foreign)} that are no lines {self.foreign[:MOST_SHOWN]}" if self.foreign else "",
        ]
        told = f"of {self.lines} lines {self.arrived} arrived, {self.repeated} again after kills"
        if self.overtaken:
            told += f", {self.overtaken} behind a later generation"
        return "; ".join([told, *filter(None, faults)])

    def check(self) -> None:
        """Fail unless nothing is missing, too often, out of order or foreign."""
        faults = [*self.missing, *self.twice, *self.disordered, *self.foreign]
        assert not faults, str(self)


def _places(lines: Sequence[Line]) -> str:
    """How many lines of which generations."""
    counts = Counter((line.log, line.generation) for line in lines)
    shown = [f"{log}/{generation}: {count}" for (log, generation), count in list(counts.items())[:MOST_SHOWN]]
    return f"({', '.join(shown)}{', …' if len(counts) > MOST_SHOWN else ''})"


def lines_of(path: Path) -> list[bytes]:
    """The whole lines of a file, compressed or not."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return text.split(b"\n")[:-1]


class Judge:
    """Remembers what was written and removed, and when the daemon ran.

    Invariants
        Every line is unique over all logs and generations, but for those that `tolerate` was told.
    """

    def __init__(self, patience: float = 1.0) -> None:
        """`patience`: how many times as long a line must stand. With thousands of logs the daemon gets round later."""
        self.patience = patience
        self.lines: dict[bytes, Line] = {}
        self.runs: list[Run] = []
        self._numbers: Counter[str] = Counter()
        self._tolerated: set[bytes] = set()

    # What is told.

    def wrote(self, log: str, generation: int, texts: Iterable[bytes]) -> None:
        """Lines, without their line feeds, that the kernel has now."""
        now = time.monotonic()
        for text in texts:
            assert text not in self.lines, f"written twice: {text[:200]!r}"
            self.lines[text] = Line(log, generation, self._numbers[log], now)
            self._numbers[log] += 1

    def removing(self, path: Path) -> None:
        """A file is about to be deleted, truncated or overwritten, and its lines are in no other."""
        now = time.monotonic()
        for text in lines_of(path):
            if text in self.lines:
                self.lines[text].removed = min(now, self.lines[text].removed)

    def tolerate(self, *texts: bytes) -> None:
        """Records that are not counted: headers that all generations share, halves of lines."""
        self._tolerated.update(texts)

    def started(self) -> None:
        """The daemon is being started."""
        self.runs.append(Run(time.monotonic()))

    def ready(self) -> None:
        """It has said that it is ready."""
        self.runs[-1].ready = time.monotonic()

    def ended(self, *, killed: bool = False) -> None:
        """It has been told to stop, or has been killed."""
        self.runs[-1].ended = time.monotonic()
        self.runs[-1].killed = killed

    def gone(self) -> None:
        """No process of it is left."""
        self.runs[-1].gone = time.monotonic()

    # What is asked.

    @property
    def standing(self) -> int:
        """How many lines are in some file."""
        return sum(line.removed == inf for line in self.lines.values())

    def must_be_there(self, line: Line) -> bool:
        """Whether the daemon had the time to deliver it; lines that still stand are to be there in the end."""
        return line.removed == inf or any(run.had_time(line, self.patience) for run in self.runs)

    def may_repeat(self, line: Line) -> int:
        """How many kills came while it stood and had not stood long enough yet."""
        kills = 0
        for run in self.runs:
            if run.had_time(line, self.patience):
                break
            kills += run.killed and line.written <= run.gone and run.ended <= line.removed
        return kills

    def verdict(self, read: Mapping[int, Sequence[bytes]]) -> Verdict:
        """Compare with every record of the topic, by partition."""
        counts = Counter(value for values in read.values() for value in values if value not in self._tolerated)
        verdict = Verdict(len(self.lines), len(counts.keys() & self.lines.keys()))
        verdict.foreign = [value[:200] for value in counts.keys() - self.lines.keys()]
        for text, line in self.lines.items():
            count = counts[text]
            if count == 0 and self.must_be_there(line):
                verdict.missing.append(line)
            if count > 1:
                allowed = min(count - 1, self.may_repeat(line))
                verdict.repeated += allowed
                verdict.twice += [line] if count - 1 > allowed else []
        self._look_at_order(read, verdict)
        return verdict

    def _look_at_order(self, read: Mapping[int, Sequence[bytes]], verdict: Verdict) -> None:
        """A line that came in several partitions says nothing about order: it was sent again, and which was first?"""
        partitions = Counter(value for values in read.values() for value in set(values))
        for values in read.values():
            newest: dict[str, Line] = {}
            newest_of: dict[tuple[str, int], Line] = {}
            for text in dict.fromkeys(values):
                line = self.lines.get(text)
                if line is None or partitions[text] > 1:
                    continue
                before = newest_of.get((line.log, line.generation))
                if before is not None and before.number > line.number:
                    verdict.disordered.append(line)
                else:
                    newest_of[line.log, line.generation] = line
                before = newest.get(line.log)
                if before is not None and before.generation > line.generation:
                    verdict.overtaken += 1
                else:
                    newest[line.log] = line
