"""Demo: a log is written, rotated and truncated while ingestd tails it, and one of its workers is killed on the way.

Then every line is read back and compared. Everything is real but the visitors: `ingestd run` in processes of its own
with its embedded broker, a file on disk, and our own consumer at the end. Exit code 0 means that no line is missing,
none is damaged, and all are in order.
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
from dataclasses import dataclass, field
from pathlib import Path
from socket import create_server
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from accesslog import AccessLog, parse_size

from ingestd.cli.configured import load_configuration
from ingestd.cli.figures import in_bytes, in_count, in_rate
from ingestd.cli.rendering import values_of
from ingestd.consumer.settings import Edge
from ingestd.consumer.sync import SyncConsumer
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPIC = "access"
PARTITIONS = 2
START_TIMEOUT = 60.0
CATCH_UP_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0
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

[clusters.local]
embedded = true
partitions = {partitions}

[tails.access]
paths = [{paths}]
cluster = "local"
topic = "{topic}"
compression = "zstd"
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

    def write(self) -> None:
        """Write it all. Runs in a thread of its own; `error` says what kept it from its end."""
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
            time.sleep(max(0.0, started + self.written / self.rate - time.monotonic()))
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
        self._directory = directory
        with create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.configuration = directory / "ingestd.toml"
        self.log = directory / "access.log"
        self.configuration.write_text(
            CONFIGURATION.format(
                state=json.dumps(str(directory / "state")),
                port=self._port,
                partitions=PARTITIONS,
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
                raise DemoFailedError(f"ingestd is not ready after {START_TIMEOUT:g} s; see {self._messages.name}")
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
            raise DemoFailedError(f"ingestd tells of no worker; see {self._messages.name}")
        worker = max(workers, key=lambda one: int(one["arena_used_bytes"]))
        os.kill(worker["pid"], signal.SIGKILL)
        return f"killed: worker {worker['slot']}, process {worker['pid']}, with SIGKILL"

    def check(self) -> None:
        """Raise when it is gone."""
        if self._process.poll() is not None:
            said = Path(self._messages.name).read_text(errors="replace").strip().splitlines()[-5:]
            raise DemoFailedError(f"ingestd ended with exit code {self._process.returncode}:\n" + "\n".join(said))

    def stop(self) -> str:
        """Have it drain and end; what it printed."""
        self._process.send_signal(signal.SIGTERM)
        try:
            printed, _ = self._process.communicate(timeout=STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise DemoFailedError(f"ingestd does not stop within {STOP_TIMEOUT:g} s") from None
        if self._process.returncode != 0:
            raise DemoFailedError(f"ingestd stopped with exit code {self._process.returncode}:\n{printed}")
        return printed.strip()

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
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


def watch(daemon: Daemon, log: RotatedLog, screen: Screen) -> float:
    """Show what happens until, for `CALM` seconds, nothing is left to be delivered; the seconds until then."""
    writer = threading.Thread(target=log.write, name="log", daemon=True)
    started = time.monotonic()
    writer.start()
    told = 0
    caught_up_by = float("inf")
    done_at: float | None = None
    while True:
        daemon.check()
        status = daemon.status()
        written = not writer.is_alive()
        now = time.monotonic()
        # Told only now: while the daemon was asked, the rest may have been written, and more rotated.
        while told < len(log.events):
            screen.say(f"  {log.events[told]}")
            told += 1
        if status is not None:
            left = sum(_left(source) for source in status["routes"][0]["sources"])
            screen.progress(_progress(log, left, now - started))
            # Files of a worker that was killed are in nobody's hands for a moment, and so in no sum.
            at_work = all(worker["pid"] is not None and worker["arena_bytes"] for worker in status["workers"])
            done_at = (done_at or now) if written and at_work and not left else None
            if done_at is not None and now >= done_at + CALM:
                screen.progress("")
                return done_at - started
        if log.error is not None:
            raise DemoFailedError(f"the log can not be written: {log.error}")
        if written:
            caught_up_by = min(caught_up_by, now + CATCH_UP_TIMEOUT)
        if now > caught_up_by:
            raise DemoFailedError(f"not everything is acknowledged {CATCH_UP_TIMEOUT:g} s after the last line")
        time.sleep(0.1)


def _left(source: dict[str, Any]) -> int:
    """Bytes of a file that are not acknowledged."""
    try:
        size = Path(source["path"]).stat().st_size
    except OSError:
        size = 0
    return max(int(source["unread"]), size - int(source["position"]))


def _progress(log: RotatedLog, left: int, elapsed: float) -> str:
    return (
        f"  {elapsed:5.1f} s  written {in_bytes(log.written):>8}, {in_rate(log.written, elapsed):>9}  "
        f"not acknowledged yet {in_bytes(left):>8}"
    )


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


def read_back(bootstrap: list[str]) -> Iterator[Iterator[list[bytes | None]]]:
    """Every partition's values, from its beginning to its present end."""
    with SyncConsumer(bootstrap) as consumer:
        for partition in consumer.partitions(TOPIC):
            columns = consumer.columns(TOPIC, partition, Edge.earliest, Edge.latest)
            yield (values_of(part.values, part.count) for part in columns)


# The demo


def demo(directory: Path, size: int, rate: int) -> bool:
    """Run it in an empty directory; whether the verdict is good."""
    screen = Screen()
    seconds = size / rate + size / READ_BACK_RATE + START_AND_STOP
    screen.say(f"This takes about {seconds:.0f} s. ingestd starts, with a broker of its own …")
    daemon = Daemon(directory)
    try:
        daemon.wait_until_ready()
        screen.say(f"{in_bytes(size)} of access log are written, at {in_bytes(rate)}/s, and tailed:")
        log = RotatedLog(daemon.log, size, rate, accident=daemon.kill_a_worker)
        elapsed = watch(daemon, log, screen)
        screen.say(f"{in_count(log.lines)} lines written and acknowledged in {elapsed:.1f} s. Reading them back …")
        started = time.monotonic()
        bootstrap = list(load_configuration(daemon.configuration).bootstrap("local"))
        verdict = compare(log, read_back(bootstrap))
        if verdict.missing:
            screen.say(f"{in_count(verdict.missing)} lines are not there yet. Reading once more …")
            time.sleep(LATE)
            verdict = compare(log, read_back(bootstrap))
        took = time.monotonic() - started
        screen.say(f"{in_count(verdict.found)} lines read and compared in {took:.1f} s. Stopping ingestd, which says:")
        for line in daemon.stop().splitlines():
            screen.say(f"  {line}")
    finally:
        daemon.close()
    _print_verdict(screen, verdict)
    return verdict.good


def _print_verdict(screen: Screen, verdict: Verdict) -> None:
    screen.say(
        f"{in_count(verdict.expected)} lines written: {in_count(verdict.missing)} missing, "
        f"{in_count(verdict.unknown)} damaged, {in_count(verdict.out_of_order)} out of order, "
        f"{in_count(verdict.twice)} twice" + (", sent again for the worker that was killed." if verdict.twice else ".")
    )
    screen.say(
        "Every line arrived, as written and in order." if verdict.good else "FAILED: ingestd lost or changed lines."
    )


def main() -> int:
    """The exit code: 0 when every line arrived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("200MB"), help="how much log (200MB)")
    parser.add_argument("--rate", type=parse_size, default=parse_size("40MB"), help="how much of it a second (40MB)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work there, and leave everything for a look")
    given = parser.parse_args()
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
    print(f"({time.monotonic() - began:.0f} s in all)")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
