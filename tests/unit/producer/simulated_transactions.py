"""A cluster in memory with a transaction coordinator and a group coordinator that follow Kafka's rules.

Both protocols: transaction.version 1 (partitions are added by request, the epoch stays) and 2 (KIP-890). Readers of
committed records are `committed`, readers of committed offsets are `offsets`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kio.schema.produce.v11 import request as request_v11
from kio.schema.produce.v11 import response as response_v11
from simulated_cluster import (
    MESSAGES,
    TRIP,
    Fault,
    ProducerState,
    RandomFaults,
    SimulatedBroker,
    SimulatedCluster,
    SimulatedConnection,
    SimulatedLog,
)

from ingestd.client.client import CoordinatorKind
from ingestd.errors import ConnectionLost, DeadlineExceeded, ErrorCode, IngestdError, KafkaError
from ingestd.records.batch import read_header
from ingestd.wire.versions import ApiVersions

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES[11] = (request_v11, response_v11)

NONE = ErrorCode.none
CONCURRENT = ErrorCode.concurrent_transactions
ENDING = ("prepare commit", "prepare abort")


@dataclass
class CoordinatorFault:
    """What happens to one request to a coordinator."""

    error: ErrorCode = NONE
    done: bool = True
    """Whether the request takes effect."""
    lost: bool = False
    """The connection ends instead of an answer."""
    late: float = 0.0
    """With `lost`: it takes effect so much later."""
    hang: bool = False


class TransactionalLog(SimulatedLog):
    """A partition whose records belong to transactions."""

    def __init__(self, coordinator: SimulatedCoordinator, partition: int) -> None:
        super().__init__()
        self.coordinator = coordinator
        self.partition = partition
        self.open: dict[int, tuple[int, list[int]]] = {}
        """By producer id: the epoch, and the offsets of the transaction that has no marker yet."""
        self.visible: set[int] = set()

    @property
    def committed(self) -> list[bytes]:
        """What a reader of committed records gets, up to the first record of an open transaction."""
        stable = min((offsets[0] for _, offsets in self.open.values() if offsets), default=len(self.values))
        return [self.values[offset] for offset in sorted(self.visible) if offset < stable]

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        """See `SimulatedLog`: the leader asks the coordinator before the first batch of a transaction."""
        header = read_header(data)
        assert header.transactional
        state = self.producers.get(header.producer_id)
        if state is not None and header.producer_epoch < state.epoch:
            return ErrorCode.invalid_producer_epoch, -1
        if self.open.get(header.producer_id, (-1,))[0] != header.producer_epoch:
            error = self.coordinator.verify(header.producer_id, header.producer_epoch, self.partition)
            if error is not NONE:
                return error, -1
        before = len(self.values)
        error, offset = super().append(data)
        if error is NONE:
            opened = self.open.setdefault(header.producer_id, (header.producer_epoch, []))
            opened[1].extend(range(before, len(self.values)))
        return error, offset

    def end(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """A marker."""
        _, offsets = self.open.pop(producer_id, (-1, []))
        if commit:
            self.visible.update(offsets)
        state = self.producers.get(producer_id)
        if state is None or state.epoch < epoch:
            self.producers[producer_id] = ProducerState(epoch)


@dataclass
class SimulatedCoordinator:
    """One transactional id, and the groups whose offsets it commits (Kafka's TransactionMetadata)."""

    cluster: TransactionalCluster
    level: int = 2
    state: str = "empty"
    producer_id: int = -1
    epoch: int = -1
    last_epoch: int = -1
    partitions: set[int] = field(default_factory=set)
    pending_offsets: dict[Any, int] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    group_added: bool = False

    # What producers ask

    def init_producer_id(self, request: Any) -> tuple[ErrorCode, dict[str, Any]]:
        """InitProducerId."""
        if self.producer_id < 0:
            self.producer_id = 4000
        held = int(getattr(request, "producer_id", -1)), int(getattr(request, "producer_epoch", -1))
        if held[0] >= 0 and self.epoch >= 0 and held[0] != self.producer_id:
            return ErrorCode.producer_fenced, {}
        if self.state in ENDING:
            return CONCURRENT, {}
        if self.state == "ongoing":
            self.fence()
            return CONCURRENT, {}
        if held[0] < 0:
            self.last_epoch = -1
            self.epoch += 1
        elif self.epoch < 0 or held[1] == self.epoch:
            self.last_epoch = self.epoch
            self.epoch += 1
        elif held[1] != self.last_epoch:
            return ErrorCode.producer_fenced, {}
        self.state = "empty"
        return NONE, {"producer_id": self.producer_id, "producer_epoch": self.epoch}

    def fence(self) -> None:
        """Abort what is open under an epoch that nobody holds: a newcomer, or the transaction's timeout.

        With KIP-890 whose it was may still ask for the abort, and be given that epoch.
        """
        if self.level < 2:
            self.epoch += 1
            self.last_epoch = -1
        self.prepare(commit=False, bump=self.level >= 2)

    def add_partitions_to_txn(self, request: Any) -> tuple[ErrorCode, dict[str, Any]]:
        """AddPartitionsToTxn."""
        numbers = [number for topic in request.v3_and_below_topics for number in topic.partitions]
        error = self.check(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        refused = {number: self.cluster.unauthorized.get(number, NONE) for number in numbers}
        if error is NONE and all(code is NONE for code in refused.values()):
            self.state = "ongoing"
            self.partitions.update(numbers)
        elif error is NONE:
            refused = {
                number: ErrorCode.operation_not_attempted if code is NONE else code for number, code in refused.items()
            }
        else:
            refused = dict.fromkeys(numbers, error)
        results = [
            SimpleNamespace(partition_index=number, partition_error_code=code) for number, code in refused.items()
        ]
        topic = SimpleNamespace(name=self.cluster.topic, results_by_partition=results)
        return NONE, {"results_by_topic_v3_and_below": [topic]}

    def add_offsets_to_txn(self, request: Any) -> tuple[ErrorCode, dict[str, Any]]:
        """AddOffsetsToTxn."""
        error = self.check(request.producer_id, request.producer_epoch)
        if error is NONE:
            self.state = "ongoing"
            self.group_added = True
        return error, {}

    def txn_offset_commit(self, request: Any) -> tuple[ErrorCode, dict[str, Any]]:
        """TxnOffsetCommit, at the group's coordinator."""
        assert (request.__version__ == 5) == (self.level >= 2)
        error = self.check(request.producer_id, request.producer_epoch)
        known = self.generations.get(request.group_id, request.generation_id)
        if error is NONE and self.level < 2 and not (self.state == "ongoing" and self.group_added):
            error = ErrorCode.invalid_txn_state
        if error is NONE and request.generation_id != known:
            error = ErrorCode.illegal_generation
        if error is NONE:
            self.state = "ongoing"
            for topic in request.topics:
                for each in topic.partitions:
                    self.pending_offsets[request.group_id, topic.name, each.partition_index] = each.committed_offset
        topics = [
            SimpleNamespace(
                name=topic.name,
                partitions=[
                    SimpleNamespace(partition_index=each.partition_index, error_code=error) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return NONE, {"topics": topics}

    def end_txn(self, request: Any) -> tuple[ErrorCode, dict[str, Any]]:
        """EndTxn."""
        assert (request.__version__ == 5) == (self.level >= 2)
        end = self._end_explicitly if self.level < 2 else self._end_implicitly
        error = end(request)
        held = {"producer_id": self.producer_id, "producer_epoch": self.epoch} if error is NONE else {}
        return error, {"producer_id": -1, "producer_epoch": -1} | held

    def _end_explicitly(self, request: Any) -> ErrorCode:
        result = "commit" if request.committed else "abort"
        if request.producer_id != self.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if request.producer_epoch != self.epoch:
            return ErrorCode.producer_fenced
        if self.state == "ongoing":
            self.prepare(commit=request.committed, bump=False)
            return NONE
        if self.state == f"prepare {result}":
            return CONCURRENT
        return NONE if self.state == f"complete {result}" else ErrorCode.invalid_txn_state

    def _end_implicitly(self, request: Any) -> ErrorCode:
        result = "commit" if request.committed else "abort"
        if request.producer_id != self.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        again = request.producer_epoch == self.epoch - 1 == self.last_epoch
        if self.state in ENDING:
            if not again:
                return ErrorCode.producer_fenced
            return CONCURRENT if self.state == f"prepare {result}" else ErrorCode.invalid_txn_state
        if self.state.startswith("complete") and again:
            return NONE if self.state == f"complete {result}" else ErrorCode.invalid_txn_state
        if request.producer_epoch != self.epoch:
            return ErrorCode.producer_fenced
        if self.state != "ongoing" and request.committed:
            return ErrorCode.invalid_txn_state
        self.prepare(commit=request.committed, bump=True)
        return NONE

    # What leaders ask, and what follows

    def verify(self, producer_id: int, epoch: int, partition: int) -> ErrorCode:
        """A leader's question before the first batch of a transaction (KIP-890)."""
        error = self.check(producer_id, epoch)
        if error is ErrorCode.producer_fenced:
            return ErrorCode.invalid_producer_epoch
        if error is not NONE:
            return error if self.level >= 2 else ErrorCode.not_enough_replicas
        if self.level < 2:
            added = self.state == "ongoing" and partition in self.partitions
            return NONE if added else ErrorCode.invalid_txn_state
        self.state = "ongoing"
        self.partitions.add(partition)
        return NONE

    def check(self, producer_id: int, epoch: int) -> ErrorCode:
        """Whether this producer may go on with its transaction."""
        if producer_id != self.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if epoch != self.epoch:
            return ErrorCode.producer_fenced
        return CONCURRENT if self.state in ENDING else NONE

    def prepare(self, *, commit: bool, bump: bool) -> None:
        """Decide; the markers follow."""
        if bump:
            self.last_epoch = self.epoch
            self.epoch += 1
        self.state = "prepare commit" if commit else "prepare abort"
        asyncio.get_running_loop().call_later(self.cluster.markers, self.complete, commit)

    def complete(self, commit: bool) -> None:
        """Write the markers."""
        for partition in self.partitions:
            log = self.cluster.logs[partition]
            assert isinstance(log, TransactionalLog)
            log.end(self.producer_id, self.epoch, commit=commit)
        if commit:
            self.cluster.offsets.update(self.pending_offsets)
        self.partitions = set()
        self.pending_offsets = {}
        self.group_added = False
        self.state = "complete commit" if commit else "complete abort"


class CoordinatorConnection:
    """A connection to a coordinator; requests are objects, which kio has checked when they were made."""

    def __init__(self, cluster: TransactionalCluster) -> None:
        self.cluster = cluster
        self.closed = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def versions(self) -> ApiVersions:
        """See `Connection`."""
        return self.cluster.versions

    async def request(self, request: Any, *, timeout: float) -> Any:
        """See `Connection`."""
        cluster = self.cluster
        fault = cluster.coordinator_faults(request)
        cluster.asked.append(request)
        await asyncio.sleep(cluster.faults.trip())
        if cluster.down >= set(cluster.nodes):
            self.closed = True
            raise ConnectionLost("the coordinator is down")
        if fault.hang:
            if fault.done:
                cluster.work_on_transaction(request)
            await asyncio.wait({self.ended}, timeout=timeout)
            self.closed = True
            raise (
                ConnectionLost("aborted") if self.ended.done() else DeadlineExceeded("the coordinator does not answer")
            )
        if fault.lost:
            self.closed = True
            if fault.late:
                cluster.late_copies += 1
                asyncio.get_running_loop().call_later(fault.late, cluster.work_on_transaction, request)
            elif fault.done:
                cluster.work_on_transaction(request)
            raise ConnectionLost("connection reset")
        answer = cluster.work_on_transaction(request) if fault.done else None
        if fault.error is not NONE:
            return _refusal(request, fault.error)
        return answer

    def abort(self, error: IngestdError) -> None:
        """See `Connection`."""
        self.closed = True
        if not self.ended.done():
            self.ended.set_result(None)


def _refusal(request: Any, code: ErrorCode) -> Any:
    """An answer with this error everywhere."""
    name = type(request).__name__
    if name == "AddPartitionsToTxnRequest":
        results = [SimpleNamespace(partition_index=0, partition_error_code=code)]
        return SimpleNamespace(results_by_topic_v3_and_below=[SimpleNamespace(name="t", results_by_partition=results)])
    if name == "TxnOffsetCommitRequest":
        partitions = [SimpleNamespace(partition_index=0, error_code=code)]
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=partitions)])
    return SimpleNamespace(error_code=code, producer_id=-1, producer_epoch=-1)


class TransactionalCluster(SimulatedCluster):
    """The cluster, its coordinators, and the client to it."""

    def __init__(
        self,
        partitions: int = 2,
        faults: Any = None,
        produce_version: int = 13,
        *,
        level: int = 2,
        oldest: bool = False,
    ) -> None:
        super().__init__(partitions, faults, produce_version)
        self.coordinator_state = SimulatedCoordinator(self, level)
        self.logs = [TransactionalLog(self.coordinator_state, number) for number in range(partitions)]
        init = (0, 1) if oldest else (0, 5)
        ranges = {0: (3, produce_version), 22: init, 24: (0, 3), 25: (0, 4), 26: (0, 5), 28: (0, 5)}
        self.versions = ApiVersions(ranges, {"transaction.version": level})
        self.script: deque[CoordinatorFault] = deque()
        self.scripts: dict[str, deque[CoordinatorFault]] = {}
        self.asked: list[Any] = []
        self.unauthorized: dict[int, ErrorCode] = {}
        self.offsets: dict[Any, int] = {}
        self.random: Callable[[Any], CoordinatorFault] = lambda request: CoordinatorFault()
        self.lookup_errors: deque[ErrorCode] = deque()
        self.forgotten = 0
        self.coordinator_node = 1
        self.markers = 0.003
        """Seconds from the decision until its markers are in the logs."""
        self.late_copies = 0
        self._coordinator_connection: CoordinatorConnection | None = None

    @property
    def committed(self) -> list[list[bytes]]:
        """What readers of committed records get, by partition."""
        return [log.committed for log in self.logs]  # type: ignore[attr-defined]

    @property
    def questions(self) -> list[str]:
        """The names of what coordinators were asked."""
        return [type(request).__name__.removesuffix("Request") for request in self.asked]

    def coordinator_faults(self, request: Any) -> CoordinatorFault:
        """What happens to a request: by its API's script, by the script for any, by chance."""
        own = self.scripts.get(type(request).__name__.removesuffix("Request"))
        if own:
            return own.popleft()
        return self.script.popleft() if self.script else self.random(request)

    def fail(self, name: str, *faults: CoordinatorFault) -> None:
        """Script the next requests of one API, "EndTxn" for example."""
        self.scripts.setdefault(name, deque()).extend(faults)

    def work_on_transaction(self, request: Any) -> Any:
        """A coordinator's answer."""
        state = self.coordinator_state
        handler = {
            "InitProducerIdRequest": state.init_producer_id,
            "AddPartitionsToTxnRequest": state.add_partitions_to_txn,
            "AddOffsetsToTxnRequest": state.add_offsets_to_txn,
            "TxnOffsetCommitRequest": state.txn_offset_commit,
            "EndTxnRequest": state.end_txn,
        }[type(request).__name__]
        error, fields = handler(request)
        return SimpleNamespace(error_code=error, **fields)

    async def coordinator(
        self, key: str, kind: CoordinatorKind, timeout: float | None = None, *, purpose: str = "coordinator"
    ) -> Any:
        """See `Client`."""
        assert (key in ("tx", "gone")) == (kind is CoordinatorKind.transaction)
        assert purpose == "transactions"
        if self.lookup_errors:
            raise KafkaError(self.lookup_errors.popleft(), key)
        return SimpleNamespace(node=SimpleNamespace(id=self.coordinator_node), connection=self.connection)

    def forget_coordinator(self, key: str, kind: CoordinatorKind) -> None:
        """See `Client`."""
        self.forgotten += 1

    async def connection(self, timeout: float) -> CoordinatorConnection:
        """See `Broker`: the coordinator's connection."""
        await asyncio.sleep(min(timeout, TRIP))
        if self.down >= set(self.nodes):
            raise ConnectionLost("the coordinator is down")
        if self._coordinator_connection is None or self._coordinator_connection.closed:
            self._coordinator_connection = CoordinatorConnection(self)
        return self._coordinator_connection


def random_coordinator(faults: RandomFaults) -> Callable[[Any], CoordinatorFault]:
    """Anything that passes, at any moment, until it is told to stop."""

    def next_fault(request: Any) -> CoordinatorFault:
        source = faults.source
        if source.random() >= faults.rate:
            return CoordinatorFault()
        # Kafka has no defence against a late copy of this question: it aborts what is open, and fences whoever asked.
        defenceless = type(request).__name__ == "InitProducerIdRequest"
        return source.choice(
            [
                CoordinatorFault(CONCURRENT, done=False),
                CoordinatorFault(ErrorCode.coordinator_load_in_progress, done=False),
                CoordinatorFault(ErrorCode.not_coordinator, done=False),
                CoordinatorFault(ErrorCode.not_coordinator),
                CoordinatorFault(ErrorCode.coordinator_not_available),
                CoordinatorFault(lost=True, done=False),
                CoordinatorFault(lost=True),
                CoordinatorFault(lost=True, late=0.0 if defenceless else source.choice((0.01, 0.1, 2.0))),
                CoordinatorFault(hang=True),
                CoordinatorFault(hang=True, done=False),
            ]
        )

    return next_fault


__all__ = [
    "CoordinatorFault",
    "Fault",
    "SimulatedBroker",
    "SimulatedConnection",
    "TransactionalCluster",
    "TransactionalLog",
    "random_coordinator",
]
