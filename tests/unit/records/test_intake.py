"""The short way into an open batch, compiled and plain: the same records go it, and the same go the long way."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import COMPILED, PLAIN

TOPICS = st.sampled_from(["a", "b", "unknown"])
BYTES = st.none() | st.binary(max_size=30)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=2)
SENDS = st.tuples(
    TOPICS, BYTES, BYTES, st.none() | st.integers(-2, 4), HEADERS, st.integers(0, 2**40), st.sampled_from([None, print])
)
ACTIONS = st.lists(
    SENDS | st.tuples(st.sampled_from(["close", "shut", "open", "unstick", "forget"]), TOPICS, st.integers(0, 2)),
    max_size=60,
)


class Producer:
    """An intake of one twin: two topics of three partitions, whose long way opens batches and closes full ones."""

    def __init__(self, twin, allowance=10_000, limit=300, most=5):
        self.twin = twin
        self.taken = []
        self.batches = []
        outer = self

        class Intake(twin.RecordIntake):
            def _take(self, topic, value, key, partition, headers, timestamp_ms, done):
                outer.take(topic, value, key, partition, headers, timestamp_ms, done)

        self.allowance = twin.Allowance(allowance)
        self.intake = Intake(self.allowance)
        self.buffers = {topic: [twin.RecordBuffer(limit, most) for _ in range(3)] for topic in "ab"}
        for topic, buffers in self.buffers.items():
            known = self.intake._intakes[topic] = twin.TopicIntake()
            known.sticky = buffers[0]
            known.partitions = [*buffers[:2], None]
            if topic == "a":
                known.murmur2 = True
            else:
                known.index = lambda key, count: len(key) % (count + 1)

    def take(self, topic, value, key, partition, headers, timestamp_ms, done):
        """The long way: always partition 0, so that what comes here can be told from what does not."""
        self.taken.append((topic, value, key, partition, headers, timestamp_ms, done))
        if topic in self.buffers and not self.allowance.shut:
            buffer = self.buffers[topic][0]
            if buffer.append(key, value, headers, timestamp_ms, done) < 0:
                self.close(buffer)
                buffer.append(key, value, headers, timestamp_ms, done)
            if buffer.full:
                self.close(buffer)

    def close(self, buffer):
        self.batches.append((bytes(buffer.view()), buffer.records, list(buffer.dones)))
        buffer.clear()

    def act(self, action):
        """One action; the error it raised, if any."""
        if len(action) == 3:
            what, topic, number = action
            if what in ("shut", "open"):
                self.allowance.shut = what == "shut"
            elif topic in self.buffers:
                known = self.intake._intakes[topic]
                if what == "close":
                    self.close(self.buffers[topic][number])
                elif what == "unstick":
                    known.sticky = None
                else:
                    known.partitions = []
            return None
        topic, value, key, partition, headers, timestamp_ms, done = action
        try:
            self.intake.send(
                topic, value, key=key, partition=partition, headers=headers, timestamp_ms=timestamp_ms, done=done
            )
        except (ValueError, TypeError, OverflowError) as error:
            return type(error)

    def state(self):
        return (
            self.taken,
            self.batches,
            self.allowance.used,
            [
                (bytes(buffer.view()), buffer.records, buffer.base_timestamp, buffer.max_timestamp, buffer.dones)
                for buffers in self.buffers.values()
                for buffer in buffers
            ],
        )


@given(ACTIONS)
def test_the_twins_take_the_same_records_and_leave_the_same(actions):
    one, other = Producer(COMPILED), Producer(PLAIN)
    for action in actions:
        assert one.act(action) == other.act(action)
    assert one.state() == other.state()


def opened(twin, **sizes):
    """A producer whose batch of topic a, partition 0 has one record."""
    producer = Producer(twin, **sizes)
    producer.buffers["a"][0].append(None, b"first", (), 5)
    return producer


def sent(producer, topic="a", value=b"value", **given):
    """Whether a record went the short way."""
    before = len(producer.taken)
    producer.intake.send(topic, value, **({"timestamp_ms": 5} | given))
    return len(producer.taken) == before


def test_a_record_without_key_goes_into_the_sticky_batch_and_is_counted(twin):
    producer = opened(twin)
    size = producer.buffers["a"][0].size
    assert sent(producer)
    buffer = producer.buffers["a"][0]
    assert (buffer.records, producer.allowance.used) == (2, buffer.size - size)


def test_the_first_record_of_a_batch_goes_the_long_way(twin):
    assert not sent(Producer(twin))


def test_the_record_that_fills_a_batch_goes_the_long_way(twin):
    for sizes, records in (({"most": 3}, 2), ({"limit": 40}, 2)):
        producer = opened(twin, **sizes)
        ways = []
        while len(producer.batches) == 0:
            ways.append(sent(producer))
        assert ways == [True] * (len(ways) - 1) + [False]
        assert producer.batches[0][1] >= records


def test_a_record_that_names_its_partition_goes_there_if_that_is_open(twin):
    producer = opened(twin)
    assert sent(producer, partition=0)
    assert producer.buffers["a"][0].records == 2
    assert [sent(producer, partition=partition) for partition in (1, 2, 3, -1, 2**70, True, "0")] == [False] * 7


def test_a_key_goes_where_murmur2_says_or_the_long_way(twin):
    producer = opened(twin)
    producer.intake._intakes["a"].partitions = producer.buffers["a"]
    for buffer in producer.buffers["a"][1:]:
        buffer.append(None, b"first", (), 5)
    for number in range(9):
        key = b"key %d" % number
        buffer = producer.buffers["a"][(twin.murmur2(key) & 0x7FFFFFFF) % 3]
        if buffer.records + 1 < buffer.most:
            before = buffer.records
            assert sent(producer, value=b"", key=key)
            assert buffer.records == before + 1
    assert not sent(producer, key=b"")


def test_a_key_goes_where_the_partitioner_says_or_the_long_way(twin):
    producer = opened(twin)
    known = producer.intake._intakes["a"]
    known.murmur2 = False
    assert not sent(producer, key=b"key")
    for index, short in ((lambda key, count: 0, True), (lambda key, count: 1, False), (lambda key, count: 9, False)):
        known.index = index
        assert sent(producer, key=b"key") is short
    assert not sent(producer, key=b"")


def test_what_is_not_bytes_goes_the_long_way(twin):
    producer = opened(twin)
    for value, key in ((bytearray(b"v"), None), ("v", None), (b"v", memoryview(b"k")), (b"v", "k"), (5, None)):
        before = len(producer.taken)
        with contextlib.suppress(TypeError):
            producer.intake.send("a", value, key=key, partition=0, timestamp_ms=5)
        assert len(producer.taken) == before + 1


def test_a_tombstone_goes_the_short_way(twin):
    assert sent(opened(twin), value=None)


def test_nothing_goes_the_short_way_when_the_allowance_is_used_up_or_shut(twin):
    producer = opened(twin)
    producer.allowance.used = producer.allowance.limit
    assert not sent(producer)
    producer.allowance.used = 0
    assert sent(producer)
    producer.allowance.shut = True
    assert not sent(producer)


def test_a_record_that_cannot_be_encoded_is_refused_and_nothing_is_added(twin):
    producer = opened(twin)
    before = producer.state()
    for wrong, error in (
        ({"headers": [("name", "text")]}, TypeError),
        ({"headers": [(None, b"")]}, TypeError),
        ({"timestamp_ms": 2**63}, OverflowError),
        ({"timestamp_ms": -(2**63)}, ValueError),
    ):
        with pytest.raises(error):
            producer.intake.send("a", b"value", **wrong)
    assert producer.state() == before


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"headers": {"a": b"1"}}, r"headers: \{'a': b'1'\}; expected pairs, as in \[\("),
        ({"headers": {"ab": b"1"}}, r"headers: \{'ab': b'1'\}; expected pairs"),
        ({"headers": "text"}, "headers: 'text'; expected pairs"),
        ({"headers": 5}, "headers: 5; expected pairs"),
        ({"headers": [("a", b"1"), b"bc1"]}, r"headers\[1\]: b'bc1'; expected a pair"),
        ({"headers": [("a", "1")]}, r"headers\[0\]: value of 'a': '1'; expected bytes, or None, as in '1'.encode\(\)"),
        ({"headers": [(None, b"1")]}, r"memoryview|headers\[0\]"),
        ({"headers": [(5, b"1")]}, r"headers\[0\]: name: 5; expected bytes"),
        ({"done": 5}, "done: 5; expected something to call with the record's Delivery, or None"),
        ({"timestamp_ms": 1.5}, "timestamp_ms: 1.5; expected milliseconds since 1970, a whole number"),
    ],
)
def test_what_is_wrong_with_a_record_is_named(twin, wrong, said):
    with pytest.raises(TypeError, match=said):
        opened(twin).intake.send("a", b"value", **wrong)


def test_a_call_from_another_thread_goes_the_long_way_where_it_is_refused(twin):
    producer = opened(twin)
    went = []
    thread = threading.Thread(target=lambda: went.append(sent(producer)))
    thread.start()
    thread.join()
    assert went == [False]
    assert sent(producer)


def test_a_send_that_is_awaited_says_what_to_await(twin):
    async def wait():
        await opened(twin).intake.send("a", b"value")

    with pytest.raises(TypeError, match=r"send is a plain call.* send_and_wait; that of all records: flush"):
        asyncio.run(wait())


def test_a_record_without_timestamp_has_that_of_the_call(twin):
    producer = opened(twin)
    earliest = time.time_ns() // 1_000_000
    producer.intake.send("a", b"value")
    assert earliest <= producer.buffers["a"][0].max_timestamp <= time.time_ns() // 1_000_000


def test_callbacks_are_kept_in_order_and_only_as_far_as_there_are_some(twin):
    producer = opened(twin)
    sent(producer)
    assert producer.buffers["a"][0].dones == []
    sent(producer, done=print)
    sent(producer)
    assert producer.buffers["a"][0].dones == [None, None, print]


class End(NamedTuple):
    """A delivery, as far as `SendResults` look at it."""

    partition: int
    base_offset: int
    error: str | None = None
    log_append_time_ms: int = -1


class Ended:
    """Counts the calls of `SendResults`' end."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1


