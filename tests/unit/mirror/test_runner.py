"""MirrorRunner on a scripted consumer and producer: its position moves in order, whatever it meets."""

import asyncio
import struct
import time
from types import SimpleNamespace

import pytest

from ingestd.consumer.fetched import Fetched, FetchedBatch
from ingestd.daemon.runner import Workplace
from ingestd.daemon.source import Assignment, Found, Loss
from ingestd.daemon.statistics import RouteCounters
from ingestd.errors import Closed, ConnectionLost, ErrorCode, KafkaError
from ingestd.mirror import runner, turns
from ingestd.mirror.origins import Fate, Origin
from ingestd.mirror.passing import SMALL
from ingestd.mirror.route import MirrorRoute
from ingestd.mirror.runner import MirrorRunner
from ingestd.producer.delivery import Delivery
from ingestd.records.batch import patch_offset, patch_producer, read_header, seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression


def batch(offset, records, producer_id=-1, *, made=None):
    builder = BatchBuilder(2**20)
    for record in made or [(None, b"%d" % (offset + number), [], 5) for number in range(records)]:
        builder.append(*record)
    data = memoryview(builder.build(Compression(Codec.none)))
    patch_offset(data, offset, 3)
    patch_producer(data, producer_id, 0, 0, transactional=False)
    seal(data)
    return FetchedBatch(read_header(data), data, 0, None)


class Reading:
    """Stands for a partition consumer that fetched these answers, and may be told of more."""

    def __init__(self, answers):
        self.standing = SimpleNamespace(topic_id=None)
        self.fetch_position = SimpleNamespace(leader_epoch=3)
        self.high_watermark = -1
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
        self.losses, self.troubles, self.failures = [], [], []

    def troubled(self, assignment, reason):
        self.troubles.append(reason)

    def lost(self, assignment, loss):
        self.losses.append(loss)

    def failed(self, route, reason):
        self.failures.append(reason)

    def moved(self):
        pass

    def settled(self):
        pass


class Made:
    """A runner with one partition, which is read from offset 0 on; and its consumer."""

    def __init__(self, monkeypatch, answers, mirrors, keys):
        self.reading = Reading(answers)
        self.news = News()
        self.counters = RouteCounters()
        self.sent, self.starts = [], []
        self.mirrors, self.may_answer = mirrors, asyncio.Event()
        self.may_answer.set()

        monkeypatch.setattr(runner, "Consumer", self.consumer)
        cluster = SimpleNamespace(client=None, own_producer=self.own_producer, count_retries=lambda *_: None)
        clusters = {"east": cluster, "west": cluster}
        route = MirrorRoute("m", "east", "west", ("orders",), **keys)
        arena, peers = SimpleNamespace(publish_sent=lambda *_: None), SimpleNamespace(peers_sent=lambda _: 0)
        place = Workplace(0, arena, 64, peers, clusters, self.counters, self.news, self.answer)
        self.runner = MirrorRunner(route, place)
        detail = {"topic": "orders", "partition": 0, "target_topic": "east.orders", "target_id": ""}
        detail |= {"epoch": 3, "topic_id": "", "target_offset": 0}
        self.runner.assign(Assignment("m", Found("orders-0", 0, detail), 1))

    def own_producer(self, identities):
        return SimpleNamespace(send_batch=lambda *sent: self.sent.append(sent), recall=self.recall)

    async def answer(self, question):
        await self.may_answer.wait()
        return {one: self.mirrors[one] for one in question.producer_ids & self.mirrors.keys()}

    def consumer(self, client, settings, *, events):
        self.events = events
        return self

    async def close(self, timeout):
        pass

    async def consume_partition(self, topic, partition, start, end):
        self.starts.append(start.offset)
        return self.reading

    def recall(self, topic, partition):
        """Only the first batch has gone to its broker."""
        gone, self.sent = self.sent, self.sent[:1]
        for topic, partition, _, records, done in gone[1:]:
            done(Delivery(topic, partition, records, error=Closed("recalled")))

    def acknowledge(self, number):
        topic, partition, _, records, done = self.sent[number]
        done(Delivery(topic, partition, records, 100 * number))

    def gauge(self):
        (gauge,) = self.runner.gauges().values()
        return gauge.lag, gauge.lag_seconds

    def gauge_of(self, error):
        self.events.retried("orders", 0, error)
        return self.gauge()

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

    def start(*answers, mirrors=None, **keys):
        made.append(Made(monkeypatch, list(answers), mirrors or {}, keys))
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


async def test_a_gap_that_is_met_while_an_answer_is_being_sent_is_passed_after_it(make, monkeypatch):
    monkeypatch.setattr(turns, "SLICE", 0.0)
    made = make(answer(batch(0, 10), batch(10, 10)))
    while not made.sent:
        await asyncio.sleep(0)
    assert len(made.sent) == 1
    made.events.moved("orders", 0, 20, 50)
    made.reading.moves(50)
    await settle()
    made.acknowledge(0)
    assert made.positions == [10]
    made.acknowledge(1)
    assert made.positions == [50]


