"""Transactions in both protocols: what is asked, what readers see, how they begin and how closing ends them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from simulated_cluster import Fault
from simulated_transactions import CoordinatorFault, TransactionalCluster
from transactional import (
    BOTH,
    CALLS,
    MEMBER,
    OFFSETS,
    ChangedMindError,
    changing_mind,
    in_simulation,
    producing,
    refusal,
    settled,
    transact,
    transact_offsets,
)

from ingestd.client.group import GroupMember, OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import (
    Closed,
    CommitOutcomeUnknown,
    ConfigurationError,
    DeadlineExceeded,
    ErrorCode,
    KafkaError,
    ProducerFenced,
    TransactionFailed,
    UnsupportedVersion,
)
from ingestd.producer.identity import ProducerIdentity
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.transaction_coordinator import EndedTransaction, RequestedTransactions
from ingestd.producer.transaction_state import TransactionState
from ingestd.records.decode import Record, TimestampType

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.producer.delivery import Delivery


@BOTH
@in_simulation
async def test_records_are_seen_after_the_commit_and_not_before(level: int) -> None:
    cluster = TransactionalCluster(2, level=level)
    ends: list[Delivery] = []
    async with producing(cluster) as producer:
        async with producer.transaction():
            producer.send("events", b"a", partition=0, done=ends.append)
            producer.send("events", b"b", partition=1, done=ends.append)
            await producer.flush(5.0)
            assert [end.error for end in ends] == [None, None]
            assert await settled(cluster) == [[], []]
        assert await settled(cluster) == [[b"a"], [b"b"]]
        await transact(producer, b"c")
    assert await settled(cluster) == [[b"a", b"c"], [b"b"]]


@BOTH
@in_simulation
async def test_an_exception_aborts_and_goes_on(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    ends: list[Delivery] = []
    async with producing(cluster, linger=60.0) as producer:
        with changing_mind():
            async with producer.transaction():
                producer.send("events", b"sent", partition=0, done=ends.append)
                await producer.flush(5.0)
                producer.send("events", b"collected", partition=0, done=ends.append)
                raise ChangedMindError
        assert [type(end.error) for end in ends] == [type(None), TransactionFailed]
        assert producer.transaction_state is TransactionState.READY
        await transact(producer, b"next")
    assert await settled(cluster) == [[b"next"]]
    assert cluster.logs[0].values == [b"sent", b"next"]


@in_simulation
async def test_partitions_touched_together_are_added_by_one_request_before_any_batch_goes() -> None:
    cluster = TransactionalCluster(3, level=1)
    cluster.fail("AddPartitionsToTxn", *[refusal(ErrorCode.concurrent_transactions)] * 5)
    async with producing(cluster) as producer:
        await producer.begin()
        for partition in range(3):
            producer.send("events", b"a", partition=partition)
        while cluster.scripts["AddPartitionsToTxn"]:
            assert cluster.requests == 0
            await asyncio.sleep(0.001)
        await producer.flush(5.0)
        producer.send("events", b"b", partition=1)
        await producer.commit()
        for request in cluster.asked[1:-1]:
            added = [(topic.name, topic.partitions) for topic in request.v3_and_below_topics]
            assert added == [("events", (0, 1, 2))]
        assert cluster.questions == ["InitProducerId", *["AddPartitionsToTxn"] * 6, "EndTxn"]


@in_simulation
async def test_a_partition_touched_while_others_are_added_goes_with_the_next_request() -> None:
    cluster = TransactionalCluster(3, level=1)
    cluster.metadata.learn()
    cluster.fail("AddPartitionsToTxn", refusal(ErrorCode.concurrent_transactions))
    async with producing(cluster, linger=0.0) as producer:
        async with producer.transaction():
            producer.send("events", b"a", partition=0)
            await asyncio.sleep(0.003)
            producer.send("events", b"a", partition=1)
            producer.send("events", b"a", partition=2)
        added = [request.v3_and_below_topics[0].partitions for request in cluster.asked if request.__api_key__ == 24]
        assert added == [(0,), (0,), (1, 2)]
    assert await settled(cluster) == [[b"a"]] * 3


@in_simulation
async def test_with_kip_890_no_partition_is_added_by_request_and_every_end_brings_the_next_epoch() -> None:
    cluster = TransactionalCluster(2, level=2)
    async with producing(cluster) as producer:
        for number in range(3):
            await transact(producer, b"%d" % number)
        assert cluster.questions == ["InitProducerId"] + ["EndTxn"] * 3
        assert [request.producer_epoch for request in cluster.asked[1:]] == [0, 1, 2]
        assert {request.__version__ for request in cluster.asked[1:]} == {5}
    assert await settled(cluster) == [[b"0", b"1", b"2"], []]
    assert cluster.logs[0].producers[4000].epoch == 3


@in_simulation
async def test_without_kip_890_the_epoch_stays_and_batches_travel_in_no_version_that_adds_partitions() -> None:
    versions: set[int] = set()

    class Watched(TransactionalCluster):
        def read(self, version: int, body: bytes) -> Any:
            request = super().read(version, body)
            versions.add(version)
            assert request.transactional_id == "tx"
            return request

    cluster = Watched(1, level=1)
    async with producing(cluster) as producer:
        for number in range(3):
            await transact(producer, b"%d" % number)
    assert versions == {11}
    assert cluster.logs[0].producers[4000].epoch == 0
    assert {request.__version__ for request in cluster.asked if request.__api_key__ == 26} == {4}


@BOTH
@in_simulation
async def test_an_empty_transaction_asks_nothing(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        async with producer.transaction():
            pass
        await producer.begin()
        await producer.abort()
        await producer.begin()
        producer.send("events", b"never sent", partition=0)
        if level == 2:
            await producer.abort()
            assert cluster.questions == ["InitProducerId"]


@BOTH
@in_simulation
async def test_offsets_of_a_group_are_seen_after_the_commit_and_not_before(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        async with producer.transaction() as transaction:
            await transaction.add_offsets({}, MEMBER)
            await transaction.add_offsets(OFFSETS, MEMBER)
            record = Record(41, 0, TimestampType.create_time, None, b"v")
            await transaction.add_message(TopicPartition("source", 4), record, MEMBER)
            await settled(cluster)
            assert cluster.offsets == {}
        await settled(cluster)
        assert cluster.offsets == {("group", "source", 3): 17, ("group", "source", 4): 42}
        with changing_mind():
            async with producer.transaction() as transaction:
                await transaction.add_offsets({TopicPartition("source", 3): OffsetAndMetadata(99)}, MEMBER)
                raise ChangedMindError
        await settled(cluster)
        assert cluster.offsets["group", "source", 3] == 17
        assert ("AddOffsetsToTxn" in cluster.questions) == (level == 1)


@in_simulation
async def test_a_member_that_the_group_has_gone_on_without_is_refused_and_the_transaction_aborted() -> None:
    cluster = TransactionalCluster(1)
    cluster.coordinator_state.generations["group"] = 7
    async with producing(cluster) as producer:
        with pytest.raises(KafkaError) as raised:
            await transact_offsets(producer, GroupMember("group", 6, "member"), b"a")
        assert raised.value.code is ErrorCode.illegal_generation
        await transact_offsets(producer, GroupMember("group", 7, "member"))
    assert await settled(cluster) == [[]]
    assert cluster.offsets == {("group", "source", 3): 17}


@BOTH
@in_simulation
async def test_a_successor_aborts_what_a_crashed_predecessor_left_open_and_fences_it(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as zombie:
        await zombie.begin()
        zombie.send("events", b"zombie", partition=0)
        await zombie.flush(5.0)
        async with producing(cluster) as successor:
            assert cluster.questions.count("InitProducerId") > 2, "it is asked until the abort is through"
            await transact(successor, b"successor")
            with pytest.raises(ProducerFenced):
                await zombie.commit()
            assert zombie.transaction_state is TransactionState.FATAL_ERROR
            await transact(successor, b"goes on")
    assert await settled(cluster) == [[b"successor", b"goes on"]]


@BOTH
@in_simulation
async def test_initializing_may_be_tried_again(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    cluster.down.update(cluster.nodes)
    async with producing(cluster, ready=False) as producer:
        with pytest.raises(DeadlineExceeded):
            await producer.init_transactions(1.0)
        assert producer.transaction_state is TransactionState.UNINITIALIZED
        initializing = asyncio.ensure_future(producer.init_transactions())
        await asyncio.sleep(0.5)
        assert producer.transaction_state is TransactionState.INITIALIZING
        initializing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await initializing
        cluster.down.clear()
        await producer.init_transactions()
        await transact(producer, b"a")
    assert await settled(cluster) == [[b"a"]]


@BOTH
@in_simulation
async def test_closing_aborts_what_is_open(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    ends: list[Delivery] = []
    async with producing(cluster, linger=60.0) as producer:
        await producer.begin()
        producer.send("events", b"sent", partition=0, done=ends.append)
        await producer.flush(5.0)
        producer.send("events", b"collected", partition=0, done=ends.append)
    assert [type(end.error) for end in ends] == [type(None), TransactionFailed]
    assert cluster.asked[-1].committed is False
    assert await settled(cluster) == [[]]
    for call in ("begin", "commit", "abort", "add_offsets", "send"):
        with pytest.raises(Closed):
            await CALLS[call](producer)


@BOTH
@in_simulation
async def test_a_block_whose_transaction_closing_aborted_does_not_end_as_if_it_were_committed(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:

        async def block() -> None:
            async with producer.transaction():
                producer.send("events", b"a", partition=0)
                await asyncio.create_task(producer.close())  # by another task, while the block goes on

        with pytest.raises(Closed):
            await block()
    assert await settled(cluster) == [[]]


@in_simulation
async def test_a_block_that_has_committed_by_itself_may_close_the_producer() -> None:
    cluster = TransactionalCluster(1)
    async with producing(cluster) as producer, producer.transaction():
        producer.send("events", b"a", partition=0)
        await producer.commit()
        await producer.close()
    assert await settled(cluster) == [[b"a"]]


@BOTH
@in_simulation
async def test_closing_asks_for_a_commit_whose_outcome_is_not_known(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        cluster.fail("EndTxn", CoordinatorFault(hang=True, done=False))
        with pytest.raises(CommitOutcomeUnknown):
            async with producer.transaction(timeout=2.0):
                producer.send("events", b"a", partition=0)
    assert await settled(cluster) == [[b"a"]]


@BOTH
@pytest.mark.parametrize("moment", ["uninitialized", "ready", "in transaction", "committing", "aborting"])
@in_simulation
async def test_closing_ends_by_its_deadline_with_every_broker_down(level: int, moment: str) -> None:
    cluster = TransactionalCluster(2, level=level)
    ends: list[Delivery] = []
    settings = ProducerSettings(transactional_id="tx", delivery_timeout=float("inf"))
    producer = AsyncProducer(cluster, settings)  # type: ignore[arg-type]
    sent = acknowledged = 0
    calls: list[asyncio.Task[None]] = []
    if moment != "uninitialized":
        await producer.init_transactions()
    if moment in ("in transaction", "committing", "aborting"):
        await producer.begin()
        for number in range(10):
            producer.send("events", b"%d" % number, partition=number % 2, done=ends.append)
            sent += 1
            await producer.flush(5.0)
        acknowledged = len(ends)
        producer.send("events", b"last", partition=0, done=ends.append)
        sent += 1
    cluster.down.update(cluster.nodes)
    if moment in ("committing", "aborting"):
        work = producer.commit(600.0) if moment == "committing" else producer.abort(600.0)
        calls.append(asyncio.ensure_future(work))
        await asyncio.sleep(0.1)
    started = time.monotonic()
    await producer.close(4.0)
    assert time.monotonic() - started <= 4.5
    assert len(ends) == sent
    assert all(end.error is not None for end in ends[acknowledged:])
    for call in calls:
        with pytest.raises(Closed):
            await call


@in_simulation
async def test_a_broker_too_old_to_bump_an_epoch_ends_the_producer_when_it_would_have_to() -> None:
    cluster = TransactionalCluster(1, level=1, oldest=True)
    async with producing(cluster) as producer:
        await transact(producer, b"a")
        await asyncio.sleep(0.1)
        cluster.faults.script.append(Fault(ErrorCode.invalid_record, appended=False))
        with pytest.raises(TransactionFailed):
            await transact(producer, b"refused")
        with pytest.raises(UnsupportedVersion, match="init_producer_id"):
            await producer.begin()
        assert producer.transaction_state is TransactionState.FATAL_ERROR
    assert await settled(cluster) == [[b"a"]]


@in_simulation
async def test_an_injected_coordinator_begins_and_ends_transactions_for_a_producer_that_only_writes() -> None:
    cluster = TransactionalCluster(2, level=2)
    cluster.coordinator_state.producer_id, cluster.coordinator_state.epoch = 77, 5

    class Supervisor:
        """Asks the coordinator on behalf of a worker."""

        implicit = True

        def __init__(self) -> None:
            self.ended: list[tuple[ProducerIdentity, bool]] = []

        async def initialize(self, previous: ProducerIdentity | None, deadline: Any) -> ProducerIdentity:
            return ProducerIdentity(77, 5)

        async def add_partitions(self, identity: ProducerIdentity, partitions: Any, deadline: Any) -> bool:
            raise AssertionError

        async def add_group(self, identity: ProducerIdentity, group_id: str, deadline: Any) -> bool:
            raise AssertionError

        async def commit_offsets(self, *arguments: Any, **named: Any) -> bool:
            raise AssertionError

        async def end(self, identity: ProducerIdentity, *, commit: bool, **named: Any) -> EndedTransaction:
            self.ended.append((identity, commit))
            cluster.coordinator_state.prepare(commit=commit, bump=True)
            return EndedTransaction(ProducerIdentity(77, identity.epoch + 1))

    supervisor = Supervisor()
    settings = ProducerSettings(transactional_id="route-1")

    async with AsyncProducer(cluster, settings, coordinator=supervisor) as producer:  # type: ignore[arg-type]
        await producer.init_transactions()
        await transact(producer, b"a", b"b")
        await transact(producer, b"c", partitions=[1])
    assert supervisor.ended == [(ProducerIdentity(77, 5), True), (ProducerIdentity(77, 6), True)]
    assert await settled(cluster) == [[b"a", b"b"], [b"c"]]
    assert cluster.asked == []


@in_simulation
async def test_a_coordinator_that_is_broken_fails_the_transaction_at_once_and_a_later_one_may_succeed() -> None:
    cluster = TransactionalCluster(1, level=1)

    class OnceBroken(RequestedTransactions):
        broken = True

        async def add_partitions(self, identity: ProducerIdentity, partitions: Any, deadline: Any) -> bool:
            if self.broken:
                self.broken = False
                raise RuntimeError("a defect")
            return await super().add_partitions(identity, partitions, deadline)

    settings = ProducerSettings(transactional_id="tx", delivery_timeout=float("inf"))
    coordinator = OnceBroken(cluster, settings)  # type: ignore[arg-type]
    async with AsyncProducer(cluster, settings, coordinator=coordinator) as producer:  # type: ignore[arg-type]
        await producer.init_transactions()
        with pytest.raises(TransactionFailed, match="a defect"):
            await transact(producer, b"a")
        await transact(producer, b"b")
    assert await settled(cluster) == [[b"b"]]


@BOTH
@in_simulation
async def test_events_are_passed_on(level: int) -> None:
    told: list[str] = []

    class Recorder:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: told.append(name)

    cluster = TransactionalCluster(1, level=level)
    cluster.throttle_ms = 10
    settings = ProducerSettings(transactional_id="tx")
    async with AsyncProducer(cluster, settings, events=Recorder()) as producer:  # type: ignore[arg-type]
        await producer.init_transactions()
        cluster.faults.script.extend([Fault(lost=True), Fault(ErrorCode.invalid_record, appended=False)])
        with pytest.raises(TransactionFailed):
            await transact(producer, b"a")
        await transact(producer, b"b")
    assert {"retried", "failed", "acknowledged", "throttled"} <= set(told)


@in_simulation
async def test_an_offset_that_is_none_is_refused_and_hurts_nothing() -> None:
    cluster = TransactionalCluster(1)
    async with producing(cluster) as producer:
        await producer.begin()
        with pytest.raises(ValueError, match="source-3: offset -1"):
            await producer.add_offsets({TopicPartition("source", 3): OffsetAndMetadata(-1)}, MEMBER)
        await producer.add_offsets(OFFSETS, MEMBER)
        await producer.commit()
    await settled(cluster)
    assert cluster.offsets == {("group", "source", 3): 17}


@in_simulation
async def test_the_status_says_where_the_transaction_stands() -> None:
    import json

    cluster = TransactionalCluster(1)
    async with producing(cluster, linger=0.0) as producer:
        await transact(producer, b"a")
        await producer.begin()
        said = json.loads(json.dumps(producer.status()))["transaction"]
        assert said == {
            "state": "in transaction",
            "error": None,
            "producer_id": 4000,
            "producer_epoch": 1,
            "implicit": True,
            "commit_sent": False,
        }
        cluster.faults.script.append(Fault(ErrorCode.invalid_record, appended=False))
        producer.send("events", b"b", partition=0)
        await producer.flush(5.0)
        assert "INVALID_RECORD" in producer.status()["transaction"]["error"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"transactional_id": ""}, "transactional_id"),
        ({"transactional_id": "tx", "acks": 1}, "transactional_id"),
        ({"transactional_id": "tx", "idempotent": False}, "transactional_id"),
        ({"transactional_id": "tx", "transaction_timeout": 0.0}, "transaction_timeout"),
        ({"transactional_id": "tx", "transaction_timeout": float("nan")}, "transaction_timeout"),
    ],
)
def test_settings_of_a_transactional_producer_are_checked(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        ProducerSettings(**wrong)
