"""One embedded broker as a child process: started, killed, stopped and started again on the same data and port."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BrokerProcess"]

READY_SECONDS = 30
END_SECONDS = 20
KEPT = ("--topic-default", "retention.ms=-1")
"""The records of `embedded.batches` are from 1970: a test that retention came amid would find its topic empty."""
QUICK = ("--flush", "os")
"""A test that is about the disk gives `--flush always`, which counts because it comes behind."""


class BrokerProcess:
    """Context manager. `directory` gets `data`, `requests.jsonl` and `stderr`. `under` is a command that becomes it."""

    def __init__(self, directory: Path, *options: str, under: Sequence[str] = ()) -> None:
        self.data = directory / "data"
        self.request_log = directory / "requests.jsonl"
        self.stderr = directory / "stderr"
        self.port = 0
        self._options = options
        self._under = under
        self._process: subprocess.Popen[bytes] | None = None
        self._parent_pipe = -1

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.running:
            self.kill()
        self._close_pipe()

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Until it listens; on the port that it had before."""
        reading_end, self._parent_pipe = os.pipe()
        command = [
            *self._under, sys.executable, "-m", "ingestd.broker", "--data", str(self.data), "--listen", self.servers,
            "--request-log", str(self.request_log), "--parent-fd", str(reading_end), *KEPT, *QUICK, *self._options,
        ]  # fmt: skip
        with self.stderr.open("ab") as stderr:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, pass_fds=[reading_end])
        os.close(reading_end)
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], READY_SECONDS)
        line = self._process.stdout.readline().decode() if readable else ""
        word, _, address = line.partition(" ")
        assert word == "ready", f"the broker did not start: {self.stderr.read_text()}"
        self.port = int(address.split()[1])

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._ended()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._ended()

    def orphan(self) -> int:
        """Close the pipe that says that the parent lives; the exit status."""
        self._close_pipe()
        return self._ended()

    def _ended(self) -> int:
        assert self._process is not None
        status = self._process.wait(END_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._close_pipe()
        return status

    def _close_pipe(self) -> None:
        if self._parent_pipe >= 0:
            os.close(self._parent_pipe)
            self._parent_pipe = -1

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        """Resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def requests(self) -> list[dict[str, object]]:
        """What the request log has so far; a line that is being written is not there yet."""
        return [orjson.loads(line) for line in self.request_log.read_bytes().rpartition(b"\n")[0].splitlines()]

    def until_logged(self, text: str, seconds: float = 10) -> None:
        """Wait until the broker's own log has `text`."""
        end = time.monotonic() + seconds
        while text not in self.stderr.read_text():
            assert time.monotonic() < end, f"{text!r} is not in the broker's log:\n{self.stderr.read_text()}"
            time.sleep(0.02)
