"""Random histories: logs that are written and rotated in every way, under a daemon that is stopped, killed and started.

INGESTD_HISTORY_SEED repeats the history of a failure: the same steps in the same order, though not at the same moments
of the daemon. INGESTD_HISTORY_SECONDS, INGESTD_HISTORY_LOGS and INGESTD_HISTORY_PAUSE (seconds between two steps) make
a campaign of it.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from harness.judge import STANDING_SECONDS
from harness.programs import program
from harness.rotators import Repeated, Writer, compress, copy_and_truncate, link_and_unlink, repoint, rotated, shift
from harness.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from embedded.process import BrokerProcess

SEED = os.environ.get("INGESTD_HISTORY_SEED")
SECONDS = float(os.environ.get("INGESTD_HISTORY_SECONDS", "20"))
LOGS = int(os.environ.get("INGESTD_HISTORY_LOGS", "40"))
PAUSE = float(os.environ.get("INGESTD_HISTORY_PAUSE", "0.01"))

PATIENCE = max(1.0, LOGS / 1000)
"""How many times as long as a few logs need a daemon may take to get round, and to be ready."""

DIRECTORIES = 5
LINKED_SHARE = 0.25
LATE_SHARE = 0.3
SETTLE_SECONDS = 10.0
MOST_SHOWN = 150
MOST_DIRECTORIES = 20
MOVE_SECONDS = 10.0
"""Directories go no faster, however fast the steps are: each takes all of its logs with it, for ever."""


@dataclass(slots=True)
class Log:
    """A log and its writer. `link`: the name that the daemon knows, where that is a symbolic link."""

    writer: Writer
    link: Path | None = None
    led: float = 0.0
    """Since when the link leads where it does."""

    @property
    def name(self) -> str:
        return self.writer.name


class History:
    """What happens to the files, step by step. `told` has every step, in order.

    Invariants
        The judge hears of every line that is in no file any more, before it is gone.
        Files in `moved` and their names are left alone.
        Until the daemon was ready once, logs are written and nothing else: what was rotated before is not its concern.
    """

    def __init__(self, root: Path, trial: Trial, chance: random.Random, count: int, *, namesakes: bool = False) -> None:
        """`namesakes`: each log is called app.log, in a directory of its own."""
        self.told: list[str] = []
        self.met = False
        """Whether the daemon was ready once."""
        self._began = time.monotonic()
        self._root = root
        self._judge = trial.judge
        self._chance = chance
        self._namesakes = namesakes
        self._numbers = itertools.count(1)
        self._hard_links: list[Path] = []
        self._moves: list[float] = []
        """When directories went."""
        self._directories = [root / "logs" / f"d{number}" for number in range(DIRECTORIES)]
        for directory in (*self._directories, root / "targets", root / "moved", root / "links"):
            directory.mkdir(parents=True)
        self._logs = [self._log(name_of(number)) for number in range(count)]
        self._steps = {
            self._write: 60.0,
            self._half: 5.0,
            self._rename: 8.0,
            self._link_and_unlink: 1.0,
            self._copy_and_truncate: 6.0,
            self._truncate: 2.0,
            self._compress: 6.0,
            self._delete: 4.0,
            self._hard_link: 1.0,
            self._drop_hard_link: 1.0,
            self._unlink: 1.0,
            self._repoint: 2.0,
            self._move_directory: 0.2,
        }

    def _log(self, name: str) -> Log:
        directory = self._chance.choice(self._directories)
        path = directory / name / "app.log" if self._namesakes else directory / f"{name}.log"
        path.parent.mkdir(exist_ok=True)
        if self._chance.random() >= LINKED_SHARE:
            return Log(Writer(self._judge, path, name=name))
        log = Log(Writer(self._judge, self._root / "targets" / f"{name}.0", name=name), path)
        assert log.link is not None
        log.link.symlink_to(log.writer.path)
        return log

    def step(self) -> None:
        """Take a step."""
        (step,) = self._chance.choices(list(self._steps), list(self._steps.values()))
        (step if self.met else self._write)(self._chance.choice(self._logs))

    def end(self) -> None:
        """Make half lines whole."""
        for log in self._logs:
            log.writer.finish()

    def tell(self, what: str) -> None:
        """Note a step."""
        self.told.append(f"{time.monotonic() - self._began:8.3f} {what}")

    def about(self, names: set[str]) -> str:
        """The last steps that concern these logs, and the daemon's."""
        own = [step for step in self.told if "daemon" in step or "directory" in step or any(n in step for n in names)]
        return "\n".join(own[-MOST_SHOWN:])

    # The steps.

    def _write(self, log: Log) -> None:
        count = self._chance.randint(1, 12)
        log.writer.write(count)
        self.tell(f"{log.name}: {count} lines of generation {log.writer.generation}")

    def _half(self, log: Log) -> None:
        log.writer.half()
        self.tell(f"{log.name}: half a line")

    def _rename(self, log: Log) -> None:
        late = self._chance.randint(1, 5) if self._chance.random() < LATE_SHARE else 0
        log.writer.path.rename(shift(log.writer.path))
        if late:
            log.writer.write(late)
        log.writer.reopen()
        self.tell(f"{log.name}: renamed, {late} late lines")

    def _link_and_unlink(self, log: Log) -> None:
        link_and_unlink(log.writer)
        self.tell(f"{log.name}: rotated by link and unlink")

    def _copy_and_truncate(self, log: Log) -> None:
        copy_and_truncate(log.writer)
        self.tell(f"{log.name}: copied and truncated")

    def _truncate(self, log: Log) -> None:
        log.writer.finish()
        self._judge.removing(log.writer.path)
        os.truncate(log.writer.path, 0)
        log.writer.truncated()
        self.tell(f"{log.name}: truncated")

    def _compress(self, log: Log) -> None:
        plain = [path for path in rotated(log.writer.path) if path.suffix != ".gz" and path.stat().st_nlink == 1]
        if plain:
            self.tell(f"{log.name}: compressed to {compress(self._chance.choice(sorted(plain))).name}")

    def _delete(self, log: Log) -> None:
        old = rotated(log.writer.path)
        if old:
            oldest = max(old, key=lambda path: int(path.name.removesuffix(".gz").rpartition(".")[2]))
            self._remove(oldest)
            self.tell(f"{log.name}: deleted {oldest.name}")

    def _remove(self, path: Path) -> None:
        """What has no name left but where nobody looks is gone for the daemon, unless it had the time to open it."""
        hidden = {path, *(link for link in self._hard_links if link.parent.name == "links" and link.samefile(path))}
        if path.stat().st_nlink == len(hidden):
            self._judge.removing(path)
        path.unlink()

    def _hard_link(self, log: Log) -> None:
        """A second name of the log, or of a rotated file: among the logs, or where nobody looks."""
        path = self._chance.choice([log.writer.path, *sorted(rotated(log.writer.path))])
        if path.suffix == ".gz":
            return
        beside = [(log.link or log.writer.path).parent for log in self._logs] if self._namesakes else self._directories
        directory = self._chance.choice([*beside, self._root / "links"])
        link = directory / f"hard-{next(self._numbers):04}.log"
        os.link(path, link)
        self._hard_links.append(link)
        self.tell(f"{log.name}: {path.name} is {link.parent.name}/{link.name} too")

    def _drop_hard_link(self, _log: Log) -> None:
        if self._hard_links:
            link = self._hard_links.pop(self._chance.randrange(len(self._hard_links)))
            self._remove(link)
            self.tell(f"{link.name}: deleted")

    def _unlink(self, log: Log) -> None:
        log.writer.finish()
        self._remove(log.writer.path)
        log.writer.reopen()
        self.tell(f"{log.name}: deleted and begun anew")

    def _repoint(self, log: Log) -> None:
        """Where a link led only while no daemon was there to see it, nobody can know."""
        now = time.monotonic()
        seen = (min(run.ended, now) - max(run.ready, log.led) for run in self._judge.runs)
        if log.link is not None and max(seen, default=0.0) > STANDING_SECONDS * PATIENCE:
            log.led = now
            log.writer.reopen(self._root / "targets" / f"{log.name}.{next(self._numbers)}")
            repoint(log.link, log.writer.path)
            self.tell(f"{log.name}: its link leads to {log.writer.path.name}")

    def _move_directory(self, _log: Log) -> None:
        """A directory goes, with all that is in it, and comes anew; its writers write late lines."""
        directory = self._chance.choice(self._directories)
        now = time.monotonic()
        if len(self._moves) >= MOST_DIRECTORIES or now - max(self._moves, default=0.0) < MOVE_SECONDS:
            return
        self._moves.append(now)
        moved = self._root / "moved" / f"{directory.name}-{next(self._numbers)}"
        directory.rename(moved)
        directory.mkdir()
        for log in self._logs:
            path = log.link or log.writer.path
            if directory not in path.parents:
                continue
            path.parent.mkdir(exist_ok=True)
            if log.link is not None:
                log.link.symlink_to(log.writer.path)
            else:
                log.writer.write(1)
                log.writer.reopen()
        self._hard_links = [link for link in self._hard_links if directory not in link.parents]
        self.tell(f"directory {directory.name}: moved to {moved.name} and made anew")


