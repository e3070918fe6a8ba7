"""Transactions of the broker: what readers of committed records get, whenever it dies, and what a restart knows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from embedded.batches import numbered_batch
from moved_clock import MovedClock

from ingestd.broker.broker import Broker
from ingestd.broker.log.partition_log import PartitionLog
from ingestd.broker.session import Context, Listener, Session
from ingestd.broker.settings import BrokerSettings, Flush
from ingestd.broker.storage import NewTopic
from ingestd.broker.topics import TRANSACTIONS_TOPIC
from ingestd.broker.transactions.admission import Missing, admit, admit_batch
from ingestd.broker.transactions.marker_writer import Marker
from ingestd.broker.transactions.transaction import Ids, TransactionState
from ingestd.broker.transactions.transitions import End, Start
from ingestd.errors import ErrorCode, KafkaError
from ingestd.records.batch import read_header, split_batches
from ingestd.records.decode import ControlKind, decode_control, decode_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from ingestd.broker.transactions.transaction_partition import TransactionPartition

MINUTE = 60.0
START = Start(60_000, 2)
PLACES = [("orders", 0), ("orders", 1)]
DAY = 86_400.0


class Died(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def started(tmp_path: Path, clock: MovedClock) -> AsyncIterator[Callable[..., Broker]]:
    """`started(flush=Flush.always)`: a broker on the one directory of the test; the one before it ends first."""
    running: list[Broker] = []

    async def start(*, flush: Flush = Flush.os, version: int = 2) -> Broker:
        for broker in running:
            await broker.close()
        settings = BrokerSettings(tmp_path / "data", flush=flush, transaction_partitions=3, transaction_version=version)
        broker = Broker(settings, clock)
        broker.start()
        running.append(broker)
        broker.transactions.begin()
        if broker.storage.topics.named("orders") is None:
            broker.storage.create([NewTopic("orders", 2, {"retention.ms": "-1"}, {})])
        return broker

    yield start
    for broker in running:
        await broker.close()


async def loaded(broker: Broker, transactional_id: str = "shop") -> TransactionPartition:
    """The id's partition, when all are loaded; a machine that stands still meanwhile is no failure."""
    while any(one.refusal is ErrorCode.coordinator_load_in_progress for one in broker.transactions.partitions):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    return broker.transactions.of(transactional_id)


def write(
    broker: Broker,
    ids: Ids,
    sequence: int,
    value: bytes,
    where: tuple[str, int] = PLACES[0],
    missing: Missing = Missing.added,
) -> Any:
    """A batch of a transaction, as Produce appends it. Returns what the answer waits for."""
    log = broker.partition(*where).log
    batch = memoryview(numbered_batch([value], ids.producer_id, ids.epoch, sequence, transactional=True))
    header = read_header(batch)
    added = admit_batch(broker.transactions, "shop", header, where, log, missing)
    log.append(batch, header)
    return added


def committed(broker: Broker, where: tuple[str, int] = PLACES[0]) -> list[bytes]:
    """What a reader of committed records gets, by the rules of the protocol."""
    log = broker.partition(*where).log
    found: list[bytes] = []
    piece = log.slice(0, 1 << 20, log.last_stable_offset)
    if piece is None:
        return found
    waiting, aborting = log.aborted(0, log.last_stable_offset), set()
    for batch in split_batches(piece.read()):
        header = read_header(batch)
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborting.add(waiting.pop(0).producer_id)
        if header.control:
            aborting -= {one.producer_id for one in decode_control(batch) if one.kind is ControlKind.abort}
        elif header.producer_id not in aborting:
            found += [record.value or b"" for record in decode_records(batch)]
    return found


def is_open(broker: Broker, where: tuple[str, int] = PLACES[0]) -> bool:
    log = broker.partition(*where).log
    return log.last_stable_offset < log.high_watermark


@pytest.mark.parametrize("flush", Flush)
@pytest.mark.parametrize("commits", [True, False])
async def test_readers_get_all_of_a_transaction_or_nothing_when_its_end_is_answered(
    started: Callable[..., Broker], flush: Flush, commits: bool
) -> None:
    broker = await started(flush=flush)
    shop = await loaded(broker)
    ids = (await shop.initialize("shop", START)).ids
    for number, where in enumerate(PLACES):
        write(broker, ids, 0, b"%d" % number, where)
    assert committed(broker) == []
    ended = await shop.end("shop", End(ids, commits, 2))
    assert (ended.error, ended.ids) == (ErrorCode.none, Ids(ids.producer_id, ids.epoch + 1))
    for number, where in enumerate(PLACES):
        assert committed(broker, where) == ([b"%d" % number] if commits else [])
        assert not is_open(broker, where)
    assert (await shop.end("shop", End(ids, commits, 2))).ids == ended.ids, "asked again"


