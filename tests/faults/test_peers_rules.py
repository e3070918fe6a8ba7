"""Rules that the suites of rsyslog's imfile, Vector's file source, Filebeat's filestream and Fluent Bit's tail pin.

Each rule is a history of some files. All histories go on at once, under one daemon that is stopped, or killed, and
started again in their middle; each has a tail, a topic and a judge of its own. What these suites pin and ours pinned
before is not here.
"""

from __future__ import annotations

import fcntl
import functools
import gzip
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness.judge import Judge
from harness.programs import program
from harness.reading import read_back
from harness.rotators import Repeated, Writer, copy_and_truncate, rename
from harness.trial import Trial
from meter import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from embedded.process import BrokerProcess

RUNS, DOWN, AGAIN, PHASES = 0, 1, 2, 3
"""The phases of every history behind its beginning: the daemon runs, is down, runs again."""
PARTITIONS = 2
READ_SECONDS = 10.0
STORED_SECONDS = 0.5
"""What arrived is stored by then."""
QUIET_SECONDS = 1.5
"""Longer than `leave_after`, and than any look for what no watch told."""
SOON = {"leave_after": 1.0, "poll_interval": 1.0, "rescan_interval": 1.0}

HEADER = [b"#Fields: %03d " % number + b"date time s-ip cs-method cs-uri-stem " * 2 for number in range(15)]
"""More than 1,024 bytes that every generation of a log begins with."""


class Clock:
    """Brings all histories to the same phase."""

    def __init__(self, histories: int) -> None:
        self._changed = threading.Condition()
        self._awaited = dict.fromkeys(range(histories), -1)
        self._phase = -1

    def wait(self, history: int, phase: int) -> None:
        """A history waits for a phase; for `PHASES` when it is over."""
        with self._changed:
            self._awaited[history] = phase
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._phase >= phase or phase == PHASES)

    def begin(self, phase: int) -> None:
        """Let a phase begin."""
        with self._changed:
            self._phase = phase
            self._changed.notify_all()

    def end(self) -> None:
        """Wait until every history waits for a later phase than this one."""
        with self._changed:
            self._changed.wait_for(lambda: min(self._awaited.values()) > self._phase)


class Arrivals:
    """What came of some topics so far: read by one librdkafka consumer, from a thread."""

    def __init__(self, servers: str, topics: Sequence[str]) -> None:
        self._values: dict[str, dict[int, list[bytes]]] = {
            topic: {partition: [] for partition in range(PARTITIONS)} for topic in topics
        }
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "arrivals", "fetch.wait.max.ms": 50})
        places = [(topic, partition) for topic in topics for partition in range(PARTITIONS)]
        self._consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        self._reading = Repeated(self._read, every=0.02)

    def __enter__(self) -> dict[str, dict[int, list[bytes]]]:
        self._reading.__enter__()
        return self._values

    def __exit__(self, *exc: object) -> None:
        self._reading.__exit__(*exc)
        self._consumer.close()

    def _read(self) -> None:
        for message in self._consumer.consume(1000, timeout=0.05):
            assert message.error() is None, message.error()
            topic, partition = message.topic(), message.partition()
            assert topic is not None
            assert partition is not None
            self._values[topic][partition].append(message.value() or b"")