def name_of(number: int) -> str:
    """Ten logs are alike but for a digit, as those of an application's workers: aab-3 looks like a rotation of aab."""
    letters = "".join(chr(ord("a") + number // 10 // power % 26) for power in (676, 26, 1))
    return f"{letters}-{number % 10}"


def live(trial: Trial, history: History, chance: random.Random, seconds: float) -> None:
    """Start the daemon, stop or kill it after a while, and so on for `seconds`. It runs in the end."""
    ends = time.monotonic() + seconds
    while True:
        history.tell("daemon: starts")
        trial.start()
        history.met = True
        history.tell("daemon: is ready")
        rest = ends - time.monotonic()
        time.sleep(max(0.0, min(rest, chance.uniform(0.2, 9))))
        if time.monotonic() >= ends:
            return
        how = chance.choice(["stopped", "killed"])
        history.tell(f"daemon: is being {how}")
        trial.interrupt(how)
        history.tell(f"daemon: was {how}")
        time.sleep(chance.uniform(0, 1.5))


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """This process may have as many as there are: each log's writer has one."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("glob", ["*.log", "*.log*", "*/*.log*"], ids=["names", "rotated-names-too", "namesakes"])
def test_a_random_history_of_rotations_stops_and_kills_loses_and_doubles_nothing(
    embedded: BrokerProcess, new_topic: str, tmp_path: Path, glob: str
) -> None:
    seed = int(SEED) if SEED else time.time_ns() % 1_000_000_000
    print(f"INGESTD_HISTORY_SEED={seed} repeats it")
    chance = random.Random(seed)
    root = tmp_path / "root"
    namesakes = "/" in glob
    settings = {
        "exclude": ["*.gz", "*.tmp"],
        "leave_after": chance.choice([1.0, 10.0]),
        "rescan_interval": chance.choice([1.0, 3600.0]),
        "command": (program("prlimit"), f"--nofile={chance.choice([64, 1024])}"),
        "rotated": [f"{root}/moved/*/*", f"{root}/moved/*/*/*"] if namesakes else [f"{root}/moved/*/*"],
    }
    paths = [f"{root}/logs/*/{glob}"]
    with Trial(
        tmp_path, servers=embedded.servers, topic=new_topic, paths=paths, patience=PATIENCE, **settings
    ) as trial:
        # Namesakes have a directory each, and a fifth of these is moved away at once: searches go through all of them.
        history = History(root, trial, chance, LOGS // 3 if namesakes else LOGS, namesakes=namesakes)
        with Repeated(history.step, every=PAUSE):
            live(trial, history, random.Random(seed + 1), SECONDS)
        history.end()
        verdict = trial.finish(SETTLE_SECONDS * PATIENCE)
    (tmp_path / "history").write_text("\n".join(history.told))
    faulty = {line.log for line in [*verdict.missing, *verdict.twice, *verdict.disordered]}
    if faulty:
        print(f"the whole history is in {tmp_path}/history\n{history.about(set(sorted(faulty)[:3]))}")
    print(settings)
    verdict.check()
