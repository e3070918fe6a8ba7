"""One real Kafka node: a JVM that is started, killed, frozen and started again on the same port and data."""

from __future__ import annotations

import fcntl
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from harness.jars import cache_directory, class_archive
from harness.programs import program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["LOGGING", "Node", "NodeDiedError", "free_ports", "java", "last_lines"]

STOP_SECONDS = 30
PORTS_IN_A_BLOCK = 100
JAVA_FOR_TESTS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""Starts in half the time that the JVM's defaults take; not for measuring, which wants the second compiler."""

LOGGING = """\
status = error
appender.node.type = File
appender.node.name = node
appender.node.fileName = {log}
appender.node.layout.type = PatternLayout
appender.node.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}} %m%n
rootLogger.level = INFO
rootLogger.appenderRef.node.ref = node
logger.segments.name = org.apache.kafka.storage.internals.log
logger.segments.level = WARN
logger.logs.name = kafka.log
logger.logs.level = WARN
"""
"""Without the lines on segments made and deleted. They filled the end of the log, which failing tests show."""
REQUEST_LOGGING = """\
appender.requests.type = File
appender.requests.name = requests
appender.requests.fileName = {requests}
appender.requests.layout.type = PatternLayout
appender.requests.layout.pattern = %m%n
logger.requests.name = kafka.request.logger
logger.requests.level = DEBUG
logger.requests.additivity = false
logger.requests.appenderRef.requests.ref = requests
"""

# The kernel sends a child its parent-death signal when the *thread* that made it ends. Tests start nodes from threads
# that come and go, so all JVMs are started by one thread that lives as long as this process.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-starter")
_ports_lock = threading.Lock()
_ports_left: list[int] = []
_port_locks: list[IO[str]] = []


class NodeDiedError(RuntimeError):
    """A node ended, or did not come up, when it should be running. Carries the end of its log."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody else takes while this process lives: a killed node finds its port free.

    They lie below the range of outgoing connections, in a block that a lock gives to this process alone: several runs
    of the tests can share a machine.
    """
    found: list[int] = []
    with _ports_lock:
        while len(found) < count:
            if not _ports_left:
                _ports_left.extend(_take_block())
            port = _ports_left.pop(0)
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            found.append(port)
    return found


def _take_block() -> range:
    directory = cache_directory() / "ports"
    directory.mkdir(exist_ok=True)
    for first in range(20_000, 32_000, PORTS_IN_A_BLOCK):
        lock = (directory / str(first)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        _port_locks.append(lock)
        return range(first, first + PORTS_IN_A_BLOCK)
    raise RuntimeError(f"every block of ports is locked in {directory}")


def last_lines(path: Path, lines: int = 60) -> str:
    """The end of a log file; empty where there is none."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def java(jars: Path, options: Sequence[str], main: str, *arguments: str) -> list[str]:
    """The command line that runs a class of Apache Kafka and dies with its parent."""
    archive = class_archive(jars)
    shared = [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"] if archive.exists() else []
    command = [program("java"), *shared, *options, "-cp", f"{jars}/*", main, *arguments]
    return [program("setpriv"), "--pdeathsig", "KILL", *command]


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a node listens, on 127.0.0.1."""

    client: int
    controller: int


class Node:
    """A Kafka node, broker and controller in one JVM.

    Invariants
        Data, ports and node id stay the same over every stop, kill and start.
        The JVM dies with this process.
    """

    main = "kafka.Kafka"
    """The class that runs."""

    def __init__(
        self, node_id: int, ports: Ports, directory: Path, jars: Path, java_options: Sequence[str], cores: str | None
    ) -> None:
        self.node_id = node_id
        self.ports = ports
        self.directory = directory
        self.log = directory / "node.log"
        self.request_log = directory / "requests.log"
        self._output = directory / "output.log"
        self._jars = jars
        self._java_options = tuple(java_options)
        self._pinned = [program("taskset"), "-c", cores] if cores is not None else []
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = False

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.ports.client}"

    @property
    def data(self) -> Path:
        """The directory of the node's partitions."""
        return self.directory / "data"

    @property
    def running(self) -> bool:
        """Whether the JVM lives, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The JVM's process id. Raises `NodeDiedError` when it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise NodeDiedError(f"node {self.node_id} does not run")
        return self._process.pid

    def configure(self, settings: Mapping[str, str], *, log_requests: bool) -> None:
        """Write the node's files. Takes effect at the next start."""
        lines = [f"{name}={value}" for name, value in settings.items()]
        (self.directory / "server.properties").write_text("\n".join(lines) + "\n")
        logging = LOGGING.format(log=self.log)
        if log_requests:
            logging += REQUEST_LOGGING.format(requests=self.request_log)
        (self.directory / "log4j2.properties").write_text(logging)

    def start(self) -> None:
        """Start the JVM; does not wait until the node answers. Nothing happens if it runs."""
        if self.running:
            return
        options = [*self._java_options, f"-Dlog4j2.configurationFile={self.directory}/log4j2.properties"]
        command = java(self._jars, options, self.main, str(self.directory / "server.properties"))
        self._process = _starter.submit(self._spawn, [*self._pinned, *command]).result()
        self._frozen = False

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=self.directory,
            )

    def stop(self) -> None:
        """Shut down as an operator would (SIGTERM: leadership moves away first); killed when that takes too long."""
        if self._process is None:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(STOP_SECONDS)
        self._frozen = False

    def freeze(self) -> None:
        """SIGSTOP: sockets stay open, nothing answers."""
        self._signal(signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        """SIGCONT after `freeze`."""
        if self._frozen:
            self._signal(signal.SIGCONT)
            self._frozen = False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def check(self) -> None:
        """Raise `NodeDiedError` with the end of the logs unless the JVM lives."""
        if not self.running:
            raise NodeDiedError(f"Kafka node {self.node_id} ended:\n{last_lines(self._output)}\n{last_lines(self.log)}")
