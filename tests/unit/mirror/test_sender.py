"""Sender: a span is acknowledged once all that was made of it is, however its batches end; memory has a bound."""

from types import SimpleNamespace

import pytest

from ingestd.daemon.source import Assignment, Found, Loss
from ingestd.daemon.statistics import RouteCounters
from ingestd.errors import Closed, ErrorCode, KafkaError
from ingestd.mirror.partition import CopiedPartition
from ingestd.mirror.passing import Part
from ingestd.mirror.sender import Sender
from ingestd.producer.delivery import Delivery

DETAIL = {"topic": "orders", "partition": 0, "target_topic": "east.orders", "target_id": ""}
DETAIL |= {"epoch": 3, "topic_id": "", "target_offset": 0}


class Made:
    """A sender, its partition and its producer; hears what the sender tells a runner."""

    def __init__(self, skips):
        self.acknowledged, self.closed, self.losses, self.reasons, self.with_producer = [], [], [], [], []
        self.counters = RouteCounters()
        self.raises = None
        producers = SimpleNamespace(of=lambda through: self)
        self.sender = Sender(self, producers, self.counters, 100, skips=skips)
        self.held = CopiedPartition(Assignment("m", Found("orders-0", 0, DETAIL), 1), None)

    def send(self, end, *records):
        """A batch of 60 bytes for each of these numbers of records."""
        parts = [Part(memoryview(bytes(60)), count, ((end, count),)) for count in records]
        self.sender.send(self.held, self.held.read(end, 3), parts, 1000 * end)

    def ends(self, batch, base=-1, error=None):
        batch(Delivery("east.orders", 0, batch.records, base, error=error))

    # The producer.

    def send_batch(self, topic, partition, data, records, done):
        if self.raises is not None:
            raise self.raises
        self.with_producer.append(done)

    def recall(self, topic, partition):
        for batch in self.with_producer:
            self.ends(batch, error=Closed("recalled"))

    # The runner.

    def acknowledge(self, held, span):
        self.acknowledged.append(span.end)

    def released(self, held):
        self.closed.append(held.name)

    def lost(self, held, loss):
        self.losses.append(loss)

    def stop(self, reason):
        self.reasons.append(reason)


@pytest.fixture
async def made():
    return Made(skips=False)


@pytest.fixture
async def skipping():
    return Made(skips=True)


async def test_a_span_is_acknowledged_with_the_last_batch_that_was_made_of_it(made):
    made.send(10, 4, 6)
    first, second = made.with_producer
    made.ends(second, 104)
    assert made.acknowledged == []
    made.ends(first, 100)
    assert made.acknowledged == [10]
    assert (made.held.newest_ms, made.counters.records_acknowledged) == (10_000, 10)
    assert (made.held.bytes, len(made.sender.in_flight)) == (0, 0)


async def test_a_span_of_which_nothing_is_left_is_acknowledged_at_once(made):
    made.send(10)
    assert made.acknowledged == [10]


async def test_there_is_room_while_less_than_the_bound_is_with_the_producer(made):
    made.send(1, 1)
    assert made.sender.room.is_set()
    made.send(2, 1)
    assert not made.sender.room.is_set()
    made.ends(made.with_producer[0], 0)
    assert made.sender.room.is_set()


async def test_an_acknowledgement_without_an_offset_counts_as_behind_the_last_one(made):
    made.send(10, 4, 6)
    first, second = made.with_producer
    made.ends(first, 100)
    made.ends(second)
    assert made.held.target_offset == 110


async def test_a_batch_that_became_two_ends_with_both(made):
    made.send(10, 10)
    first, second = made.with_producer[0].split(3)
    assert (first.records, first.offsets, second.records, second.offsets) == (3, ((10, 3),), 7, ((13, 7),))
    made.ends(first, 100)
    assert made.acknowledged == []
    made.ends(second, 103)
    assert made.acknowledged == [10]
    assert made.held.bytes == 0


async def test_a_record_that_is_refused_for_good_is_lost_and_counts_as_sent(skipping):
    skipping.send(10, 1, 1)
    first, second = skipping.with_producer
    assert first.alone
    skipping.ends(first, error=KafkaError(ErrorCode.invalid_record, "orders"))
    skipping.ends(second, 100)
    assert skipping.losses == [Loss("orders-0", "refused", 10, 1, exact=True, unit="offsets")]
    assert (skipping.acknowledged, skipping.reasons) == ([10], [])


async def test_what_can_not_be_delivered_stops_the_mirror_and_is_not_acknowledged(made):
    made.send(10, 4)
    made.ends(made.with_producer[0], error=KafkaError(ErrorCode.invalid_record, "orders"))
    (reason,) = made.reasons
    assert reason.startswith("4 records of orders-0 (offsets 10 to 13) can not be delivered to east.orders-0: ")
    assert (made.acknowledged, made.held.bytes) == ([], 0)


async def test_a_record_that_is_refused_alone_is_named_by_its_offset(made):
    made.send(10, 4)
    first, second = made.with_producer[0].split(3)
    made.ends(second, error=KafkaError(ErrorCode.message_too_large, "orders"))
    (reason,) = made.reasons
    assert reason.startswith("1 record of orders-0 (offset 13) can not be delivered to east.orders-0: ")
    made.ends(first, 100)
    assert made.acknowledged == []


async def test_a_producer_that_has_ended_stops_the_mirror(made):
    made.raises = Closed("the producer is closed")
    made.send(10, 4)
    assert len(made.reasons) == 1
    assert (made.acknowledged, made.held.bytes, len(made.sender.in_flight)) == ([], 0, 0)


async def test_what_is_taken_back_from_the_producer_is_no_failure(made):
    made.send(10, 4, 6)
    made.held.closed = True
    made.sender.recall(made.held)
    assert (made.reasons, made.acknowledged) == ([], [])
    assert made.closed == ["orders-0"], "once nothing is left"
