"""Demo: ingestd tails a log into a broker, east, and mirrors that to another one, west. A worker is killed on the way.

The log is written, rotated and truncated meanwhile. Then both brokers are read back: what east has is compared with the
lines of the log, and what west has with east. Everything is real but the visitors: one `ingestd run` with workers and
two embedded brokers in processes of their own, a file on disk, and our own consumers at the end. Exit code 0 means that
nothing is missing or damaged, and that all is in order.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from bisect import bisect_right
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import create_server
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from accesslog import AccessLog, parse_size

from ingestd.cli.configured import load_configuration
from ingestd.cli.event_loop import run_async
from ingestd.cli.mirrors import HEADER, remarks, rows, verify_mirrors
from ingestd.cli.rendering import values_of
from ingestd.cli.tables import table
from ingestd.consumer.settings import Edge
from ingestd.consumer.sync import SyncConsumer
from ingestd.errors import IngestdError
from ingestd.figures import in_bytes, in_count
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ingestd.daemon.configuration import Configuration
    from ingestd.mirror.verify import Verification

TAIL = "access"
MIRROR = "east-to-west"
TOPIC = "access"
PARTITIONS = 2
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
START_TIMEOUT = 60.0
CATCH_UP_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0
VERIFY_TIMEOUT = 60.0
CLOSE_TIMEOUT = 5.0
CALM = 1.0
"""Seconds."""
LATE = 10.0
"""Seconds that a slow machine may take longer to restart a worker."""
READ_BACK_RATE = 30e6
"""Bytes a second that are read back and compared, line by line in Python, on an ordinary machine."""
START_AND_STOP = 4.0
"""Seconds."""

CONFIGURATION = """\
[daemon]
state = {state}
http = "127.0.0.1:{port}"

[clusters.east]
embedded = true
partitions = {partitions}

[clusters.west]
embedded = true

[tails.{tail}]
paths = [{paths}]
cluster = "east"
topic = "{topic}"
compression = "zstd"

