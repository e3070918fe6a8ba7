"""Parquet: several drivers on one checkpoint, frozen and killed between any two steps. Every row is there once.

Files are real. Spark is not: its jobs, its checkpoint and Hadoop's file system are as short as they can be here, and
before each of their steps another driver may go on. As in Hadoop's local file system, a rename that replaces nothing
looks first, and a directory is listed by name and then by file.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import threading
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from ingestd.daemon.pipelines import PipelineSink
from ingestd.errors import IngestdError
from ingestd.spark.pipelines import parquet, sized
from ingestd.spark.pipelines.files import Directory, File

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TASKS, BATCHES, DRIVERS = 3, 3, 4


class _KilledError(BaseException):
    """Nothing catches it, so nothing is done any more."""


class _Driver:
    """A thread that goes on for as many steps as it is told, and then waits."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._steps = 0
        self._mine, self._yours = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.ended = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def go(self, steps: int) -> None:
        self._steps = steps
        self._mine.release()
        self._yours.acquire()

    def kill(self) -> None:
        self._killed = True
        self.go(1)

    def step(self) -> None:
        """Called by what it runs, before each step."""
        if self._steps == 0:
            self._yours.release()
            self._mine.acquire()
        if self._killed:
            raise _KilledError
        self._steps -= 1

    def _main(self) -> None:
        _here.driver = self
        self._mine.acquire()
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - it is looked at by who told it to go on
            self.error = error
        self.ended = True
        self._yours.release()


_here = threading.local()


def _step() -> None:
    _here.driver.step()


class _Path:
    """Hadoop's path."""

    def __init__(self, parent: _Path | str, child: str = "") -> None:
        base = parent if isinstance(parent, str) else parent.text
        self.text = f"{base}/{child}" if child else base

    def getFileSystem(self, _: object) -> type[_Files]:  # noqa: N802 - as Java has it
        return _Files

    def getParent(self) -> _Path:  # noqa: N802
        return _Path(self.text.rpartition("/")[0])

    def getName(self) -> str:  # noqa: N802
        return self.text.rpartition("/")[2]


class _Files:
    """Hadoop's local file system."""

    @staticmethod
    def makeQualified(path: _Path) -> Any:  # noqa: N802
        return SimpleNamespace(toUri=lambda: SimpleNamespace(getPath=lambda: path.text, getScheme=lambda: "file"))

    @staticmethod
    def exists(path: _Path) -> bool:
        _step()
        return Path(path.text).exists()

    @staticmethod
    def listStatus(path: _Path) -> list[Any]:  # noqa: N802
        _step()
        names = [each.name for each in Path(path.text).iterdir()] if Path(path.text).is_dir() else []
        _step()
        found = [_Path(path, name) for name in names if Path(path.text, name).exists()]
        return [SimpleNamespace(getPath=lambda each=each: each) for each in found]

    @staticmethod
    def open(path: _Path) -> Any:
        _step()
        try:
            data = Path(path.text).read_bytes()
        except FileNotFoundError as error:
            raise _java_error() from error
        return SimpleNamespace(readAllBytes=lambda: data, close=lambda: None)

    @staticmethod
    def create(path: _Path, _: bool) -> Any:
        _step()
        Path(path.text).parent.mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(write=Path(path.text).write_bytes, close=lambda: None)

    @staticmethod
    def mkdirs(path: _Path) -> None:
        Path(path.text).mkdir(parents=True, exist_ok=True)

    @staticmethod
    def rename(source: _Path, target: _Path) -> bool:
        _step()
        try:
            Path(source.text).rename(target.text)
        except FileNotFoundError:
            return False
        return True

    @classmethod
    def delete(cls, path: _Path, recursive: bool) -> None:
        _step()
        real = Path(path.text)
        if real.is_dir():
            for name in sorted((each.name for each in real.iterdir()), reverse=True):
                cls.delete(_Path(path, name), recursive)
            with contextlib.suppress(OSError):  # something came meanwhile, or another one has deleted it
                real.rmdir()
        else:
            real.unlink(missing_ok=True)


class _Context:
    """Hadoop's other interface to the same files."""

    @staticmethod
    def rename(source: _Path, target: _Path, _: object) -> None:
        if _Files.exists(target) or not _Files.rename(source, target):
            raise _java_error()


def _java_error() -> Py4JJavaError:
    return Py4JJavaError("", SimpleNamespace(_target_id="", _gateway_client=SimpleNamespace()))


