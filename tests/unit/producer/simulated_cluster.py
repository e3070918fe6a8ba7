"""A cluster in memory, in simulated time, that fails in every way that a script or a random source says.

The brokers decode requests and encode answers with kio, so what the producer writes by hand is read by someone else.
A connection takes the bytes of a request when the request arrives, not when it is sent, as a kernel short of room
would: whoever touches a batch that is still in flight breaks its checksum.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from io import BytesIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from kio.schema.produce.v12 import request as request_v12
from kio.schema.produce.v12 import response as response_v12
from kio.schema.produce.v13 import request as request_v13
from kio.schema.produce.v13 import response as response_v13
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta

from ingestd.client.metadata import ClusterMetadata, NewLeader, Node, PartitionMetadata, TopicMetadata
from ingestd.errors import BufferFull, ConnectionLost, DeadlineExceeded, ErrorCode, IngestdError
from ingestd.records.batch import check_crc, read_header
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Compression
from ingestd.records.decode import decode_records
from ingestd.wire.versions import ApiVersions

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Sequence

T = TypeVar("T")

MESSAGES = {12: (request_v12, response_v12), 13: (request_v13, response_v13)}
TRIP = 0.002


@dataclass
class ProducerState:
    """What a broker remembers of a producer id in one partition."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))


class SimulatedLog:
    """One partition, as Kafka's leader keeps it: checks sequences, remembers five batches per producer."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.producers: dict[int, ProducerState] = {}
        self.largest = 1 << 30
        self.error: ErrorCode = ErrorCode.none

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        """Append a batch: the error, and the offset."""
        check_crc(data)
        header = read_header(data)
        assert header.size == len(data)
        assert header.base_offset == 0
        if self.error is not ErrorCode.none:
            return self.error, -1
        if len(data) > self.largest:
            return ErrorCode.message_too_large, -1
        records = decode_records(data)
        assert len(records) == header.records == header.last_offset_delta + 1
        offset = len(self.values)
        if header.producer_id >= 0:
            error, known = self._check(header.producer_id, header.producer_epoch, header.base_sequence, len(records))
            if error is not None:
                return error, known
            state = self.producers[header.producer_id]
            last = (header.base_sequence + len(records) - 1) & 0x7FFFFFFF
            state.batches.append((header.base_sequence, last, offset))
        self.values.extend(record.value or b"" for record in records)
        return ErrorCode.none, offset

    def _check(self, producer_id: int, epoch: int, first: int, count: int) -> tuple[ErrorCode | None, int]:
        state = self.producers.get(producer_id)
        if state is None:
            self.producers[producer_id] = ProducerState(epoch)
            return None, -1
        if epoch < state.epoch:
            return ErrorCode.invalid_producer_epoch, -1
        if epoch > state.epoch:
            if first != 0:
                return ErrorCode.out_of_order_sequence_number, -1
            self.producers[producer_id] = ProducerState(epoch)
            return None, -1
        last = (first + count - 1) & 0x7FFFFFFF
        for known_first, known_last, offset in state.batches:
            if (known_first, known_last) == (first, last):
                return ErrorCode.none, offset
        if state.batches and first != (state.batches[-1][1] + 1) & 0x7FFFFFFF:
            return ErrorCode.out_of_order_sequence_number, -1
        return None, -1

    def restart(self) -> None:
        """A clean restart: the snapshot holds the last batch of each producer only."""
        for state in self.producers.values():
            while len(state.batches) > 1:
                state.batches.popleft()


@dataclass
class Fault:
    """What happens to one partition's batch, or (the last three) to a whole request and its connection."""

    error: ErrorCode = ErrorCode.none
    appended: bool = True
    lost: bool = False
    """The connection ends instead of an answer."""
    late: float = 0.0
    """With `lost`: the broker works on the request so much later, when the producer has gone on."""
    hang: bool = False
    """No answer ever comes."""


class Faults:
    """A script: what to do with the next requests. Empty: all is well."""

    def __init__(self) -> None:
        self.script: deque[Fault] = deque()

    def next(self) -> Fault:
        """The fault of the next request."""
        return self.script.popleft() if self.script else Fault()

    def trip(self) -> float:
        """Seconds on the wire."""
        return TRIP