[mirrors.{mirror}]
source = "east"
target = "west"
topics = ["{topic}"]     # called east.{topic} on west
refresh_interval = 0.5   # seconds until a new topic is seen
"""


class DemoFailedError(Exception):
    """The demo can not go on; the message says why."""


# The log that is tailed


@dataclass
class RotatedLog:
    """Writes an access log at a pace, and rotates it on the way: twice by rename, then by copy and truncate."""

    path: Path
    size: int
    rate: int
    written: int = 0
    lines: int = 0
    generations: list[int] = field(default_factory=lambda: [0])
    """How many lines had been written when each file was begun."""
    events: list[str] = field(default_factory=list)
    accident: Callable[[], str] | None = None
    """Called amid the writing; says what it did."""
    error: Exception | None = None
    _given_up: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def being_written(self) -> Iterator[threading.Thread]:
        """Meanwhile a thread writes it all. `error` says what kept it from its end."""
        writer = threading.Thread(target=self._write_or_say, name="log", daemon=True)
        writer.start()
        try:
            yield writer
        finally:
            self._given_up.set()
            writer.join(CLOSE_TIMEOUT)

    def _write_or_say(self) -> None:
        try:
            self._write()
        except (OSError, DemoFailedError) as error:
            self.error = error

    def _write(self) -> None:
        steps = [(0.25, self._rename), (0.375, self._have_an_accident), (0.5, self._rename)]
        steps += [(0.75, self._copy_and_truncate)]
        started = time.monotonic()
        out = self.path.open("ab", buffering=0)
        for block in AccessLog().blocks(self.size):
            out.write(block)
            self.written += len(block)
            self.lines += block.count(b"\n")
            if steps and self.written >= steps[0][0] * self.size:
                out.close()
                steps.pop(0)[1]()
                out = self.path.open("ab", buffering=0)
            if self._given_up.wait(max(0.0, started + self.written / self.rate - time.monotonic())):
                break
        out.close()

    def _have_an_accident(self) -> None:
        if self.accident is not None:
            self.events.append(self.accident())

    def _rename(self) -> None:
        old = self._old()
        self.path.rename(old)
        self.events.append(f"rotated: {self.path.name} renamed to {old.name}")

    def _old(self) -> Path:
        """The name of what was written so far; a new file begins."""
        name = f"{self.path.name}.{len(self.generations)}"
        self.generations.append(self.lines)
        return self.path.with_name(name)

    def _copy_and_truncate(self) -> None:
        old = self._old()
        shutil.copyfile(self.path, old)
        os.truncate(self.path, 0)
        self.events.append(f"rotated: {self.path.name} copied to {old.name} and truncated")


# The daemon


class Daemon:
    """`ingestd run`, as a user would start it."""

    def __init__(self, directory: Path) -> None:
        with create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.configuration = directory / "ingestd.toml"
        self.log = directory / "access.log"
        self.configuration.write_text(
            CONFIGURATION.format(
                state=json.dumps(str(directory / "state")),
                port=self._port,
                partitions=PARTITIONS,
                tail=TAIL,
                mirror=MIRROR,
                paths=json.dumps(str(directory / "access.log*")),
                topic=TOPIC,
            )
        )
        self._messages = (directory / "ingestd.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ingestd", "run", str(self.configuration)],
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
        )

    def get(self, path: str) -> bytes | None:
        """What the daemon's HTTP endpoint answers; None when it does not, or not well."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
                body: bytes = answer.read()
                return body
        except (URLError, TimeoutError, ConnectionError):
            return None

    def wait_until_ready(self) -> None:
        """Return once its first assignment is done."""
        deadline = time.monotonic() + START_TIMEOUT
        while self.get("/readyz") is None:
            self.check()
            if time.monotonic() > deadline:
                raise self.failed(f"ingestd is not ready after {START_TIMEOUT:g} s")
            time.sleep(0.05)

    def status(self) -> dict[str, Any] | None:
        """What /status says."""
        body = self.get("/status")
        return None if body is None else json.loads(body)

    def kill_a_worker(self) -> str:
        """SIGKILL the worker that has most on its way; says which."""
        status = self.status()
        workers = [] if status is None else [worker for worker in status["workers"] if worker["pid"] is not None]
        if not workers:
            raise self.failed("ingestd tells of no worker")
        worker = max(workers, key=lambda one: int(one["arena_used_bytes"]))
        os.kill(worker["pid"], signal.SIGKILL)
        return f"killed: worker {worker['slot']}, process {worker['pid']}, with SIGKILL"

    def check(self) -> None:
        """Raise when it is gone."""
        if self._process.poll() is not None:
            raise self.failed(f"ingestd ended with exit code {self._process.returncode}")

    def failed(self, what: str) -> DemoFailedError:
        """The error that says so, and what the daemon logged last: its log is removed with the directory."""
        logged = Path(self._messages.name).read_text(errors="replace").splitlines()
        return DemoFailedError("\n".join([what, *logged[-5:]]))

    def stop(self) -> str:
        """Have it drain and end; what it printed."""
        self._process.send_signal(signal.SIGTERM)
        try:
            printed, _ = self._process.communicate(timeout=STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise self.failed(f"ingestd does not stop within {STOP_TIMEOUT:g} s") from None
        if self._process.returncode != 0:
            raise DemoFailedError(f"ingestd stopped with exit code {self._process.returncode}:\n{printed}")
        return printed.strip()

    def close(self) -> None:
        """End it with all of its processes, whatever state it is in. Signals that come meanwhile are ignored."""
        for number in INTERRUPTS:
            signal.signal(number, signal.SIG_IGN)
        for end in (self._process.terminate, self._process.kill):
            end()
            with suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=CLOSE_TIMEOUT)  # until the last of them has closed its output
                break
        self._messages.close()


# What is seen while it runs


class Screen:
    """Progress on one line of a terminal, or a line a second where it is none."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._shown = 0.0

    def say(self, text: str) -> None:
        """A line that stays."""
        print(f"\r\033[K{text}" if self._terminal else text, flush=True)

    def progress(self, text: str) -> None:
        """A line that the next one replaces."""
        if self._terminal:
            print(f"\r\033[K{text}", end="", flush=True)
        elif time.monotonic() >= self._shown + 1:
            self._shown = time.monotonic()
            print(text, flush=True)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the daemon is, as /status says."""

    tailed: int
    """Lines that east has acknowledged."""
    mirrored: int
    """Records that west has acknowledged."""
    done: bool
    """Whether nothing is known that is still to be tailed or mirrored."""


def progress_of(status: dict[str, Any]) -> Progress:
    """Take it from what /status says."""
    routes = {route["name"]: route for route in status["routes"]}
    tail, mirror = routes[TAIL], routes[MIRROR]
    # What a killed worker had is in nobody's hands for a moment, and so among no sources.
    at_work = all(worker["pid"] is not None and worker["arena_bytes"] for worker in status["workers"])
    tailed = not any(_left(source) for source in tail["sources"])
    mirrored = len(mirror["sources"]) == PARTITIONS and all(source["lag"] == 0 for source in mirror["sources"])
    return Progress(tail["records"], mirror["records"], at_work and tailed and mirrored)


