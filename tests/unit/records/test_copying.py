"""Records copied from batch to batch: the same records, compiled and plain, as another library reads them."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st
from twins import COMPILED, PLAIN

from ingestd.errors import CorruptBatch
from ingestd.records.batch import read_header, seal, write_header
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import decode_records, record_cursor

MAYBE = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=5), MAYBE), max_size=3)
RECORD = st.tuples(MAYBE, MAYBE, HEADERS, st.integers(-1, 2**41))
RECORDS = st.lists(RECORD, min_size=1, max_size=30)
FIRST = 1000
"""The offset of the first record."""
NO_END = 2**63 - 1


def body(twin, records, *, limit=1 << 20):
    buffer = twin.RecordBuffer(limit)
    for record in records:
        assert buffer.append(*record) > 0
    return buffer


def cursor(twin, buffer, *, first=0, end=NO_END, kept=None, append=None, extra=0, count=None):
    return twin.RecordCursor(
        buffer.view(), buffer.records if count is None else count, buffer.records - 1 + extra, FIRST,
        buffer.base_timestamp, append, first, end, kept,
    )  # fmt: skip


def copied(twin, records, *, limit, most=2**31 - 1, **chosen):
    """The batches that a copy makes, each with its runs."""
    source = cursor(twin, body(twin, records), **chosen)
    target = twin.RecordBuffer(limit, most)
    made = []
    while True:
        runs = source.copy_into(target)
        made.append((bytes(target.view()), target.records, target.base_timestamp, target.max_timestamp, runs))
        if not source.left:
            return made
        target.clear()


CHOICES = st.fixed_dictionaries(
    {"limit": st.integers(1, 400), "most": st.integers(1, 10)},
    optional={
        "first": st.integers(FIRST - 2, FIRST + 32),
        "end": st.integers(FIRST - 2, FIRST + 32),
        "append": st.integers(0, 2**41),
    },
)


@given(RECORDS, CHOICES, st.data())
def test_the_twins_copy_alike(records, choices, data):
    kept = data.draw(st.none() | st.binary(min_size=len(records), max_size=len(records)))
    assert copied(COMPILED, records, **choices, kept=kept) == copied(PLAIN, records, **choices, kept=kept)


@given(RECORDS, CHOICES, st.data())
def test_what_is_chosen_is_copied_once_and_in_order(records, choices, data):
    kept = data.draw(st.none() | st.lists(st.booleans(), min_size=len(records), max_size=len(records)).map(bytes))
    made = copied(COMPILED, records, **choices, kept=kept)
    first, end = choices.get("first", 0), choices.get("end", NO_END)
    wanted = [
        FIRST + number
        for number in range(len(records))
        if first <= FIRST + number < end and (kept is None or kept[number])
    ]
    offsets = [[offset for start, count in runs for offset in range(start, start + count)] for *_, runs in made]
    assert [offset for part in offsets for offset in part] == wanted
    assert [count for _, count, *_ in made] == [len(part) for part in offsets]


def batch_of(records, codec=Codec.lz4):
    builder = BatchBuilder(1 << 20)
    for record in records:
        builder.append(*record)
    batch = builder.build(Compression(codec))
    seal(memoryview(batch))
    return batch


@given(RECORDS, RECORDS, st.sampled_from(list(Codec)), st.integers(60, 2000))
def test_aiokafka_reads_the_same_records_of_several_batches_in_one(one, other, codec, limit):
    builder, made = BatchBuilder(limit), []

    def build():
        data = builder.build(Compression(codec))
        seal(memoryview(data))
        made.append(bytes(data))

    for records in (one, other):
        source = record_cursor(batch_of(records, codec))
        while source.left:
            source.copy_into(builder)
            if source.left:
                build()
    build()
    found = []
    for data in made:
        read = DefaultRecordBatch(data)
        assert read.validate_crc()
        parts = list(read)
        assert [record.offset for record in parts] == list(range(len(parts)))
        found += [(record.key, record.value, record.headers, record.timestamp) for record in parts]
    assert found == [(*record[:3], record[3]) for record in one + other]


def test_times_of_the_broker_become_the_records_own():
    batch = memoryview(batch_of([(None, b"%d" % number, (), 7 * number) for number in range(5)], Codec.none))
    write_header(
        batch, records=5, codec=Codec.none, base_timestamp=0, max_timestamp=99, base_offset=0, attributes=8
    )  # fmt: skip
    builder = BatchBuilder(1 << 20)
    assert record_cursor(batch).copy_into(builder) == [(0, 5)]
    made = builder.build(Compression(Codec.none))
    assert [record.timestamp_ms for record in decode_records(made)] == [99] * 5
    assert (read_header(made).base_timestamp, read_header(made).max_timestamp) == (99, 99)


def test_gaps_between_offsets_end_a_run(twin):
    """Offsets 0, 1, 5, 9, 10: what compaction leaves."""
    tail = b"\x01\x01\x00"  # null key, null value, no headers
    records = b"".join(bytes([2 * (3 + len(tail)), 0, 0, 2 * delta]) + tail for delta in (0, 1, 5, 9, 10))
    source = twin.RecordCursor(records, 5, 10, 0, 3, None, 0, NO_END, None)
    buffer = twin.RecordBuffer(1 << 20)
    assert source.copy_into(buffer) == [(0, 2), (5, 1), (9, 2)]
    assert buffer.records == 5


def test_times_too_far_apart_for_one_batch_go_into_two(twin):
    one, other = body(twin, [(None, b"a", (), -(2**62))]), body(twin, [(None, b"b", (), 2**62 + 1)])
    buffer = twin.RecordBuffer(1 << 20)
    cursor(twin, one).copy_into(buffer)
    late = cursor(twin, other)
    assert (late.copy_into(buffer), late.left) == ([], 1)
    buffer.clear()
    assert (late.copy_into(buffer), late.left) == ([(FIRST, 1)], 0)


@given(RECORDS, st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_record_is_refused_or_copied_alike(records, at, byte):
    data = bytearray(body(COMPILED, records).view())
    data[at % len(data)] = byte
    ends = []
    for twin in (COMPILED, PLAIN):
        target = twin.RecordBuffer(1 << 20)
        source = twin.RecordCursor(bytes(data), len(records), len(records) - 1, 0, 5, None, 0, NO_END, None)
        try:
            ends.append((source.copy_into(target), bytes(target.view())))
        except CorruptBatch:
            ends.append(None)
    assert ends[0] == ends[1]


@pytest.mark.parametrize(("count", "said"), [(2, "follow|behind"), (4, "ends|where|record")])
def test_a_wrong_count_is_refused(twin, count, said):
    buffer = body(twin, [(b"k", b"v", (), 1)] * 3)
    with pytest.raises(CorruptBatch, match=said):
        cursor(twin, buffer, count=count, extra=5).copy_into(twin.RecordBuffer(1 << 20))


def test_a_choice_has_a_byte_for_each_record(twin):
    with pytest.raises(ValueError, match="a choice among 2 records where there are 1"):
        cursor(twin, body(twin, [(b"k", b"v", (), 1)]), kept=b"\x01\x01")
