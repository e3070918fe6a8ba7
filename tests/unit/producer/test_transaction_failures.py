"""Batches that fail, ends that are not known: what is said of a transaction is true."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from simulated_cluster import Fault
from simulated_transactions import CoordinatorFault, TransactionalCluster
from transactional import (
    BOTH,
    CALLS,
    LOST,
    MEMBER,
    OFFSETS,
    UNHEARD,
    ChangedMindError,
    changing_mind,
    in_simulation,
    producing,
    refusal,
    refused,
    settled,
    transact,
)

from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import (
    CommitOutcomeUnknown,
    ErrorCode,
    KafkaError,
    ProducerFenced,
    TransactionFailed,
    WrongTransactionState,
)
from ingestd.producer.transaction_state import TransactionState

if TYPE_CHECKING:
    from ingestd.producer.delivery import Delivery


@BOTH
@in_simulation
async def test_a_record_that_fails_fails_its_transaction_and_no_other(level: int) -> None:
    cluster = TransactionalCluster(2, level=level)
    ends: list[Delivery] = []
    async with producing(cluster) as producer:
        await transact(producer, b"before")
        await asyncio.sleep(0.1)
        cluster.faults.script.append(Fault(ErrorCode.invalid_record, appended=False))
        with pytest.raises(TransactionFailed, match="INVALID_RECORD") as raised:
            async with producer.transaction():
                producer.send("events", b"refused", partition=0, done=ends.append)
        assert isinstance(raised.value.__cause__, KafkaError)
        assert [type(end.error) for end in ends] == [KafkaError]
        await transact(producer, b"after")
    assert await settled(cluster) == [[b"before", b"after"], []]


@BOTH
@in_simulation
async def test_after_a_failed_record_send_says_why_until_the_abort(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster, linger=0.0) as producer:
        await producer.begin()
        cluster.faults.script.append(Fault(ErrorCode.invalid_record, appended=False))
        producer.send("events", b"refused", partition=0)
        await producer.flush(5.0)
        assert producer.transaction_state is TransactionState.ABORTABLE_ERROR
        assert producer.transaction_state.in_error
        for call in ("send", "commit", "add_offsets"):
            with pytest.raises(TransactionFailed, match="INVALID_RECORD"):
                await CALLS[call](producer)
        await producer.abort()
        await transact(producer, b"next")
    assert await settled(cluster) == [[b"next"]]


@BOTH
@pytest.mark.parametrize("code", [ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id])
@in_simulation
async def test_a_lost_sequence_aborts_the_transaction_and_the_next_one_has_another_epoch(
    level: int, code: ErrorCode
) -> None:
    cluster = TransactionalCluster(2, level=level)
    async with producing(cluster) as producer:
        await transact(producer, b"before")
        await asyncio.sleep(0.1)
        cluster.faults.script.append(Fault(code, appended=False))
        with pytest.raises(TransactionFailed, match=code.name.upper()):
            await transact(producer, b"lost")
        await transact(producer, b"after")
        assert cluster.coordinator_state.epoch == (1 if level == 1 else 3)
        assert cluster.questions.count("InitProducerId") == (2 if level == 1 else 1)
    assert await settled(cluster) == [[b"before", b"after"], []]


@BOTH
@in_simulation
async def test_a_batch_refused_as_fenced_ends_the_producer(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    ends: list[Delivery] = []
    async with producing(cluster) as producer:
        cluster.faults.script.append(Fault(ErrorCode.invalid_producer_epoch, appended=False))
        with pytest.raises(ProducerFenced):
            async with producer.transaction():
                producer.send("events", b"a", partition=0, done=ends.append)
        assert [type(end.error) for end in ends] == [ProducerFenced]
        with pytest.raises(ProducerFenced):
            await producer.begin()


@in_simulation
async def test_the_markers_of_the_transaction_before_are_waited_for_in_milliseconds() -> None:
    cluster = TransactionalCluster(1, level=2)
    async with producing(cluster, linger=0.0) as producer:
        await transact(producer, b"0")
        started = time.monotonic()
        for number in range(1, 11):
            await transact(producer, b"%d" % number)
        assert time.monotonic() - started < 0.5
    assert await settled(cluster) == [[b"%d" % number for number in range(11)]]


@BOTH
@in_simulation
async def test_a_batch_that_is_too_large_is_split_within_its_transaction(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    cluster.logs[0].largest = 90
    values = [b"%06d" % number for number in range(16)]
    async with producing(cluster) as producer:
        await transact(producer, *values)
        await transact(producer, b"next")
        assert cluster.questions.count("InitProducerId") == 1
    assert await settled(cluster) == [[*values, b"next"]]


@BOTH
@in_simulation
async def test_records_for_a_topic_that_is_not_there_fail_their_transaction(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster, metadata_timeout=1.0) as producer:
        for partition in (None, 0):
            with pytest.raises(TransactionFailed, match="UNKNOWN_TOPIC_OR_PARTITION"):
                async with producer.transaction():
                    producer.send("no-such-topic", b"a", partition=partition)
        await transact(producer, b"next")
    assert await settled(cluster) == [[b"next"]]


@BOTH
@in_simulation
async def test_records_that_expire_fail_their_transaction(level: int) -> None:
    cluster = TransactionalCluster(2, level=level)
    async with producing(cluster, delivery_timeout=2.0) as producer:
        await transact(producer, b"before")
        await asyncio.sleep(0.1)
        cluster.logs[0].error = ErrorCode.not_enough_replicas
        with pytest.raises(TransactionFailed, match="not acknowledged within"):
            await transact(producer, b"a", partitions=(0, 1))
        cluster.logs[0].error = ErrorCode.none
        await transact(producer, b"after")
    assert await settled(cluster) == [[b"before", b"after"], []]


@BOTH
@in_simulation
async def test_an_abort_waits_for_what_is_in_flight_and_sends_nothing_more(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    ends: list[Delivery] = []
    async with producing(cluster, batch_records=1, linger=0.0, request_timeout=3.0) as producer:
        await transact(producer, b"before")
        await asyncio.sleep(0.1)
        await producer.begin()
        cluster.faults.script.append(Fault(hang=True))
        for number in range(8):
            producer.send("events", b"%d" % number, partition=0, done=ends.append)
        await asyncio.sleep(0.1)
        requests = cluster.requests
        started = time.monotonic()
        await producer.abort(10.0)
        assert time.monotonic() - started == pytest.approx(2.9, abs=0.2)
        assert cluster.requests == requests
        assert [type(end.error) for end in ends] == [TransactionFailed] * 8
        await transact(producer, b"after")
    assert await settled(cluster) == [[b"before", b"after"]]


@BOTH
@in_simulation
async def test_a_callback_that_sends_during_an_abort_is_refused(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    refusals: list[str] = []
    async with producing(cluster, linger=60.0) as producer:

        def again(_: Delivery) -> None:
            try:
                producer.send("other", b"more")
            except WrongTransactionState as error:
                refusals.append(str(error))

        await producer.begin()
        producer.send("events", b"a", partition=0, done=again)
        await producer.abort()
    assert len(refusals) == 1
    assert "aborting" in refusals[0]


@BOTH
@pytest.mark.parametrize(
    "fault", [LOST, UNHEARD, CoordinatorFault(ErrorCode.not_coordinator), CoordinatorFault(hang=True)]
)
@in_simulation
async def test_a_commit_whose_answer_is_lost_is_asked_for_until_it_is_known(
    level: int, fault: CoordinatorFault
) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster, request_timeout=3.0) as producer:
        cluster.fail("EndTxn", fault, fault)
        await transact(producer, b"a")
        # Without KIP-890 a late copy of the question could commit the next transaction: it gets another epoch.
        await transact(producer, b"b")
        assert cluster.questions.count("InitProducerId") == (2 if level == 1 else 1)
        await transact(producer, b"c")
        assert cluster.questions.count("InitProducerId") == (2 if level == 1 else 1)
    assert await settled(cluster) == [[b"a", b"b", b"c"]]


@BOTH
@in_simulation
async def test_a_late_copy_of_a_commit_does_not_commit_the_next_transaction(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        cluster.fail("EndTxn", CoordinatorFault(lost=True, late=2.0))
        await transact(producer, b"a")
        with changing_mind():
            async with producer.transaction():
                producer.send("events", b"b", partition=0)
                await producer.flush(5.0)
                await asyncio.sleep(5.0)
                raise ChangedMindError
        await transact(producer, b"c")
    assert await settled(cluster) == [[b"a", b"c"]]


@BOTH
@pytest.mark.parametrize("happened", [True, False])
@in_simulation
async def test_a_commit_that_nobody_answers_is_neither_called_committed_nor_aborted_and_asked_for_again(
    level: int, happened: bool
) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        cluster.fail("EndTxn", CoordinatorFault(hang=True, done=happened))
        with pytest.raises(CommitOutcomeUnknown, match="was lost"):
            async with producer.transaction(timeout=5.0):
                producer.send("events", b"a", partition=0)
        assert producer.transaction_state is TransactionState.COMMITTING
        await refused(producer, "init_transactions", "begin", "abort", "add_offsets", "send")
        cluster.down.update(cluster.nodes)
        with pytest.raises(CommitOutcomeUnknown, match="was lost"):
            await producer.commit(5.0)
        cluster.down.clear()
        await producer.commit(5.0)
        assert producer.transaction_state is TransactionState.READY
        await transact(producer, b"b")
    assert await settled(cluster) == [[b"a", b"b"]]


@BOTH
@in_simulation
async def test_a_frozen_coordinator_is_left_as_soon_as_there_is_another(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster, request_timeout=30.0) as producer:
        cluster.fail("EndTxn", CoordinatorFault(hang=True))
        asyncio.get_running_loop().call_later(5.0, setattr, cluster, "coordinator_node", 2)
        started = time.monotonic()
        await transact(producer, b"a")
        assert time.monotonic() - started == pytest.approx(6.0, abs=0.5)
        assert cluster.questions.count("EndTxn") == 2
    assert await settled(cluster) == [[b"a"]]


@BOTH
@in_simulation
async def test_a_commit_that_is_fenced_after_its_answer_was_lost_stays_unknown(level: int) -> None:
    for again in (False, True):
        cluster = TransactionalCluster(1, level=level)
        async with producing(cluster) as producer:
            cluster.fail("EndTxn", CoordinatorFault(hang=True), refusal(ErrorCode.producer_fenced))
            with pytest.raises(CommitOutcomeUnknown):
                async with producer.transaction(timeout=5.0 if again else 60.0):
                    producer.send("events", b"a", partition=0)
            if again:
                with pytest.raises(CommitOutcomeUnknown, match="PRODUCER_FENCED"):
                    await producer.commit()
            assert producer.transaction_state is TransactionState.FATAL_ERROR
            with pytest.raises(ProducerFenced):
                await producer.begin()
        assert await settled(cluster) == [[b"a"]]


@BOTH
@in_simulation
async def test_a_commit_that_was_never_sent_is_certainly_not_done(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        await producer.begin()
        producer.send("events", b"a", partition=0)
        await producer.flush(5.0)
        cluster.fail("EndTxn", *[refusal(ErrorCode.coordinator_load_in_progress)] * 100)
        with pytest.raises(TransactionFailed, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await producer.commit(2.0)
        assert producer.transaction_state is TransactionState.ABORTABLE_ERROR
        cluster.scripts.clear()
        await producer.abort()
        await transact(producer, b"b")
    assert await settled(cluster) == [[b"b"]]


@BOTH
@in_simulation
async def test_a_commit_that_waits_too_long_for_acknowledgements_is_not_sent(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster, delivery_timeout=float("inf")) as producer:
        await transact(producer, b"a")
        await asyncio.sleep(0.1)
        cluster.logs[0].error = ErrorCode.not_enough_replicas
        ended = cluster.questions.count("EndTxn")
        await producer.begin()
        producer.send("events", b"b", partition=0)
        with pytest.raises(TransactionFailed, match="waiting for acknowledgements"):
            await producer.commit(2.0)
        assert cluster.questions.count("EndTxn") == ended
        cluster.logs[0].error = ErrorCode.none
        await producer.abort()
        await transact(producer, b"c")
    assert await settled(cluster) == [[b"a", b"c"]]


@BOTH
@in_simulation
async def test_a_commit_cancelled_before_it_was_sent_is_aborted(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        await transact(producer, b"a")
        await asyncio.sleep(0.1)
        cluster.logs[0].error = ErrorCode.not_enough_replicas
        committing = asyncio.ensure_future(transact(producer, b"b"))
        await asyncio.sleep(0.5)
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        assert producer.transaction_state is TransactionState.READY
        cluster.logs[0].error = ErrorCode.none
        await transact(producer, b"c")
    assert await settled(cluster) == [[b"a", b"c"]]


@BOTH
@in_simulation
async def test_a_commit_cancelled_while_it_is_answered_is_asked_for_again(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        cluster.fail("EndTxn", CoordinatorFault(hang=True))
        committing = asyncio.ensure_future(transact(producer, b"a"))
        await asyncio.sleep(0.5)
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        assert producer.transaction_state is TransactionState.COMMITTING
        await producer.commit()
        await transact(producer, b"b")
    assert await settled(cluster) == [[b"a", b"b"]]


@BOTH
@in_simulation
async def test_adding_offsets_that_is_cancelled_leaves_a_transaction_to_abort(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        await producer.begin()
        cluster.fail("TxnOffsetCommit", CoordinatorFault(hang=True))
        adding = asyncio.ensure_future(producer.add_offsets(OFFSETS, MEMBER))
        await asyncio.sleep(0.5)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert producer.transaction_state is TransactionState.ABORTABLE_ERROR
        await producer.abort()
        async with producer.transaction() as transaction:
            await transaction.add_offsets({TopicPartition("source", 3): OffsetAndMetadata(18)}, MEMBER)
    await settled(cluster)
    assert cluster.offsets == {("group", "source", 3): 18}


@BOTH
@in_simulation
async def test_calls_that_come_together_wait_for_their_turn(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        await producer.begin()
        producer.send("events", b"a", partition=0)
        await asyncio.gather(producer.add_offsets(OFFSETS, MEMBER), producer.commit(), producer.begin())
        assert producer.transaction_state is TransactionState.IN_TRANSACTION
        await producer.abort()
    assert await settled(cluster) == [[b"a"]]
    assert cluster.offsets == {("group", "source", 3): 17}


@BOTH
@in_simulation
async def test_a_block_that_ends_its_transaction_by_itself_is_left_as_it_is(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        async with producer.transaction():
            producer.send("events", b"a", partition=0)
            await producer.commit()
        with changing_mind():
            async with producer.transaction():
                producer.send("events", b"b", partition=0)
                await producer.commit()
                raise ChangedMindError
        async with producer.transaction():
            producer.send("events", b"c", partition=0)
            await producer.abort()
    assert await settled(cluster) == [[b"a", b"b"]]


@BOTH
@in_simulation
async def test_an_abort_that_fails_is_noted_on_the_exception_and_finished_by_the_next_begin(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        with changing_mind() as raised:
            async with producer.transaction(timeout=1.0):
                producer.send("events", b"a", partition=0)
                await producer.flush(1.0)
                cluster.down.update(cluster.nodes)
                raise ChangedMindError
        assert "not aborted yet" in raised[0].__notes__[0]
        cluster.down.clear()
        await transact(producer, b"b")
    assert await settled(cluster) == [[b"b"]]


@in_simulation
async def test_an_abort_right_after_a_commit_is_not_taken_for_a_fenced_producers() -> None:
    cluster = TransactionalCluster(2, level=2)
    cluster.markers = 0.1
    async with producing(cluster, linger=0.0) as producer:
        await transact(producer, b"a")
        await producer.begin()
        producer.send("events", b"b", partition=0)
        await asyncio.sleep(0.01)  # sent, and refused because of the markers of the transaction before
        assert cluster.coordinator_state.state == "prepare commit"
        await producer.abort()
        await transact(producer, b"c")
    assert await settled(cluster) == [[b"a", b"c"], []]


@BOTH
@in_simulation
async def test_an_abort_just_as_partitions_are_to_be_added_leaves_the_next_transaction_its_own(level: int) -> None:
    cluster = TransactionalCluster(2, level=level)
    async with producing(cluster) as producer:
        await transact(producer, b"before")
        await producer.begin()
        producer.send("events", b"dropped", partition=0)
        # The batch asks for its partition to be added; the task that asks has not taken its first step at the abort.
        producer._dispatcher.close_batches()
        await producer.abort()
        await transact(producer, b"after")
    assert await settled(cluster) == [[b"before", b"after"], []]