async def test_small_batches_go_together_and_the_position_moves_over_all_of_them_at_once(make):
    made = make(answer(*(batch(offset, 2) for offset in range(0, 20, 2)), batch(20, 5)))
    await settle()
    (sent,) = made.sent
    assert sent[3] == 25
    assert made.positions == []
    made.acknowledge(0)
    assert made.positions == [25]


async def test_small_batches_before_a_damaged_one_are_sent(make):
    bad = batch(8, 2)
    bad.data[-1] ^= 1
    made = make(answer(*(batch(offset, 2) for offset in range(0, 8, 2)), bad, batch(10, 2)))
    await settle()
    for number in range(4):
        made.acknowledge(number)
    assert made.positions == [8]
    assert (len(made.sent), len(made.news.troubles)) == (4, 1)


async def test_records_that_a_filter_leaves_out_move_the_position(make):
    made = make(answer(batch(0, 10), batch(10, 10)), exclude_headers={"test": "1"}, keys=("k",))
    await settle()
    assert made.sent == []
    assert made.positions == [20]


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


async def test_what_is_hidden_at_the_end_of_the_log_moves_the_position_once_all_before_is_acknowledged(make):
    made = make(answer(batch(0, 10)))
    await settle()
    made.reading.moves(13)  # a transaction was aborted: nothing of it comes
    made.events.answered("orders", 0, 13, 13)
    assert made.positions == []
    made.acknowledge(0)
    assert made.positions == [13]


async def test_what_is_hidden_is_passed_too_when_it_came_while_there_was_no_room_to_send(make):
    made = make()
    made.runner._sender._most = 1
    made.reading.moves(10, answer(batch(0, 10)))
    await settle()
    made.reading.moves(13)
    made.events.answered("orders", 0, 13, 13)  # the last answer for long: nothing more comes
    made.acknowledge(0)
    await settle()
    assert made.positions == [13]


async def test_hidden_records_behind_what_is_still_being_sent_are_not_passed_before_it(make, monkeypatch):
    monkeypatch.setattr(turns, "SLICE", 0.0)
    large = [(None, b"x" * SMALL, [], 5)]
    made = make(answer(batch(0, 1, made=large), batch(1, 1, made=large), batch(2, 1, made=large)))
    while not made.sent:
        await asyncio.sleep(0)
    assert len(made.sent) == 1
    made.reading.moves(13)
    made.events.answered("orders", 0, 13, 13)
    made.acknowledge(0)
    assert made.positions == [1]
    await settle()
    made.events.answered("orders", 0, 13, 13)
    made.acknowledge(1)
    made.acknowledge(2)
    assert made.positions == [13]


async def test_the_lag_in_seconds_grows_while_no_broker_serves_the_partition(make):
    made = make(answer(batch(0, 10)))
    await settle()
    made.acknowledge(0)
    made.reading.high_watermark = made.reading._position = 10
    made.events.answered("orders", 0, 10, 10)
    assert made.gauge() == (0, 0.0)
    assert made.runner.gauges() == {}, "what is quiet is not looked at again"
    for _ in range(3):
        before = made.gauge_of(ConnectionLost("away"))
        assert before[0] == 0
        await asyncio.sleep(0.01)
        assert made.gauge()[1] > before[1] > 0, "without another event"
    made.events.answered("orders", 0, 10, 10)
    assert made.gauge() == (0, 0.0)


async def test_a_lag_shows_although_nothing_can_be_sent(make):
    made = make(answer(batch(0, 10)))
    await settle()
    made.acknowledge(0)
    made.reading.high_watermark = 10
    made.events.answered("orders", 0, 10, 10)
    assert made.gauge() == (0, 0.0)
    made.reading.high_watermark = 50
    made.events.answered("orders", 0, 10, 50)
    assert made.gauge()[0] == 40


# The lease.


async def test_without_a_lease_nothing_more_is_sent_and_with_a_new_one_reading_goes_on_behind_what_was(make):
    made = make(answer(batch(0, 10)), answer(batch(10, 10)), answer(batch(20, 10)))
    made.runner.leased(time.monotonic() + 60)
    await settle()
    assert len(made.sent) == 3
    made.runner.leased(time.monotonic())
    await asyncio.sleep(0.01)
    assert len(made.sent) == 1, "the rest was taken back"
    assert made.runner.holds(["orders-0"])
    made.runner.leased(time.monotonic() + 60)
    await settle()
    assert made.starts == [0], "what was sent is waited for"
    made.acknowledge(0)
    assert made.positions == [10]
    made.reading.moves(10, answer(batch(10, 10)))
    await settle()
    assert made.starts == [0, 10]
    made.acknowledge(1)
    assert made.positions == [20]
    assert made.news.troubles == []


