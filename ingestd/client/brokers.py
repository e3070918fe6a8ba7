"""Brokers: all broker objects of a client, for seeds and nodes. A node that fails, or is gone, is deregistered."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import TYPE_CHECKING

from ingestd.checks import parse_address
from ingestd.client.broker import Broker
from ingestd.client.metadata import Node
from ingestd.errors import Closed, ErrorCode, KafkaError, WrongSetting
from ingestd.tasks import TaskOwner, same_loop

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Iterator, Mapping, Sequence

    from ingestd.client.metadata import ClusterMetadata
    from ingestd.client.settings import ClientSettings
    from ingestd.errors import IngestdError

__all__ = ["CONTROL", "Brokers"]

CONTROL = "control"
"""The purpose of connections for metadata and administration."""

_FIRST_SEED_ID = -2  # -1 means "no node" in the protocol


def _seed(address: str) -> tuple[str, int]:
    """Host and port of a bootstrap address. Raises `WrongSetting`."""
    if not isinstance(address, str):
        raise WrongSetting("bootstrap", f'"host:port", not {address!r}')
    try:
        host, port = parse_address(address)
    except ValueError as error:
        raise WrongSetting("bootstrap", f'"host:port", as in "kafka-1:9092": {error}') from None
    if not port:
        raise WrongSetting("bootstrap", f"a port from 1 to 65535, not {address!r}")
    return host, port


class Brokers:
    """One `Broker` for each node and purpose, and one for each seed address.

    Invariants
        Seeds have ids below -1. They are asked only if no node is known, or if no known node answers.
        A node that failed is not among `candidates` until metadata names it again.
    """

    def __init__(self, bootstrap: Sequence[str], settings: ClientSettings) -> None:
        if isinstance(bootstrap, (str, bytes)) or not isinstance(bootstrap, Collection):
            raise WrongSetting("bootstrap", f'a list of addresses, as in ["kafka-1:9092"], not {bootstrap!r}')
        addresses = list(dict.fromkeys(_seed(address) for address in bootstrap))
        random.shuffle(addresses)  # so that not all clients begin with the same broker
        self._settings = settings
        self._seed_nodes = [Node(_FIRST_SEED_ID - n, host, port) for n, (host, port) in enumerate(addresses)]
        self._nodes: dict[int, Node] = {}
        self._replaced_by: Mapping[int, Node] | None = None
        self._failed: set[int] = set()
        self._brokers: dict[tuple[int, str], Broker] = {}
        self._tasks = TaskOwner()
        self._closed = False
        self.refusal: IngestdError | None = None
        """Why there are no brokers any more, if the reason is not that the client was closed."""
        self._loop: AbstractEventLoop | None = None

    def check_place(self) -> None:
        """Raise the reason if nothing can be asked: `refusal`, or `WrongLoop` on another event loop than before."""
        if self.refusal is not None:
            raise self.refusal
        self._loop = same_loop(self._loop, "the client")

    def broker(self, node_id: int, purpose: str = CONTROL) -> Broker:
        """The broker object of a known node. Raises `KafkaError` (BROKER_NOT_AVAILABLE), `Closed`."""
        node = self._nodes.get(node_id)
        if node is None:
            raise KafkaError(ErrorCode.broker_not_available, f"node {node_id} is not in the cluster's metadata")
        return self._of(node, purpose)

    def candidates(self) -> Iterator[Broker]:
        """The brokers to ask for what any broker can answer, in order.

        First connected nodes, the least busy one first. Then the other nodes in random order, then those that did not
        answer last time, then the seeds. Nodes that fail meanwhile are skipped. If all have failed, all get another
        chance.
        """
        if self._failed.issuperset(node.id for node in (*self._nodes.values(), *self._seed_nodes)):
            self._failed.clear()
        nodes = [node for node in self._nodes.values() if node.id not in self._failed]
        random.shuffle(nodes)
        silent = {node_id for (node_id, _), broker in self._brokers.items() if broker.silent}
        nodes.sort(key=lambda node: (node.id in silent, *self._preference(node)))
        for node in nodes:
            if node.id not in self._failed and self._nodes.get(node.id) is node:
                yield self._of(node, CONTROL)
        for node in self._seed_nodes:
            if node.id not in self._failed:
                yield self._of(node, CONTROL)

    def any(self, purpose: str) -> Broker:
        """The first of `candidates`, for this purpose. Raises `KafkaError` (BROKER_NOT_AVAILABLE): there is none."""
        broker = next(self.candidates(), None)
        if broker is None:
            raise KafkaError(ErrorCode.broker_not_available, "no broker is known yet")
        return self._of(broker.node, purpose)

    def register(self, node: Node) -> None:
        """Add a node that another answer than metadata named (a coordinator, a new leader)."""
        self._failed.discard(node.id)
        self._nodes[node.id] = node
        for (node_id, _), broker in self._brokers.items():
            if node_id == node.id:
                broker.moved(node)

    def deregister(self, broker: Broker, reason: str) -> None:
        """Close a broker that failed. `candidates` skips its node until metadata names it again."""
        self._failed.add(broker.node.id)
        for key, registered in list(self._brokers.items()):
            if registered is broker:
                self._drop(key, reason)

    def release(self, broker: Broker) -> None:
        """End a broker object, and its connection, that nobody needs any more."""
        for key, registered in list(self._brokers.items()):
            if registered is broker:
                self._drop(key, "nobody needs it any more")

    def replace(self, metadata: ClusterMetadata) -> None:
        """Take the nodes of new metadata: moved ones get their new addresses, missing ones are deregistered."""
        if not metadata.nodes or metadata.nodes is self._replaced_by:
            return  # nothing known, or only partitions have changed
        self._replaced_by = metadata.nodes
        self._failed.clear()
        self._nodes = dict(metadata.nodes)
        for key, broker in list(self._brokers.items()):
            node = self._nodes.get(key[0])
            if node is not None:
                broker.moved(node)
            elif key[0] >= 0 or broker.in_flight == 0:
                # The connection of an idle seed ends too: from now on its node is reached by its own id.
                self._drop(key, "not in the cluster's metadata")

    def all(self) -> list[tuple[str, Broker]]:
        """Every broker object there is, with its purpose."""
        return [(purpose, broker) for (_, purpose), broker in list(self._brokers.items())]

    @property
    def known(self) -> Mapping[int, Node]:
        """Nodes by id; without seeds."""
        return self._nodes

    async def close(self) -> None:
        """Close every broker. Never waits for the network."""
        self._closed = True
        brokers = list(self._brokers.values())
        self._brokers.clear()
        for broker in brokers:
            broker.deregister("the client is closed")
        for broker in brokers:
            await broker.close()
        await self._tasks.finish()

    def _preference(self, node: Node) -> tuple[bool, bool, int]:
        broker = self._brokers.get((node.id, CONTROL))
        if broker is None:
            return True, False, 0
        return not broker.connected, broker.failing, broker.in_flight

    def _of(self, node: Node, purpose: str) -> Broker:
        self.check_place()
        if self._closed:
            raise Closed("the client is closed")
        key = node.id, purpose
        broker = self._brokers.get(key)
        if broker is None:
            broker = self._brokers[key] = Broker(node, self._settings)
        return broker

    def _drop(self, key: tuple[int, str], reason: str) -> None:
        broker = self._brokers.pop(key)
        broker.deregister(reason)
        if not self._closed:
            self._tasks.start(broker.close(), f"close broker {broker.node.id}")
