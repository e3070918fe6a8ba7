"""`ingestd run` as a process, as a user starts it: started, asked by HTTP, stopped, killed; its workers too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Self

from harness.node import free_ports, last_lines
from harness.programs import ingestd, program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["ConfiguredDaemon", "Daemon", "configuration"]

START_SECONDS = 60
ANSWER_SECONDS = 10
POLL_SECONDS = 0.05


def configuration(
    *,
    servers: list[str],
    topic: str,
    paths: list[str],
    state: Path,
    http: str,
    daemon: Mapping[str, object],
    tables: Mapping[str, Mapping[str, object]] | None = None,
    **tail: object,
) -> str:
    """A configuration of one cluster `target` and one tail `logs`, with further keys of that tail and of `[daemon]`.

    `tables` are more tables by their names (`clusters.target.tls`).
    """
    own = {"state": str(state), "http": http, "log_format": "json", **daemon}
    return _toml({"daemon": own, **_of_a_tail(servers, topic, paths, tables, tail)})


def _of_a_tail(
    servers: list[str],
    topic: str,
    paths: list[str],
    tables: Mapping[str, Mapping[str, object]] | None,
    tail: Mapping[str, object],
) -> dict[str, Mapping[str, object]]:
    route = {"paths": paths, "cluster": "target", "topic": topic, **tail}
    return {"clusters.target": {"bootstrap": servers}, "tails.logs": route, **(tables or {})}


def _toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    """Tables by their names. JSON's strings, numbers, booleans and arrays are TOML's."""
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


class ConfiguredDaemon:
    """One daemon with its state; started again, it goes on from there. Killed, with its workers, when left.

    Invariants
        Configuration, state and HTTP address stay the same over every start.
    """

    def __init__(
        self,
        directory: Path,
        tables: Mapping[str, Mapping[str, object]],
        *,
        daemon: Mapping[str, object] | None = None,
        command: tuple[str, ...] = (),
    ) -> None:
        """`tables` are those of the configuration by their names; `daemon` has further keys of `[daemon]`.

        `command` is put before the daemon's own command line.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.log = directory / "daemon.log"
        self.file = directory / "ingestd.toml"
        self._bound = command
        self._process: subprocess.Popen[bytes] | None = None
        own = {"state": str(directory / "state"), "http": self.address, "log_format": "json", **(daemon or {})}
        self.file.write_text(_toml({"daemon": own, **tables}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the supervisor lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, *arguments: str) -> None:
        """Run it; does not wait until it is ready."""
        command = [*ingestd(), "run", *arguments, str(self.file)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [program("setpriv"), "--pdeathsig", "KILL", *self._bound, *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def start_ready(self, *arguments: str) -> None:
        """Run it and wait until every source found at start is given to a worker."""
        self.start(*arguments)
        self.until(lambda: self.page("/readyz") is not None, "the daemon is ready", START_SECONDS)

    def stop(self, timeout: float = 40) -> int:
        """SIGTERM: drain, checkpoint, exit. The exit status; raises `TimeoutError` with the log if it does not exit."""
        assert self._process is not None, "not started"
        self._process.terminate()
        return self.wait(timeout)

    def wait(self, timeout: float) -> int:
        """Until it ends by itself. The exit status; raises `TimeoutError` with the log."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the daemon did not end in {timeout:g} s:\n{last_lines(self.log)}") from None

    def kill(self) -> None:
        """SIGKILL to the supervisor alone; its workers must go by themselves. Nothing happens if it does not run."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)

    def status(self) -> dict[str, Any]:
        """What /status answers, however late. Raises `RuntimeError` if the daemon ended or is silent for long."""
        assert self._process is not None, "not started"
        deadline = time.monotonic() + START_SECONDS
        while (body := self.page("/status")) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"/status does not answer:\n{last_lines(self.log)}")
            time.sleep(POLL_SECONDS)
        answer: dict[str, Any] = json.loads(body)
        return answer

    def metrics(self) -> str:
        """What /metrics answers."""
        return self.page("/metrics") or ""

    def worker_pids(self) -> list[int]:
        """The live workers' process ids, by slot."""
        return [worker["pid"] for worker in self.status()["workers"] if worker.get("pid")]

    def kill_worker(self, slot: int = 0) -> int:
        """SIGKILL one worker, once it runs; the process id it had."""
        found: list[int] = []

        def runs() -> bool:
            found[:] = [
                worker["pid"] for worker in self.status()["workers"] if worker["slot"] == slot and worker["pid"]
            ]
            return bool(found)

        self.until(runs, f"worker {slot} runs", 30)
        os.kill(found[0], signal.SIGKILL)
        return found[0]

    def acknowledged(self) -> int:
        """Bytes of files acknowledged since the start."""
        return sum(route["bytes_acknowledged"] for route in self.status()["routes"])

    def until(self, holds: Callable[[], bool], what: str, timeout: float) -> None:
        """Wait until `holds`. Raises `TimeoutError`, or `RuntimeError` if the daemon ended meanwhile, with its log."""
        assert self._process is not None, "not started"
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if holds():
                return
            if self._process.poll() is not None:
                raise RuntimeError(f"the daemon ended with {self._process.returncode}:\n{last_lines(self.log)}")
            time.sleep(POLL_SECONDS)
        raise TimeoutError(f"not within {timeout:g} s: {what}\n{last_lines(self.log)}")

    def not_ready(self) -> str:
        """Why /readyz answers that not everything can be delivered; empty while all can."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/readyz", timeout=ANSWER_SECONDS):
                return ""
        except urllib.error.HTTPError as refused:
            return refused.read().decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            return f"no answer: {error}"

    def page(self, path: str) -> str | None:
        """What an HTTP path answers; None unless with a status of success."""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=ANSWER_SECONDS) as answer:
                body: bytes = answer.read()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None
        return body.decode()


class Daemon(ConfiguredDaemon):
    """A daemon with one tail `logs`, of `paths`, to `topic` of a cluster `target`."""

    def __init__(
        self,
        directory: Path,
        *,
        servers: list[str],
        topic: str,
        paths: list[str],
        daemon: Mapping[str, object] | None = None,
        command: tuple[str, ...] = (),
        tables: Mapping[str, Mapping[str, object]] | None = None,
        **tail: object,
    ) -> None:
        super().__init__(directory, _of_a_tail(servers, topic, paths, tables, tail), daemon=daemon, command=command)
