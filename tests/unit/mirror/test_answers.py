"""Answers: what becomes of the batches of an answer, by who wrote them at the source."""

import asyncio
import math
from types import SimpleNamespace

import pytest

from ingestd.consumer.fetched import Fetched, FetchedBatch
from ingestd.daemon.source import Assignment, Found
from ingestd.daemon.statistics import RouteCounters
from ingestd.mirror.answers import Answers
from ingestd.mirror.origins import Fate, Origin, SourceProducers, by_fate
from ingestd.mirror.partition import CopiedPartition
from ingestd.mirror.route import MirrorRoute
from ingestd.records.batch import patch_offset, patch_producer, read_header, seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression

BACK = Origin(Fate.CAME_BACK, frozenset({"W"}), "mirror back")
NEAR = Origin(Fate.PASSES, frozenset({"N"}), "mirror near")
RING = Origin(Fate.UNCLEAR, frozenset({"N", "W"}), "mirror ring, from cluster N, and through it from W")

DETAIL = {"topic": "orders", "partition": 0, "target_topic": "east.orders", "target_id": ""}
DETAIL |= {"epoch": 3, "topic_id": "", "target_offset": 0}


def batch(offset, records, producer_id=-1):
    builder = BatchBuilder(2**20)
    for number in range(records):
        builder.append(None, b"%d" % (offset + number), [], 5)
    data = memoryview(builder.build(Compression(Codec.none)))
    patch_offset(data, offset, 3)
    patch_producer(data, producer_id, 0, 0, transactional=False)
    seal(data)
    return FetchedBatch(read_header(data), data, 0, None)


class Made:
    """The way of answers, between a supervisor that knows mirrors and a sender that has much room."""

    def __init__(self, mirrors):
        self.mirrors, self.asked, self.sent, self.passed, self.reasons = mirrors, [], [], [], []
        self.counters = RouteCounters()
        self.room = asyncio.Event()
        self.room.set()
        self.held = CopiedPartition(Assignment("m", Found("orders-0", 0, DETAIL), 1), None)
        lease = SimpleNamespace(until=math.inf)
        route = MirrorRoute("m", "east", "west", ("orders",))
        self.answers = Answers(route, self.counters, SourceProducers(self.answer), None, lease, self, self)

    async def copy(self, *batches):
        await self.answers.copy(self.held, Fetched(batches, 1000, batches[-1].next_offset))

    async def answer(self, question):
        self.asked.append(set(question.producer_ids))
        return {one: self.mirrors[one] for one in question.producer_ids & self.mirrors.keys()}

    def send(self, held, span, parts, newest_ms):
        self.sent.append((span.end, sum(part.records for part in parts), set(held.through)))

    def acknowledge(self, held, span):
        self.passed.append(span.end)

    def stop(self, reason):
        self.reasons.append(reason)


@pytest.fixture
async def made():
    return Made({6: RING, 7: BACK, 8: NEAR})


async def test_what_came_from_the_target_is_passed_over(made):
    await made.copy(batch(0, 10, 7), batch(10, 5, 1), batch(15, 6, 7), batch(21, 4, 7))
    assert made.sent == [(15, 5, set())]
    assert made.passed == [10, 25]
    assert (made.counters.records_not_sent_back, made.held.read_to) == (20, 25)


async def test_a_producer_id_is_asked_for_once_and_none_is_not_asked_for(made):
    await made.copy(batch(0, 1), batch(1, 1, 7))
    await made.copy(batch(2, 1, 1), batch(3, 1, 7))
    assert made.asked == [{7}, {1}]


async def test_what_was_on_other_clusters_is_sent_as_such_once_all_before_it_is_in_the_log(made):
    # The producers do not wait for each other: order within the partition would be lost.
    await made.copy(batch(0, 1))
    made.held.bytes = 60
    copying = asyncio.create_task(made.copy(batch(1, 1, 8)))
    while made.held.drained is None:
        await asyncio.sleep(0)
    assert len(made.sent) == 1
    made.held.drained.set()
    await copying
    await made.copy(batch(2, 1))
    assert made.sent == [(1, 1, set()), (2, 1, {"N"}), (3, 1, {"N"})]
    assert made.held.drained is None


async def test_what_may_have_been_on_the_target_stops_the_mirror_before_it(made):
    await made.copy(batch(0, 10), batch(10, 5, 6), batch(15, 5))
    assert made.sent == [(10, 10, set())]
    (said,) = made.reasons
    assert said.startswith(f"records of orders-0 from offset 10 on were brought there by {RING.said}. Some of them")
    assert (made.held.read_to, made.held.sending) == (10, False)


def test_batches_come_in_runs_of_one_fate_in_their_order():
    batches = [batch(0, 1, 7), batch(1, 1, 1), batch(2, 1, 8), batch(3, 1, 7)]
    runs = [(fate, [one.header.base_offset for one in run]) for fate, run in by_fate(batches, {7: BACK, 8: NEAR})]
    assert runs == [(Fate.CAME_BACK, [0]), (Fate.PASSES, [1, 2]), (Fate.CAME_BACK, [3])]
