"""Proxies between a client and a cluster's nodes, which cut connections at chosen moments of chosen requests.

For clusters started with `proxied=True`: their nodes advertise the proxies' ports, so everything a client does goes
through here. Runs on the test's own event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter, deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Self

from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from harness.cluster import KafkaCluster

__all__ = ["Moment", "Proxies"]

_HEAD = struct.Struct(">ihhi")
_ANSWER_HEAD = struct.Struct(">ii")
_SIZE = struct.Struct(">i")


class Moment(Enum):
    """When a connection is cut."""

    before_request = auto()
    """The node never hears of the request."""
    in_request = auto()
    """The node gets the first half of the request."""
    before_answer = auto()
    """The node has done what it was asked, and the client does not hear of it."""
    in_answer = auto()
    """The client gets the first half of the answer."""


class Proxies:
    """One listening proxy for each node. Async context manager.

    Invariants
        Each cut that was ordered happens once; `cuts` counts those that happened, by API.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        assert cluster.proxied, "the cluster was not started with proxied=True"
        self._targets = cluster.proxied
        self._orders: list[tuple[Api, Moment]] = []
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts: Counter[Api] = Counter()
        self.requests: Counter[Api] = Counter()
        """Requests that came from clients, by API."""

    @property
    def bootstrap(self) -> list[str]:
        """HOST:PORT of every proxy."""
        return [f"127.0.0.1:{outer}" for outer in self._targets]

    def cut(self, api: Api, moment: Moment, times: int = 1) -> None:
        """Cut the connection that carries the next request of `api`, so many times."""
        self._orders += [(api, moment)] * times

    @property
    def waiting(self) -> list[tuple[Api, Moment]]:
        """Cuts that were ordered and did not happen yet."""
        return list(self._orders)

    async def __aenter__(self) -> Self:
        for outer, inner in self._targets.items():
            server = await asyncio.start_server(
                lambda reader, writer, inner=inner: self._serve(reader, writer, inner), "127.0.0.1", outer
            )
            self._servers.append(server)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take_order(self, api: Api, moments: tuple[Moment, Moment]) -> Moment | None:
        for order in self._orders:
            if order[0] is api and order[1] in moments:
                self._orders.remove(order)
                self.cuts[api] += 1
                return order[1]
        return None

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inner: int) -> None:
        task = asyncio.create_task(self._pass_on(reader, writer, inner))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inner: int) -> None:
        try:
            node_reader, node_writer = await asyncio.open_connection("127.0.0.1", inner, limit=1 << 20)
        except OSError:
            writer.transport.abort()  # As a node that is down would.
            return
        in_flight: deque[tuple[int, Api]] = deque()
        ways = [
            asyncio.create_task(self._requests(reader, node_writer, in_flight)),
            asyncio.create_task(self._answers(node_reader, writer, in_flight)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            # The node is closed in order, so that it reads what was passed on before; the client is cut.
            node_writer.close()
            writer.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, node: asyncio.StreamWriter, in_flight: deque[tuple[int, Api]]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await _frame(reader)
                _, key, _, correlation_id = _HEAD.unpack_from(frame)
                api = Api(key)
                self.requests[api] += 1
                moment = self._take_order(api, (Moment.before_request, Moment.in_request))
                if moment is Moment.in_request:
                    node.write(frame[: len(frame) // 2])
                    await node.drain()
                if moment is not None:
                    return
                in_flight.append((correlation_id, api))
                node.write(frame)
                await node.drain()

    async def _answers(
        self, node: asyncio.StreamReader, writer: asyncio.StreamWriter, in_flight: deque[tuple[int, Api]]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await _frame(node)
                _, correlation_id = _ANSWER_HEAD.unpack_from(frame)
                while in_flight and in_flight[0][0] != correlation_id:
                    in_flight.popleft()  # Without an answer (acks=0).
                _, api = in_flight.popleft()
                moment = self._take_order(api, (Moment.before_answer, Moment.in_answer))
                if moment is Moment.in_answer:
                    writer.write(frame[: len(frame) // 2])
                    await writer.drain()
                if moment is not None:
                    return
                writer.write(frame)
                await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """One request or answer, with its size before it."""
    size = await reader.readexactly(_SIZE.size)
    return size + await reader.readexactly(*_SIZE.unpack(size))
