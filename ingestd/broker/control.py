"""The control endpoint: a test says here what shall go wrong. Off unless asked for, and for this machine alone.

One JSON object a line, and one in answer: `{"ok": true}`, or `{"error": "…"}`. What is not understood changes nothing.

    {"move": "orders", "partition": 0, "node": 2}
    {"fail": "produce", "error": "not_leader_or_follower", "times": 3, "node": 1}
    {"delay": "fetch", "seconds": 0.5}
    {"cut": "produce"}          {"cut_answer": "produce"}
    {"refuse": 2}               {"clear": true}               {"waiting": true}
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import orjson

from ingestd.broker.control_commands import read_command
from ingestd.broker.faults import FAILABLE, Action, Fault
from ingestd.broker.log.files import write_replaceable
from ingestd.checks import did_you_mean, is_loopback
from ingestd.errors import ConfigurationError, ErrorCode, IngestdError
from ingestd.logs import get_logger
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ingestd.broker.broker import Broker

__all__ = ["CONTROL_FILE", "Control"]

CONTROL_FILE: Final = "control.address"
"""The file of the data directory that says where the control endpoint is."""
_LONGEST_LINE: Final = 64 * 1024
_log = get_logger(__name__)


class Control:
    """Listens at `address`, a host and port of loopback. `end_connections` ends those of a node."""

    def __init__(self, broker: Broker, address: tuple[str, int], end_connections: Callable[[int], None]) -> None:
        if not is_loopback(address[0]):
            raise ConfigurationError(f"control: {address[0]} is reached by other machines; expected 127.0.0.1")
        self._broker = broker
        self._address = address
        self._end_connections = end_connections
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen, and write `CONTROL_FILE`. Raises `OSError`."""
        self._server = await asyncio.start_server(self._serve, *self._address, limit=_LONGEST_LINE)
        host, port = self._server.sockets[0].getsockname()[:2]
        write_replaceable(self._broker.settings.data / CONTROL_FILE, f"{host}:{port}\n".encode())
        _log.warning("control endpoint: whoever reaches it can break this broker; for tests", address=f"{host}:{port}")

    def close(self) -> None:
        """Stop listening, and end connections."""
        if self._server is not None:
            self._server.close()
            (self._broker.settings.data / CONTROL_FILE).unlink(missing_ok=True)
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                writer.write(orjson.dumps(self._answer(line), option=orjson.OPT_APPEND_NEWLINE))
                await writer.drain()
        except (ConnectionError, ValueError) as error:  # the second: a line that is too long
            _log.warning("control connection ended", reason=str(error))
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return self._done(read_command(line))
        except IngestdError as refused:
            return {"error": str(refused)}

    def _done(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        faults = self._broker.faults
        match asked:
            case {"move": topic, "partition": partition, "node": node}:
                self._broker.cluster.lead(topic, partition, node)
            case {"refuse": node}:
                faults.refuse(self._known(node))
                self._end_connections(node)
            case {"clear": True}:
                faults.clear()
            case {"waiting": True}:
                return {"ok": True, "waiting": faults.waiting}
            case _:
                if asked["node"] is not None:
                    self._known(asked["node"])
                faults.add(_fault(asked), asked["times"])
        return {"ok": True}

    def _known(self, node: int) -> int:
        nodes = [one.id for one in self._broker.cluster.nodes]
        if node not in nodes:
            raise IngestdError(f"node {node} is not one of {nodes}")
        return node


def _fault(asked: Mapping[str, Any]) -> Fault:
    action = next(one for one in Action if one.value in asked)
    api = Api[_named("request", asked[action.value], Api.__members__)]
    if action is not Action.fail:
        return Fault(action, api, asked["node"], float(asked.get("seconds", 0)))
    if api not in FAILABLE:
        failable = ", ".join(sorted(one.name for one in FAILABLE))
        raise IngestdError(f"{api.name} can not be failed, only delayed or cut; what can be: {failable}")
    errors = [code.name for code in ErrorCode if code is not ErrorCode.none]
    return Fault(action, api, asked["node"], error=ErrorCode[_named("error", asked["error"], errors)])


def _named(what: str, given: str, known: Collection[str]) -> str:
    if given not in known:
        close = did_you_mean(given.lower(), known)
        raise IngestdError(f"no {what} of Kafka is {given!r}; expected a name of its protocol, in lower case{close}")
    return given