async def test_a_transaction_is_complete_on_the_disk_before_the_next_one_begins(started: Callable[..., Broker]) -> None:
    """A loss of power took the record that it is complete. The start wrote its commit markers again, and committed with
    them what the next transaction had written.
    """
    broker = await started(flush=Flush.always)
    shop = await loaded(broker)
    ids = (await shop.initialize("shop", START)).ids
    write(broker, ids, 0, b"x")
    ending = shop.end("shop", End(ids, True, 2))
    number = broker.transactions.partitions
    logs = [broker.partition(TRANSACTIONS_TOPIC, at).log for at, _one in enumerate(number)]
    while not ending.done():
        known = shop.get("shop")
        assert known is not None
        complete = known.state is TransactionState.complete_commit
        assert not complete or all(log.high_watermark == log.end_offset for log in logs)
        await asyncio.sleep(0)
    assert ending.result().error is ErrorCode.none
    assert all(log.high_watermark == log.end_offset for log in logs)


async def test_a_transaction_goes_on_after_a_restart(started: Callable[..., Broker]) -> None:
    broker = await started()
    ids = (await (await loaded(broker)).initialize("shop", START)).ids
    write(broker, ids, 0, b"before")
    broker = await started()
    shop = await loaded(broker)
    assert is_open(broker)
    write(broker, ids, 1, b"after")
    assert (await shop.end("shop", End(ids, True, 2))).error is ErrorCode.none
    assert committed(broker) == [b"before", b"after"]


async def test_nothing_is_answered_while_it_is_loaded(started: Callable[..., Broker]) -> None:
    broker = await started()
    ids = (await (await loaded(broker)).initialize("shop", START)).ids
    broker = await started()
    with pytest.raises(KafkaError) as refused:
        broker.transactions.of("shop")
    assert refused.value.code is ErrorCode.coordinator_load_in_progress
    with pytest.raises(KafkaError) as refused:
        write(broker, ids, 0, b"x")
    assert refused.value.code is ErrorCode.not_enough_replicas, "what clients try again"
    await loaded(broker)
    write(broker, ids, 0, b"x")


async def test_no_list_is_given_while_some_would_be_missing(started: Callable[..., Broker]) -> None:
    broker = await started()
    await (await loaded(broker)).initialize("shop", START)
    broker = await started()
    node = broker.cluster.controller
    context = Context(broker, node, Session(Listener("PLAINTEXT", node)))
    with pytest.raises(KafkaError) as refused:
        context.transaction_partitions()
    assert refused.value.code is ErrorCode.coordinator_load_in_progress
    await loaded(broker)
    listed = [name for partition in context.transaction_partitions() for name, _known in partition]
    assert listed == ["shop"]


@pytest.mark.parametrize("missing", [Missing.refused, Missing.abortable, Missing.added])
async def test_a_batch_does_not_take_the_place_of_the_one_before_it_that_was_refused_for_now(
    started: Callable[..., Broker], missing: Missing
) -> None:
    """A producer sends without waiting. One batch comes while transactions are loaded, the next one after that."""
    broker = await started()
    ids = (await (await loaded(broker)).initialize("shop", START)).ids
    await broker.transactions.of("shop").add("shop", ids, PLACES, 2)
    broker = await started()
    with pytest.raises(KafkaError) as refused:
        write(broker, ids, 0, b"first", missing=missing)
    assert refused.value.code is ErrorCode.not_enough_replicas
    shop = await loaded(broker)
    with pytest.raises(KafkaError) as refused:
        write(broker, ids, 1, b"second", missing=missing)
    assert refused.value.code is ErrorCode.out_of_order_sequence_number
    write(broker, ids, 0, b"first", missing=missing)
    write(broker, ids, 1, b"second", missing=missing)
    await shop.end("shop", End(ids, True, 2))
    assert committed(broker) == [b"first", b"second"]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_whenever_the_broker_dies_a_transaction_is_whole_or_not_there(
    started: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch, version: int, commits: bool
) -> None:
    """It dies at each append of a transaction over two partitions, one after the other."""
    answered = 0
    for lives in range(100):
        topic = f"topic-{lives}"
        places = [(topic, 0), (topic, 1)]
        broker = await started(version=version)
        broker.storage.create([NewTopic(topic, 2, {}, {})])
        shop = await loaded(broker)
        append, left = PartitionLog.append, [lives]

        def dying(log: PartitionLog, *batch: Any, append: Any = append, left: list[int] = left) -> Any:
            if left[0] == 0:
                raise Died
            left[0] -= 1
            return append(log, *batch)

        done = False
        with monkeypatch.context() as patched:
            patched.setattr(PartitionLog, "append", dying)
            try:
                ids = (await shop.initialize("shop", START)).ids
                for number, where in enumerate(places):
                    write(broker, ids, 0, b"%d" % number, where)
                done = (await shop.end("shop", End(ids, commits, version))).error is ErrorCode.none
            except Died:
                pass
        broker = await started(version=version)
        shop = await loaded(broker)
        known = shop.get("shop")
        if known is not None and known.state is TransactionState.ongoing:
            # As the next producer would.
            assert (await shop.initialize("shop", START)).error is ErrorCode.concurrent_transactions
        assert not any(is_open(broker, where) for where in places)
        whole = [[b"0"], [b"1"]]
        seen = [committed(broker, where) for where in places]
        assert seen in ([[], []], whole)
        if done:
            answered += 1
            assert seen == (whole if commits else [[], []])
            if answered == 2:
                return
    raise AssertionError("it never lived long enough")


