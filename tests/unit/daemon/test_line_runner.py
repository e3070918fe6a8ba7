"""Line runner: whatever order encoders and brokers answer in, lines arrive in order and positions never pass a hole."""

import asyncio
import errno
import os
import random
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_clock import simulate

from ingestd.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from ingestd.daemon import in_flight, outbox
from ingestd.daemon.arena import PAGE_BYTES, Arena, largest_batch, pages_for
from ingestd.daemon.control import Moved, Unacknowledged
from ingestd.daemon.encode import EncodingFailed
from ingestd.daemon.line_runner import LineRunner
from ingestd.daemon.source import Assignment, BatchSpan, EncodedAgain, Encoding, End, Found, Lane, Piece
from ingestd.daemon.statistics import RouteCounters
from ingestd.errors import ErrorCode, KafkaError
from ingestd.producer.delivery import Delivery

SLAB = 4 * PAGE_BYTES


class Text:
    """A source over bytes in memory, which may grow."""

    def __init__(self, assignment, text, until):
        self.assignment = assignment
        self.text = text
        self.until = until
        self.at = assignment.found.position
        self.path = "/" + assignment.found.source
        self.last = assignment.found.last
        self.closed = False
        self.failures = 0
        self.error = OSError("not now")
        self.reads = 0
        self.tells = False
        self.shortened = 0

    def read(self, into):
        self.reads += 1
        if self.failures:
            self.failures -= 1
            raise self.error
        chunk = self.text[self.at : self.at + len(into)]
        chunk = chunk[: chunk.rfind(b"\n") + 1]
        if not chunk:
            return None
        into[: len(chunk)] = chunk
        start, self.at = self.at, self.at + len(chunk)
        return Piece(len(chunk), start, self.at, self.shortened, exhausted=self.tells and not self.unread)

    @property
    def unread(self):
        return len(self.text) - self.at

    @property
    def deleted(self):
        return "" if self.path else "its last path"

    @property
    def finished(self):
        if self.last and not self.unread:
            return End("concluded", self.path, self.at, len(self.text))
        if self.until is not None and self.at >= self.until:
            return End("taken", self.path, self.at, len(self.text))
        return None

    def conclude(self):
        self.last = True

    def detail(self):
        return {"at": self.at, "path": self.path}

    def close(self):
        self.closed = True


@dataclass
class TextRoute:
    """A route over texts; its encoder puts lines as they are, at most `most` bytes to a call, into one batch."""

    texts: dict
    most: int = SLAB
    name: str = "r"
    cluster: str = "c"
    topic: str = "t"
    linger: float = 0.0
    batch_bytes: int = SLAB
    gathers: int = 1
    opened: dict = field(default_factory=dict)
    lanes: dict = field(default_factory=dict)
    cuts_lines: bool = True

    @property
    def slab_bytes(self):
        return self.gathers * self.batch_bytes

    def opener(self, ready, changed):
        self.ready, self.changed = ready, changed
        return self

    def open(self, assignment):
        name = assignment.found.source
        if name not in self.texts:
            raise FileNotFoundError(name)
        self.opened[name] = Text(assignment, self.texts[name], assignment.found.until)
        return self.opened[name]

    def drain(self):
        pass

    def close(self):
        pass

    def lane(self, found, partitions):
        return self.lanes.get(found.source, Lane())

    def encode(self, raw, out, *, lane, partitions, timestamp_ms):
        lines = bytes(raw[: self.most])
        if len(lines) < len(raw):
            lines = lines[: lines.rfind(b"\n") + 1]
        out[: len(lines)] = lines
        return Encoding(len(lines), [BatchSpan(lane.partition, 0, len(lines), lines.count(b"\n"), len(lines))])

    def encoder(self):
        return self

    def encode_again(self, batch, *, lane, partitions, timestamp_ms):
        """In halves, as lines of several keys would go apart."""
        lines = bytes(batch).splitlines(keepends=True)
        half = len(lines) // 2 or len(lines)
        return [
            EncodedAgain(lane.partition, len(part), memoryview(bytearray(b"".join(part))))
            for part in (lines[:half], lines[half:])
            if part
        ]


class LateEncoding:
    """Encodes when told to, in any order."""

    def __init__(self, route, arena):
        self.route, self.arena, self.jobs, self.capacity = route, arena, [], 4

    def submit(self, job):
        self.jobs.append(job)

    def finish(self, number):
        job = self.jobs.pop(number)
        raw = self.arena.view(job.raw.page, job.offset + job.length)[job.offset :]
        out = self.arena.view(job.out.page, job.out.size)
        job.done(self.route.encode(raw, out, lane=job.lane, partitions=job.partitions, timestamp_ms=job.timestamp_ms))


