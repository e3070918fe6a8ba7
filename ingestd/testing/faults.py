"""What a test lets go wrong at its broker. Each call is answered when it is in effect."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, Final

from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BrokerFaults"]

_TIMEOUT: Final = 30.0


class BrokerFaults:
    """Speaks to the control endpoint of a broker.

    All methods raise `IngestdError` for what the broker refuses, and if it does not run. `api` is a request's name as
    in Kafka, in lower case (`produce`, `fetch`, `offset_commit`). `times` is how many requests are hit. `node` is the
    id of the node that they come to; None: any.
    """

    def __init__(self, data: Path) -> None:
        self._address_file = data / "control.address"

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Let another replica lead a partition."""
        self._ask(move=topic, partition=partition, node=node)

    def fail(self, api: str, error: str, *, times: int = 1, node: int | None = None) -> None:
        """Answer with an error (`not_leader_or_follower`), and do nothing. For requests to leaders and coordinators."""
        self._ask(fail=api, error=error, times=times, node=node)

    def delay(self, api: str, seconds: float, *, times: int = 1, node: int | None = None) -> None:
        """Do it later. What is behind it on its connection waits too."""
        self._ask(delay=api, seconds=seconds, times=times, node=node)

    def cut(self, api: str, *, times: int = 1, node: int | None = None) -> None:
        """End the connection before the request is done."""
        self._ask(cut=api, times=times, node=node)

    def cut_answer(self, api: str, *, times: int = 1, node: int | None = None) -> None:
        """Do it, then end the connection without an answer: the client can not know."""
        self._ask(cut_answer=api, times=times, node=node)

    def refuse(self, node: int) -> None:
        """Let a node end its connections and take no other one, until `clear`."""
        self._ask(refuse=node)

    def clear(self) -> None:
        """Let nothing go wrong any more. Leaders stay where they are."""
        self._ask(clear=True)

    @property
    def waiting(self) -> int:
        """How many requests are still to be hit."""
        return int(self._ask(waiting=True)["waiting"])

    def _ask(self, **asked: Any) -> dict[str, Any]:
        with self._connected() as connection, connection.makefile("rwb") as lines:
            lines.write(json.dumps(asked).encode() + b"\n")
            lines.flush()
            answer: dict[str, Any] = json.loads(lines.readline())
        if "error" in answer:
            raise IngestdError(f"{asked}: {answer['error']}")
        return answer

    def _connected(self) -> socket.socket:
        try:
            host, _, port = self._address_file.read_text().strip().rpartition(":")
            return socket.create_connection((host, int(port)), _TIMEOUT)
        except (FileNotFoundError, ConnectionRefusedError):
            raise IngestdError("faults: the broker does not run; start it first") from None