def _spark(query: str) -> Any:
    fs = SimpleNamespace(
        Path=_Path,
        FileContext=SimpleNamespace(getFileContext=lambda *_: _Context),
        Options=SimpleNamespace(Rename=None),
    )
    return SimpleNamespace(
        _jvm=SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=SimpleNamespace(fs=fs)))),
        _jsparkSession=SimpleNamespace(sessionState=lambda: SimpleNamespace(newHadoopConf=lambda: None)),
        sparkContext=SimpleNamespace(
            getLocalProperty=lambda _: query, _gateway=SimpleNamespace(new_array=lambda *_: None)
        ),
    )


def _job(rows: Any, directory: Directory, stage: str, _by: Sequence[str], _bytes: int) -> list[File]:
    """What Spark does: each task writes a file, and in the end those that are there are moved to one directory."""
    written = Path(directory.path, stage, "written")
    tasks = [written / "_temporary" / f"{number}.parquet" for number in range(TASKS)]
    for number, task in enumerate(tasks):
        _step()
        task.parent.mkdir(parents=True, exist_ok=True)
        task.write_text(f"{rows.batch} {number}")
    for task in tasks:
        _step()
        if task.exists():
            task.rename(written / task.name)
    _step()
    found = [File(f"{stage}/written/{each.name}", 1) for each in sorted(written.glob("*.parquet"))]
    if not found:
        raise Py4JError("no such directory")
    return found


class _Checkpoint:
    """Which micro-batches are done. Of two drivers one can say so."""

    def __init__(self) -> None:
        self.done = 0

    def commit(self, batch: int) -> None:
        _step()
        if self.done != batch:
            raise IngestdError("another run has written this micro-batch to the checkpoint")
        self.done = batch + 1


def _drive(path: str, query: str, checkpoint: _Checkpoint) -> None:
    sink, batch = parquet.ParquetSink(PipelineSink(path=path)), checkpoint.done
    while batch < BATCHES:
        sink(SimpleNamespace(sparkSession=_spark(query), batch=batch), batch)
        checkpoint.commit(batch)
        batch += 1


def _play(seed: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """Drivers in an order of this seed, and one at the end alone. What is in the files; how drivers ended."""
    chance, checkpoint, query = random.Random(seed), _Checkpoint(), str(uuid.UUID(int=seed))
    ids = random.Random(seed)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128)))  # directories are listed in order

    def begin() -> _Driver:
        return _Driver(lambda: _drive(str(path), query, checkpoint))

    running, begun, ends = [begin()], 1, []
    while running and checkpoint.done < BATCHES:
        one = chance.choice(running)
        one.go(chance.choice((1, 2, 4, 8)))
        if not one.ended and chance.random() < 0.03:
            one.kill()
        if one.ended:
            running.remove(one)
            ends.append(repr(one.error))
        if begun < DRIVERS and (not running or chance.random() < 0.15):
            running.append(begin())
            begun += 1
    for one in running:
        one.kill()
    last = begin()
    last.go(1_000_000)
    assert last.ended
    if last.error is not None:
        raise last.error
    files = [each for each in path.glob("**/*.parquet") if "_ingestd" not in each.parts]
    return sorted(each.read_text() for each in files), ends


@pytest.mark.parametrize("first", range(0, 1_000, 250))
def test_every_row_is_there_once_whatever_driver_goes_on_or_is_killed_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(sized, "_files_of", _job)
    monkeypatch.setattr(parquet, "write_nothing", lambda _: None)
    expected = [f"{batch} {task}" for batch in range(BATCHES) for task in range(TASKS)]
    for seed in range(first, first + 250):
        path = tmp_path / str(seed)
        rows, ends = _play(seed, path, monkeypatch)
        assert rows == expected, (seed, ends)
        shutil.rmtree(path)


def test_files_that_an_earlier_version_had_noted_in_its_stage_go_to_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "write_nothing", lambda _: None)
    ours, query = tmp_path / "_ingestd" / "q", "q"
    stage = ours / "5c1f" / "written"
    stage.mkdir(parents=True)
    (stage / "0.parquet").write_text("row")
    (ours / "7.names").write_text(json.dumps({"_ingestd/q/5c1f/written/0.parquet": "part-0.parquet"}))
    (ours / "0ld" / "written").mkdir(parents=True)
    (ours / "6.done").touch()
    sink = parquet.ParquetSink(PipelineSink(path=str(tmp_path)))
    driver = _Driver(lambda: sink(SimpleNamespace(sparkSession=_spark(query)), 7))
    driver.go(1_000)
    assert driver.error is None
    assert (tmp_path / "part-0.parquet").read_text() == "row"
    assert sorted(each.name for each in ours.iterdir()) == ["5c1f", "7.done"]
