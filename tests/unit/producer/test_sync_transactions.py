"""Transactions of the synchronous producer: blocking, from plain threads, on a cluster in memory."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from simulated_cluster import Fault, SimulatedCluster
from simulated_transactions import CoordinatorFault, TransactionalCluster
from transactional import BOTH, MEMBER, OFFSETS, changing_mind

from ingestd.client.metadata import TopicPartition
from ingestd.errors import Closed, CommitOutcomeUnknown, ErrorCode, KafkaError, TransactionFailed, WrongTransactionState
from ingestd.producer.settings import ProducerSettings
from ingestd.producer.sync import OutgoingMessage, SendFailed, SyncProducer
from ingestd.producer.transaction_state import TransactionState
from ingestd.records.decode import Record, TimestampType

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = ProducerSettings(transactional_id="tx", linger=0.0)


def producer_on(clusters: list[TransactionalCluster], level: int = 2) -> SyncProducer:
    """A transactional producer on a new cluster, which is put into `clusters`."""

    def make() -> TransactionalCluster:
        clusters.append(TransactionalCluster(2, level=level))
        return clusters[0]

    return SyncProducer([], SETTINGS, make_client=make)  # type: ignore[arg-type,return-value]


def eventually(holds: Callable[[], bool]) -> None:
    """Until it holds: markers are written after the answer."""
    deadline = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@BOTH
def test_begin_send_commit_and_abort_block_and_state_and_kind_can_be_asked(level: int) -> None:
    clusters: list[TransactionalCluster] = []
    with producer_on(clusters, level) as producer:
        assert producer.is_transactional
        assert producer.transaction_state is TransactionState.UNINITIALIZED
        producer.init_transactions()
        assert producer.transaction_state is TransactionState.READY
        producer.begin()
        assert producer.transaction_state is TransactionState.IN_TRANSACTION
        assert producer.send("events", b"a", partition=0).offset == 0
        producer.commit()
        producer.begin()
        producer.send("events", b"b", partition=0)
        producer.abort()
        producer.begin()
        producer.send_many([OutgoingMessage("events", b"%d" % number, partition=1) for number in range(10)])
        producer.commit()
        eventually(lambda: clusters[0].committed == [[b"a"], [b"%d" % number for number in range(10)]])


@BOTH
def test_a_block_commits_at_its_end_and_aborts_on_an_exception_which_goes_on(level: int) -> None:
    clusters: list[TransactionalCluster] = []
    with producer_on(clusters, level) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("events", b"a", partition=0)
        with changing_mind():
            change_mind_in(producer)
        with producer.transaction():
            producer.send("events", b"c", partition=0)
        eventually(lambda: clusters[0].committed[0] == [b"a", b"c"])
        clusters[0].faults.script.append(Fault(ErrorCode.invalid_record, appended=False))
        with pytest.raises(KafkaError, match="INVALID_RECORD"), producer.transaction():
            producer.send("events", b"d", partition=0)
        assert producer.transaction_state is TransactionState.READY


def change_mind_in(producer: SyncProducer) -> None:
    """A transaction that raises."""
    from transactional import ChangedMindError

    with producer.transaction():
        producer.send("events", b"b", partition=0)
        raise ChangedMindError


@BOTH
def test_offsets_and_a_consumed_message_are_added(level: int) -> None:
    clusters: list[TransactionalCluster] = []
    with producer_on(clusters, level) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.add_offsets(OFFSETS, MEMBER)
            record = Record(41, 0, TimestampType.create_time, None, b"v")
            producer.add_message(TopicPartition("source", 4), record, MEMBER, metadata="done")
        expected = {("group", "source", 3): 17, ("group", "source", 4): 42}
        eventually(lambda: clusters[0].offsets == expected)


def test_calls_that_the_state_does_not_allow_are_refused() -> None:
    with producer_on([]) as producer:
        for call in (producer.begin, producer.commit, producer.abort):
            with pytest.raises(WrongTransactionState, match="uninitialized"):
                call()
        with pytest.raises(WrongTransactionState, match="uninitialized"):
            producer.send("events", b"a", partition=0)
        with pytest.raises(SendFailed, match="uninitialized"):
            producer.send_many([OutgoingMessage("events", b"a")] * 2)
    with pytest.raises(Closed):
        producer.begin()
    with SyncProducer([], make_client=lambda: SimulatedCluster(1)) as plain:  # type: ignore[arg-type,return-value]
        assert not plain.is_transactional
        with pytest.raises(WrongTransactionState, match="no transactional_id"):
            plain.begin()


def test_records_of_all_threads_belong_to_the_one_transaction() -> None:
    clusters: list[TransactionalCluster] = []

    def work(thread: int) -> None:
        for number in range(20):
            producer.send("events", b"%d-%d" % (thread, number), partition=thread % 2)

    with producer_on(clusters) as producer:
        producer.init_transactions()
        with producer.transaction():
            threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert clusters[0].committed == [[], []]
        eventually(lambda: [len(values) for values in clusters[0].committed] == [40, 40])


def test_a_commit_whose_outcome_is_unknown_says_so_and_can_be_asked_for_again() -> None:
    clusters: list[TransactionalCluster] = []
    with producer_on(clusters) as producer:
        producer.init_transactions()
        producer.begin()
        producer.send("events", b"a", partition=0)
        clusters[0].fail("EndTxn", CoordinatorFault(hang=True))
        with pytest.raises(CommitOutcomeUnknown):
            producer.commit(2.0)
        producer.commit()
        eventually(lambda: clusters[0].committed[0] == [b"a"])


def test_a_commit_of_what_failed_says_that_it_is_not_committed() -> None:
    clusters: list[TransactionalCluster] = []
    with producer_on(clusters) as producer:
        producer.init_transactions()
        producer.begin()
        producer.send("events", b"a", partition=0)
        clusters[0].faults.script.append(Fault(ErrorCode.invalid_record, appended=False))
        with pytest.raises(KafkaError, match="INVALID_RECORD"):
            producer.send("events", b"b", partition=0)
        with pytest.raises(TransactionFailed, match="INVALID_RECORD"):
            producer.commit()
        producer.abort()
        with producer.transaction():
            producer.send("events", b"c", partition=0)
        eventually(lambda: clusters[0].committed[0] == [b"c"])


def test_one_dropped_in_a_transaction_warns_and_its_transaction_is_aborted_or_left_to_its_timeout() -> None:
    clusters: list[TransactionalCluster] = []
    producer = producer_on(clusters)
    producer.init_transactions()
    producer.begin()
    producer.send("events", b"a", partition=0)
    thread = producer._host._thread
    holder = [producer]
    del producer
    with pytest.warns(ResourceWarning, match="unclosed"):
        holder.clear()
    thread.join(30)
    assert not thread.is_alive()
    assert clusters[0].committed[0] == []