class LateBroker:
    """Acknowledges when told to, in any order; remembers what was sent, in order."""

    def __init__(self):
        self.sent = defaultdict(list)
        self.waiting = []

    def send_batch(self, topic, partition, batch, records, done):
        text = bytes(batch)
        self.sent[partition].append(text)
        self.waiting.append((batch, text, partition, records, done))

    def acknowledge(self, number, error=None):
        batch, text, partition, records, done = self.waiting.pop(number)
        assert bytes(batch) == text, "the memory changed before the acknowledgement"
        done(Delivery("t", partition, records, error=error))


class Metadata:
    def __init__(self, partitions):
        self.asked = []
        self.set(partitions)

    def set(self, partitions):
        topic = TopicMetadata("t", None, tuple(PartitionMetadata(p, 1, 0, (1,), (1,)) for p in range(partitions)))
        topics = {"t": topic} if partitions else {}
        self.snapshot = ClusterMetadata("id", 1, {1: Node(1, "h", 1)}, topics, 1)

    def wanted(self, topics, reason):
        self.asked.append((tuple(topics), reason))


class News:
    def __init__(self):
        self.events = []

    def ended(self, assignment, end):
        self.events.append(("ended", assignment.found.source, end))

    def troubled(self, assignment, reason):
        self.events.append(("troubled", assignment.found.source, reason))

    def failed(self, route, reason):
        self.events.append(("failed", route.name, reason))
        self.told_of_failure()

    def told_of_failure(self):
        """What a worker does then, if the test wants it."""

    def settled(self):
        self.events.append(("settled",))

    def moved(self):
        self.told_of_moves = True


class Bench:
    """A runner with everything around it in our hands."""

    def __init__(self, route, arena, partitions=2):
        self.route, self.arena = route, arena
        self.encoding = LateEncoding(route, arena)
        self.broker = LateBroker()
        self.metadata = Metadata(partitions)
        self.news = News()
        self.counters = RouteCounters()
        self.runner = LineRunner(
            route,
            0,
            arena=arena,
            share=arena.usable_pages,
            encoding=self.encoding,
            metadata=self.metadata,
            producer=self.broker,
            counters=self.counters,
            news=self.news,
        )
        self.positions = {}

    def assign(self, source, position=0, until=None, generation=1, last=False):
        self.runner.assign(Assignment("r", Found(source, position, {}, until, last=last), generation))

    def collect(self):
        for move in self.runner.moved():
            assert move.position >= self.positions.get(move.source, 0)
            self.positions[move.source] = move.position

    async def turn(self):
        for _ in range(5):
            await asyncio.sleep(0.001)
        self.collect()

    async def deliver_all(self):
        while self.encoding.jobs or self.broker.waiting:
            while self.encoding.jobs:
                self.encoding.finish(0)
            while self.broker.waiting:
                self.broker.acknowledge(0)
            await self.turn()


@asynccontextmanager
async def bench(route, pages=64, partitions=2):
    descriptor = Arena.create(pages * PAGE_BYTES)
    arena = Arena(descriptor)
    made = Bench(route, arena, partitions)

    def freed():
        if made.runner.starved:
            asyncio.get_running_loop().call_soon(made.runner.kick)

    arena.freed = freed
    yield made
    await made.runner.close()
    arena.close()
    os.close(descriptor)


def lines(name: str, count: int, width: int) -> bytes:
    return b"".join(f"{name} {number} {'x' * width}\n".encode() for number in range(count))


async def drive(made, source, until):
    """Encoders and brokers finish something at random until nothing is left."""
    for _ in range(3000):
        await asyncio.sleep(0)
        made.collect()
        if made.encoding.jobs and source.random() < 0.6:
            made.encoding.finish(source.randrange(len(made.encoding.jobs)))
        elif made.broker.waiting:
            made.broker.acknowledge(source.randrange(len(made.broker.waiting)))
        elif until():
            return
        else:
            await asyncio.sleep(0.002)
    raise AssertionError("the runner stands still")


