"""Records as objects, compiled and plain: the same values, the same refusals; and the stream that hands them out."""

from __future__ import annotations

import asyncio
import gc
import pickle
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import COMPILED, PLAIN

from ingestd.errors import CorruptBatch
from ingestd.records.decode import TimestampType

BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=10), BYTES), max_size=4)
RECORDS = st.lists(st.tuples(BYTES, BYTES, HEADERS, st.integers(-(2**40), 2**40)), max_size=20)
ORIGIN = ("t", 3, 7, TimestampType.create_time)
LAST = 2**63 - 1


def encoded(records):
    buffer = COMPILED.RecordBuffer(1 << 20)
    for record in records:
        buffer.append(*record)
    return bytes(buffer.view())


def made(twin, records, count, *, last=None, base=0, timestamp=0, append=None, first=0, end=LAST):
    return twin.make_records(
        records, count, count if last is None else last, base, timestamp, append, ORIGIN, first, end
    )


def fields(record):
    return (
        record.offset, record.timestamp_ms, record.timestamp_type, record.key, record.value, record.headers,
        record.topic, record.partition, record.leader_epoch,
    )  # fmt: skip


@given(RECORDS, st.integers(0, 2**40), st.none() | st.integers(0, 2**40))
def test_a_record_is_what_was_encoded(records, base, append):
    base_timestamp = records[0][3] if records else 0
    for twin in (COMPILED, PLAIN):
        found = made(twin, encoded(records), len(records), base=base, timestamp=base_timestamp, append=append)
        assert [fields(record) for record in found] == [
            (base + number, timestamp if append is None else append, TimestampType.create_time, key, value,
             tuple(headers), "t", 3, 7)
            for number, (key, value, headers, timestamp) in enumerate(records)
        ]  # fmt: skip


@given(RECORDS, st.integers(0, 25), st.integers(0, 25))
def test_only_offsets_in_the_range_become_records(records, first, end):
    for twin in (COMPILED, PLAIN):
        found = made(twin, encoded(records), len(records), first=first, end=end)
        assert [record.offset for record in found] == [
            number for number in range(len(records)) if first <= number < end
        ]


def outcome(twin, *arguments):
    try:
        return [fields(record) for record in made(twin, *arguments)]
    except CorruptBatch:
        return CorruptBatch


@settings(max_examples=300)
@given(st.data(), RECORDS)
def test_damaged_records_are_read_alike_or_refused_alike_and_as_columns_are(data, records):
    changed = bytearray(encoded(records))
    for _ in range(data.draw(st.integers(0, 3))):
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    arguments = (bytes(changed), len(records))
    one, other = outcome(COMPILED, *arguments), outcome(PLAIN, *arguments)
    assert one == other
    try:
        COMPILED.parse_records(*arguments, len(records), 0, 0, None)
    except CorruptBatch:
        assert one is CorruptBatch
    else:
        assert one is not CorruptBatch


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 20))
def test_any_bytes_are_read_alike_or_refused_alike(records, count):
    assert outcome(COMPILED, records, count) == outcome(PLAIN, records, count)


@pytest.mark.parametrize(("count", "base"), [(-1, 0), (5, 0), (1, -1), (1, LAST)])
def test_a_batch_that_can_not_be_is_refused(twin, count, base):
    with pytest.raises(CorruptBatch):
        made(twin, encoded([(None, b"v", (), 0)]), count, base=base, last=1)


def test_a_header_name_that_is_not_text_has_replacement_characters(twin):
    (record,) = made(twin, encoded([(b"k", b"v", [(b"a\xff", None)], 0)]), 1)
    assert record.headers == (("a\ufffd", None),)


def test_records_are_equal_by_value_and_show_themselves_alike():
    shown = []
    for twin in (COMPILED, PLAIN):
        one = twin.Record(5, -1, TimestampType.create_time, b"k", None, [("h", b"x")], topic="t", partition=1)
        same = twin.Record(5, -1, TimestampType.create_time, b"k", None, (("h", b"x"),), topic="t", partition=1)
        other = twin.Record(5, -1, TimestampType.create_time, b"k", None, (("h", b"x"),), topic="u", partition=1)
        assert fields(one)[:4] == (5, -1, TimestampType.create_time, b"k")
        assert one.leader_epoch == -1
        assert one != other
        assert one != (5,)
        assert (same == other) is False
        assert hash(same) == hash(pickle.loads(pickle.dumps(same)))
        assert pickle.loads(pickle.dumps(other)) == other
        shown.append(repr(same))
    assert shown[0] == shown[1]


