"""A standalone cluster of Spark: a master and workers, started as users do, which know nothing of this process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyspark

from harness.programs import program

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Standalone"]

START_SECONDS = 120
STOP_SECONDS = 30
HOST = "127.0.0.1"


class Standalone:
    """A master, and workers that come and go. Each has one core, and so each application one executor there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._daemons: list[_Daemon] = []
        self.url = ""

    def __enter__(self) -> Self:
        master = self._start("master", ["master.Master", "--host", HOST, "--port", "0", "--webui-port", "0"])
        self.url = master.said(r"Starting Spark master at (\S+)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in reversed(self._daemons):
            each.stop()

    def add_worker(self) -> None:
        """Start a worker. It is known to the master when this returns."""
        name = f"worker-{len(self._daemons)}"
        options = ["--host", HOST, "--cores", "1", "--memory", "1g", "--webui-port", "0", "-d", str(self._place(name))]
        worker = self._start(name, ["worker.Worker", *options, self.url])
        worker.said(r"(Successfully registered) with master")

    def kill_executor(self) -> None:
        """Kill one of the running executors, with its Python workers, and wait until it is gone."""
        executor = next(child for each in self._daemons for child in each.executors())
        tree = [executor, *executor.children(recursive=True)]
        for process in tree:
            process.send_signal(signal.SIGKILL)
        gone, alive = psutil.wait_procs(tree, STOP_SECONDS)
        assert gone
        assert not alive

    def _place(self, name: str) -> Path:
        place = self._directory / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _start(self, name: str, command: list[str]) -> _Daemon:
        home = Path(pyspark.__file__).parent
        # Nothing of this process: its Python and its path least of all.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._directory),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        spark_class = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{command[0]}", *command[1:]]
        daemon = _Daemon(spark_class, environment, self._place(name))
        self._daemons.append(daemon)
        return daemon


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("ExecutorBackend" in each for each in process.cmdline())
    except psutil.NoSuchProcess:  # a worker runs other programs too, for a moment
        return False


class _Daemon:
    def __init__(self, command: list[str], environment: dict[str, str], directory: Path) -> None:
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            [program("setpriv"), "--pdeathsig", "TERM", *command],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def said(self, pattern: str) -> str:
        """The group of the first line of its log that has the pattern, once there is one."""
        with self._news:
            assert self._news.wait_for(lambda: self._ended or self._found(pattern), START_SECONDS), pattern
            found = self._found(pattern)
        assert found, f"it ended: {''.join(self._lines[-20:])}"
        return found

    def executors(self) -> list[psutil.Process]:
        """The processes of its executors. There are none of a master."""
        children = psutil.Process(self._process.pid).children()
        return [child for child in children if _is_executor(child)]

    def stop(self) -> None:
        """End it, and whatever it has left."""
        left = psutil.Process(self._process.pid).children(recursive=True)
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for process in psutil.wait_procs(left, STOP_SECONDS)[1]:
            process.kill()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as log:
            for line in log:
                with self._news:
                    self._lines.append(line)
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _found(self, pattern: str) -> str:
        matches = (re.search(pattern, line) for line in self._lines)
        return next((str(match[1]) for match in matches if match), "")