@settings(deadline=None, max_examples=40)
@given(
    counts=st.lists(st.integers(0, 4000), min_size=1, max_size=6),
    most=st.integers(PAGE_BYTES // 2, SLAB),
    pages=st.integers(10, 40),
    seed=st.integers(0, 2**32),
    fixed=st.booleans(),
)
def test_every_line_is_sent_once_in_order_and_acknowledged_before_the_position_moves(counts, most, pages, seed, fixed):
    # Hypothesis draws nothing while the runner works: how often it is asked must not depend on how a run goes.
    texts = {f"s{number}": lines(f"s{number}", count, 150) for number, count in enumerate(counts)}
    lanes = {name: Lane(number % 2, b"k%d" % number) for number, name in enumerate(texts)} if fixed else {}
    route = TextRoute(texts, most, lanes=lanes)

    async def check():
        async with bench(route, pages) as made:
            for name, text in texts.items():
                made.assign(name, until=len(text))
            await drive(made, random.Random(seed), lambda: len(made.news.events) == len(texts))
            assert {event[:2] for event in made.news.events} == {("ended", name) for name in texts}
            assert made.arena.used_pages == 0
            for name, text in texts.items():
                sent = b"".join(batch for batches in made.broker.sent.values() for batch in batches).splitlines()
                mine = [line for line in sent if line.startswith(name.encode() + b" ")]
                assert sorted(mine) == sorted(text.splitlines())
                for batches in made.broker.sent.values():
                    here = [line for batch in batches for line in batch.splitlines() if line.startswith(name.encode())]
                    numbers = [int(line.split()[1]) for line in here]
                    assert numbers == sorted(numbers)
            assert made.counters.bytes_acknowledged == sum(map(len, texts.values()))

    simulate(check)


async def test_a_position_waits_for_a_batch_that_is_not_acknowledged():
    text = lines("a", 4000, 200)
    async with bench(TextRoute({"a": text})) as made:
        made.assign("a")
        await made.turn()
        while made.encoding.jobs:
            made.encoding.finish(0)
            await made.turn()
        assert len(made.broker.waiting) >= 3
        made.broker.acknowledge(1)
        await made.turn()
        assert made.positions == {}
        first = len(made.broker.sent[1][0])
        made.broker.acknowledge(0)
        await made.turn()
        assert made.positions["a"] > first


async def test_reading_stops_at_the_bound_of_memory_and_goes_on_when_pages_come_back():
    text = lines("a", 20_000, 200)
    async with bench(TextRoute({"a": text}), pages=24) as made:
        made.encoding.capacity = 100
        made.assign("a")
        for _ in range(20):
            await made.turn()
            while made.encoding.jobs:
                made.encoding.finish(0)
        assert made.arena.used_pages <= 23
        assert made.runner.starved
        sent = len(made.broker.waiting)
        while made.broker.waiting:
            made.broker.acknowledge(0)
        await made.turn()
        while made.encoding.jobs:
            made.encoding.finish(0)
        assert sum(map(len, made.broker.sent.values())) > sent


async def test_nothing_is_read_before_the_partitions_are_known():
    async with bench(TextRoute({"a": lines("a", 10, 10)}), partitions=0) as made:
        made.assign("a")
        await made.turn()
        assert made.encoding.jobs == []
        assert made.metadata.asked
        made.metadata.set(3)
        made.runner.kick()
        await made.turn()
        assert len(made.encoding.jobs) == 1


async def test_a_source_that_is_finished_when_it_is_opened_ends_before_the_partitions_are_known():
    """A file is gone; its finder must hear of that in the outage, since what comes after it waits for its rest."""
    route = TextRoute({"a": b""})
    async with bench(route, partitions=0) as made:
        made.assign("a", last=True)
        await made.turn()
        assert made.news.events == [("ended", "a", End("concluded", "/a", 0, 0))]


async def test_what_a_source_knows_at_its_end_is_told_though_it_did_not_move():
    """How far a damaged archive was read was not told: what somebody added to it later was never read."""
    async with bench(TextRoute({"a": b""})) as made:
        made.assign("a", last=True)
        await asyncio.sleep(0.01)
        assert [(move.source, move.detail["path"]) for move in made.runner.moved()] == [("a", "/a")]


async def test_a_source_opened_before_the_partitions_are_known_gets_the_lane_that_they_give_it():
    # The daemon starts, files are found, and the cluster has not answered yet: a file that keeps its partition would
    # have gone to partition 0 until the next start.
    class Kept(TextRoute):
        def lane(self, found, partitions):
            return Lane(int(found.source) % max(1, partitions))

    texts = {str(number): b"%d\n" % number for number in range(6)}
    async with bench(Kept(texts), partitions=0) as made:
        for name in texts:
            made.assign(name)
        await made.turn()
        made.metadata.set(4)
        made.assign("5")
        made.runner.revoke("3")
        made.runner.kick()
        for _ in range(20):
            await made.turn()
            while made.encoding.jobs:
                made.encoding.finish(0)
            while made.broker.waiting:
                made.broker.acknowledge(0)
        sent = {
            partition: sorted(b"".join(batches).decode().split()) for partition, batches in made.broker.sent.items()
        }
    assert sent == {0: ["0", "4"], 1: ["1", "5"], 2: ["2"]}


async def test_a_source_that_can_not_be_opened_is_reported_and_tried_again():
    route = TextRoute({})
    async with bench(route) as made:
        made.assign("a", until=10)
        assert made.news.events == [("troubled", "a", "a")]
        route.texts["a"] = lines("a", 1, 4)
        async with asyncio.timeout(5):
            while not made.encoding.jobs:
                await asyncio.sleep(0.01)
        assert made.counters.errors == {"read": 1}


async def test_a_read_that_fails_is_reported_and_tried_again():
    route = TextRoute({"a": lines("a", 5, 5)})
    async with bench(route) as made:
        made.assign("a")
        route.opened["a"].failures = 1
        async with asyncio.timeout(5):
            while not made.encoding.jobs:
                await asyncio.sleep(0.01)
        assert ("troubled", "a", "not now") in made.news.events


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EACCES, "Permission denied", os.fsdecode(b"/logs/\xe9.1")), "/logs/\\xe9.1: Permission denied"),
        (OSError(errno.ESTALE, "Stale file handle"), "Stale file handle"),
    ],
)
async def test_why_a_read_fails_is_said_without_a_number(error, said):
    # The number was said too, and the path in quotes.
    route = TextRoute({"a": lines("a", 5, 5)})
    async with bench(route) as made:
        made.assign("a")
        route.opened["a"].error, route.opened["a"].failures = error, 1
        async with asyncio.timeout(5):
            while not made.encoding.jobs:
                await asyncio.sleep(0.01)
        assert ("troubled", "a", said) in made.news.events