def test_a_record_can_not_be_changed(twin):
    record = twin.Record(0, 0, TimestampType.create_time, None, b"v")
    with pytest.raises(AttributeError):
        record.value = b"w"


def test_compiled_records_do_not_burden_the_garbage_collector():
    (record,) = made(COMPILED, encoded([(b"k", b"v", (), 0)]), 1)
    assert not gc.is_tracked(record)


def test_making_records_leaks_no_reference():
    value = encoded([(b"key of some length", b"v" * 300, [("h", b"x" * 100)], 0)] * 50)
    made(COMPILED, value, 50)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(20):
        made(COMPILED, value, 50)
    gc.collect()
    assert sys.getallocatedblocks() < before + 50


# The stream


def stream_of(twin, lists):
    """A stream over lists of offsets; an exception in their place is raised."""
    waiting = list(lists)

    async def more():
        await asyncio.sleep(0)
        if not waiting:
            return None
        found = waiting.pop(0)
        if isinstance(found, Exception):
            raise found
        return [twin.Record(offset, 0, TimestampType.create_time, None, b"") for offset in found]

    return twin.RecordStream(more)


async def test_the_stream_gives_every_record_in_order_and_passes_over_empty_lists(twin):
    stream = stream_of(twin, [[1, 2], [], [5], [], []])
    assert stream.next_offset == -1
    assert [record.offset async for record in stream] == [1, 2, 5]
    assert stream.next_offset == 6
    assert [record.offset async for record in stream] == []


async def test_a_later_iteration_goes_on_behind_the_last_record(twin):
    stream = stream_of(twin, [[1, 2, 3], [4]])
    async for record in stream:
        assert record.offset == 1
        break
    assert (stream.next_offset, stream.left) == (2, 2)
    assert (await anext(stream)).offset == 2
    assert [record.offset async for record in stream] == [3, 4]


async def test_what_is_at_hand_can_be_taken_or_dropped_at_once(twin):
    stream = stream_of(twin, [[1, 2, 3], [7, 8]])
    await anext(stream)
    assert [record.offset for record in stream.rest()] == [2, 3]
    assert (stream.next_offset, stream.left) == (4, 0)
    assert stream.rest() == []
    assert (await anext(stream)).offset == 7
    stream.clear()
    assert [record.offset async for record in stream] == []
    assert stream.next_offset == 8


async def test_the_stream_raises_what_its_source_raises_and_can_be_tried_again(twin):
    stream = stream_of(twin, [[1], CorruptBatch("torn"), [2]])
    assert (await anext(stream)).offset == 1
    with pytest.raises(CorruptBatch, match="torn"):
        await anext(stream)
    assert (await anext(stream)).offset == 2


async def test_a_record_at_hand_can_be_awaited_like_any_other(twin):
    stream = stream_of(twin, [[1, 2, 3, 4, 5]])
    await anext(stream)
    assert (await asyncio.wait_for(anext(stream), 5)).offset == 2
    assert (await asyncio.ensure_future(stream.__anext__())).offset == 3
    assert (await anext(stream, None)).offset == 4
    assert [record.offset async for record in stream] == [5]
    assert await anext(stream, "the end") == "the end"


async def test_a_tracing_debugger_sees_the_same_records(twin):
    stream = stream_of(twin, [[1, 2, 3]])
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        assert [record.offset async for record in stream] == [1, 2, 3]
    finally:
        sys.settrace(before)


async def test_compiled_streams_do_not_hand_a_record_out_twice():
    stream = stream_of(COMPILED, [[1, 2]])
    await anext(stream)
    one, other = anext(stream), anext(stream)
    assert (await one).offset == 2
    with pytest.raises(RuntimeError, match="somebody else"):
        await other