async def test_what_comes_without_a_lease_waits_for_one(make):
    made = make()
    made.runner.leased(time.monotonic())
    made.reading.moves(0, answer(batch(0, 10)))
    await settle()
    assert made.sent == []
    made.runner.leased(time.monotonic() + 60)
    made.reading.moves(0, answer(batch(0, 10)))
    await settle()
    made.acknowledge(0)
    assert made.positions == [10]


async def test_a_partition_that_is_taken_away_without_a_lease_stays_away(make):
    made = make(answer(batch(0, 10)))
    await settle()
    made.runner.leased(time.monotonic())
    await asyncio.sleep(0.01)
    made.runner.revoke("orders-0")
    made.acknowledge(0)
    made.runner.leased(time.monotonic() + 60)
    await settle()
    assert made.starts == [0]
    assert made.runner.gauges() == {"orders-0": None}


# What mirrors brought to the source.

RING = Origin(Fate.UNCLEAR, frozenset({"N", "W"}), "mirror ring, from cluster N, and through it from W")


async def test_a_gap_behind_what_stops_the_mirror_is_not_passed(make):
    made = make(answer(batch(0, 10), batch(10, 5, 7)), mirrors={7: RING})
    made.may_answer.clear()
    await settle()
    made.events.moved("orders", 0, 15, 50)
    made.reading.moves(50)
    made.may_answer.set()
    await settle()
    made.acknowledge(0)
    assert made.positions == [10]
    assert len(made.news.failures) == 1


async def test_a_gap_that_is_met_while_producer_ids_are_asked_for_comes_after_what_was_taken(make):
    # Its span was noted before that of the batches that wait: the position moved over them before they were sent.
    made = make(answer(batch(0, 20, 7)))
    made.may_answer.clear()
    await settle()
    made.reading._answers.clear()
    made.events.moved("orders", 0, 20, 50)
    made.reading.moves(50)
    assert made.positions == []
    made.may_answer.set()
    await settle()
    made.acknowledge(0)
    assert made.positions == [50]


async def test_what_was_taken_and_waits_for_an_answer_about_its_producer_ids_is_not_passed_over(make):
    # The consumer has handed it out, so it has reached the end: the position moved there, and the records were lost.
    made = make(answer(batch(0, 20, 7)))
    made.may_answer.clear()
    await settle()
    made.events.answered("orders", 0, 20, 20)
    assert made.positions == []
    made.may_answer.set()
    await settle()
    made.acknowledge(0)
    assert made.positions == [20]


async def test_what_was_taken_and_waits_for_its_share_of_the_bandwidth_is_not_passed_over(make):
    made = make(answer(batch(0, 20)), answer(batch(20, 20)), bandwidth=1000)
    await settle()
    assert len(made.sent) == 1
    made.events.answered("orders", 0, 40, 40)
    made.acknowledge(0)
    assert made.positions == [20]
    while len(made.sent) == 1:
        await asyncio.sleep(0.01)
    made.acknowledge(1)
    assert made.positions == [40]


# What the target refuses.


def refused(done, code, records=1):
    done(Delivery("east.orders", 0, records, error=KafkaError(code, "orders")))


async def test_a_record_that_is_refused_is_skipped_and_lost_and_the_position_moves_over_it(make):
    made = make(answer(batch(0, 10)), on_undeliverable="skip")
    await settle()
    whole = made.sent[0][4]
    first, rest = whole.split(4)
    second, third = rest.split(1)
    assert whole.alone
    assert (first.records, second.records, third.records) == (4, 1, 5)
    first(Delivery("east.orders", 0, 4, 100))
    refused(second, ErrorCode.invalid_record)
    assert made.positions == []
    third(Delivery("east.orders", 0, 5, 104))
    assert made.news.losses == [Loss("orders-0", "refused", 4, 1, exact=True, unit="offsets")]
    (move,) = made.runner.moved()
    assert (move.position, move.detail["target_offset"]) == (10, 109)
    assert made.runner.settled


@pytest.mark.parametrize(
    ("policy", "code", "records"),
    [
        ("stop", ErrorCode.invalid_record, 1),
        ("skip", ErrorCode.invalid_record, 2),
        ("skip", ErrorCode.topic_authorization_failed, 1),
    ],
)
async def test_what_is_no_single_refused_record_stops_the_mirror(make, policy, code, records):
    made = make(answer(batch(0, records)), on_undeliverable=policy)
    await settle()
    refused(made.sent[0][4], code, records)
    assert len(made.news.failures) == 1
    assert (made.positions, made.news.losses) == ([], [])