@dataclass
class Scene:
    """Where a history takes place. `exact`: records that must come in this order, where lines are not numbered ones."""

    name: str
    here: Path
    daemon: Trial
    wait: Callable[[int], None]
    arrived: dict[int, list[bytes]]
    judge: Judge = field(default_factory=Judge)
    exact: list[bytes] = field(default_factory=list)

    def log(self, name: str = "app.log", **options: Any) -> Writer:
        """A log in the scene's directory, whose lines begin with its name."""
        (self.here / name).parent.mkdir(parents=True, exist_ok=True)
        return Writer(self.judge, self.here / name, name=name, **options)

    def append(self, name: str, text: bytes, *expected: bytes) -> Path:
        """Append bytes to a file; the records that are to come of it."""
        with (self.here / name).open("ab") as file:
            file.write(text)
        self.exact += expected
        return self.here / name

    def read(self) -> None:
        """Wait until every line that stands has arrived."""
        deadline = time.monotonic() + READ_SECONDS
        while not self._all_there():
            counts = {partition: len(values) for partition, values in self.arrived.items()}
            assert time.monotonic() < deadline, f"not read: {counts}; {str(self.judge.verdict(self.arrived))[:500]}"
            time.sleep(0.05)

    def _all_there(self) -> bool:
        count = sum(map(len, self.arrived.values()))
        return count >= len(self.exact) and not self.judge.verdict(self.arrived).missing

    def remove(self, path: Path) -> None:
        """Delete a file that was read."""
        self.read()
        self.judge.removing(path)
        path.unlink()

    def empty(self, log: Writer) -> None:
        """Truncate a log that was read."""
        self.read()
        self.judge.removing(log.path)
        os.truncate(log.path, 0)
        log.truncated()

    def check(self, read: dict[int, list[bytes]], lost: list[dict[str, Any]]) -> None:
        """Fail unless all is there, nothing twice, and nothing said to be lost."""
        if self.exact:
            assert sum(map(len, read.values())) == len(self.exact)
            for values in read.values():
                of_these = set(values)
                assert values == [line for line in self.exact if line in of_these]
        else:
            self.judge.verdict(read).check()
        assert not [event for event in lost if f"{self.here}/" in str(event)]