async def test_the_oldest_batch_that_is_not_acknowledged_is_known_while_newer_ones_are(monkeypatch):
    # A partition without a leader: as long as others were acknowledged, nothing told of it.
    now = 100.0
    for module in (in_flight, outbox):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    async with bench(TextRoute({"a": lines("a", 5000, 200)})) as made:
        assert made.runner.oldest == 0.0
        made.assign("a")
        await made.turn()
        while made.encoding.jobs:
            made.encoding.finish(0)
        assert len(made.broker.waiting) > 2
        now = 130.0
        made.broker.acknowledge(1)
        assert (made.runner.waiting, made.runner.oldest) == (0.0, 30.0)
        while made.broker.waiting:
            made.broker.acknowledge(0)
        assert (made.runner.waiting, made.runner.oldest) == (0.0, 0.0)


async def test_a_batch_that_can_not_be_delivered_stops_the_route_and_the_position_stays_before_it():
    text = lines("a", 5000, 200)
    async with bench(TextRoute({"a": text})) as made:
        made.assign("a")
        await made.turn()
        while made.encoding.jobs:
            made.encoding.finish(0)
        made.broker.acknowledge(1, KafkaError(ErrorCode.topic_authorization_failed, "t"))
        await made.turn()
        (failed,) = [event for event in made.news.events if event[0] == "failed"]
        assert "can not be delivered to t-" in failed[2]
        assert "TOPIC_AUTHORIZATION_FAILED" in failed[2]
        assert made.positions == {}
        assert made.counters.errors == {"topic_authorization_failed": 1}
        while made.broker.waiting:
            made.broker.acknowledge(0)
        await made.turn()
        assert made.positions.get("a", 0) < len(text)
        assert made.route.opened["a"].closed


async def test_what_was_acknowledged_before_the_route_stopped_is_reported():
    # Else the lines of the last report interval are sent again once what stopped the route is put right.
    text = lines("a", 5000, 200)
    async with bench(TextRoute({"a": text})) as made:
        made.news.told_of_failure = made.collect
        made.assign("a")
        await made.turn()
        while made.encoding.jobs:
            made.encoding.finish(0)
        first = len(made.broker.waiting[0][1])
        made.broker.acknowledge(0)
        made.broker.acknowledge(0, KafkaError(ErrorCode.topic_authorization_failed, "t"))
        assert made.positions == {"a": first}


@pytest.mark.parametrize("how", ["revoked: the route failed in another worker", "stopped: the route failed here"])
async def test_of_what_is_given_up_what_is_with_the_producer_still_counts_and_nothing_else_is_sent(how):
    # What was acknowledged of a route that had failed was forgotten, and what was queued was sent, and forgotten as
    # well: after the next start up to an arena was sent again.
    text = lines("a", 5000, 200)
    async with bench(TextRoute({"a": text})) as made:
        made.assign("a")
        await made.turn()
        made.encoding.finish(0)
        assert made.encoding.jobs
        (sent,) = made.broker.sent[made.broker.waiting[0][2]]
        if how.startswith("revoked"):
            made.runner.revoke("a")
        else:
            made.runner.stop("the cluster refuses a record")
        made.runner.drain()
        while made.encoding.jobs:
            made.encoding.finish(0)
        assert not made.runner.settled
        assert not made.route.opened["a"].closed
        made.news.events.clear()
        made.broker.acknowledge(0)
        assert made.news.events[-1] == ("settled",)
        assert made.runner.settled
        assert made.route.opened["a"].closed
        await made.turn()
        assert made.positions == {"a": len(sent)}
        assert sum(map(len, made.broker.sent.values())) == 1
        assert made.arena.used_pages == 0


async def test_a_source_that_ended_is_closed_though_others_are_with_the_producer():
    texts = {"a": lines("a", 10, 10), "b": lines("b", 10, 10)}
    async with bench(TextRoute(texts, lanes={"a": Lane(0), "b": Lane(1)})) as made:
        made.assign("a", until=len(texts["a"]))
        made.assign("b")
        await made.turn()
        made.encoding.finish(0)
        made.encoding.finish(0)
        (number,) = [number for number, entry in enumerate(made.broker.waiting) if entry[2] == 0]
        made.broker.acknowledge(number)
        await made.turn()
        assert [event[:2] for event in made.news.events] == [("ended", "a")]
        assert made.route.opened["a"].closed
        assert not made.route.opened["b"].closed


