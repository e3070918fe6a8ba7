"""Logs that rotate as real programs rotate them, under a daemon that runs, is stopped, killed and started again.

Every line arrives, in the order of its file, and comes twice only where a kill -9 explains it (`harness.judge`). Where
lines are lost because somebody deleted them first, that is said.
"""

from __future__ import annotations

import gzip
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from harness.programs import program
from harness.rotators import (
    Kubelet,
    Logrotate,
    Repeated,
    Steady,
    Svlogd,
    Writer,
    compress,
    copy_and_truncate,
    handler_writer,
    link_and_unlink,
    rename,
    repoint,
)
from harness.trial import Trial

from ingestd.tail.reader import REST_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from embedded.process import BrokerProcess

HEADER = [b"#Fields: %03d " % number + b"date time s-ip cs-method cs-uri-stem " * 2 for number in range(15)]
"""More than 1,024 bytes that every generation of a log begins with."""
BROKERS = ["embedded", "kafka"]
"""For `trial`. The most telling cases are tried on a real Kafka node too."""
GLOBS = pytest.param("*.log", id="names"), pytest.param("*.log*", id="rotated-names-too")


def counted_reads(pid: int) -> int:
    """How often a process has read anything: bytes of files, mostly."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["syscr"])


# A start.


def test_a_clean_restart_sends_nothing_again_and_reads_each_rotated_file_a_few_times_at_most(
    trial: Callable[..., Trial], logs: Path
) -> None:
    """150 logs with 10 rotations each, in one directory: looking for each in every other file is quadratic."""
    daemon = trial("*.log", leave_after=60)
    writers = [Writer(daemon.judge, logs / f"app-{number:03}.log") for number in range(150)]
    daemon.start()
    for _ in range(10):
        for writer in writers:
            writer.write(2)
        daemon.settle()
        for writer in writers:
            rename(writer)
    for writer in writers:
        writer.write(2)
    daemon.settle().check()
    daemon.stop()
    daemon.start(ready_within=10)
    assert counted_reads(daemon.daemon.pid) < 3000 + 8 * len(list(logs.iterdir()))
    daemon.finish().check()


@pytest.mark.parametrize("glob", GLOBS)
def test_rotations_while_the_daemon_starts_double_and_lose_nothing(
    trial: Callable[..., Trial], logs: Path, glob: str
) -> None:
    daemon = trial(glob)
    writers = [Writer(daemon.judge, logs / f"{name}.log") for name in ("one", "two", "three")]

    def rotate(rotations: Iterator[int]) -> None:
        if next(rotations, None) is None:
            return
        for writer in writers:
            writer.write(5)
            rename(writer)

    daemon.start()
    daemon.stop()
    for _ in range(3):
        # A start lasts a second or two. On a busy machine it would last longer with each file that comes meanwhile.
        with Repeated(partial(rotate, iter(range(60))), every=0.1):
            daemon.start()
        daemon.settle()
        daemon.stop()
    daemon.start()
    daemon.finish().check()


# Runs with an end.


@pytest.mark.parametrize("glob", GLOBS)
def test_runs_with_an_end_go_on_where_the_one_before_ended_whatever_was_rotated_in_between(
    trial: Callable[..., Trial], logs: Path, glob: str
) -> None:
    """As cron makes them. A run that waits for no news has to see by itself that a file was truncated."""
    daemon = trial(glob, exclude=["*.gz"])

    def truncate(writer: Writer) -> None:
        daemon.judge.removing(writer.path)
        os.truncate(writer.path, 0)
        writer.truncated()

    def regrow(writer: Writer) -> None:
        copy_and_truncate(writer)
        writer.write(60)

    def rename_and_compress(writer: Writer) -> None:
        rename(writer)
        compress(Path(f"{writer.path}.1"))

    def copy_and_compress(writer: Writer) -> None:
        copy_and_truncate(writer)
        compress(Path(f"{writer.path}.1"))

    ways = [rename, link_and_unlink, copy_and_truncate, truncate, regrow, rename_and_compress, copy_and_compress]
    writers = [Writer(daemon.judge, logs / f"log-{number}.log") for number in range(len(ways))]
    for _ in range(4):
        for writer in writers:
            writer.write(20)
        daemon.once()
        for writer in writers[::2]:  # not to what is truncated: that would be lost
            writer.write(5)
        for way, writer in zip(ways, writers, strict=True):
            way(writer)
    daemon.once()
    daemon.verdict().check()
    assert not daemon.events("data lost")


# Renames.


def test_generations_of_20_ms_under_an_exact_name_all_arrive(trial: Callable[..., Trial], logs: Path) -> None:
    daemon = trial("app.log")
    writer = Writer(daemon.judge, logs / "app.log")
    daemon.start()
    for _ in range(100):
        writer.write(30)
        time.sleep(0.02)
        rename(writer)
    daemon.finish().check()


@pytest.mark.parametrize("trial", BROKERS, indirect=True)
def test_generations_that_came_and_went_while_the_daemon_was_down_all_arrive(
    trial: Callable[..., Trial], logs: Path
) -> None:
    daemon = trial("app.log")
    writer = Writer(daemon.judge, logs / "app.log")
    daemon.start()
    writer.write(30)
    daemon.settle()
    daemon.stop()
    for _ in range(5):
        writer.write(30)
        rename(writer)
    writer.write(30)
    daemon.start()
    daemon.finish().check()


def test_a_rotation_by_link_and_unlink_is_a_rename(trial: Callable[..., Trial], logs: Path) -> None:
    """The kernel says "(deleted)" of a file whose first name is gone."""
    daemon = trial("*.log", leave_after=0.5, poll_interval=0.5, rescan_interval=0.5)
    writer = Writer(daemon.judge, logs / "app.log")
    daemon.start()
    for number in range(10):
        writer.write(30)
        time.sleep(0.1)
        link_and_unlink(writer, logs / f"app-{number}.log")
    time.sleep(2.0)  # the rotated ones are concluded
    daemon.finish().check()


@pytest.mark.parametrize(
    ("kind", "glob", "compressed"),
    [("rotating", "app.log", "skip"), ("timed", "app.log", "skip"), ("gzipped", "app.log*", "read")],
)
def test_what_the_handlers_of_python_write_arrives(
    trial: Callable[..., Trial], logs: Path, kind: str, glob: str, compressed: str
) -> None:
    daemon = trial(glob, compressed=compressed)
    with handler_writer(daemon.judge, logs / "app.log", kind) as log:
        number = 0
        for interrupt in ("", "stopped", "killed", ""):
            daemon.start()
            ends = time.monotonic() + 1.5
            while time.monotonic() < ends:
                log(number := number + 1)
                time.sleep(0.001)
            if interrupt:
                daemon.interrupt(interrupt)
                for _ in range(300):
                    log(number := number + 1)
                time.sleep(1.1)
            else:
                daemon.settle()
                daemon.stop()
    daemon.start()
    verdict = daemon.finish()
    if kind == "gzipped":
        verdict.disordered.clear()  # what is first met compressed is a file of its own
    verdict.check()


@pytest.mark.peers
def test_what_svlogd_writes_arrives(trial: Callable[..., Trial], logs: Path) -> None:
    daemon = trial("service/current")
    svlogd = Svlogd(daemon.judge, logs / "service", size=4000)
    for interrupt in ("stopped", "killed"):
        daemon.start()
        for _ in range(50):
            svlogd.write(20)
            time.sleep(0.02)
        daemon.interrupt(interrupt)
        for _ in range(10):
            svlogd.write(20)
            time.sleep(0.02)
    daemon.start()
    svlogd.write(20)
    svlogd.close()
    daemon.finish().check()


MODES = {
    "create": ["create"],
    "nocreate": ["nocreate"],
    "compress": ["create", "compress"],
    "delaycompress": ["create", "compress", "delaycompress"],
    "dateext": ["create", "dateext", "dateformat -%Y%m%d-%s"],
    "olddir": ["create", "olddir old", "createolddir"],
    "olddir-compress": ["create", "olddir old", "createolddir", "compress", "delaycompress"],
    "copytruncate": ["copytruncate"],
    "copytruncate-compress": ["copytruncate", "compress"],
    "copytruncate-dateext": ["copytruncate", "dateext", "dateformat -%Y%m%d-%s"],
}
BY_WIDE_GLOBS = [(mode, "*.log*") for mode in ("create", "delaycompress", "copytruncate", "copytruncate-compress")]
LOGROTATE = [("embedded", mode, "*.log") for mode in MODES]
LOGROTATE += [("embedded", *each) for each in BY_WIDE_GLOBS]
LOGROTATE += [("kafka", mode, "*.log*") for mode in ("delaycompress", "copytruncate")]


@pytest.mark.peers
@pytest.mark.parametrize(("trial", "mode", "glob"), LOGROTATE, indirect=["trial"])
def test_what_logrotate_rotates_arrives_while_the_daemon_runs_and_after_it_was_down(
    trial: Callable[..., Trial], logs: Path, tmp_path: Path, mode: str, glob: str
) -> None:
    daemon = trial(glob, exclude=["*.gz", "*.reopen"])
    writers = [Writer(daemon.judge, logs / f"{name}.log") for name in ("access", "error")]
    logrotate = Logrotate(tmp_path / "logrotate", writers, *MODES[mode])
    pause = 1.05 if "dateext" in mode else 0.3  # it names no two files by the same second
    daemon.start()
    with Steady(*writers) as steady:

        def rotations(count: int) -> None:
            for _ in range(count):
                time.sleep(pause)
                logrotate.rotate(steady)

        rotations(2)
        daemon.stop()
        rotations(2)
        daemon.start()
        rotations(1)
        daemon.kill()
        rotations(1)
        daemon.start()
        time.sleep(0.2)
    daemon.finish().check()
    assert not daemon.events("data lost"), "copies that came and went have lost nothing"


@pytest.mark.peers
def test_compressed_files_that_are_deleted_while_what_they_were_made_of_is_still_open_lose_nothing(
    trial: Callable[..., Trial], logs: Path, tmp_path: Path
) -> None:
    daemon = trial("*", compressed="read", exclude=["*.reopen"])
    writer = Writer(daemon.judge, logs / "app.log")
    logrotate = Logrotate(tmp_path / "logrotate", [writer], "create", "compress", "delaycompress", "rotate 2")
    daemon.start()
    with Steady(writer) as steady:
        for _ in range(6):
            time.sleep(2.5)
            logrotate.rotate(steady)
    daemon.finish().check()
    assert not daemon.events("data lost")


# Copies.


@pytest.mark.parametrize("trial", BROKERS, indirect=True)
def test_copies_that_are_compressed_at_once_and_given_an_older_time_lose_nothing(
    trial: Callable[..., Trial], logs: Path
) -> None:
    """logrotate gives them the log's time as its run began, many logs before. Their last lines were lost in silence."""
    daemon = trial("*.log")
    writers = [Writer(daemon.judge, logs / f"app-{number}.log") for number in range(20)]
    daemon.start()
    for _ in range(5):
        for writer in writers:
            writer.write(20)
        daemon.settle()
        began = time.time() - 5
        for writer in writers:
            writer.write(2)
            copy_and_truncate(writer)
            compress(Path(f"{writer.path}.1"))
            os.utime(f"{writer.path}.1.gz", (began, began))
    daemon.finish().check()