MESSAGES = st.lists(
    st.tuples(TOPICS, BYTES, BYTES, st.none() | st.integers(-2, 4), HEADERS, st.integers(0, 2**40)), max_size=30
)


@given(MESSAGES, st.integers(-1, 100), st.sampled_from([None, "gone"]))
def test_the_twins_give_each_message_of_many_its_place(messages, offset, error):
    """Told batch by batch or one by one, every message has ended once, where the log has it."""
    ends = []
    for twin in (COMPILED, PLAIN):
        producer, ended = Producer(twin, most=4), Ended()
        results = twin.SendResults(
            [(*message[:5], None if message[5] % 2 else message[5]) for message in messages], ended, 7
        )
        producer.intake.send_each(results)
        for buffers in producer.buffers.values():
            for buffer in buffers:
                producer.close(buffer)
        told = 0
        for number, (_, _, dones) in enumerate(producer.batches):
            told += len(dones)
            assert ended.times == 0 or not dones
            if error is None and number % 2:
                assert twin.tell_results(dones, number, offset, number - 2)
            else:
                for index, done in enumerate(dones):
                    done(End(number, offset + index if offset >= 0 else -1, error, number - 2))
        # The long way of these tests drops the records of a topic that nobody knows.
        assert ended.times == (1 if messages and told == len(messages) else 0)
        ends.append((results.given, results.partitions, results.offsets, results.timestamps, results.failures, told))
    assert ends[0] == ends[1]