async def test_what_is_given_up_with_nothing_at_the_producer_is_closed_at_once():
    async with bench(TextRoute({"a": lines("a", 100, 10)})) as made:
        made.assign("a")
        await made.turn()
        made.runner.revoke("a")
        assert made.route.opened["a"].closed
        made.encoding.finish(0)
        assert not made.broker.sent
        assert made.arena.used_pages == 0


async def test_who_waits_for_an_acknowledgement_says_so():
    async with bench(TextRoute({"a": lines("a", 5000, 200)})) as made:
        assert made.runner.waiting == 0
        made.assign("a")
        await made.turn()
        made.encoding.finish(0)
        made.encoding.finish(0)
        first = made.runner.waiting
        await made.turn()
        assert made.runner.waiting > first
        made.broker.acknowledge(0)
        made.broker.acknowledge(0)
        assert made.runner.waiting == 0


async def test_a_draining_runner_reads_no_more_and_settles():
    text = lines("a", 20_000, 200)
    async with bench(TextRoute({"a": text})) as made:
        made.assign("a")
        await made.turn()
        made.runner.drain()
        read = made.counters.bytes_read
        await made.deliver_all()
        assert made.counters.bytes_read == read < len(text)
        assert made.runner.settled
        assert made.runner.unacknowledged == Unacknowledged(0, 0)
        assert made.positions["a"] == read


async def test_a_draining_runner_reads_deleted_sources_to_their_ends():
    # Lines that were written a moment before a file was deleted, and that before SIGTERM, were lost.
    texts = {"a": lines("a", 20_000, 200), "b": lines("b", 20_000, 200), "quiet": lines("quiet", 1, 10)}
    async with bench(TextRoute(texts, lanes={"a": Lane(0), "b": Lane(0), "quiet": Lane(1)})) as made:
        for name in texts:
            made.assign(name)
        await made.turn()
        for name in ("a", "quiet"):
            made.route.opened[name].path = None
        more = b"the last line\n"
        made.route.opened["quiet"].text += more
        left = made.route.opened["b"].at
        made.runner.drain()
        assert not made.runner.settled
        await made.deliver_all()
        assert made.runner.settled
        assert made.news.events[-1] == ("settled",)
        assert made.runner.unacknowledged == Unacknowledged(0, 0)
        ends = {"a": len(texts["a"]), "b": left, "quiet": len(texts["quiet"] + more)}
        assert made.positions == ends


async def test_a_draining_runner_does_not_wait_for_a_topic():
    async with bench(TextRoute({"a": lines("a", 10, 10)}), partitions=0) as made:
        made.assign("a")
        await made.turn()
        made.route.opened["a"].path = None
        made.runner.drain()
        assert made.runner.settled


@pytest.mark.parametrize("quiet", [1, 50])
async def test_a_hot_source_does_not_keep_others_waiting(quiet):
    texts = {"hot": lines("hot", 20_000, 200)} | {f"q{n}": f"q{n} 0\n".encode() for n in range(quiet)}
    async with bench(TextRoute(texts)) as made:
        for name in texts:
            made.assign(name)
        await made.turn()
        for _ in range(2):
            while made.encoding.jobs:
                made.encoding.finish(0)
            await made.turn()
        sent = b"".join(batch for batches in made.broker.sent.values() for batch in batches)
        assert all(f"q{n} 0\n".encode() in sent for n in range(quiet))


async def test_a_lane_that_found_no_encoder_free_goes_on_when_another_lanes_slab_is_encoded():
    texts = {"a": lines("a", 10, 10), "b": lines("b", 10, 10)}
    async with bench(TextRoute(texts, lanes={"a": Lane(0), "b": Lane(1)})) as made:
        made.encoding.capacity = 1
        made.assign("a")
        made.assign("b")
        await made.turn()
        assert len(made.encoding.jobs) == 1
        made.encoding.finish(0)
        await made.turn()
        made.encoding.finish(0)
        assert {bytes(batch) for batch, *_ in made.broker.waiting} == set(texts.values())


