"""Programs that write logs, and those that rotate them: doubles of ours, and the real ones under their own names.

A double tells the judge what it removes. The real ones are set up to remove nothing.
"""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler, TimedRotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Self

from harness.programs import program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.judge import Judge

__all__ = [
    "Kubelet",
    "Logrotate",
    "Repeated",
    "Steady",
    "Svlogd",
    "Writer",
    "compress",
    "copy_and_truncate",
    "handler_writer",
    "link_and_unlink",
    "rename",
    "repoint",
    "rotated",
    "shift",
]

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


# Writers.


class Writer:
    """A program that holds its log open and appends numbered lines, whole ones in one write each call.

    Invariants
        A generation ends where the program opens its log anew, or the log was truncated.
    """

    def __init__(self, judge: Judge, path: Path, *, name: str = "", header: Sequence[bytes] = ()) -> None:
        """`name`: what its lines say; the file's stem unless given. `header`: lines every generation begins with."""
        self.judge = judge
        self.path = path
        self.name = name or path.stem
        self.generation = 0
        self._header = list(header)
        self._count = 0
        self._half = b""
        judge.tolerate(*self._header)
        self._descriptor = os.open(path, APPEND)
        self._begin()

    def _begin(self) -> None:
        if self._header:
            os.write(self._descriptor, b"".join(line + b"\n" for line in self._header))

    def _next(self) -> bytes:
        self._count += 1
        return b"%s %d %d the rest of a line that says nothing" % (self.name.encode(), self.generation, self._count)

    def write(self, count: int = 1) -> None:
        """Append whole lines; a half one before them is made whole."""
        self.finish()
        lines = [self._next() for _ in range(count)]
        os.write(self._descriptor, b"".join(line + b"\n" for line in lines))
        self.judge.wrote(self.name, self.generation, lines)

    def half(self) -> None:
        """Append the first half of a line."""
        self.finish()
        self._half = self._next()
        os.write(self._descriptor, self._half[: len(self._half) // 2])

    def finish(self) -> None:
        """Append the second half, if there is a first."""
        if self._half:
            os.write(self._descriptor, self._half[len(self._half) // 2 :] + b"\n")
            self.judge.wrote(self.name, self.generation, [self._half])
            self._half = b""

    def reopen(self, path: Path | None = None) -> None:
        """Go on in a new file at the log's path, or at another path from now on."""
        self.finish()
        self.close()
        self.path = path or self.path
        self._descriptor = os.open(self.path, APPEND)
        self.generation += 1
        self._begin()

    def truncated(self) -> None:
        """The log was emptied under this program: what follows is another generation."""
        self.generation += 1
        self._begin()

    def close(self) -> None:
        """The program ends, or is about to open another file."""
        os.close(self._descriptor)


class Repeated:
    """Takes a step again and again, from a thread, while the block lasts. What it raises is raised at the block's end.

    A daemon is not to be started from it: it would be killed with the thread.
    """

    def __init__(self, step: Callable[[], object], *, every: float) -> None:
        """`every`: seconds between two steps."""
        self._step = step
        self._every = every
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join(30)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._every):
                self._step()
        except BaseException as failure:  # noqa: BLE001 - raised where the block is left
            self._failure = failure


class Steady(Repeated):
    """Lets writers write a few lines each every few milliseconds, from a thread, while the block lasts.

    A writer whose file `NAME.reopen` appears beside its log opens its log anew and removes that file.
    """

    def __init__(self, *writers: Writer, lines: int = 5, every: float = 0.01) -> None:
        super().__init__(self._write, every=every)
        self._writers = writers
        self._lines = lines
        self._lock = threading.Lock()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody writes within the block."""
        with self._lock:
            yield

    def _write(self) -> None:
        with self._lock:
            for writer in self._writers:
                writer.write(self._lines)
                asked = writer.path.with_name(f"{writer.path.name}.reopen")
                if asked.exists():
                    writer.reopen()
                    asked.unlink()


# Rotations, one step each.


def shift(path: Path) -> Path:
    """Rename PATH.2 to PATH.3, PATH.1 to PATH.2, compressed ones too; PATH.1, which is free then."""
    numbers = {int(name.suffix[1:] if name.suffix != ".gz" else name.suffixes[-2][1:]): name for name in rotated(path)}
    for number in sorted(numbers, reverse=True):
        end = ".gz" if numbers[number].suffix == ".gz" else ""
        numbers[number].rename(f"{path}.{number + 1}{end}")
    return Path(f"{path}.1")


def rotated(path: Path) -> list[Path]:
    """PATH.1, PATH.2.gz and so on, in no order."""
    ends = ((name, name.name.removeprefix(f"{path.name}.").removesuffix(".gz")) for name in path.parent.iterdir())
    return [name for name, end in ends if end.isdigit() and name.name.startswith(f"{path.name}.")]


def rename(writer: Writer) -> None:
    """Rename the whole chain, and begin a new file."""
    writer.path.rename(shift(writer.path))
    writer.reopen()


def link_and_unlink(writer: Writer, to: Path | None = None) -> None:
    """Give the log a rotated name by a second link, take the first name away, and begin a new file."""
    os.link(writer.path, to or shift(writer.path))
    writer.path.unlink()
    writer.reopen()


def copy_and_truncate(writer: Writer, to: Path | None = None) -> None:
    """Copy the log, to PATH.1 unless told otherwise, and empty it. Nobody may write meanwhile."""
    writer.finish()
    shutil.copyfile(writer.path, to or shift(writer.path))
    os.truncate(writer.path, 0)
    writer.truncated()


def compress(path: Path) -> Path:
    """Put PATH.gz in the place of PATH, as kubelet and logrotate do: whole, then under its name. Its path."""
    made, unfinished = path.with_name(f"{path.name}.gz"), path.with_name(f"{path.name}.tmp")
    unfinished.write_bytes(gzip.compress(path.read_bytes(), 1))
    unfinished.rename(made)
    path.unlink()
    return made


def repoint(link: Path, target: Path) -> None:
    """Let a symbolic link lead elsewhere, in one step."""
    made = link.with_name(f".{link.name}.new")
    made.symlink_to(target)
    made.rename(link)


# Rotators.


class Kubelet:
    """A double of the kubelet: one container's log, and the link to it among those of all containers.

    At each rotation all rotated files are compressed, those beyond the newest `keep` - 2 removed, and `0.log` renamed
    to `0.log.YYYYMMDD-HHMMSS`: `rotateLog` in kubelet's container_log_manager.go.
    """

    def __init__(self, judge: Judge, root: Path, name: str, *, keep: int = 5) -> None:
        directory = root / "pods" / f"default_{name}_0123" / "app"
        directory.mkdir(parents=True)
        (root / "containers").mkdir(exist_ok=True)
        self._keep = keep
        self._judge = judge
        self._renamed_at = ""
        self.writer = Writer(judge, directory / "0.log", name=name)
        self.link = root / "containers" / f"{name}_default_app-0123.log"
        self.link.symlink_to(self.writer.path)

    def rotate(self) -> None:
        """Rotate the log: a second after the last time at least, for the name's sake."""
        path = self.writer.path
        old = sorted(path.parent.glob("0.log.*"))
        for excess in old[: max(0, len(old) - (self._keep - 2))]:
            self._judge.removing(excess)
            excess.unlink()
            old.remove(excess)
        for each in old:
            if each.suffix != ".gz":
                compress(each)
        while (stamp := time.strftime("%Y%m%d-%H%M%S")) == self._renamed_at:
            time.sleep(0.01)
        self._renamed_at = stamp
        path.rename(f"{path}.{stamp}")
        self.writer.reopen()


class Logrotate:
    """Debian's logrotate, run by hand for some writers' logs. It removes nothing.

    Writers under `Steady` are told to open their logs anew and waited for, as a postrotate script does.
    """

    def __init__(self, directory: Path, writers: Sequence[Writer], *directives: str) -> None:
        """`directory`: of its own files. `directives` are lines of its configuration: create, compress, olddir … ."""
        directory.mkdir(exist_ok=True)
        self._writers = writers
        self._state = directory / "logrotate.state"
        self._copies = "copytruncate" in directives
        told = ["rotate 1000", "missingok", *directives]
        if not self._copies:
            asked = [f"{writer.path}.reopen" for writer in writers]
            told += ["sharedscripts", "postrotate", f"    touch {' '.join(asked)}"]
            told += [f"    while [ -e {name} ]; do sleep 0.01; done" for name in asked]
            told += ["endscript"]
        names = " ".join(str(writer.path) for writer in writers)
        self._file = directory / "logrotate.conf"
        self._file.write_text(f"{names} {{\n" + "".join(f"    {line}\n" for line in told) + "}\n")
        self._file.chmod(0o644)  # it refuses others

    def rotate(self, steady: Steady) -> None:
        """Rotate every log; who writes meanwhile is `steady`. Copies are made while nobody writes."""
        if not self._copies:
            self._run()
            return
        with steady.paused():
            self._run()
            for writer in self._writers:
                writer.truncated()

    def _run(self) -> None:
        command = [program("logrotate"), "--force", "--state", str(self._state), str(self._file)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


class Svlogd:
    """runit's svlogd on a directory, fed with numbered lines. It keeps everything; `current` is what it writes to."""

    def __init__(self, judge: Judge, directory: Path, *, size: int) -> None:
        """`size`: bytes after which it rotates."""
        directory.mkdir()
        (directory / "config").write_text(f"s{size}\nn0\n")
        self._judge = judge
        self._count = 0
        self._process = subprocess.Popen(
            [program("setpriv"), "--pdeathsig", "KILL", program("svlogd"), str(directory)], stdin=subprocess.PIPE
        )

    def write(self, count: int) -> None:
        """Hand it lines."""
        lines = [b"svlogd %d a line that came by a pipe" % (self._count + number) for number in range(count)]
        self._count += count
        assert self._process.stdin is not None
        self._process.stdin.write(b"".join(line + b"\n" for line in lines))
        self._process.stdin.flush()
        self._judge.wrote("svlogd", 0, lines)

    def close(self) -> None:
        """End its input, and wait until it has written everything."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def _compress_away(source: str, destination: str) -> None:
    with Path(source).open("rb") as plain, gzip.open(destination, "wb") as compressed:
        shutil.copyfileobj(plain, compressed)
    Path(source).unlink()


@contextmanager
def handler_writer(judge: Judge, path: Path, kind: str) -> Iterator[Callable[[int], None]]:
    """Writes a numbered line through Python's "rotating" handler (by size, a chain of names) or its "timed" one.

    "gzipped": the rotating one, and what it rotates is compressed as Python's cookbook does.
    """
    handler = (
        TimedRotatingFileHandler(path, when="S", interval=1)
        if kind == "timed"
        else RotatingFileHandler(path, maxBytes=4000, backupCount=1000)
    )
    if kind == "gzipped":
        handler.namer = lambda name: f"{name}.gz"
        handler.rotator = _compress_away

    def write(number: int) -> None:
        line = f"{path.stem} {number} said by a program in Python"
        handler.emit(logging.makeLogRecord({"msg": line}))
        judge.wrote(path.stem, 0, [line.encode()])

    try:
        yield write
    finally:
        handler.close()
