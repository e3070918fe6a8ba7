"""A broker on this machine for the time of a test: started, stopped, killed and started again by the test."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ingestd.checks import as_path
from ingestd.errors import IngestdError, KafkaError
from ingestd.testing.faults import BrokerFaults
from ingestd.testing.starter import broker_starter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["LocalKafka"]

_TIMEOUT: Final = 30.0
"""Seconds that the broker has for a start, for an end, and for the answer to `create_topic`."""
_SHOWN: Final = 2_000
"""Bytes of the broker's log in the error of a failed start."""


class LocalKafka:
    """An embedded broker in a process of its own, on a free port of 127.0.0.1. Context manager.

    Its topics are in `directory`, and so is its log, in the file `log`. The directory is made if there is none; None:
    it is a temporary one, which is removed when the `with` ends, or this object. The broker waits for no disk
    (`--flush os`). It ends when this process ends, however that does. `partitions` is what a topic gets that is created
    on demand, which is every topic that a client asks for unless `create_topics` is False. With `nodes` it poses as so
    many brokers, for tests of clients that follow leaders and coordinators; `port` is the first one's. `configs` has
    configurations for all topics (`{"retention.ms": "-1"}`). `upkeep_interval` is the seconds between two looks for
    logs to compact, and for records that are past their retention; None: as in Kafka, 15 s and 5 min.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        partitions: int = 1,
        create_topics: bool = True,
        nodes: int = 1,
        configs: Mapping[str, str] | None = None,
        upkeep_interval: float | None = None,
    ) -> None:
        # Absolute: the process that forks brokers may have begun in another directory.
        self._directory = (as_path("directory", directory) or Path(tempfile.mkdtemp(prefix="local-kafka-"))).absolute()
        self._removal: Callable[[], object] | None = None
        if directory is None:
            self._removal = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self.log = self._directory / "log"
        self.faults = BrokerFaults(self._directory / "data")
        """What goes wrong at the broker, while it runs."""
        self.host = "127.0.0.1"
        self.port = 0
        """The port, once it was started. It keeps it when it is started again."""
        self.pid = 0
        self._channel: socket.socket | None = None
        """Open as long as it should run."""
        self._process = -1
        self._options = ["--data", str(self._directory / "data"), "--default-partitions", str(partitions)]
        self._options += ["--flush", "os"]
        self._options += [] if create_topics else ["--no-auto-create-topics"]
        self._options += ["--nodes", str(nodes), "--control", "127.0.0.1:0"]
        for name, value in (configs or {}).items():
            self._options += ["--topic-default", f"{name}={value}"]
        if upkeep_interval is not None:
            self._options += ["--cleaner-interval", str(upkeep_interval)]
            self._options += ["--retention-check-interval", str(upkeep_interval)]

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:PORT`, for the `bootstrap.servers` of any client."""
        return f"{self.host}:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.stop()
        finally:
            if self._removal is not None:
                self._removal()

    def start(self) -> None:
        """Start it, and return when it listens; nothing happens if it runs. Raises `IngestdError`, with its log."""
        if self._channel is not None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        ours.settimeout(_TIMEOUT)
        with theirs, self.log.open("ab") as log:
            broker_starter().start([*self._options, "--listen", self.bootstrap], theirs.fileno(), log.fileno())
        with ours.makefile("r") as lines:
            self.pid = int(lines.readline().partition(" ")[2] or 0)
            ready = lines.readline().split()
        if not ready:
            ours.close()
            said = self.log.read_bytes()[-_SHOWN:].decode(errors="replace")
            raise IngestdError(f"the broker at {self.bootstrap} did not start; its log ends with:\n{said}")
        self._channel = ours
        self._process = os.pidfd_open(self.pid)
        self.port = int(ready[-1])

    def stop(self) -> None:
        """End it in order, and return when its process is gone; nothing happens if it does not run.

        Raises `IngestdError` if it does not end in 30 s. Then it is killed.
        """
        if self._channel is not None:
            self._channel.shutdown(socket.SHUT_WR)
            self._await_end(self._channel)

    def kill(self) -> None:
        """End it by SIGKILL, as a crash does. `start` recovers its topics."""
        if self._channel is not None:
            self._kill()
            self._await_end(self._channel)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has died by itself
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def _await_end(self, channel: socket.socket) -> None:
        self._channel = None
        ending = select.poll()
        ending.register(self._process, select.POLLIN)
        try:
            if not ending.poll(_TIMEOUT * 1000):
                self._kill()
                raise IngestdError(f"the broker at {self.bootstrap} did not end in {_TIMEOUT:.0f} s: killed")
        finally:
            os.close(self._process)
            channel.close()

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic.

        Raises `KafkaError`, as for a topic that exists; `IngestdError` if the broker does not run; other `OSError`.
        """
        from ingestd.wire.codec import request_module  # noqa: PLC0415 - every pytest imports this module; few need it

        schema = request_module("create_topics", 5)
        settings = tuple(schema.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items())
        topic = schema.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=-1, assignments=(), configs=settings
        )
        (created,) = self._ask(schema.CreateTopicsRequest(topics=(topic,))).topics
        if created.error_code:
            raise KafkaError(created.error_code, created.error_message or name)

    def _ask(self, request: Any) -> Any:
        from ingestd.wire.codec import (  # noqa: PLC0415 - as above
            decode_response,
            encode_entity,
            frame_request,
            skip_response_header,
        )

        api, version = request.__api_key__, request.__version__
        parts, _size = frame_request(api, version, 1, "ingestd.testing", [encode_entity(request)])
        with self._connected() as connection:
            connection.sendall(b"".join(parts))
            with connection.makefile("rb") as stream:
                answer = stream.read(int.from_bytes(stream.read(4), "big"))
        return decode_response(request, bytes(skip_response_header(api, version, memoryview(answer))))

    def _connected(self) -> socket.socket:
        try:
            return socket.create_connection((self.host, self.port), _TIMEOUT)
        except ConnectionRefusedError:
            raise IngestdError(f"the broker at {self.bootstrap} does not run; start it first") from None