@pytest.mark.parametrize(("glob", "named"), [("*.log", "{}.log.1"), ("*.log*", "{}.log.1"), ("*.log", "{}-{}.log")])
def test_logs_whose_generations_begin_with_the_same_header_are_read_once_when_they_are_copied_and_truncated(
    trial: Callable[..., Trial], logs: Path, glob: str, named: str
) -> None:
    """Whether the copies have names of rotated files or of logs, and whether a glob matches them."""
    assert sum(map(len, HEADER)) > 1024
    daemon = trial(glob)
    writers = [Writer(daemon.judge, logs / f"app-{number}.log", header=HEADER) for number in range(8)]
    daemon.start()
    with Steady(*writers) as steady:
        for number in range(8):
            time.sleep(0.3)
            with steady.paused():
                for writer in writers:
                    to = logs / named.format(writer.name, number)
                    copy_and_truncate(writer, None if to == Path(f"{writer.path}.1") else to)
    daemon.finish().check()


@pytest.mark.parametrize(
    ("trial", "glob"), [("embedded", "*.log"), ("embedded", "*.log*"), ("kafka", "*.log*")], indirect=["trial"]
)
def test_copies_around_clean_stops_and_starts_are_read_once(trial: Callable[..., Trial], logs: Path, glob: str) -> None:
    daemon = trial(glob)
    writer = Writer(daemon.judge, logs / "app.log")
    daemon.start()
    daemon.stop()

    with Steady(writer) as steady:

        def rotate() -> None:
            with steady.paused():
                copy_and_truncate(writer)

        with Repeated(rotate, every=0.3):
            for _ in range(3):
                daemon.start()
                time.sleep(0.5)
                daemon.stop()
            daemon.start()
    daemon.finish().check()