@dataclass(frozen=True)
class Rule:
    """A history, and the tail that follows its files. In `exclude`, `HERE` is the scene's directory."""

    history: Callable[[Scene], None]
    globs: tuple[str, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.history.__name__.replace("_", "-")

    def tail(self, here: Path) -> dict[str, object]:
        """Its table in the configuration."""
        own = {key: value if key != "exclude" else [each.replace("HERE", str(here)) for each in value]
               for key, value in self.options.items()}  # fmt: skip
        paths = [f"{here}/{glob}" for glob in self.globs]
        return {"paths": paths, "cluster": "target", "topic": self.name, "partition": "file", **SOON, **own}


RULES: list[Rule] = []


def rule(*globs: str, **options: object) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """A history of files that these globs match, followed by a tail with these keys."""

    def add(history: Callable[[Scene], None]) -> Callable[[Scene], None]:
        RULES.append(Rule(history, globs, options))
        return history

    return add


# Truncation.


@rule("*.log")
def a_log_is_truncated_again_and_again(scene: Scene) -> None:
    """What is written next is read from its beginning, shorter, longer or as long. All four peers."""
    log = scene.log()
    scene.wait(RUNS)
    for count in (30, 10, 50, 50):
        log.write(count)
        scene.empty(log)
    log.write(20)
    scene.read()
    scene.wait(DOWN)
    scene.empty(log)
    log.write(80)
    scene.wait(AGAIN)
    log.write(5)
    scene.empty(log)
    log.write(5)


@rule("*.log")
def a_log_is_truncated_and_left_empty(scene: Scene) -> None:
    """It is followed on, also when the daemon starts before it is written to again. rsyslog, Filebeat."""
    log = scene.log()
    scene.wait(RUNS)
    log.write(20)
    scene.empty(log)
    time.sleep(QUIET_SECONDS)
    log.write(20)
    scene.read()
    scene.wait(DOWN)
    scene.empty(log)
    scene.wait(AGAIN)
    time.sleep(QUIET_SECONDS)
    log.write(20)


@rule("*.log")
def a_writer_goes_on_at_its_old_place_in_a_log_that_was_truncated(scene: Scene) -> None:
    """The hole before it is in no record. Fluent Bit (copytruncate under a writer that does not append)."""
    log = scene.log()
    fcntl.fcntl(log._descriptor, fcntl.F_SETFL, 0)  # O_APPEND no more
    scene.wait(RUNS)
    for _ in range(3):
        log.write(20)
        scene.empty(log)
    log.write(20)
    scene.read()
    scene.wait(DOWN)
    scene.empty(log)
    log.write(20)
    scene.wait(AGAIN)
    log.write(20)


# Deletion.


@rule("*.log")
def a_file_is_deleted_and_made_again_under_its_name(scene: Scene) -> None:
    """It is a new file, whatever its inode, made at once or later. Fluent Bit, Filebeat, rsyslog."""
    logs = [scene.log("plain.log"), scene.log("header.log", header=HEADER)]
    scene.wait(RUNS)
    for pause in (0.0, 0.0, 0.3, QUIET_SECONDS):
        for log in logs:
            log.write(20)
        for log in logs:
            scene.remove(log.path)
        time.sleep(pause)
        for log in logs:
            log.reopen()
    for log in logs:
        log.write(20)
    scene.read()
    scene.wait(DOWN)
    for log in logs:
        scene.remove(log.path)
        log.reopen()
    for log in logs:
        log.write(20)
    scene.wait(AGAIN)
    for log in logs:
        log.write(20)


@rule("*.log")
def a_writer_goes_on_in_a_file_that_was_deleted(scene: Scene) -> None:
    """It is read until it is quiet. rsyslog, Vector."""
    log = scene.log()
    scene.wait(RUNS)
    log.write(20)
    scene.read()
    log.path.unlink()
    for _ in range(5):
        time.sleep(0.2)
        log.write(20)
    log.reopen()
    log.write(20)


@rule("*.log", "links/*")
def a_file_that_was_deleted_is_let_go(scene: Scene) -> None:
    """Its descriptors too, and its directory's, though nothing happens after it. rsyslog, Filebeat."""
    log, linked = scene.log(), scene.log("targets/one/0")
    (scene.here / "links").mkdir()
    (scene.here / "links" / "one").symlink_to(linked.path)
    scene.wait(RUNS)
    for each in (log, linked):
        each.write(20)
        scene.read()
        scene.judge.removing(each.path)
        each.close()
    log.path.unlink()
    shutil.rmtree(linked.path.parent)
    scene.daemon.daemon.until(lambda: not _deleted_but_open(scene), "it holds nothing that was deleted", READ_SECONDS)


def _deleted_but_open(scene: Scene) -> list[str]:
    """What the daemon has open of the scene's files, and nobody finds any more."""
    held: list[str] = []
    for pid in descendants(scene.daemon.daemon.pid):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                held.append(str(descriptor.readlink()))
    return [each for each in held if each.startswith(f"{scene.here}/") and each.endswith(" (deleted)")]


@rule("*.log")
def a_file_is_renamed_and_deleted_once_it_was_read(scene: Scene) -> None:
    """Nothing is lost, whether a new file came before or after. Filebeat."""
    log = scene.log()
    scene.wait(RUNS)
    for reopened_first in (False, True):
        log.write(20)
        scene.read()
        gone = log.path.rename(scene.here / "app.old")
        if reopened_first:
            log.reopen()
        scene.remove(gone)
        time.sleep(0.3)
        log.reopen()
    log.write(20)
    scene.read()
    scene.wait(DOWN)
    scene.remove(log.path.rename(scene.here / "app.old"))
    log.reopen()
    log.write(20)


# Directories.


@rule("*/app.log", "deep/*/*/*/app.log", "any/**/app.log")
def directories_come_late_go_and_come_again(scene: Scene) -> None:
    """Made with all above them at once; the file under another name first. rsyslog (at every depth), Filebeat."""
    names = ["one/app.log", "two/app.log", "deep/a/b/c/app.log", "any/x/y/z/w/app.log"]
    scene.wait(RUNS)
    number = 0

    def come_and_go() -> None:
        nonlocal number
        for name in names:
            number += 1
            log = scene.log(f"{name.removesuffix('.log')}.new-{number}")
            log.write(10)
            log.path.rename(scene.here / name)
            log.close()
        scene.read()
        for name in names:
            scene.judge.removing(scene.here / name)
            shutil.rmtree(scene.here / name.partition("/")[0])

    for _ in range(4):
        come_and_go()
    for name in names:
        scene.log(name).write(10)
    scene.read()
    scene.wait(DOWN)
    for name in names:
        scene.judge.removing(scene.here / name)
        shutil.rmtree(scene.here / name.partition("/")[0])
    for name in names[::2]:
        scene.log(name.replace("app.log", "made-again")).path.rename(scene.here / name)
    scene.wait(AGAIN)
    come_and_go()


@rule("in/*/*.log")
def a_directory_is_moved_in_with_its_files(scene: Scene) -> None:
    """Each is read from its beginning. Filebeat, rsyslog."""
    (scene.here / "in").mkdir()
    for phase in (RUNS, DOWN):
        scene.wait(phase)
        logs = [scene.log(f"made-{phase}/{name}.log") for name in "ab"]
        for log in logs:
            log.write(20)
        (scene.here / f"made-{phase}").rename(scene.here / "in" / str(phase))
        for log in logs:
            log.write(20)


# Names.


@rule("*.log")
def a_file_is_renamed_to_a_name_that_is_followed(scene: Scene) -> None:
    """It is read from its beginning, and goes on. rsyslog."""
    for phase in (RUNS, DOWN):
        scene.wait(phase)
        log = scene.log(f"app-{phase}.part")
        log.write(20)
        log.path.rename(scene.here / f"app-{phase}.log")
        log.write(20)


@rule("*.log")
def a_file_goes_out_of_sight_and_comes_back(scene: Scene) -> None:
    """It goes on where it was. Filebeat, rsyslog."""
    log = scene.log()
    scene.wait(RUNS)
    for _ in range(2):
        log.write(20)
        away = log.path.rename(scene.here / "app.away")
        log.write(20)
        time.sleep(QUIET_SECONDS)
        log.write(20)
        away.rename(log.path)
    scene.wait(DOWN)
    log.write(20)
    log.path.rename(scene.here / "app.away").rename(log.path)
    log.write(20)


@rule("*.log")
def files_swap_their_names(scene: Scene) -> None:
    """Each goes on where it was. Filebeat (a rename and a new file seen at once)."""
    logs = [scene.log(f"{name}.log") for name in "ab"]
    for phase in (RUNS, DOWN, AGAIN):
        scene.wait(phase)
        for _ in range(3):
            for log in logs:
                log.write(20)
            (scene.here / "a.log").rename(scene.here / "c")
            (scene.here / "b.log").rename(scene.here / "a.log")
            (scene.here / "c").rename(scene.here / "b.log")
        for log in logs:
            log.write(20)


@rule("*.log")
def a_file_is_renamed_over_a_log(scene: Scene) -> None:
    """What it replaced was read, and itself is read once, new or followed. Filebeat, Vector."""
    log, other = scene.log("app.log"), scene.log("other.log")
    log.write(20)
    scene.wait(RUNS)
    for phase in (RUNS, DOWN):
        scene.read()
        scene.wait(phase)
        other.write(20)
        made = scene.log(f"app.new-{phase}")
        made.write(20)
        scene.judge.removing(log.path)
        made.path.rename(log.path)
        made.write(20)
        log.reopen()
        log.write(20)
    scene.wait(AGAIN)
    scene.read()
    other.write(20)
    scene.read()
    scene.judge.removing(log.path)
    other.path.rename(log.path)
    other.write(20)


@rule("*.log", "ä ö/*.lög")
def names_may_be_of_any_bytes(scene: Scene) -> None:
    """Commas, blanks, quotes, brackets, what is no UTF-8. Fluent Bit."""
    names = ["a, b.log", "[1]{2}.log", 'it\'s "so".log', "#1;%s\\.log", "\udcff\udcfe.log", f"{'long' * 60}.log"]
    logs = [scene.log(name) for name in (*names, "ä ö/ü.lög")]
    for log in logs:
        log.name = log.name.encode(errors="replace").decode()
        log.write(10)
    scene.wait(RUNS)
    for log in logs:
        log.write(10)
        rename(log)
        log.write(10)
    scene.read()
    scene.wait(DOWN)
    for log in logs:
        log.write(10)


@rule("*.log", "*.txt", exclude=["*.no.log", "HERE/*.txt"])
def excluded_files_are_left_alone(scene: Scene) -> None:
    """By name and by path, until they are called otherwise. Vector, Filebeat, Fluent Bit."""
    log = scene.log()
    for name in ("a.no.log", "b.txt"):
        (scene.here / name).write_bytes(b"a line that nobody is to send\n")
    for phase in (RUNS, DOWN):
        scene.wait(phase)
        log.write(20)
        (scene.here / f"{phase}.no.log").write_bytes(b"another one\n")
        hidden = scene.log(f"hidden-{phase}.no.log")
        hidden.write(20)
        time.sleep(0.5)
        hidden.path.rename(scene.here / f"shown-{phase}.log")
        hidden.write(20)
        log.path.rename(scene.here / f"app-{phase}.no.log")
        log.write(20)
        log.reopen()
        log.write(20)


@rule("*")
def a_file_that_is_touched_is_not_sent_again(scene: Scene) -> None:
    """Nor one whose mode or owner changes, or that is linked. Filebeat."""
    log = scene.log()
    log.write(20)
    for phase in (RUNS, DOWN, AGAIN):
        scene.wait(phase)
        if phase != DOWN:
            scene.read()
        os.utime(log.path)
        log.path.chmod(0o600 + phase)
        os.link(log.path, scene.here / f"link-{phase}")
        if phase:
            (scene.here / f"link-{phase - 1}").unlink()
        os.utime(log.path, (1e9, 1e9))


# Links.


@rule("*.log")
def a_link_is_removed_and_its_target_goes_on(scene: Scene) -> None:
    """It is followed on, and read once when the link comes back. Filebeat."""
    log = scene.log("target")
    link = scene.here / "app.log"
    link.symlink_to(log.path)
    scene.wait(RUNS)
    log.write(20)
    scene.read()
    link.unlink()
    log.write(20)
    time.sleep(QUIET_SECONDS)
    log.write(20)
    link.symlink_to(log.path)
    log.write(20)
    scene.read()
    scene.wait(DOWN)
    link.unlink()
    log.write(20)
    link.symlink_to(log.path)


@rule("app.log")
def a_link_is_removed_and_made_again_to_a_file_that_was_there(scene: Scene) -> None:
    """Its new target is read from its beginning, the old one to its end. Filebeat."""
    logs = [scene.log(f"target-{number}") for number in range(4)]
    link = scene.here / "app.log"
    link.symlink_to(logs[0].path)
    for number, phase in enumerate((RUNS, DOWN, AGAIN)):
        scene.wait(phase)
        logs[number].write(20)
        time.sleep(0.5)
        logs[number + 1].write(20)
        link.unlink()
        time.sleep(0.3)
        link.symlink_to(logs[number + 1].path)
        logs[number].write(20)


@rule("*")
def a_log_and_links_to_it_are_one(scene: Scene) -> None:
    """Also while it is truncated and the links come and go. Filebeat; rsyslog reads it once for each."""
    log = scene.log()
    first, second = scene.here / "first", scene.here / "second"
    for phase in (RUNS, DOWN):
        scene.wait(phase)
        first.symlink_to(log.path)
        second.symlink_to(first)
        log.write(20)
        if phase == RUNS:
            time.sleep(0.3)
            first.unlink()
            scene.empty(log)
            first.symlink_to(log.path)
            log.write(20)
            scene.read()
            first.unlink()
            second.unlink()


@rule("*.log")
def links_to_links_lead_somewhere_later(scene: Scene) -> None:
    """Each target is read once it is there. rsyslog."""
    (scene.here / "targets").mkdir()
    for phase in (RUNS, DOWN):
        scene.wait(phase)
        for number in range(4):
            target = scene.here / "targets" / f"{phase}-{number}"
            (scene.here / f"link-{phase}-{number}").symlink_to(target)
            (scene.here / f"{phase}-{number}.log").symlink_to(scene.here / f"link-{phase}-{number}")
            time.sleep(0.1)
            scene.log(f"targets/{target.name}").write(20)


# Rotation.


@rule("app.log")
def all_generations_begin_with_the_same_lines(scene: Scene) -> None:
    """They are known by more than their beginning. Vector, Filebeat, rsyslog (fingerprints)."""
    log = scene.log(header=HEADER)
    for phase in (RUNS, DOWN, AGAIN):
        scene.wait(phase)
        for _ in range(3):
            log.write(20)
            time.sleep(0.1)
            rename(log)
        time.sleep(0.5)
        log.write(20)


@rule("app.log")
def a_log_is_renamed_before_anything_is_in_it(scene: Scene) -> None:
    """What its writer writes then arrives. rsyslog, Fluent Bit (late lines of a rotated file)."""
    log = scene.log()
    for phase in (RUNS, DOWN, AGAIN):
        scene.wait(phase)
        time.sleep(0.5)
        log.path.rename(scene.here / f"app.log.{phase}")
        time.sleep(0.3)
        log.write(20)
        log.reopen()
    log.write(20)


@rule("app.log")
def a_log_is_replaced_by_a_longer_copy_of_itself(scene: Scene) -> None:
    """As rsync does it, while the daemon is down: what is new is sent. Vector, Filebeat (by fingerprint)."""
    log = scene.log()
    scene.wait(RUNS)
    log.write(40)
    scene.read()
    scene.wait(DOWN)
    log.write(40)
    shutil.copyfile(log.path, scene.here / "app.tmp").rename(log.path)
    log.reopen()
    log.generation = 0
    log.write(20)
    scene.wait(AGAIN)
    log.write(20)


@rule("*.log", "*.log.1", start="end")
def reading_starts_at_the_end(scene: Scene) -> None:
    """Of what was there at the first start alone; its old lines stay unsent through rotations. All four peers."""
    logs = {name: scene.log(f"{name}.log") for name in ("renamed", "copied", "still")}
    for log in logs.values():
        log.path.write_bytes(b"a line that nobody is to send\n" * 100)
    for phase in (RUNS, DOWN):
        scene.wait(phase)
        for log in logs.values():
            log.write(20)
        scene.log(f"new-{phase}.log").write(20)
        time.sleep(0.5)
        rename(logs["renamed"])
        copy_and_truncate(logs["copied"])
        for log in logs.values():
            log.write(20)
    scene.wait(AGAIN)
    for log in logs.values():
        log.write(20)


@rule("*.log", start="1h")
def old_files_start_at_their_end(scene: Scene) -> None:
    """By the file's own date, not that of a link. Vector, rsyslog, Fluent Bit, Filebeat."""
    old, young = scene.log("old.log"), scene.log("young.log")
    linked = scene.log("old-target")
    (scene.here / "link.log").symlink_to(linked.path)
    for log in (old, linked):
        log.path.write_bytes(b"a line that nobody is to send\n" * 10)
        os.utime(log.path, (time.time() - 7200,) * 2)
    young.write(20)
    os.utime(young.path, (time.time() - 600,) * 2)
    for phase in (RUNS, DOWN):
        scene.wait(phase)
        for log in (old, young, linked):
            log.write(20)
        late = scene.log(f"late-{phase}.log")
        late.write(20)
        os.utime(late.path, (time.time() - 7200,) * 2)


# Lines.


@rule("*.log")
def half_a_line_waits_for_the_other_half(scene: Scene) -> None:
    """However long, also over a start, and in a file that was renamed meanwhile. Vector, Fluent Bit, rsyslog."""
    log, renamed = scene.log(), scene.log("renamed.log")
    for phase in (RUNS, DOWN, AGAIN):
        scene.wait(phase)
        log.write(10)
        log.half()
        if phase != DOWN:
            time.sleep(2 * QUIET_SECONDS)
            log.finish()
            log.half()
        renamed.write(10)
        renamed.half()
        renamed.path.rename(scene.here / f"renamed-{phase}")
        time.sleep(0.3)
        renamed.reopen()
    log.finish()


@rule("app.log")
def the_last_line_of_a_rotated_file_has_no_end(scene: Scene) -> None:
    """It is a line then. Vector, Filebeat, Fluent Bit."""
    for number, phase in enumerate((RUNS, RUNS, DOWN)):
        scene.append("app.log", b"%d\nno end %d" % (number, number), b"%d" % number)
        scene.wait(phase)
        if phase == RUNS:
            scene.read()
        (scene.here / "app.log").rename(scene.here / f"app.log.{number}")
        time.sleep(0.3)
        scene.append("app.log", b"", b"no end %d" % number)
        if phase == RUNS:
            scene.read()
    scene.wait(AGAIN)
    scene.read()


@rule("*.log")
def lines_are_bytes(scene: Scene) -> None:
    """Empty ones, blanks, carriage returns, what is no UTF-8: each is a record as it is. Vector (empty lines)."""
    lines = [b"\xef\xbb\xbfone", b"", b"", b" \t", b"two\r", b"\r", b"\xff\xfe\x80", b"", b"a\rb\x0bc\x0cd\x1b"]
    for phase in (RUNS, DOWN, AGAIN):
        scene.wait(phase)
        scene.append("app.log", b"".join(line + b"\n" for line in lines), *lines)
        if phase != DOWN:
            scene.read()
            scene.append("app.log", b"\n\n", b"", b"")
            scene.read()


LONG = [b"x" * length for length in (999, 1000, 1001, 1013, 5000, 2_000_000, 10)]


@rule("app.log", max_line_bytes=1000)
def long_lines_are_cut(scene: Scene) -> None:
    """Those around them are whole, whenever the long one is written. Vector, Fluent Bit, rsyslog."""
    mark = b"...[truncated]"
    cut = [line if len(line) <= 1000 else line[: 1000 - len(mark)] + mark for line in LONG]
    _write_long_lines(scene, cut, [LONG[2][: 1000 - len(mark)] + mark])


@rule("app.log", max_line_bytes=1000, long_lines="split")
def long_lines_are_split(scene: Scene) -> None:
    """No byte of them is missing. Vector (of a line, all is dropped), Fluent Bit."""
    split = [line[at : at + 1000] for line in LONG for at in range(0, len(line), 1000)]
    _write_long_lines(scene, split, [b"x" * 1000] * 3 + [b"x" * 600])


def _write_long_lines(scene: Scene, all_of_them: list[bytes], halves: list[bytes]) -> None:
    for phase in (RUNS, DOWN, AGAIN):
        scene.wait(phase)
        scene.append("app.log", b"".join(line + b"\n" for line in LONG), *all_of_them)
        scene.append("app.log", b"x" * 1800)
        if phase != DOWN:
            time.sleep(0.5)
            scene.append("app.log", b"x" * 1800 + b"\nafter\n", *halves, b"after")
            scene.read()
        else:
            scene.wait(AGAIN)
            scene.append("app.log", b"x" * 1800 + b"\nafter\n", *halves, b"after")


@rule("*.gz", exclude=[], compressed="read")
def a_compressed_file_grows(scene: Scene) -> None:
    """It is read once, whole, though it was copied here slowly. Vector, Filebeat."""
    for number, phase in enumerate((RUNS, DOWN)):
        lines = [b"%d %d of a compressed file" % (number, each) for each in range(2000)]
        text = gzip.compress(b"".join(line + b"\n" for line in lines))
        scene.wait(phase)
        for begin, end in ((0, 5), (5, 3000), (3000, 6000)):
            scene.append(f"{number}.gz", text[begin:end])
            time.sleep(0.3)
        if phase == DOWN:
            scene.wait(AGAIN)
        scene.append(f"{number}.gz", text[6000:], *lines)
        scene.read()


# All of them, once for each way to end the daemon in the middle.


@pytest.fixture(scope="module", params=["stopped", "killed"])
def outcomes(
    request: pytest.FixtureRequest, embedded: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Callable[[], None]]:
    """By the name of a rule: what raises if its history went wrong. Of those that are to be tested."""
    asked = {item.name for item in request.session.items}
    rules = [rule for rule in RULES if any(f"[{request.param}-{rule.name}]" in name for name in asked)]
    root = tmp_path_factory.mktemp(request.param)
    topics = {rule.name: f"{request.param}-{rule.name}" for rule in rules}
    admin = AdminClient({"bootstrap.servers": embedded.servers})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics.values()]).values():
        made.result(30)
    for rule in rules:
        (root / rule.name).mkdir()
    tables = {f"tails.{rule.name}": {**rule.tail(root / rule.name), "topic": topics[rule.name]} for rule in rules}
    with (
        Trial(
            root, servers=embedded.servers, topic=f"{request.param}-none", paths=[f"{root}/none/*"], tables=tables
        ) as daemon,
        Arrivals(embedded.servers, list(topics.values())) as arrived,
        ThreadPoolExecutor(len(rules)) as threads,
    ):
        clock = Clock(len(rules))
        scenes = {}
        played = {}
        for number, rule in enumerate(rules):
            name = rule.name
            until = functools.partial(clock.wait, number)
            scenes[name] = Scene(name, root / name, daemon, until, arrived[topics[name]])
            scenes[name].judge.runs = daemon.judge.runs
            played[name] = threads.submit(_play, rule.history, scenes[name])
        clock.end()
        daemon.start()
        clock.begin(RUNS)
        clock.end()
        time.sleep(STORED_SECONDS)
        daemon.interrupt(request.param)
        clock.begin(DOWN)
        clock.end()
        daemon.start()
        clock.begin(AGAIN)
        clock.end()
        for name, playing in played.items():
            if playing.exception() is None:
                played[name] = threads.submit(scenes[name].read)
        wait(played.values())
        daemon.stop()
        daemon.start()  # with nothing to do
        time.sleep(QUIET_SECONDS)
        daemon.stop()
        lost = daemon.events("data lost")

    def outcome(name: str) -> None:
        played[name].result()
        scenes[name].check(read_back(embedded.servers, topics[name]), lost)

    return {name: functools.partial(outcome, name) for name in scenes}


