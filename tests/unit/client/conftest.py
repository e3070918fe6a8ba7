"""A cluster in memory: connections to its nodes are scripted, what they are asked is recorded. No sockets.

Tests run in simulated time: what they say about seconds holds however the machine stalls.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from simulated_clock import SimulatedClockLoop

from ingestd.client import broker as broker_module
from ingestd.client.settings import ClientSettings
from ingestd.errors import ConnectionLost, DeadlineExceeded, ErrorCode
from ingestd.wire.versions import ApiVersions

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.errors import IngestdError

FAST = ClientSettings(
    connect_timeout=1.0,
    metadata_request_timeout=5.0,
    metadata_minimum_interval=0.01,
    retry_initial=0.001,
    retry_maximum=0.002,
    reconnect_initial=0.001,
    reconnect_maximum=0.002,
)


def pytest_asyncio_loop_factories() -> dict[str, type[SimulatedClockLoop]]:
    return {"simulated": SimulatedClockLoop}


class ScriptedConnection:
    """Answers kio requests from the cluster's script."""

    def __init__(self, cluster: ScriptedCluster, address: str) -> None:
        self.cluster = cluster
        self.address = address
        self.versions = ApiVersions(dict(cluster.ranges))
        self.closed = False
        self.error: IngestdError | None = None
        self.in_flight = 0
        self.ended = asyncio.get_running_loop().create_future()
        self.ended.add_done_callback(lambda ended: ended.exception())

    async def request(self, request: Any, *, timeout: float) -> Any:
        if self.closed:
            raise ConnectionLost(f"{self.address} is closed")
        self.cluster.asked.append((self.address, request))
        self.in_flight += 1
        answering = asyncio.ensure_future(self.cluster.answer(self.address, request))
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wait([answering, self.ended], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            self.abort(DeadlineExceeded(f"{self.address}: not answered within {timeout:g} s"))
        finally:
            self.in_flight -= 1
            if not answering.done():
                answering.cancel()
        if self.ended.done():
            self.ended.result()
        return answering.result()

    def abort(self, error: IngestdError) -> None:
        if not self.closed:
            self.closed = True
            self.error = error
            self.ended.set_exception(error)

    async def close(self) -> None:
        self.abort(ConnectionLost(f"{self.address} was closed"))


class ScriptedCluster:
    """Nodes by address, topics as {name: {partition: (leader, epoch)}}; who is down refuses, who hangs is silent."""

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {1: "one:1", 2: "two:2", 3: "three:3"}
        self.controller = 1
        self.controllers: list[int] = []
        """Whom the next answers name in its stead, as KRaft's brokers name one or another of them."""
        self.topics: dict[str, dict[int, tuple[int, int]]] = {"t": {0: (1, 5), 1: (2, 5), 2: (3, 5)}}
        self.errors: dict[str, list[ErrorCode]] = {}
        self.down: set[str] = set()
        self.hanging: set[str] = set()
        self.asked: list[tuple[str, Any]] = []
        self.connects: list[str] = []
        self.gate: asyncio.Event | None = None
        self.connecting: asyncio.Event | None = None
        self.coordinators: list[ErrorCode | int] = []
        self.topic_ids: dict[str, Any] = {}
        self.coordinator_of: dict[str, ErrorCode | int] = {}
        self.ranges = dict.fromkeys(range(100), (0, 9))
        self.connections: list[ScriptedConnection] = []
        self.scripts: dict[str, Callable[[Any, int, Any], Any]] = {}

    async def open(self, host: str, port: int, **_: Any) -> ScriptedConnection:
        address = f"{host}:{port}"
        self.connects.append(address)
        if self.connecting is not None:
            await self.connecting.wait()
        if address in self.down:
            raise ConnectionLost(f"{address}: refused")
        connection = ScriptedConnection(self, address)
        self.connections.append(connection)
        return connection

    def node_at(self, address: str) -> int:
        """The id of the node at an address; -1 for a seed's."""
        return next((node for node, at in self.nodes.items() if at == address), -1)

    def asked_of(self, name: str) -> list[Any]:
        """The requests of one kind, in order."""
        return [request for _, request in self.asked if type(request).__name__ == f"{name}Request"]

    def metadata_requests(self) -> list[tuple[str, list[str] | None]]:
        """Who was asked for which topics' metadata."""
        return [
            (address, None if request.topics is None else sorted(topic.name for topic in request.topics))
            for address, request in self.asked
            if type(request).__name__ == "MetadataRequest"
        ]

    async def answer(self, address: str, request: Any) -> Any:
        if address in self.hanging:
            await asyncio.get_running_loop().create_future()
        if self.gate is not None:
            await self.gate.wait()
        module = import_module(type(request).__module__.removesuffix("request") + "response")
        scripted = self.scripts.get(type(request).__name__)
        if scripted is not None:
            return scripted(module, self.node_at(address), request)
        if type(request).__name__ == "FindCoordinatorRequest":
            return self._coordinator(module, request)
        return module.MetadataResponse(
            throttle_time=dt.timedelta(0),
            brokers=tuple(
                module.MetadataResponseBroker(
                    node_id=node, host=at.split(":")[0], port=int(at.split(":")[1]), rack=None
                )
                for node, at in self.nodes.items()
            ),
            cluster_id="cluster",
            controller_id=self.controllers.pop(0) if self.controllers else self.controller,
            topics=tuple(self._topic(module, topic.name) for topic in request.topics or ()),
        )

    def _topic(self, module: Any, name: str) -> Any:
        scripted = self.errors.get(name)
        error = scripted.pop(0) if scripted else ErrorCode.none
        if name not in self.topics and error is ErrorCode.none:
            error = ErrorCode.unknown_topic_or_partition
        leaderless = error is ErrorCode.leader_not_available
        partitions = () if error is not ErrorCode.none and not leaderless else self.topics.get(name, {}).items()
        return module.MetadataResponseTopic(
            error_code=ErrorCode.none if leaderless else error,
            name=name,
            **({"topic_id": self.topic_ids.get(name)} if module.MetadataResponse.__version__ >= 10 else {}),
            is_internal=False,
            partitions=tuple(
                module.MetadataResponsePartition(
                    error_code=error,
                    partition_index=number,
                    leader_id=-1 if leaderless else leader,
                    leader_epoch=epoch,
                    replica_nodes=(1, 2, 3),
                    isr_nodes=(1, 2),
                    offline_replicas=(3,),
                )
                for number, (leader, epoch) in partitions
            ),
        )

    def _coordinator(self, module: Any, request: Any) -> Any:
        if not hasattr(request, "coordinator_keys"):
            found = self._coordinator_of(request.key)
            return module.FindCoordinatorResponse(throttle_time=dt.timedelta(0), error_message=None, **found)
        coordinators = tuple(
            module.Coordinator(key=key, error_message=None, **self._coordinator_of(key))
            for key in request.coordinator_keys
        )
        return module.FindCoordinatorResponse(throttle_time=dt.timedelta(0), coordinators=coordinators)

    def _coordinator_of(self, key: str) -> dict[str, Any]:
        outcome = self.coordinator_of[key] if key in self.coordinator_of else self.coordinators.pop(0)
        if isinstance(outcome, ErrorCode):
            return {"node_id": -1, "host": "", "port": -1, "error_code": outcome}
        host, port = self.nodes[outcome].split(":")
        return {"node_id": outcome, "host": host, "port": int(port), "error_code": ErrorCode.none}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    """Three nodes, one topic "t" of three partitions, node 1 the controller."""
    scripted = ScriptedCluster()
    monkeypatch.setattr(broker_module.Connection, "open", scripted.open)
    return scripted


@pytest.fixture
def settings() -> Callable[..., ClientSettings]:
    """Settings with times for tests; keyword arguments replace some."""
    from dataclasses import replace

    def make(**changes: Any) -> ClientSettings:
        return replace(FAST, **changes)

    return make