# Links.


@pytest.mark.parametrize(
    ("trial", "interrupt"),
    [("embedded", ""), ("embedded", "stopped"), ("embedded", "killed"), ("kafka", "killed")],
    indirect=["trial"],
)
def test_what_kubelet_rotates_compresses_and_deletes_arrives(
    trial: Callable[..., Trial], logs: Path, interrupt: str
) -> None:
    daemon = trial("containers/*.log")
    kubelets = [Kubelet(daemon.judge, logs, name) for name in ("web", "cache")]
    daemon.start()
    with Steady(*(kubelet.writer for kubelet in kubelets)) as steady:

        def rotations(count: int) -> None:
            for _ in range(count):
                time.sleep(1.0)
                with steady.paused():
                    for kubelet in kubelets:
                        kubelet.rotate()

        rotations(3)
        if interrupt:
            daemon.interrupt(interrupt)
            rotations(2)
            daemon.start()
        rotations(3)
    daemon.finish().check()


@pytest.mark.parametrize("change", ["renamed", "copied and truncated", "link repointed"])
@pytest.mark.parametrize("interrupt", ["stopped", "killed"])
def test_what_a_link_led_to_is_read_to_its_end_though_it_changed_while_the_daemon_was_down(
    trial: Callable[..., Trial], logs: Path, tmp_path: Path, interrupt: str, change: str
) -> None:
    targets = tmp_path / "targets"
    targets.mkdir()
    daemon = trial("*.log")
    writer = Writer(daemon.judge, targets / "one", name="app")
    (logs / "app.log").symlink_to(writer.path)
    daemon.start()
    writer.write(50)
    daemon.settle()
    daemon.interrupt(interrupt)
    writer.write(50)
    if change == "renamed":
        rename(writer)
    elif change == "copied and truncated":
        copy_and_truncate(writer)
    else:
        writer.reopen(targets / "two")
        repoint(logs / "app.log", writer.path)
    writer.write(50)
    daemon.start()
    daemon.finish().check()