def _play(history: Callable[[Scene], None], scene: Scene) -> None:
    try:
        history(scene)
    finally:
        scene.wait(PHASES)


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.name) for rule in RULES])
def test_a_rule_that_peers_pin_holds(outcomes: dict[str, Callable[[], None]], rule: Rule) -> None:
    outcomes[rule.name]()


# Of their own, for what the daemon or the broker must be.


def test_where_the_kernel_gives_no_more_watches_the_clock_finds_everything(
    trial: Callable[..., Trial], logs: Path
) -> None:
    """New files, rotations, truncations, deletions. rsyslog (polling), Fluent Bit (without inotify), Vector."""
    few = 'echo 5 > /proc/sys/user/max_inotify_watches && exec "$@"'
    command = (program("unshare"), "--user", "--map-root-user", program("sh"), "-c", few, "sh")
    daemon = trial("*/*.log", command=command, **SOON)
    writers = []
    for number in range(10):
        (logs / str(number)).mkdir()
        writers.append(Writer(daemon.judge, logs / str(number) / "app.log", name=str(number)))
    daemon.start()
    assert daemon.events("no more inotify watches: files are looked for by the clock")
    for change in (rename, copy_and_truncate, Writer.reopen):
        for writer in writers:
            writer.write(20)
        daemon.settle().check()
        for writer in writers:
            if change is Writer.reopen:
                daemon.judge.removing(writer.path)
                writer.path.unlink()
            change(writer)
    for writer in writers:
        writer.write(20)
    daemon.finish().check()


def test_a_log_that_is_truncated_while_the_broker_hangs_is_read_from_its_beginning(
    broker_process: Callable[..., BrokerProcess], tmp_path: Path, logs: Path
) -> None:
    """A late acknowledgement is of the content that was read, and moves no later one's position. Filebeat."""
    broker = broker_process()
    paths = [f"{logs}/*.log"]
    with Trial(tmp_path, servers=broker.servers, topic="lines", paths=paths, daemon={"arena_bytes": 1 << 24}) as daemon:
        writer = Writer(daemon.judge, logs / "app.log")
        daemon.start()
        writer.write(20)
        daemon.settle().check()
        for count in (40, 5):
            os.kill(broker.pid, signal.SIGSTOP)
            writer.write(20)
            time.sleep(0.5)
            os.truncate(writer.path, 0)  # all of it was read
            writer.truncated()
            writer.write(count)
            time.sleep(0.5)
            os.kill(broker.pid, signal.SIGCONT)
            daemon.settle().check()
        daemon.finish().check()