def _left(source: dict[str, Any]) -> int:
    """Bytes of a file that are not acknowledged."""
    try:
        size = Path(source["path"]).stat().st_size
    except OSError:
        size = 0
    return max(int(source["unread"]), size - int(source["position"]))


def watch(daemon: Daemon, log: RotatedLog, screen: Screen) -> float:
    """Show what happens until, for `CALM` seconds, nothing is left to be tailed or mirrored; the seconds until then."""
    started = time.monotonic()
    told = 0
    caught_up_by = float("inf")
    done_at: float | None = None
    with log.being_written() as writer:
        while True:
            daemon.check()
            written = not writer.is_alive()
            status = daemon.status()
            now = time.monotonic()
            # Told only now: while the daemon was asked, the rest may have been written, and more rotated.
            while told < len(log.events):
                screen.say(f"  {log.events[told]}")
                told += 1
            if status is not None:
                progress = progress_of(status)
                screen.progress(
                    f"  {now - started:5.1f} s  written {in_bytes(log.written):>8}"
                    f"  tailed {in_count(progress.tailed):>9} lines  mirrored {in_count(progress.mirrored):>9} records"
                )
                done_at = (done_at or now) if written and progress.done else None
                if done_at is not None and now >= done_at + CALM:
                    return done_at - started
            if log.error is not None:
                raise DemoFailedError(f"the log can not be written: {log.error}")
            if written:
                caught_up_by = min(caught_up_by, now + CATCH_UP_TIMEOUT)
            if now > caught_up_by:
                raise daemon.failed(f"not all is tailed and mirrored {CATCH_UP_TIMEOUT:g} s after the last line")
            time.sleep(0.1)


# What is compared


@dataclass
class Verdict:
    """What came back, against what was written."""

    expected: int
    found: int = 0
    missing: int = 0
    twice: int = 0
    unknown: int = 0
    out_of_order: int = 0

    @property
    def good(self) -> bool:
        """Whether every line is there, as it was and in order; at least once, so one may be there twice."""
        return not (self.missing or self.unknown or self.out_of_order)


def compare(log: RotatedLog, partitions: Iterator[Iterator[list[bytes | None]]]) -> Verdict:
    """Compare what each of up to eight partitions has with the log, which is made once more.

    Order is that of first occurrences, within a file and partition. A line that came in several partitions was sent
    again after a death; which of them came first is not known, so its place says nothing about order.
    """
    expected: list[bytes] = []
    for block in AccessLog().blocks(log.size):
        expected += block.removesuffix(b"\n").split(b"\n")
    places = {line: place for place, line in enumerate(expected)}
    verdict = Verdict(expected=len(expected))
    where = bytearray(len(expected))  # a bit for each partition
    firsts: list[array[int]] = []
    for number, partition in enumerate(partitions):
        bit = 1 << number
        firsts.append(array("I"))
        for lines in partition:
            verdict.found += len(lines)
            for line in lines:
                place = places.get(line) if line is not None else None
                if place is None:
                    verdict.unknown += 1
                    continue
                verdict.twice += where[place] != 0
                if not where[place] & bit:
                    where[place] |= bit
                    firsts[-1].append(place)
    verdict.missing = where.count(0)
    verdict.out_of_order = sum(_out_of_order(log, where, 1 << number, order) for number, order in enumerate(firsts))
    return verdict


def _out_of_order(log: RotatedLog, where: bytearray, alone: int, order: array[int]) -> int:
    """How many lines of one partition, and of no other, stand behind a later line of their file."""
    newest = [-1] * len(log.generations)
    count = 0
    for place in order:
        if where[place] == alone:
            file = bisect_right(log.generations, place) - 1
            count += place < newest[file]
            newest[file] = max(place, newest[file])
    return count


def read_back(bootstrap: Sequence[str]) -> Iterator[Iterator[list[bytes | None]]]:
    """Every partition's values, from its beginning to its present end."""
    with SyncConsumer(bootstrap) as consumer:
        for partition in consumer.partitions(TOPIC):
            columns = consumer.columns(TOPIC, partition, Edge.earliest, Edge.latest)
            yield (values_of(part.values, part.count) for part in columns)


def verify(configuration: Configuration, size: int) -> Verification:
    """What `ingestd mirror verify --to-end` finds: what west has, against what east has."""
    doing = verify_mirrors(configuration, MIRROR, to_end=True)
    deadline = Deadline.after(VERIFY_TIMEOUT + size / READ_BACK_RATE)
    (verification,) = run_async(deadline.wait_for(doing, "comparing west with east"))
    return verification