async def test_a_transaction_past_its_time_is_aborted(started: Callable[..., Broker], clock: MovedClock) -> None:
    broker = await started()
    shop = await loaded(broker)
    ids = (await shop.initialize("shop", START)).ids
    write(broker, ids, 0, b"x")
    await clock.move(MINUTE - 1)
    broker = await started()
    shop = await loaded(broker)
    assert is_open(broker), "the time goes on from its beginning, also over a restart"
    await clock.move(1)
    assert not is_open(broker)
    assert committed(broker) == []
    known = shop.get("shop")
    assert known is not None
    assert (known.state, known.ids) == (TransactionState.complete_abort, Ids(ids.producer_id, ids.epoch + 1))
    with pytest.raises(KafkaError) as refused:
        write(broker, ids, 1, b"late")
    assert refused.value.code is ErrorCode.invalid_producer_epoch


async def test_a_full_disk_delays_the_markers_and_nothing_else_is_said(
    started: Callable[..., Broker], clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await started()
    shop = await loaded(broker)
    ids = (await shop.initialize("shop", START)).ids
    for where in PLACES:
        write(broker, ids, 0, b"x", where)
    append = PartitionLog.append

    def full(log: PartitionLog, *batch: Any) -> Any:
        if log is broker.partition(*PLACES[1]).log:
            raise KafkaError(ErrorCode.kafka_storage_error, "no room")
        return append(log, *batch)

    with monkeypatch.context() as patched, structlog.testing.capture_logs() as logged:
        patched.setattr(PartitionLog, "append", full)
        ending = shop.end("shop", End(ids, True, 2))
        for _ in range(3):
            await clock.move(1)
        assert not ending.done()
        assert [one["partition"] for one in logged if "marker not written" in one["event"]] == ["orders-1"], "once"
        assert (committed(broker), committed(broker, PLACES[1])) == ([b"x"], [])
        preparing = shop.get("shop")
        assert preparing is not None
        assert broker.transactions.unmarked(preparing) == {PLACES[1]}
        with pytest.raises(KafkaError) as refused:
            shop.end("shop", End(ids, True, 2))
        assert refused.value.code is ErrorCode.concurrent_transactions
    await clock.move(1)
    assert (await ending).error is ErrorCode.none
    assert committed(broker, PLACES[1]) == [b"x"]


async def test_what_the_disk_does_not_take_has_not_happened(
    started: Callable[..., Broker], clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await started()
    shop = await loaded(broker)
    ids = (await shop.initialize("shop", START)).ids
    write(broker, ids, 0, b"x")

    def full(*_batch: Any) -> Any:
        raise KafkaError(ErrorCode.kafka_storage_error, "no room")

    before = shop.get("shop")
    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "append", full)
        for ask in (
            lambda: shop.initialize("shop", START),
            lambda: shop.add("shop", ids, [PLACES[1]]),
            lambda: shop.end("shop", End(ids, True, 2)),
        ):
            with pytest.raises(KafkaError) as refused:
                ask()
            assert refused.value.code is ErrorCode.coordinator_not_available
        await clock.move(2 * MINUTE)
        assert shop.get("shop") == before
    await clock.move(1)
    assert not is_open(broker), "its time is over: that is tried again too"


async def test_what_no_transactional_id_has_is_aborted_at_the_start(started: Callable[..., Broker]) -> None:
    """A loss of power may take the record of the transaction, and leave its batch."""
    broker = await started()
    log = broker.partition(*PLACES[0]).log
    batch = memoryview(numbered_batch([b"x"], 77, 3, 0, transactional=True))
    log.append(batch, read_header(batch))
    ids = (await (await loaded(broker)).initialize("shop", START)).ids
    write(broker, ids, 0, b"y", PLACES[1])
    broker = await started()
    await loaded(broker)
    assert not is_open(broker)
    assert committed(broker) == []
    assert is_open(broker, PLACES[1]), "this one is known"


@pytest.mark.parametrize("flush", Flush)
async def test_a_marker_that_an_administrator_asks_for_is_answered_when_readers_go_on(
    started: Callable[..., Broker], flush: Flush
) -> None:
    broker = await started(flush=flush)
    shop = await loaded(broker)
    ids = (await shop.initialize("shop", START)).ids
    write(broker, ids, 0, b"x")
    markers = broker.transactions.markers
    asked = markers.write_once(Marker(ids, commits=False, coordinator_epoch=0), PLACES[0])
    assert asked.done() == (flush is Flush.os)
    assert await asked is ErrorCode.none
    assert not is_open(broker)
    assert committed(broker) == []


async def test_a_partition_that_is_deleted_needs_no_marker(started: Callable[..., Broker]) -> None:
    broker = await started()
    broker.storage.create([NewTopic("short", 1, {}, {})])
    shop = await loaded(broker)
    ids = (await shop.initialize("shop", START)).ids
    for where in (PLACES[0], ("short", 0)):
        write(broker, ids, 0, b"x", where)
    broker.storage.delete(broker.topic_named("short"))
    assert (await shop.end("shop", End(ids, True, 2))).error is ErrorCode.none
    assert committed(broker) == [b"x"]


async def test_transactional_ids_expire_when_they_have_no_transaction(
    started: Callable[..., Broker], clock: MovedClock
) -> None:
    broker = await started()
    shop = await loaded(broker)
    ids = (await shop.initialize("shop", Start(int(14 * DAY * 1000), 2))).ids
    write(broker, ids, 0, b"x")
    await clock.move(8 * DAY)
    assert shop.get("shop") is not None
    await shop.end("shop", End(ids, True, 2))
    await clock.move(6 * DAY)
    assert shop.get("shop") is not None
    await clock.move(2 * DAY)
    assert shop.get("shop") is None
    shop = await loaded(await started())
    assert shop.get("shop") is None
    assert (await shop.initialize("shop", START)).ids.producer_id != ids.producer_id


async def test_a_batch_is_answered_when_its_transaction_is_on_the_disk(started: Callable[..., Broker]) -> None:
    """Otherwise a loss of power could take it from a transaction that is committed later."""
    broker = await started(flush=Flush.always)
    shop = await loaded(broker)
    ids = (await shop.initialize("shop", START)).ids
    first = write(broker, ids, 0, b"x")
    second = write(broker, ids, 1, b"y")
    assert not first.done()
    assert second is first
    assert (await first).error is ErrorCode.none
    assert write(broker, ids, 2, b"z") is None


@pytest.mark.parametrize(
    ("missing", "code"),
    [(Missing.refused, ErrorCode.invalid_txn_state), (Missing.abortable, ErrorCode.transaction_abortable)],
)
async def test_a_partition_must_be_in_the_transaction_before_a_batch_is(
    started: Callable[..., Broker], missing: Missing, code: ErrorCode
) -> None:
    broker = await started()
    shop = await loaded(broker)
    ids = (await shop.initialize("shop", START)).ids
    log = broker.partition(*PLACES[0]).log

    def asked(transactional_id: str | None = "shop", ids: Ids = ids) -> ErrorCode:
        with pytest.raises(KafkaError) as refused:
            admit(broker.transactions, transactional_id, ids, PLACES[0], log, missing)
        return refused.value.code

    assert asked() is code
    assert asked(None) is ErrorCode.transactional_id_authorization_failed
    assert asked(ids=Ids(ids.producer_id, 9)) is ErrorCode.invalid_producer_epoch
    assert asked("other") is ErrorCode.invalid_producer_id_mapping
    assert (await shop.add("shop", ids, [PLACES[0]])).error is ErrorCode.none
    assert admit(broker.transactions, "shop", ids, PLACES[0], log, missing) is None


async def test_the_topic_comes_with_the_first_transactional_id(tmp_path: Path) -> None:
    broker = Broker(BrokerSettings(tmp_path / "data"), MovedClock())
    broker.start()
    try:
        assert broker.storage.topics.named(TRANSACTIONS_TOPIC) is None
        with pytest.raises(KafkaError) as refused:
            broker.transactions.of("shop")
        assert refused.value.code is ErrorCode.not_coordinator
        broker.transactions.begin()
        topic = broker.storage.topics.named(TRANSACTIONS_TOPIC)
        assert topic is not None
        assert (topic.partitions, topic.config["cleanup.policy"]) == (50, "compact")
    finally:
        await broker.close()