class RandomFaults(Faults):
    """Anything at any moment, until it is told to stop."""

    def __init__(self, source: random.Random, rate: float, refusals: tuple[ErrorCode, ...] = ()) -> None:
        super().__init__()
        self.refusals = refusals
        self.source = source
        self.rate = rate

    def next(self) -> Fault:
        source = self.source
        if source.random() >= self.rate:
            return Fault()
        refused = (
            ErrorCode.not_leader_or_follower,
            ErrorCode.not_enough_replicas,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.leader_not_available,
            ErrorCode.corrupt_message,
            *self.refusals,
        )
        appended = (
            ErrorCode.request_timed_out,
            ErrorCode.not_enough_replicas_after_append,
            ErrorCode.not_leader_or_follower,
            ErrorCode.kafka_storage_error,
        )
        return source.choice(
            [
                Fault(source.choice(refused), appended=False),
                Fault(source.choice(appended)),
                Fault(lost=True, appended=False),
                Fault(lost=True),
                Fault(lost=True, late=source.choice((0.01, 0.1, 2.0))),
                Fault(hang=True, appended=source.random() < 0.5),
            ]
        )

    def trip(self) -> float:
        return self.source.choice((0.0, 0.001, 0.02))


class SimulatedConnection:
    """One connection to one node: requests arrive, are worked on, and answered one after the other."""

    def __init__(self, cluster: SimulatedCluster, node: int) -> None:
        self.cluster = cluster
        self.node = node
        self.versions = ApiVersions({0: (3, cluster.produce_version), 22: (0, 5)})
        self.error: IngestdError | None = None
        self.pending: deque[tuple[int, Sequence[Any], asyncio.Future[memoryview], asyncio.TimerHandle]] = deque()
        self.in_flight_peak = 0

    @property
    def full(self) -> bool:
        """Whether it has as many requests as it may."""
        limit = self.cluster.in_flight_limit
        return limit > 0 and len(self.pending) >= limit

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self.error is not None

    def send(
        self, api: int, version: int, body: Sequence[Any], *, timeout: float, expect_answer: bool = True
    ) -> asyncio.Future[memoryview]:
        """See `ingestd.wire.connection.Connection.send`."""
        assert api == 0
        if self.error is not None:
            raise self.error
        if self.full:
            raise BufferFull(f"node {self.node}: {len(self.pending)} requests are in flight")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[memoryview] = loop.create_future()
        timer = loop.call_later(timeout, self.expired)
        self.pending.append((version, body, future, timer))
        self.in_flight_peak = max(self.in_flight_peak, len(self.pending))
        self.cluster.requests += 1
        if len(self.pending) == 1:
            loop.call_later(self.cluster.faults.trip(), self.arrived)
        del expect_answer
        return future

    def expired(self) -> None:
        """The oldest request's deadline."""
        future = self.pending[0][2]
        future.set_exception(DeadlineExceeded(f"node {self.node}: no answer"))
        if self.cluster.connections_end_themselves:
            self.abort(ConnectionLost(f"node {self.node}: no answer in time"))

    def abort(self, error: IngestdError) -> None:
        """End it; nothing is read from the requests after this."""
        if self.error is not None:
            return
        self.error = error
        pending, self.pending = self.pending, deque()
        for _, _, future, timer in pending:
            timer.cancel()
            if not future.done():
                future.set_exception(ConnectionLost(str(error)))

    def arrived(self) -> None:
        """Work on the oldest request."""
        if self.error is not None or not self.pending:
            return
        version, body, future, timer = self.pending[0]
        loop = asyncio.get_running_loop()
        if self.node in self.cluster.down:
            self.abort(ConnectionLost(f"node {self.node} is down"))
            return
        request = self.cluster.read(version, b"".join(body))
        fault = self.cluster.faults.next()
        if fault.lost and fault.late:
            loop.call_later(fault.late, self.cluster.work, version, request, self.node, Fault())
            self.abort(ConnectionLost(f"node {self.node}: connection reset"))
            return
        answer = self.cluster.work(version, request, self.node, fault)
        if fault.hang:
            return
        if fault.lost:
            self.abort(ConnectionLost(f"node {self.node}: connection reset"))
            return
        timer.cancel()
        self.pending.popleft()
        future.set_result(memoryview(answer))
        if self.pending:
            loop.call_later(self.cluster.faults.trip(), self.arrived)