def test_what_is_refused_is_not_given_again_and_ends_as_a_failure(twin):
    producer, ended = opened(twin), Ended()
    results = twin.SendResults(
        [("a", b"1", None, None, (), 0), ("a", "text", None, None, (), 0), ("a", b"3")], ended, 7
    )
    with pytest.raises(TypeError):
        producer.intake.send_each(results)
    assert results.given == 1
    results.refuse("not bytes")
    with pytest.raises(ValueError, match="unpack"):
        producer.intake.send_each(results)
    results.refuse("not six")
    assert (results.given, results.failures, ended.times) == (3, [(1, "not bytes"), (2, "not six")], 0)
    producer.intake.send_each(results)
    with pytest.raises(IndexError):
        results.refuse("none is left")
    dones = producer.buffers["a"][0].dones
    assert not twin.tell_results([*dones, print], 0, 7, -1)
    assert twin.tell_results(dones, 0, 7, -1)
    assert (results.partitions, results.offsets, ended.times) == ([0, -1, -1], [8, -1, -1], 1)


def test_headers_that_close_the_batch_while_they_are_read_leave_the_record_to_the_long_way(twin):
    """A record in a batch that nobody opened would wait for ever: no timer runs for it."""
    producer = opened(twin)

    class Headers(list):
        def __iter__(self):
            producer.close(producer.buffers["a"][0])
            return iter([("name", b"value")])

    assert not sent(producer, headers=Headers([("name", b"value")]))
    assert len(producer.taken) == 1


def test_a_buffer_holds_no_memory_between_batches(twin):
    """A producer of thousands of partitions would hold a batch's memory for each that ever had one."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    buffers = [twin.RecordBuffer(1 << 20) for _ in range(200)]
    for buffer in buffers:
        buffer.append(None, b"x" * 1_000_000, (), 0)
        buffer.clear()
    assert resident() - before < 30_000_000