@dataclass(frozen=True, slots=True)
class Outcome:
    """What both brokers had when they were read back."""

    lines: Verdict
    """East's records, against the log."""
    mirror: Verification
    """West's records, against east's."""

    @property
    def mirrored(self) -> bool:
        """Whether west has each record that was read from east, as it is there and in order."""
        return self.mirror.same() and sum(one.source_records for one in self.mirror.partitions) == self.lines.found

    @property
    def good(self) -> bool:
        """Whether everything is where it should be."""
        return self.lines.good and self.mirrored


# The demo


def demo(directory: Path, size: int, rate: int) -> bool:
    """Run it in an empty directory; whether the outcome is good."""
    screen = Screen()
    seconds = size / rate + size / READ_BACK_RATE + START_AND_STOP
    screen.say(f"This takes about {seconds:.0f} s. ingestd starts, with two brokers of its own: east and west …")
    daemon = Daemon(directory)
    try:
        daemon.wait_until_ready()
        pace = f"{in_bytes(size)} of access log are written, at {in_bytes(rate)}/s"
        screen.say(f"{pace}, tailed into east, and mirrored from there to west:")
        log = RotatedLog(daemon.log, size, rate, accident=daemon.kill_a_worker)
        elapsed = watch(daemon, log, screen)
        screen.say(f"{in_count(log.lines)} lines written, tailed and mirrored in {elapsed:.1f} s. Reading them back …")
        outcome = read_both_back(daemon, log, screen)
        if not outcome.good:
            screen.say(f"That is not all, or not right. Reading once more in {LATE:g} s …")
            time.sleep(LATE)
            outcome = read_both_back(daemon, log, screen)
        screen.say("Stopping ingestd, which says:")
        for line in daemon.stop().splitlines():
            screen.say(f"  {line}")
    finally:
        daemon.close()
    _print_outcome(screen, outcome)
    return outcome.good


def read_both_back(daemon: Daemon, log: RotatedLog, screen: Screen) -> Outcome:
    """Compare east with the log, and west with east; say how that went."""
    configuration = load_configuration(daemon.configuration)
    started = time.monotonic()
    lines = compare(log, read_back(configuration.bootstrap("east")))
    read = time.monotonic()
    screen.say(f"{in_count(lines.found)} records of east compared with the log in {read - started:.1f} s.")
    mirror = verify(configuration, log.size)
    copies = sum(one.target_records for one in mirror.partitions)
    took = time.monotonic() - read
    screen.say(f"{in_count(copies)} records of west compared with east in {took:.1f} s, by `ingestd mirror verify`:")
    for line in [*table(HEADER, rows([mirror])), *remarks([mirror])]:
        screen.say(f"  {line}")
    return Outcome(lines, mirror)


def _print_outcome(screen: Screen, outcome: Outcome) -> None:
    lines = outcome.lines
    again = sum(one.duplicates for one in outcome.mirror.partitions)
    twice = f"{in_count(lines.twice)} twice in east, {in_count(again)} more in west"
    screen.say(
        f"{in_count(lines.expected)} lines written: {in_count(lines.missing)} missing, "
        f"{in_count(lines.unknown)} damaged, {in_count(lines.out_of_order)} out of order; "
        + (f"{twice}, sent again for the worker that was killed." if lines.twice or again else "none twice.")
    )
    if outcome.good:
        screen.say("Every line arrived, as written and in order, and every record of east is in west.")
    if not lines.good:
        screen.say("FAILED: ingestd lost or changed lines.")
    if not outcome.mirrored:
        screen.say("FAILED: west does not have what east has.")


def main() -> int:
    """The exit code: 0 when all arrived, 130 when it was interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("200MB"), help="how much log (200MB)")
    parser.add_argument("--rate", type=parse_size, default=parse_size("40MB"), help="how much of it a second (40MB)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work there, and leave everything for a look")
    given = parser.parse_args()
    for number in INTERRUPTS[1:]:
        signal.signal(number, signal.default_int_handler)  # like Ctrl-C: nothing is left running
    began = time.monotonic()
    try:
        if given.keep is not None:
            given.keep.mkdir(parents=True)
            good = demo(given.keep.absolute(), given.size, given.rate)
        else:
            with tempfile.TemporaryDirectory(prefix="ingestd-demo-") as directory:
                good = demo(Path(directory), given.size, given.rate)
    except (DemoFailedError, IngestdError, OSError) as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. ingestd is stopped.", file=sys.stderr)
        return 130
    print(f"({time.monotonic() - began:.0f} s in all)")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