class SimulatedBroker:
    """See `ingestd.client.broker.Broker`."""

    def __init__(self, cluster: SimulatedCluster, node: int) -> None:
        self.cluster = cluster
        self.node = node
        self.current: SimulatedConnection | None = None

    async def connection(self, timeout: float) -> SimulatedConnection:
        """The open one, or a new one after a moment."""
        if self.current is None or self.current.closed:
            await asyncio.sleep(min(TRIP, timeout))
            if self.node in self.cluster.frozen:
                await asyncio.sleep(timeout)
                raise DeadlineExceeded(f"node {self.node}: connecting")
            if self.node in self.cluster.down:
                raise ConnectionLost(f"node {self.node}: connection refused")
            self.current = SimulatedConnection(self.cluster, self.node)
            self.cluster.connections.append(self.current)
        return self.current

    async def request(self, build: Callable[[ApiVersions], Any], timeout: float) -> Any:
        """InitProducerId is all that a producer asks this way."""
        request = build(ApiVersions({22: (0, 5)}))
        assert request.__api_key__ == 22
        await asyncio.sleep(min(TRIP, timeout))
        if len(self.cluster.down) == len(self.cluster.nodes):
            raise ConnectionLost("no node is up")
        self.cluster.producer_ids += 1
        return SimpleNamespace(
            error_code=self.cluster.identity_error, producer_id=self.cluster.producer_ids, producer_epoch=0
        )


class SimulatedMetadata:
    """See `ingestd.client.metadata.MetadataSource`: learns the truth a moment after it was wanted."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.snapshot = ClusterMetadata()
        self.listeners: list[Callable[[ClusterMetadata], None]] = []
        self.wishes: list[tuple[str, ...]] = []
        self.taken = 0
        self.due: asyncio.TimerHandle | None = None
        self.refused: IngestdError | None = None

    def listen(
        self, changed: Callable[[ClusterMetadata], None], uses: Callable[[], Collection[str]] | None = None
    ) -> Callable[[], None]:
        """Tell `changed` of every replacement."""
        del uses
        self.listeners.append(changed)
        return lambda: self.listeners.remove(changed) if changed in self.listeners else None

    def wanted(self, topics: Collection[str], reason: str, *, create: bool = False) -> None:
        """Refresh soon."""
        del reason, create
        self.wishes.append(tuple(topics))
        if self.due is None:
            self.due = asyncio.get_running_loop().call_later(0.01, self.learn)

    @property
    def failure(self) -> None:
        return None

    @property
    def last_error(self) -> IngestdError | None:
        """That no node is up, when it was to learn last."""
        return self.refused

    def hint(self, topic: str, partition: int, leader: int, leader_epoch: int, node: Node | None = None) -> None:
        """Take one partition's leader at once."""
        del node
        known = self.snapshot.partition(topic, partition)
        if known is not None and known.leader_epoch >= leader_epoch:
            return
        self.taken += 1
        del leader
        self.replace(only=partition)

    def hints(self, leaders: Sequence[NewLeader]) -> None:
        """Take every partition's leader at once."""
        for new in leaders:
            self.hint(*new)

    async def refresh(self, topics: Collection[str] | None, timeout: float, *, create: bool = False) -> ClusterMetadata:
        """Refresh now."""
        del topics, timeout, create
        self.learn()
        return self.snapshot

    def learn(self) -> None:
        """The answer to a metadata request."""
        self.due = None
        self.refused = None
        if len(self.cluster.down) < len(self.cluster.nodes):
            self.replace()
        else:
            self.refused = ConnectionLost("no broker answered: every node is down")

    def replace(self, only: int | None = None) -> None:
        """A new snapshot of the truth, or of the old one but for one partition."""
        old = self.snapshot.topics.get(self.cluster.topic)
        partitions = []
        for number, (leader, epoch) in enumerate(self.cluster.leaders):
            if only is not None and old is not None and number != only:
                partitions.append(old.partitions[number])
            else:
                partitions.append(PartitionMetadata(number, leader, epoch, (1, 2, 3), (1, 2, 3)))
        topic = TopicMetadata(self.cluster.topic, self.cluster.topic_id, tuple(partitions))
        topics = {self.cluster.topic: topic} if self.cluster.exists else dict(self.cluster.errors)
        nodes = {node: Node(node, "simulated", node) for node in self.cluster.nodes}
        self.snapshot = ClusterMetadata("simulated", 1, nodes, topics, self.snapshot.version + 1)
        for changed in list(self.listeners):
            changed(self.snapshot)


