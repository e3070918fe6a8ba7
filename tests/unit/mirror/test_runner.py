"""MirrorRunner on a scripted consumer and producer: its position moves in order, whatever it meets."""

import asyncio
import struct
from types import SimpleNamespace

import pytest

from ingestd.consumer.fetched import Fetched, FetchedBatch
from ingestd.daemon.runner import Workplace
from ingestd.daemon.source import Assignment, Found, Loss
from ingestd.daemon.statistics import RouteCounters
from ingestd.mirror import runner
from ingestd.mirror.route import MirrorRoute
from ingestd.mirror.runner import MirrorRunner
from ingestd.producer.delivery import Delivery
from ingestd.records.batch import patch_offset, read_header, seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression


def batch(offset, records):
    builder = BatchBuilder(2**20)
    for number in range(records):
        builder.append(None, b"%d" % (offset + number), [], 5)
    data = memoryview(builder.build(Compression(Codec.none)))
    patch_offset(data, offset, 3)
    seal(data)
    return FetchedBatch(read_header(data), data, 0, None)


class Reading:
    """Stands for a partition consumer that fetched these answers, and may be told of more."""

    def __init__(self, answers):
        self.standing = SimpleNamespace(topic_id=None)
        self.log_end = -1
        self._answers = list(answers)
        self._position = answers[-1].next_offset if answers else 0
        self._next = 0
        self._woken = asyncio.Event()

    @property
    def reached(self):
        return self._next if self._answers else self._position

    async def take(self):
        while not self._answers:
            self._woken.clear()
            await self._woken.wait()
        fetched = self._answers.pop(0)
        self._next = fetched.batches[-1].next_offset
        return fetched

    def moves(self, offset, *answers):
        self._position = offset
        self._answers += answers
        self._woken.set()

    def abandon(self):
        pass


class News:
    def __init__(self):
        self.losses, self.troubles = [], []

    def troubled(self, assignment, reason):
        self.troubles.append(reason)

    def lost(self, assignment, loss):
        self.losses.append(loss)

    def moved(self):
        pass


class Made:
    """A runner with one partition, which is read from offset 0 on; and its consumer."""

    def __init__(self, monkeypatch, answers):
        self.reading = Reading(answers)
        self.news = News()
        self.sent = []

        monkeypatch.setattr(runner, "Consumer", self.consumer)
        send = SimpleNamespace(send_batch=lambda *sent: self.sent.append(sent))
        cluster = SimpleNamespace(client=None, producer=send, count_retries=lambda *_: None)
        clusters = {"east": cluster, "west": cluster}
        route = MirrorRoute("m", "east", "west", ("orders",))
        self.runner = MirrorRunner(route, Workplace(0, None, 64, None, clusters, RouteCounters(), self.news))
        detail = {"topic": "orders", "partition": 0, "target_topic": "east.orders"}
        detail |= {"epoch": 3, "topic_id": "", "target_offset": 0}
        self.runner.assign(Assignment("m", Found("orders-0", 0, detail), 1))

    def consumer(self, client, settings, *, events):
        self.events = events
        return self

    async def close(self, timeout):
        pass

    async def consume_partition(self, *_):
        return self.reading

    def acknowledge(self, number):
        topic, partition, _, records, done = self.sent[number]
        done(Delivery(topic, partition, records, 100 * number))

    @property
    def positions(self):
        return [move.position for move in self.runner.moved()]


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


LOSS = Loss("orders-0", "retention", 20, 30, exact=True, unit="offsets")


@pytest.fixture
async def make(monkeypatch):
    made = []

    def start(*answers):
        made.append(Made(monkeypatch, list(answers)))
        return made[-1]

    yield start
    for one in made:
        await one.runner.close()


def answer(*batches):
    return Fetched(batches, 1000, batches[-1].next_offset)


async def test_what_is_fetched_before_a_gap_is_acknowledged_before_the_position_moves_over_it(make):
    """The fetcher is ahead of the reader: it meets the gap while two answers wait to be sent."""
    made = make(answer(batch(0, 10)), answer(batch(10, 10)))
    made.events.moved("orders", 0, 20, 50)
    made.reading.moves(50)
    await settle()
    assert len(made.sent) == 2
    made.acknowledge(1)
    assert made.positions == []
    made.acknowledge(0)
    assert made.positions == [50]
    assert made.news.losses == [LOSS]


async def test_a_gap_at_the_position_moves_it_at_once(make):
    made = make(answer(batch(0, 20)))
    await settle()
    made.acknowledge(0)
    made.events.moved("orders", 0, 20, 50)
    made.reading.moves(50)
    assert made.positions == [50]
    assert made.news.losses == [LOSS]
    made.reading.moves(60, answer(batch(50, 10)))
    await settle()
    made.acknowledge(1)
    assert made.positions == [60]


async def test_a_log_that_became_shorter_is_no_loss_of_retention(make):
    made = make(answer(batch(0, 20)))
    await settle()
    made.acknowledge(0)
    made.events.moved("orders", 0, 20, 0)
    assert made.positions == [20]
    assert made.news.losses == []


def with_gaps(batch, records):
    """The same with a header that says `records`: it must be made anew. Where it has fewer, that can not be."""
    struct.pack_into(">i", batch.data, 57, records)
    seal(batch.data)
    return FetchedBatch(read_header(batch.data), batch.data, 0, None)


async def test_a_batch_that_can_not_be_decoded_counts_as_not_read(make):
    # Its span stayed for ever: what was copied after it, read again and whole, moved no position.
    made = make(answer(with_gaps(batch(0, 10), 11)))
    await settle()
    assert (len(made.news.troubles), made.sent) == (1, [])
    made.reading.moves(10, answer(batch(0, 10)))
    async with asyncio.timeout(5):
        while not made.sent:
            await asyncio.sleep(0.01)
    made.acknowledge(0)
    assert made.positions == [10]