async def test_a_route_that_stops_gives_back_every_page_that_nobody_holds():
    texts = {"a": lines("a", 20_000, 200), "b": lines("b", 20_000, 200)}
    route = TextRoute(texts, most=PAGE_BYTES // 2, lanes={"a": Lane(0), "b": Lane(1)})
    async with bench(route) as made:
        made.assign("a")
        made.assign("b")
        await made.turn()
        for _ in range(2):
            made.encoding.finish(0)
        made.encoding.finish(len(made.encoding.jobs) - 1)
        assert made.encoding.jobs
        made.broker.acknowledge(0, KafkaError(ErrorCode.topic_authorization_failed, "t"))
        while made.encoding.jobs:
            made.encoding.finish(0)
        while made.broker.waiting:
            made.broker.acknowledge(0)
        await made.turn()
        assert made.arena.used_pages == 0


async def test_a_slab_that_can_not_be_encoded_stops_the_route_and_gives_its_pages_back():
    async with bench(TextRoute({"a": lines("a", 20_000, 200)})) as made:
        made.assign("a")
        await made.turn()
        for job in made.encoding.jobs:
            job.done(EncodingFailed("not text"))
        assert made.news.events == [("failed", "r", "a: not text")]
        assert made.arena.used_pages == 0


async def test_a_producer_that_refuses_a_batch_stops_the_route():
    def refuse(topic, partition, batch, records, done):
        raise KafkaError(ErrorCode.cluster_authorization_failed, "c")

    async with bench(TextRoute({"a": lines("a", 20_000, 200)})) as made:
        made.broker.send_batch = refuse
        made.assign("a")
        await made.turn()
        while made.encoding.jobs:
            made.encoding.finish(0)
        (failed,) = made.news.events
        assert "CLUSTER_AUTHORIZATION_FAILED" in failed[2]
        assert made.arena.used_pages == 0
        assert made.positions == {}


async def test_what_is_half_encoded_gets_pages_before_more_is_read():
    # Else two lanes can take each other's pages until all hold slabs behind two that are half encoded: none moves.
    texts = {"a": b"%063d\n" % 1 * 4096, "b": b"%063d\n" % 2 * 8192}
    route = TextRoute(texts, most=PAGE_BYTES // 2, lanes={"a": Lane(0), "b": Lane(1)})
    async with bench(route, pages=19) as made:
        made.assign("a")
        await made.turn()
        (job,) = made.encoding.jobs
        rest = made.arena.allocate(9 * PAGE_BYTES)
        made.metadata.set(0)
        made.encoding.finish(0)
        assert made.runner.starved
        made.metadata.set(2)
        made.assign("b")
        made.arena.release(rest)
        await made.turn()
        assert [each.raw for each in made.encoding.jobs] == [job.raw]


async def test_a_half_encoded_slab_is_encoded_for_the_partitions_that_it_began_with():
    async with bench(TextRoute({"a": lines("a", 2000, 200)}, most=PAGE_BYTES)) as made:
        made.assign("a")
        await made.turn()
        made.metadata.set(0)
        made.encoding.finish(0)
        assert {job.partitions for job in made.encoding.jobs} == {2}


async def test_lanes_go_with_their_last_source():
    names = [str(number) for number in range(20)]
    texts = {name: b"%s\n" % name.encode() for name in names}
    lanes = {name: Lane(0, name.encode()) for name in names}
    async with bench(TextRoute(texts, lanes=lanes)) as made:
        for name in names:
            made.assign(name, until=len(texts[name]))
        for _ in names:
            await made.turn()
            while made.encoding.jobs:
                made.encoding.finish(0)
            while made.broker.waiting:
                made.broker.acknowledge(0)
        assert len(made.news.events) == len(names)
        assert not made.runner._lanes


GONE = KafkaError(ErrorCode.unknown_topic_or_partition, "t[5]")


class Kept(TextRoute):
    """Every source keeps its partition, as long as there are enough."""

    def lane(self, found, partitions):
        return Lane(int(found.source) % max(1, partitions))


async def finish_all(made, least=0):
    """Encode everything and acknowledge what goes to partitions that are there."""
    for _ in range(20):
        await made.turn()
        while made.encoding.jobs:
            made.encoding.finish(0)
        there = [number for number, entry in enumerate(made.broker.waiting) if entry[2] < least]
        for number in reversed(there):
            made.broker.acknowledge(number)


async def test_a_topic_made_again_with_fewer_partitions_gets_every_line_in_order_at_those_that_are_left():
    # A batch that was routed to a partition that is no more waited for it for ever, and the position with it.
    texts = {str(number): lines(str(number), 3000, 200) for number in range(6)}
    async with bench(Kept(texts), pages=200, partitions=6) as made:
        for name in texts:
            made.assign(name)
        await finish_all(made)
        sent = dict(made.broker.sent)
        assert sorted(sent) == list(range(6))
        made.metadata.set(2)
        made.broker.sent = defaultdict(list)
        more = b"5 3000 late\n"
        made.route.opened["5"].text += more
        made.route.ready("5")
        await finish_all(made, least=2)
        # What comes after does not overtake what still waits for a partition that is no more.
        assert not made.broker.sent
        while any(entry[2] >= 2 for entry in made.broker.waiting):
            lost = [number for number, entry in enumerate(made.broker.waiting) if entry[2] >= 2]
            made.broker.acknowledge(lost[0], GONE)
        await finish_all(made, least=2)
        for name in ("2", "3", "4", "5"):
            here = b"".join(made.broker.sent[int(name) % 2]).splitlines()
            mine = [line for line in here if line.startswith(name.encode() + b" ")]
            assert mine == (texts[name] + (more if name == "5" else b"")).splitlines()
        assert made.positions == {name: len(made.route.opened[name].text) for name in texts}
        assert made.arena.used_pages == 0
        assert not made.news.events
        assert made.counters.retries["unknown_topic_or_partition"] > 0


async def test_a_batch_of_a_topic_that_is_deleted_waits_for_its_partition_until_the_topic_is_there_again():
    text = lines("1", 10, 10)
    async with bench(Kept({"1": text})) as made:
        made.assign("1")
        await finish_all(made)
        made.metadata.set(0)
        for _ in range(3):
            made.broker.acknowledge(0, GONE)
            assert {entry[2] for entry in made.broker.waiting} == {1}
        made.metadata.set(2)
        await finish_all(made, least=2)
        assert made.positions == {"1": len(text)}
        assert not made.news.events


async def test_a_partition_that_is_fixed_and_not_there_stops_the_route_and_is_named():
    async with bench(TextRoute({"a": lines("a", 10, 10)}, lanes={"a": Lane(5)})) as made:
        made.assign("a")
        await finish_all(made)
        made.broker.acknowledge(0, GONE)
        (failed,) = made.news.events
        assert failed[2] == f"10 records of a (bytes 0 to 150) can not be delivered to t-5: {GONE}"
        assert made.arena.used_pages == 0


async def test_a_topic_whose_partitions_are_back_before_a_batch_gave_them_up_is_read_for_on():
    text = lines("5", 10, 10)
    async with bench(Kept({"5": text}), partitions=6) as made:
        made.assign("5")
        await finish_all(made)
        made.metadata.set(2)
        made.route.opened["5"].text += b"5 late\n"
        made.route.ready("5")
        await finish_all(made, least=2)
        made.metadata.set(6)
        made.runner.kick()
        await finish_all(made, least=6)
        assert made.broker.sent == {5: [text, b"5 late\n"]}


async def test_what_can_not_be_delivered_is_named_by_the_paths_of_its_files():
    texts = {"8-2a-1f": lines("a", 2, 10), "8-2b-20": lines("b", 2, 10)}
    async with bench(TextRoute(texts)) as made:
        for name, path in zip(texts, ("/logs/a", "/logs/b"), strict=True):
            made.runner.assign(Assignment("r", Found(name, 0, {}, label=path), 1))
        await finish_all(made)
        made.broker.acknowledge(0, KafkaError(ErrorCode.topic_authorization_failed, "t"))
        (failed,) = made.news.events
        assert failed[2].startswith(
            "4 records of /logs/a (bytes 0 to 30), /logs/b (bytes 0 to 30) can not be delivered to t-"
        )


@pytest.mark.parametrize("cuts", [True, False])
async def test_the_first_file_with_lines_that_are_cut_is_named_once(cuts):
    """All that was said was a counter."""
    with structlog.testing.capture_logs() as logged:
        async with bench(TextRoute({name: lines(name, 3, 10) for name in "ab"}, cuts_lines=cuts)) as made:
            for name in "ab":
                made.assign(name)
                made.route.opened[name].shortened = 1
            await finish_all(made)
            assert made.counters.lines_shortened == 2
    assert len(logged) == cuts
    for said in logged:
        assert (said["log_level"], said["file"]) == ("warning", "a")
        assert said["event"] == "lines are longer than `max_line_bytes`, and cut off there"


@pytest.mark.parametrize("code", [ErrorCode.message_too_large, ErrorCode.record_list_too_large])
async def test_what_is_too_large_is_said_with_its_place_its_size_and_what_to_do(code, monkeypatch):
    """All that was said was a number of records, "1 records" among them."""
    text = b"short\n" + b"x" * 1500 + b"\n"
    values = [SimpleNamespace(value=line) for line in text.splitlines()]
    monkeypatch.setattr(outbox, "decode_records", lambda _: values)
    async with bench(TextRoute({"a": text})) as made:
        made.assign("a")
        await finish_all(made)
        made.broker.acknowledge(0, KafkaError(code, "t"))
        (failed,) = made.news.events
        assert failed[2].startswith("2 records of a (bytes 0 to 1507) can not be delivered to t-")
        assert failed[2].endswith(
            "; the longest record has 1,500 bytes; raise the topic's max.message.bytes, or lower max_line_bytes and "
            "batch_bytes"
        )


async def test_one_record_that_is_refused_is_one_record_and_its_place_is_behind_what_is_acknowledged():
    async with bench(TextRoute({"a": b"first\n"})) as made:
        made.assign("a")
        await finish_all(made)
        made.broker.acknowledge(0)
        made.route.opened["a"].text += b"second\n"
        made.route.ready("a")
        await finish_all(made)
        made.broker.acknowledge(0, KafkaError(ErrorCode.topic_authorization_failed, "t"))
        (failed,) = [event for event in made.news.events if event[0] == "failed"]
        assert failed[2].startswith("1 record of a (bytes 6 to 13) can not be delivered to t-")


@pytest.mark.parametrize(("pages", "gathered"), [(2 * 8 * 2 + 1, 2), (2 * 8 * 2, 1)])
async def test_a_slab_gathers_more_where_there_is_room_for_eight_of_them_and_their_batches(pages, gathered):
    route = TextRoute({"a": lines("a", 2000, 100)}, batch_bytes=PAGE_BYTES, gathers=2)
    async with bench(route, pages=pages) as made:
        made.assign("a")
        await made.turn()
        assert pages_for(made.encoding.jobs[0].length) == gathered


@pytest.mark.parametrize("pages", [19, 20])
async def test_the_largest_batch_that_an_arena_has_room_for_is_read_and_no_larger_one(pages):
    largest = largest_batch(pages * PAGE_BYTES)
    for size, read in ((largest, True), (largest + 1, False)):
        async with bench(TextRoute({"a": lines("a", 10, 10)}, batch_bytes=size), pages=pages) as made:
            made.assign("a")
            await made.turn()
            assert bool(made.encoding.jobs) is read
            while made.encoding.jobs:
                made.encoding.finish(0)


async def test_a_concluded_source_ends_once_it_is_read_and_acknowledged():
    text = lines("a", 3, 10)
    async with bench(TextRoute({"a": text})) as made:
        made.assign("a")
        await made.turn()
        made.runner.conclude("a")
        made.runner.conclude("a")
        made.runner.conclude("nobody")
        await made.turn()
        assert made.news.events == []
        made.encoding.finish(0)
        made.broker.acknowledge(0)
        await made.turn()
        assert made.news.events == [("ended", "a", End("concluded", "/a", len(text), len(text)))]


async def test_a_source_that_says_that_it_is_exhausted_is_not_read_again_until_it_is_ready():
    route = TextRoute({"a": b"", "b": b""})
    async with bench(route) as made:
        for name in "ab":
            made.assign(name)
        await made.turn()
        for source in route.opened.values():
            source.text, source.tells, source.reads = lines("a", 3, 10), True, 0
        route.ready("a")
        route.ready("b")
        await made.turn()
        assert [source.reads for source in route.opened.values()] == [1, 1]
        route.opened["b"].text += lines("a", 3, 10)
        route.ready("b")
        await made.turn()
        assert [source.reads for source in route.opened.values()] == [1, 2]


async def test_a_quiet_source_that_is_concluded_ends_at_once():
    async with bench(TextRoute({"a": b""})) as made:
        made.assign("a")
        await made.turn()
        made.runner.conclude("a")
        await made.turn()
        assert made.news.events == [("ended", "a", End("concluded", "/a", 0, 0))]


async def test_a_source_that_is_concluded_before_it_could_be_opened_is_opened_with_that_knowledge():
    route = TextRoute({})
    async with bench(route) as made:
        made.assign("a", until=10)
        made.runner.conclude("a")
        route.texts["a"] = b""
        async with asyncio.timeout(5):
            while len(made.news.events) < 2:
                await asyncio.sleep(0.01)
        assert made.news.events[1] == ("ended", "a", End("concluded", "/a", 0, 0))


async def test_a_detail_that_changed_is_reported_with_the_position_as_it_was():
    # A file that is renamed and not written to any more: its new name is stored though nothing is read.
    async with bench(TextRoute({"a": b""})) as made:
        made.assign("a", generation=7)
        await made.turn()
        route = made.route
        route.opened["a"].path = "/a.1"
        route.changed("a")
        route.changed("nobody")
        assert made.news.told_of_moves
        assert made.runner.moved() == [Moved("r", "a", 7, 0, {"at": 0, "path": "/a.1"})]
        assert made.runner.moved() == []


async def test_what_is_not_acknowledged_is_counted_in_sources_and_bytes():
    texts = {"a": lines("a", 3, 10), "b": lines("b", 2, 10)}
    async with bench(TextRoute(texts)) as made:
        for name in texts:
            made.assign(name)
        await made.turn()
        assert not made.runner.settled
        assert made.runner.unacknowledged == Unacknowledged(2, len(texts["a"]) + len(texts["b"]))


async def test_what_is_not_acknowledged_of_deleted_files_is_counted_apart_with_what_is_not_read():
    route = TextRoute({"a": lines("a", 3, 10), "b": lines("b", 2, 10), "c": b""})
    async with bench(route) as made:
        for name in route.texts:
            made.assign(name)
        await made.turn()
        made.runner.drain()
        for name in ("b", "c"):
            route.opened[name].path = None
        route.opened["b"].text += b"not read"
        of_b = len(route.texts["b"]) + len(b"not read")
        assert made.runner.unacknowledged == Unacknowledged(1, len(route.texts["a"]), {"its last path": of_b})
