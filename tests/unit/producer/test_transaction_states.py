"""What a transactional producer does in each state, and what each error of each request leads to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from simulated_transactions import TransactionalCluster
from transactional import (
    BOTH,
    CALLS,
    LOST,
    MEMBER,
    UNHEARD,
    in_simulation,
    producing,
    refusal,
    refused,
    settled,
    transact,
    transact_offsets,
)

from ingestd.errors import (
    Closed,
    DeadlineExceeded,
    ErrorCode,
    KafkaError,
    ProducerFenced,
    TransactionFailed,
    WrongTransactionState,
)
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.transaction_state import _FOLLOWS, TransactionState, TransactionStates

if TYPE_CHECKING:
    from ingestd.producer.delivery import Delivery


@BOTH
@in_simulation
async def test_each_state_refuses_what_it_does_not_allow(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster, ready=False) as producer:
        assert producer.transaction_state is TransactionState.UNINITIALIZED
        await refused(producer, "begin", "commit", "abort", "add_offsets", "send", "send_batch")
        await producer.init_transactions()
        await refused(producer, "init_transactions", "commit", "abort", "add_offsets", "send", "send_batch")
        await producer.begin()
        assert producer.transaction_state is TransactionState.IN_TRANSACTION
        await refused(producer, "init_transactions", "begin")
        producer.send("events", b"a", partition=0)
        await producer.flush(5.0)
        cluster.down.update(cluster.nodes)
        with pytest.raises(DeadlineExceeded):
            await producer.abort(1.0)
        assert producer.transaction_state is TransactionState.ABORTING
        assert producer.transaction_state.ending
        await refused(producer, "init_transactions", "commit", "add_offsets", "send", "send_batch")
        cluster.down.clear()
        await producer.begin()
        assert producer.transaction_state is TransactionState.IN_TRANSACTION
        await producer.abort()
        assert producer.transaction_state is TransactionState.READY


@in_simulation
async def test_a_producer_without_a_transactional_id_says_so() -> None:
    cluster = TransactionalCluster(1)
    async with AsyncProducer(cluster) as producer:  # type: ignore[arg-type]
        assert not producer.is_transactional
        for call in ("init_transactions", "begin", "commit", "abort", "add_offsets"):
            with pytest.raises(WrongTransactionState, match="no transactional_id"):
                await CALLS[call](producer)
        with pytest.raises(WrongTransactionState, match="no transactional_id"):
            producer.transaction()
        with pytest.raises(WrongTransactionState, match="no transactional_id"):
            _ = producer.transaction_state


def test_only_steps_of_the_table_are_taken_and_errors_go_with_error_states() -> None:
    for source in TransactionState:
        for target in TransactionState:
            states = TransactionStates("tx", lambda: None)
            states.current = source
            error = Closed("x") if target.in_error else None
            if target in _FOLLOWS[source]:
                states.enter(target, error)
                assert (states.current, states.error) == (target, error)
            else:
                with pytest.raises(AssertionError):
                    states.enter(target, error)


def test_a_fatal_error_is_the_end_and_only_an_abort_leaves_an_abortable_one() -> None:
    assert _FOLLOWS[TransactionState.FATAL_ERROR] == frozenset()
    assert _FOLLOWS[TransactionState.ABORTABLE_ERROR] == {TransactionState.ABORTING, TransactionState.FATAL_ERROR}
    assert all(
        TransactionState.FATAL_ERROR in following
        for state, following in _FOLLOWS.items()
        if state is not TransactionState.FATAL_ERROR
    )


PASSING = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out,
)
FENCING = (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)
FORBIDDEN = (ErrorCode.transactional_id_authorization_failed, ErrorCode.cluster_authorization_failed)


def requests_of(level: int) -> list[str]:
    """What a transaction with records and offsets asks, in order."""
    implicit = ["TxnOffsetCommit", "EndTxn"]
    return implicit if level == 2 else ["AddPartitionsToTxn", "AddOffsetsToTxn", *implicit]


async def whole_transaction(producer: AsyncProducer) -> None:
    """Records and offsets."""
    await transact_offsets(producer, MEMBER, b"a")


@BOTH
@pytest.mark.parametrize("code", [*PASSING, ErrorCode.unknown_topic_or_partition])
@in_simulation
async def test_what_passes_is_asked_again_whatever_was_asked(level: int, code: ErrorCode) -> None:
    for name in ("InitProducerId", *requests_of(level)):
        cluster = TransactionalCluster(1, level=level)
        async with producing(cluster, ready=False) as producer:
            cluster.fail(name, refusal(code), refusal(code), LOST, UNHEARD)
            await producer.init_transactions()
            await whole_transaction(producer)
            await settled(cluster)
            assert cluster.questions.count(name) >= 5
            assert cluster.committed == [[b"a"]]
            assert cluster.offsets == {("group", "source", 3): 17}
            moved = code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
            assert cluster.forgotten >= (4 if moved else 2)


@BOTH
@in_simulation
async def test_a_coordinator_that_is_not_found_yet_is_asked_for_again(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    cluster.lookup_errors.extend([ErrorCode.coordinator_not_available] * 5)
    async with producing(cluster) as producer:
        await transact(producer, b"a")
    assert await settled(cluster) == [[b"a"]]


@BOTH
@pytest.mark.parametrize("code", [*FENCING, *FORBIDDEN])
@in_simulation
async def test_fencing_and_lost_permission_are_the_end_whatever_was_asked(level: int, code: ErrorCode) -> None:
    expected = ProducerFenced if code in FENCING else KafkaError
    for name in ("InitProducerId", *requests_of(level)):
        cluster = TransactionalCluster(1, level=level)
        async with producing(cluster, ready=False) as producer:
            cluster.fail(name, refusal(code))
            with pytest.raises((expected, TransactionFailed)) as raised:  # noqa: PT012 - any of them may be the one
                await producer.init_transactions()
                await whole_transaction(producer)
            assert code.name.upper() in str(raised.value)
            await asyncio.sleep(1.0)
            assert producer.transaction_state is TransactionState.FATAL_ERROR
            for call in ("begin", "commit", "abort", "add_offsets", "send", "init_transactions"):
                with pytest.raises(expected):
                    await CALLS[call](producer)
            assert producer.outstanding == 0
            asked = len(cluster.asked)
        assert len(cluster.asked) == asked, "a fenced producer asks nothing more, not even when it is closed"


@pytest.mark.parametrize(
    ("level", "name", "code"),
    [
        (1, "AddPartitionsToTxn", ErrorCode.topic_authorization_failed),
        (1, "AddPartitionsToTxn", ErrorCode.invalid_txn_state),
        (1, "AddPartitionsToTxn", ErrorCode.invalid_producer_id_mapping),
        (1, "AddPartitionsToTxn", ErrorCode.transaction_abortable),
        (1, "AddOffsetsToTxn", ErrorCode.group_authorization_failed),
        (1, "AddOffsetsToTxn", ErrorCode.transaction_abortable),
        *(
            (level, name, code)
            for level in (1, 2)
            for name, codes in {
                "TxnOffsetCommit": (
                    ErrorCode.group_authorization_failed,
                    ErrorCode.illegal_generation,
                    ErrorCode.unknown_member_id,
                    ErrorCode.fenced_instance_id,
                    ErrorCode.stale_member_epoch,
                    ErrorCode.transaction_abortable,
                    ErrorCode.offset_metadata_too_large,
                ),
                "EndTxn": (
                    ErrorCode.transaction_abortable,
                    ErrorCode.invalid_producer_id_mapping,
                    ErrorCode.unknown_producer_id,
                    ErrorCode.invalid_txn_state,
                ),
            }.items()
            for code in codes
        ),
    ],
)
@in_simulation
async def test_what_is_wrong_with_one_transaction_aborts_it_and_the_producer_goes_on(
    level: int, name: str, code: ErrorCode
) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        cluster.fail(name, refusal(code))
        with pytest.raises((KafkaError, TransactionFailed)) as raised:
            await whole_transaction(producer)
        assert code.name.upper() in str(raised.value)
        assert producer.transaction_state is TransactionState.READY
        await transact(producer, b"next")
    assert await settled(cluster) == [[b"next"]]
    assert cluster.offsets == {}


@in_simulation
async def test_of_several_partitions_errors_the_final_one_decides() -> None:
    cluster = TransactionalCluster(3, level=1)
    cluster.unauthorized[1] = ErrorCode.topic_authorization_failed
    ends: list[Delivery] = []
    async with producing(cluster) as producer:
        with pytest.raises(TransactionFailed, match=r"TOPIC_AUTHORIZATION_FAILED.*events-1"):
            await transact(producer, b"a", partitions=range(3), done=ends.append)
        assert cluster.questions.count("AddPartitionsToTxn") == 1
        assert cluster.requests == 0
        assert [end.error is not None for end in ends] == [True] * 3
        del cluster.unauthorized[1]
        await transact(producer, b"next", partitions=[2])
    assert await settled(cluster) == [[], [], [b"next"]]


@pytest.mark.parametrize("code", [ErrorCode.invalid_txn_state, ErrorCode.unknown_producer_id])
@BOTH
@in_simulation
async def test_an_abort_of_what_the_coordinator_does_not_have_is_done_and_the_next_epoch_asked_for(
    level: int, code: ErrorCode
) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        await producer.begin()
        producer.send("events", b"a", partition=0)
        await producer.flush(5.0)
        cluster.coordinator_state.prepare(commit=False, bump=False)
        await asyncio.sleep(1.0)
        cluster.fail("EndTxn", refusal(code))
        await producer.abort()
        assert cluster.questions.count("InitProducerId") == 1
        await transact(producer, b"next")
        assert cluster.questions.count("InitProducerId") == 2
    assert await settled(cluster) == [[b"next"]]


@BOTH
@in_simulation
async def test_a_refused_abort_is_the_end(level: int) -> None:
    cluster = TransactionalCluster(1, level=level)
    async with producing(cluster) as producer:
        await producer.begin()
        producer.send("events", b"a", partition=0)
        await producer.flush(5.0)
        cluster.fail("EndTxn", refusal(ErrorCode.invalid_request))
        with pytest.raises(KafkaError, match="INVALID_REQUEST"):
            await producer.abort()
        assert producer.transaction_state is TransactionState.FATAL_ERROR


@in_simulation
async def test_a_transaction_timeout_beyond_the_brokers_is_said_at_once() -> None:
    cluster = TransactionalCluster(1)
    cluster.fail("InitProducerId", refusal(ErrorCode.invalid_transaction_timeout))
    async with producing(cluster, ready=False, transaction_timeout=7200.0) as producer:
        with pytest.raises(KafkaError, match="INVALID_TRANSACTION_TIMEOUT"):
            await producer.init_transactions()
        assert cluster.asked[0].transaction_timeout.total_seconds() == 7200