class SimulatedCluster:
    """Three nodes, one topic, perfect replication; and the client to it (see `ingestd.client.client.Client`)."""

    def __init__(self, partitions: int = 2, faults: Faults | None = None, produce_version: int = 13) -> None:
        self.topic = "events"
        self.topic_id = UUID(int=7)
        self.exists = True
        self.errors: dict[str, TopicMetadata] = {}
        self.nodes = (1, 2, 3)
        self.down: set[int] = set()
        self.frozen: set[int] = set()
        self.connections_end_themselves = True
        self.in_flight_limit = 0
        self.leaders = [(1 + number % 3, 0) for number in range(partitions)]
        self.logs = [SimulatedLog() for _ in range(partitions)]
        self.faults = faults or Faults()
        self.produce_version = produce_version
        self.requests = 0
        self.throttle_ms = 0
        self.appended_at_ms = -1
        """The time that the log stamps records with; -1: it leaves them theirs."""
        self.producer_ids = 0
        self.identity_error = ErrorCode.none
        self.connections: list[SimulatedConnection] = []
        self.brokers = {node: SimulatedBroker(self, node) for node in self.nodes}
        self.metadata = SimulatedMetadata(self)

    def broker(self, node_id: int, purpose: str = "control") -> SimulatedBroker:
        """The node's broker."""
        del purpose
        return self.brokers[node_id]

    def add_status(self, name: str, section: Callable[[], Any]) -> Callable[[], None]:
        """What a producer says of itself is of no interest here."""
        del name, section
        return lambda: None

    async def any(self) -> SimulatedBroker:
        """Any broker."""
        return self.brokers[1]

    async def close(self) -> None:
        """Nothing to end."""

    def move(self, partition: int, leader: int) -> None:
        """A leader election."""
        self.leaders[partition] = (leader, self.leaders[partition][1] + 1)

    def kill(self, node: int) -> None:
        """kill -9: its connections end, its partitions move, and when it comes back it is no leader."""
        self.down.add(node)
        for connection in self.connections:
            if connection.node == node:
                connection.abort(ConnectionLost(f"node {node}: connection reset"))
        for partition, (leader, _) in enumerate(self.leaders):
            if leader == node:
                self.move(partition, 1 + node % 3)

    def read(self, version: int, body: bytes) -> Any:
        """A produce request, by kio."""
        request, size = entity_reader(MESSAGES[version][0].ProduceRequest)(body, 0)
        assert size == len(body)
        return request

    def work(self, version: int, request: Any, node: int, fault: Fault) -> bytes:
        """Append what a request holds, and the answer."""
        messages = MESSAGES[version][1]
        seen: set[int] = set()
        topics = []
        for topic in request.topic_data:
            assert (topic.topic_id == self.topic_id) if version >= 13 else (topic.name == self.topic)
            answers = []
            for data in topic.partition_data:
                assert data.index not in seen, "two batches for one partition in one request"
                seen.add(data.index)
                answers.append(self.work_on(messages, data.index, bytes(data.records), node, fault))
            name = {"topic_id": topic.topic_id} if version >= 13 else {"name": topic.name}
            topics.append(messages.TopicProduceResponse(**name, partition_responses=tuple(answers)))
        answer = messages.ProduceResponse(
            responses=tuple(topics), throttle_time=i32Timedelta.parse(timedelta(milliseconds=self.throttle_ms))
        )
        buffer = BytesIO()
        entity_writer(messages.ProduceResponse)(buffer, answer)
        return buffer.getvalue()

    def work_on(self, messages: Any, partition: int, data: bytes, node: int, fault: Fault) -> Any:
        """One partition's part."""
        there = partition < len(self.leaders)
        leader, epoch = self.leaders[partition] if there else (-1, -1)
        named = {}
        offset = -1
        if not there:
            error = ErrorCode.unknown_topic_or_partition
        elif leader != node:
            error = ErrorCode.not_leader_or_follower
            named = {"current_leader": messages.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)}
        elif fault.appended:
            error, offset = self.logs[partition].append(data)
            if error is ErrorCode.none and fault.error is not ErrorCode.none:
                error, offset = fault.error, -1
        else:
            error = fault.error
        return messages.PartitionProduceResponse(
            index=partition,
            error_code=error,
            base_offset=offset,
            log_append_time=None
            if self.appended_at_ms < 0
            else datetime.fromtimestamp(self.appended_at_ms / 1000, UTC),
            record_errors=(),
            **named,
        )


def ready_batch(values: Sequence[bytes], compression: Compression | None = None) -> bytearray:
    """A whole batch with empty producer fields."""
    builder = BatchBuilder(1 << 30)
    for value in values:
        builder.append(None, value, (), 1)
    return builder.build(compression or Compression())