def test_a_link_that_is_repointed_again_and_again_gives_every_target_to_its_end(
    trial: Callable[..., Trial], logs: Path, tmp_path: Path
) -> None:
    """Links within links: the log's name leads to `current`, which leads to a directory."""
    targets = tmp_path / "targets"
    (targets / "0").mkdir(parents=True)
    (targets / "current").symlink_to(targets / "0")
    (logs / "app.log").symlink_to(targets / "current" / "app")
    daemon = trial("*.log", rescan_interval=3600)
    writer = Writer(daemon.judge, targets / "0" / "app")
    daemon.start()
    for number in range(1, 6):
        writer.write(20)
        (targets / str(number)).mkdir()
        writer.reopen(targets / str(number) / "app")
        repoint(targets / "current", targets / str(number))
        writer.write(20)
        time.sleep(0.3)
    daemon.finish().check()


# Files that go elsewhere.


@pytest.mark.parametrize("what", ["its directory", "the file"])
@pytest.mark.parametrize("then", ["runs", "is stopped and started"])
def test_late_lines_of_a_file_that_went_elsewhere_arrive(
    trial: Callable[..., Trial], logs: Path, tmp_path: Path, what: str, then: str
) -> None:
    (logs / "app").mkdir()
    (tmp_path / "elsewhere").mkdir()
    daemon = trial("app/*.log")
    writer = Writer(daemon.judge, logs / "app" / "app.log")
    daemon.start()
    writer.write(60)
    daemon.settle()
    time.sleep(1.5)  # it is quiet
    moved = tmp_path / "elsewhere" / "app" if what == "its directory" else tmp_path / "elsewhere" / "app.log.1"
    (logs / "app" if what == "its directory" else writer.path).rename(moved)
    time.sleep(1.5)
    writer.write(60)
    if then != "runs":
        daemon.settle()
        daemon.stop()
        writer.write(60)
        daemon.start()
    daemon.finish().check()


