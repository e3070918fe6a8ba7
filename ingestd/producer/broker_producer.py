"""Broker producer: one per leader node. Puts the ready batches of its partitions into requests, a few in flight."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from ingestd.errors import Closed, ConnectionLost, DeadlineExceeded, IngestdError, KafkaError
from ingestd.producer.produce_set import ProduceSet, produce_version

if TYPE_CHECKING:
    from ingestd.client.client import Client
    from ingestd.producer.events import ProducerEvents
    from ingestd.producer.partition_producer import PartitionProducer
    from ingestd.producer.settings import ProducerSettings
    from ingestd.producer.transaction_members import TransactionMembers
    from ingestd.tasks import TaskOwner
    from ingestd.wire.connection import Connection

__all__ = ["BrokerProducer"]

_PRODUCE: Final = 0
_WATCH: Final = 1.0
"""Seconds between checks of a slow node. If a connection is not open after so long, the leader is asked for."""
_CROWDED: Final = 0.01
"""Seconds until the next check of a connection that is full of other producers' requests."""
_SLOW: Final = 3.0
"""Seconds without an answer. Then the leader is asked for. If it is another one by now, the answer is given up."""


class BrokerProducer:
    """Sends what its partitions have ready, whenever there is room for a request. Costs nothing while there is no work.

    Invariants
        Requests of one connection are sent, and answered, in order; at most `in_flight_requests` are under way.
        Partitions are served in turn: one that always has more does not starve the others.
        Every batch of a connection that died, or was given up after a timeout, is handed back. The connection is
        aborted before that, so that no transport holds their memory.
        A frozen node holds its partitions up no longer than it takes the cluster to elect other leaders.
        Callbacks do the work; the only task is the one that opens a connection, and it ends with that.
    """

    def __init__(
        self,
        node: int,
        client: Client,
        settings: ProducerSettings,
        tasks: TaskOwner,
        events: ProducerEvents | None,
        transaction: TransactionMembers | None = None,
    ) -> None:
        """`transaction` knows the highest version of Produce for the open transaction."""
        self._node = node
        self._transaction = transaction
        self._client = client
        self._settings = settings
        self._tasks = tasks
        self._events = events
        self._ready: OrderedDict[PartitionProducer, None] = OrderedDict()
        self._connection: Connection | None = None
        self._version = 0
        self._connecting = False
        self._under_way: dict[ProduceSet, float] = {}
        """Requests without an answer, the oldest first, and when each was sent."""
        self._drain_due = False
        self._pause: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False
        self._limit = settings.request_bytes
        self._acks = settings.required_acks
        self._acknowledge_ms = int(settings.acknowledge_timeout * 1000)

    def ready(self, partition: PartitionProducer) -> None:
        """This partition has a batch to send. Cheap: requests are filled once, in the next turn of the event loop."""
        self._ready.setdefault(partition)
        self._wake()

    def abort(self, error: IngestdError) -> None:
        """End: nothing more is sent, and no transport holds a batch. The caller ends the partitions."""
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._ready.clear()
        if self._connection is not None and self._under_way:
            # Only then: other producers of the client may use the same connection.
            self._connection.abort(error)
        self._connection = None

    def _wake(self) -> None:
        if not self._drain_due and len(self._under_way) < self._settings.in_flight_requests and self._pause is None:
            self._drain_due = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        self._drain_due = False
        if self._closed or not self._ready or self._pause is not None:
            return
        connection = self._connection
        if connection is None or connection.closed:
            if not self._connecting:
                self._connecting = True
                self._begin_watch()
                self._tasks.start(self._connect(), f"connect to node {self._node}")
            return
        while self._ready and len(self._under_way) < self._settings.in_flight_requests:
            if connection.full:
                if not self._under_way:  # it is full of requests of other producers: no answer of ours will make room
                    self._pause = asyncio.get_running_loop().call_later(_CROWDED, self._resume)
                return
            produce_set = self._fill()
            if not produce_set.entries:
                return
            self._send(connection, produce_set)
            if self._connection is not connection:
                return

    def _fill(self) -> ProduceSet:
        produce_set = ProduceSet()
        ready = self._ready
        for _ in range(len(ready)):
            partition = next(iter(ready))
            batch = partition.next(self)
            if batch is None:
                del ready[partition]
                continue
            if produce_set.entries and produce_set.size + len(batch.data) > self._limit:
                break
            partition.take(batch)
            produce_set.add(partition, batch)
            ready.move_to_end(partition)
        return produce_set

    def _send(self, connection: Connection, produce_set: ProduceSet) -> None:
        settings = self._settings
        version = self._version
        if self._transaction is not None:
            version = min(version, self._transaction.highest_produce)
        for partition, batch, error in produce_set.suit(version, self._node):
            partition.returned(batch, error)
        if not produce_set.entries:
            return
        self._under_way[produce_set] = asyncio.get_running_loop().time()
        self._begin_watch()
        topics = self._client.metadata.snapshot.topics
        version, body = produce_set.request(
            version, self._acks, self._acknowledge_ms, topics, settings.transactional_id
        )
        try:
            answer = connection.send(
                _PRODUCE, version, body, timeout=settings.request_timeout, expect_answer=self._acks != 0
            )
        except IngestdError as error:
            self._lost(connection, produce_set, error)
            return
        answer.add_done_callback(lambda future: self._answered(connection, version, produce_set, future))

    def _answered(
        self, connection: Connection, version: int, produce_set: ProduceSet, future: asyncio.Future[memoryview]
    ) -> None:
        if self._closed:
            if not future.cancelled():
                future.exception()
            return
        if future.cancelled():
            self._lost(connection, produce_set, ConnectionLost(f"node {self._node}: the request was cancelled"))
            return
        error = future.exception()
        if error is not None:
            self._lost(connection, produce_set, error)
            return
        try:
            if self._acks:
                throttle_ms = produce_set.answer(version, future.result(), self._client.metadata)
            else:
                throttle_ms = 0
                for partition, batch in produce_set.entries:
                    partition.acknowledged(batch, -1, -1)
        except IngestdError as damage:
            self._lost(connection, produce_set, ConnectionLost(f"node {self._node}: {damage}"))
            return
        del self._under_way[produce_set]
        if throttle_ms > 0:
            self._throttle(throttle_ms / 1000)
        if self._ready:
            self._wake()

    def _lost(self, connection: Connection, produce_set: ProduceSet, error: BaseException) -> None:
        """Hand all batches of a request back, once the transport does not hold them any more."""
        if not isinstance(error, (ConnectionLost, DeadlineExceeded)):
            error = ConnectionLost(f"node {self._node}: {error!r}")
        connection.abort(error)
        if self._connection is connection:
            self._connection = None
        del self._under_way[produce_set]
        for partition, batch in produce_set.entries:
            partition.returned(batch, error)
        if self._ready:
            self._wake()

    def _throttle(self, seconds: float) -> None:
        if self._events is not None:
            self._events.throttled(self._node, seconds)
        if self._pause is not None:
            self._pause.cancel()
        self._pause = asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._drain()

    async def _connect(self) -> None:
        try:
            try:
                broker = self._client.broker(self._node, "produce")
            except KafkaError as error:
                # It may be back with the next metadata.
                raise ConnectionLost(f"node {self._node}: {error}") from error
            connection = await broker.connection(self._settings.connect_timeout)
            self._version = produce_version(connection.versions)
        except IngestdError as error:
            self._connecting = False
            self._unreachable(error)
            return
        except BaseException:
            self._connecting = False
            self._unreachable(Closed(f"node {self._node}: the producer is closing"))
            raise
        self._connecting = False
        if self._closed:
            return
        self._connection = connection
        self._drain()

    def _begin_watch(self) -> None:
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(_WATCH, self._look)

    def _look(self) -> None:
        """While requests are under way: check whether the node is slow, and whether it still leads its partitions."""
        self._watch = None
        if not self._connecting and not self._under_way:
            return
        self._begin_watch()
        slow = set(self._ready) if self._connecting else set()
        sent_at = next(iter(self._under_way.values()), None)
        if sent_at is not None and asyncio.get_running_loop().time() - sent_at >= _SLOW:
            # Answers come in order, so the oldest request holds all others up.
            awaited = {partition for produce_set in self._under_way for partition, _ in produce_set.entries}
            if self._connection is not None and any(partition.moved for partition in awaited):
                self._connection.abort(ConnectionLost(f"node {self._node} does not answer; its partitions have moved"))
                return
            slow |= awaited.union(self._ready)
        if slow:
            self._client.metadata.wanted({each.topic for each in slow}, f"node {self._node} is slow")

    def _unreachable(self, error: IngestdError) -> None:
        waiting, self._ready = self._ready, OrderedDict()
        for partition in waiting:
            if partition.next(self) is not None:
                partition.unreachable(error)