def test_late_lines_of_files_beyond_the_descriptors_arrive_from_the_directory_of_rotated_ones(
    trial: Callable[..., Trial], logs: Path, tmp_path: Path
) -> None:
    """Nobody holds the file open, nobody sees it go: `rotated` says where such files are."""
    (tmp_path / "old").mkdir()
    daemon = trial("*.log", command=(program("prlimit"), "--nofile=64"), rotated=[f"{tmp_path}/old/*"])
    writers = [Writer(daemon.judge, logs / f"app-{number:03}.log") for number in range(150)]
    daemon.start()
    for writer in writers:
        writer.write(2)
    daemon.settle().check()
    for writer in writers:
        writer.path.rename(tmp_path / "old" / f"{writer.path.name}.1")
    time.sleep(1.0)
    for writer in writers:
        writer.write(2)
        writer.reopen()
        writer.write(2)
    daemon.finish().check()


@pytest.mark.parametrize("when", ["runs", "is stopped"])
def test_a_file_that_moves_from_one_tail_to_another_is_read_once(
    trial: Callable[..., Trial], logs: Path, new_topic: str, when: str
) -> None:
    for name in ("one", "two"):
        (logs / name).mkdir()
    other = {"paths": [f"{logs}/two/*.log"], "cluster": "target", "topic": new_topic, "partition": "file"}
    daemon = trial("one/*.log", tables={"tails.other": other})
    writer = Writer(daemon.judge, logs / "one" / "app.log")
    daemon.start()
    writer.write(100)
    daemon.settle()
    if when == "is stopped":
        daemon.stop()
        writer.write(50)
    writer.path.rename(logs / "two" / "app.log")
    writer.write(50)
    if when == "is stopped":
        daemon.start()
    daemon.settle()
    writer.write(50)
    daemon.finish().check()


@pytest.mark.parametrize("made", ["at once", "after a while"])
def test_new_files_of_a_directory_that_was_moved_away_and_made_anew_are_found_without_a_rescan(
    trial: Callable[..., Trial], logs: Path, made: str
) -> None:
    (logs / "app").mkdir()
    daemon = trial("app/*.log", rescan_interval=3600, poll_interval=3600)
    writer = Writer(daemon.judge, logs / "app" / "first.log")
    daemon.start()
    writer.write(10)
    daemon.settle()
    (logs / "app").rename(logs / "app.old")
    if made == "after a while":
        time.sleep(0.5)
    (logs / "app").mkdir()
    time.sleep(0.5)
    other = Writer(daemon.judge, logs / "app" / "second.log")
    other.write(10)
    daemon.settle(3.0).check()


# What is compressed.


def test_compressed_files_first_met_are_left_alone_unless_the_tail_reads_them(
    trial: Callable[..., Trial], logs: Path
) -> None:
    daemon = trial("*.log*", exclude=[])
    writer = Writer(daemon.judge, logs / "app.log")
    writer.write(10)
    (logs / "other.log.1.gz").write_bytes(gzip.compress(b"a line that nobody is to send\n"))
    daemon.start()
    daemon.finish().check()


def test_a_tail_that_reads_compressed_files_reads_those_first_met(trial: Callable[..., Trial], logs: Path) -> None:
    daemon = trial("*.log*", exclude=[], compressed="read")
    writer = Writer(daemon.judge, logs / "app.log")
    for _ in range(3):
        writer.write(10)
        rename(writer)
    for number in (2, 3):
        compress(logs / f"app.log.{number}")
    daemon.start()
    daemon.settle().check()
    writer.write(10)
    rename(writer)
    compress(logs / "app.log.2")
    daemon.finish().check()


# Dropped events.


def errors_counted(trial: Trial, kind: str) -> list[float]:
    """The counter of a kind of errors, as /metrics has it and as /status has it."""
    name = f'ingestd_errors_total{{kind="{kind}",route="logs"}} '
    (shown,) = [line for line in trial.daemon.metrics().splitlines() if line.startswith(name)]
    return [float(shown.removeprefix(name)), trial.daemon.status()["routes"][0]["errors"][kind]]


def test_that_the_kernel_dropped_events_is_said_and_what_was_rotated_meanwhile_arrives(
    trial: Callable[..., Trial], logs: Path
) -> None:
    daemon = trial("*.log")
    writer = Writer(daemon.judge, logs / "app.log")
    writer.write(10)
    daemon.start()
    daemon.settle().check()
    assert errors_counted(daemon, "overflow") == [0, 0]
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    os.kill(daemon.daemon.pid, signal.SIGSTOP)
    for _ in range(kept):  # each is two events
        (logs / "busy").touch()
        (logs / "busy").unlink()
    writer.write(10)
    rename(writer)
    writer.write(10)
    assert not daemon.events("events of directories dropped")
    os.kill(daemon.daemon.pid, signal.SIGCONT)
    daemon.daemon.until(lambda: bool(daemon.events("events of directories dropped")), "it is said", 10)
    (event,) = daemon.events("events of directories dropped")
    assert (event["level"], event["route"]) == ("warning", "logs")
    daemon.daemon.until(lambda: errors_counted(daemon, "overflow") == [1, 1], "it is counted", 10)
    daemon.finish().check()


# Losses.


def test_files_that_are_gone_at_a_start_are_said_and_counted(trial: Callable[..., Trial], logs: Path) -> None:
    daemon = trial("*.log")
    for name in ("kept.log", "deleted.log", "deleted-too.log"):
        Writer(daemon.judge, logs / name).write(10)
    daemon.start()
    daemon.settle().check()
    assert errors_counted(daemon, "gone") == [0, 0]
    daemon.stop()
    (logs / "deleted.log").unlink()
    (logs / "deleted-too.log").unlink()
    daemon.start()
    daemon.daemon.until(lambda: errors_counted(daemon, "gone") == [2, 2], "they are counted", 10)
    (event,) = daemon.events(
        "files are gone or were cut off while nobody read them: they may have had more than was read"
    )
    assert (event["level"], event["route"], event["files"]) == ("warning", "logs", 2)
    daemon.finish().check()


@pytest.fixture
def of_own_broker(
    broker_process: Callable[..., BrokerProcess], tmp_path: Path, logs: Path
) -> Iterator[tuple[Trial, BrokerProcess]]:
    """A daemon that runs on `*.log`, and a broker that is its own, to be killed."""
    broker = broker_process()
    made = Trial(
        tmp_path,
        servers=broker.servers,
        topic="lines",
        paths=[f"{logs}/*.log"],
        partition="file",
        daemon={"drain_timeout": 1},
    )
    with made as trial:
        trial.start()
        yield trial, broker


def losses_counted(trial: Trial, reason: str) -> float:
    """The counter of lost events; -1 where there is none."""
    for line in trial.daemon.metrics().splitlines():
        if line.startswith("ingestd_lost_events") and f'reason="{reason}"' in line and 'route="logs"' in line:
            return float(line.rpartition(" ")[2])
    return -1.0


def check_said(trial: Trial, path: Path, reason: str) -> None:
    """A loss is an error in the log, a metric, and in /status."""
    trial.daemon.until(lambda: bool(trial.events("data lost")), "the loss is said", 10)
    (event,) = trial.events("data lost")
    assert event["level"] == "error"
    assert str(path) in str(event)
    assert reason in str(event)
    assert losses_counted(trial, reason) == 1
    (loss,) = trial.daemon.status()["routes"][0]["losses"]
    assert loss["file"] == str(path)
    assert loss["reason"] == reason
    assert loss["bytes"] > 0


def test_a_file_that_was_deleted_unread_while_the_daemon_was_down_is_a_loss_that_is_said(
    of_own_broker: tuple[Trial, BrokerProcess], logs: Path
) -> None:
    trial, broker = of_own_broker
    writer = Writer(trial.judge, logs / "app.log")
    writer.write(50)
    trial.settle().check()
    assert losses_counted(trial, "deleted") == 0
    broker.kill()
    writer.write(50)
    time.sleep(1.0)
    trial.daemon.stop()
    writer.path.unlink()
    broker.start()
    trial.start()
    check_said(trial, writer.path, "deleted")


def test_a_file_that_was_first_seen_and_deleted_before_anything_was_delivered_is_a_loss_that_is_said(
    of_own_broker: tuple[Trial, BrokerProcess], logs: Path
) -> None:
    trial, broker = of_own_broker
    broker.kill()
    writer = Writer(trial.judge, logs / "app.log")
    writer.write(50)
    time.sleep(1.0)
    trial.kill()
    writer.path.unlink()
    broker.start()
    trial.start()
    check_said(trial, writer.path, "deleted")


def test_a_log_that_was_truncated_before_it_was_read_is_a_loss_that_is_said(
    of_own_broker: tuple[Trial, BrokerProcess], logs: Path
) -> None:
    trial, broker = of_own_broker
    writer = Writer(trial.judge, logs / "app.log")
    writer.write(50)
    trial.settle().check()
    broker.kill()
    writer.write(50)
    time.sleep(1.0)
    trial.daemon.stop()
    writer.path.write_bytes(b"")
    broker.start()
    trial.start()
    check_said(trial, writer.path, "truncated")


@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_compressed_in_an_outage_comes_before_newer_lines_though_the_workers_die(
    of_own_broker: tuple[Trial, BrokerProcess], logs: Path, *, restarted: bool
) -> None:
    """New workers can read nothing before the broker answers. Meanwhile they find out that the file is gone."""
    trial, broker = of_own_broker
    writers = [Writer(trial.judge, logs / f"{name}.log") for name in ("app", "web", "job")]
    for writer in writers:
        writer.write(50)
    trial.settle().check()
    broker.kill()
    for writer in writers:
        writer.write(50)
    if restarted:
        trial.stop()
        trial.judge.started()
        trial.daemon.start()  # it gets ready once the broker answers
        trial.daemon.until(lambda: len(trial.events("sources found")) == 2, "the files are found", 20)
        trial.judge.ready()
    for writer in writers:
        rename(writer)
        compress(writer.path.with_name(f"{writer.path.name}.1"))
        writer.write(20)
    trial.daemon.until(
        lambda: 'ingestd_sources{route="logs"} 6.0' in trial.daemon.metrics(), "the new files are found too", 20
    )
    for worker in psutil.Process(trial.daemon.pid).children():
        worker.kill()
    time.sleep(REST_PATIENCE + 2)  # longer than a file waits for the rest of the one before
    broker.start()
    verdict = trial.settle()
    verdict.check()
    assert verdict.overtaken == 0
