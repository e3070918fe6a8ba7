"""The hot loops, compiled and plain: the same functions, the same results, the same refusals."""

from __future__ import annotations

import mmap
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import COMPILED, PLAIN

from ingestd.errors import CorruptBatch
from ingestd.records import _decode_compiled, _decode_plain, _encode_compiled, _encode_plain, loops

LINES = st.lists(st.binary(max_size=300).map(lambda line: line.replace(b"\n", b"")), max_size=40)
KEYS = st.none() | st.binary(max_size=200)


def encoded(twin, raw, *, start=0, room=1 << 16, limit=1 << 16, key=None):
    out = bytearray(room)
    end, written, records = twin.encode_lines(raw, start, out, limit, key)
    return end, bytes(out[:written]), records


def parsed(twin, records, count, *, last=None, base=0, timestamp=0, append=None):
    return twin.parse_records(records, count, count if last is None else last, base, timestamp, append)


def binary(buffers):
    offsets, data, validity, nulls = buffers
    ends = memoryview(offsets).cast("i")
    values = [
        bytes(data[ends[i] : ends[i + 1]]) if validity[i >> 3] >> (i & 7) & 1 else None for i in range(len(ends) - 1)
    ]
    assert values.count(None) == nulls
    return values


def test_the_compiled_loops_are_built_and_chosen():
    assert loops.COMPILED
    assert loops.encode_lines is _encode_compiled.encode_lines
    assert loops.parse_records is _decode_compiled.parse_records


def test_the_twins_have_the_same_names():
    assert sorted(_encode_compiled.__all__) == sorted(_encode_plain.__all__)
    assert sorted(_decode_compiled.__all__) == sorted(_decode_plain.__all__)


# Lines to records


@given(LINES, KEYS, st.booleans())
def test_the_twins_encode_lines_alike(lines, key, closed):
    raw = b"\n".join(lines) + (b"\n" if closed else b"")
    assert encoded(COMPILED, raw, key=key) == encoded(PLAIN, raw, key=key)


@given(LINES, KEYS, st.integers(0, 3000), st.integers(0, 3000))
def test_the_twins_stop_at_the_same_line(lines, key, room, limit):
    raw = b"".join(line + b"\n" for line in lines)
    assert encoded(COMPILED, raw, key=key, room=room, limit=limit) == encoded(
        PLAIN, raw, key=key, room=room, limit=limit
    )


def test_a_line_becomes_a_record_of_its_bytes_without_the_newline(twin):
    end, records, count = encoded(twin, b"one\r\ntwo\n")
    assert (end, count) == (9, 2)
    assert binary(parsed(twin, records, 2)[3]) == [b"one\r", b"two"]


def test_an_empty_line_is_a_record_with_an_empty_value(twin):
    _, records, count = encoded(twin, b"\n\n")
    assert count == 2
    assert binary(parsed(twin, records, 2)[3]) == [b"", b""]


def test_a_last_line_without_newline_is_a_record(twin):
    end, records, count = encoded(twin, b"one\ntwo")
    assert (end, count) == (7, 2)
    assert binary(parsed(twin, records, 2)[3]) == [b"one", b"two"]


def test_no_bytes_are_no_records(twin):
    assert encoded(twin, b"") == (0, b"", 0)


def test_every_record_gets_the_key(twin):
    _, records, _ = encoded(twin, b"a\nb\n", key=b"host")
    assert binary(parsed(twin, records, 2)[2]) == [b"host", b"host"]
    _, records, _ = encoded(twin, b"a\n", key=b"")
    assert binary(parsed(twin, records, 1)[2]) == [b""]


def test_records_stop_at_the_limit_and_go_on_from_there(twin):
    raw = b"".join(b"%05d\n" % number for number in range(100))
    start, values = 0, []
    while start < len(raw):
        end, records, count = encoded(twin, raw, start=start, limit=100)
        assert 0 < len(records) <= 100
        values += binary(parsed(twin, records, count)[3])
        start = end
    assert values == raw.split(b"\n")[:-1]


def test_the_first_record_may_exceed_the_limit_but_not_the_room(twin):
    assert encoded(twin, b"x" * 500 + b"\ny\n", limit=10)[2] == 1
    assert encoded(twin, b"x" * 500 + b"\ny\n", limit=10, room=500) == (0, b"", 0)


@pytest.mark.parametrize("missing", range(1, 9))
def test_records_never_pass_the_end_of_the_room(twin, missing):
    _, whole, _ = encoded(twin, b"abc\nde\n")
    guarded = bytearray(b"\xee" * (len(whole) + 8))
    room = memoryview(guarded)[: len(whole) - missing]
    _, written, records = twin.encode_lines(b"abc\nde\n", 0, room, 1 << 16, None)
    assert records < 2
    assert guarded[written:] == b"\xee" * (len(guarded) - written)


@pytest.mark.parametrize("size", [63, 64, 8191, 8192, 1_048_575, 1_048_576])
def test_lengths_where_a_varint_grows(twin, size):
    _, records, count = encoded(twin, b"x" * size + b"\n", room=size + 64, limit=1 << 30)
    assert binary(parsed(twin, records, count)[3]) == [b"x" * size]


def test_offset_deltas_where_a_varint_grows(twin):
    _, records, count = encoded(twin, b"\n" * 9000, room=1 << 20, limit=1 << 20)
    assert memoryview(parsed(twin, records, count, base=7)[0]).cast("q").tolist() == list(range(7, 9007))


def test_shared_memory_at_any_offset_is_written_in_place(twin):
    arena = mmap.mmap(-1, 1 << 16)
    view = memoryview(arena)[4099:8000]
    _, written, count = twin.encode_lines(memoryview(b"xxone\ntwo\n"), 2, view, 1 << 16, None)
    assert binary(parsed(twin, view[:written], count)[3]) == [b"one", b"two"]
    view.release()
    arena.close()


@pytest.mark.parametrize("start", [-1, 4])
def test_a_start_outside_the_lines_is_refused(twin, start):
    with pytest.raises(ValueError, match="start"):
        twin.encode_lines(b"abc", start, bytearray(100), 100, None)


def test_a_read_only_target_is_refused(twin):
    with pytest.raises((TypeError, BufferError)):
        twin.encode_lines(b"abc", 0, bytes(100), 100, None)


@given(st.binary(max_size=300))
def test_line_ends_are_those_of_split(raw):
    for twin in (COMPILED, PLAIN):
        ends = memoryview(twin.line_ends(raw)).cast("i").tolist()
        lines = raw.split(b"\n")
        expected = lines if lines[-1] else lines[:-1]
        starts = [0, *(end + 1 for end in ends)]
        assert [raw[start:end] for start, end in zip(starts, ends, strict=False)] == expected


# Lines to records of many partitions


def scattered(twin, raw, chosen, keys=None, *, slots=3, slot_bytes=4096, budget=1 << 40, overhead=61, start=0, line=0):
    scratch = bytearray(slots * slot_bytes)
    written, records = array("q", [0] * slots), array("i", [0] * slots)
    stop = twin.scatter_lines(raw, start, line, chosen, keys, scratch, slot_bytes, written, records, budget, overhead)
    return stop, [
        (bytes(scratch[slot * slot_bytes : slot * slot_bytes + written[slot]]), records[slot]) for slot in range(slots)
    ]


@given(st.data(), LINES, st.integers(1, 700), st.integers(0, 2000))
def test_the_twins_scatter_alike(data, lines, slot_bytes, budget):
    raw = b"".join(line + b"\n" for line in lines)
    chosen = array("i", [data.draw(st.integers(0, 2)) for _ in lines])
    keys = array("i")
    for _ in lines:
        first = data.draw(st.integers(-1, len(raw)))
        keys.extend((first, data.draw(st.integers(max(first, 0), len(raw)))))
    one, other = (
        scattered(twin, raw, chosen, keys, slot_bytes=slot_bytes, budget=budget) for twin in (COMPILED, PLAIN)
    )
    assert one == other


def test_each_line_goes_to_the_slot_of_its_partition_with_its_key(twin):
    raw = b"k1 a\nk2 b\nc\n"
    stop, slots = scattered(twin, raw, array("i", [2, 0, 2]), array("i", [0, 2, 5, 7, -1, 0]))
    assert stop == (len(raw), 3, twin.FINISHED)
    assert [count for _, count in slots] == [1, 0, 2]
    columns = parsed(twin, *slots[2])
    assert binary(columns[2]) == [b"k1", None]
    assert binary(columns[3]) == [b"k1 a", b"c"]
    assert memoryview(columns[0]).cast("q").tolist() == [0, 1]


def test_a_full_slot_stops_the_pass_before_the_line(twin):
    stop, slots = scattered(twin, b"aaaa\nbbbb\ncccc\n", array("i", [0, 1, 0]), slot_bytes=12)
    assert stop == (10, 2, twin.SLOT_FULL)
    assert [count for _, count in slots] == [1, 1, 0]


def test_a_spent_budget_counts_the_overhead_of_each_slot_begun(twin):
    raw = b"aaaa\nbbbb\ncccc\n"
    record = len(encoded(twin, b"aaaa\n")[1])
    enough = 3 * record + 2 * 61
    assert scattered(twin, raw, array("i", [0, 1, 0]), budget=enough)[0] == (15, 3, twin.FINISHED)
    assert scattered(twin, raw, array("i", [0, 1, 0]), budget=enough - 1)[0] == (10, 2, twin.BUDGET_SPENT)


@pytest.mark.parametrize(
    ("chosen", "keys"),
    [
        ([0], None),
        ([0, 3], None),
        ([0, -1], None),
        ([0, 0], [0, 1]),
        ([0, 0], [0, 1, 1, 0]),
        ([0, 0], [0, 1, 0, 5]),
        ([0, 0], [0, 1, 2**31 - 1, 2**31 - 1]),
        ([0, 0], [0, 1, 1, -(2**31)]),
    ],
)
def test_partitions_and_keys_that_are_not_there_are_refused(twin, chosen, keys):
    with pytest.raises(ValueError, match="line 1"):
        scattered(twin, b"a\nb\n", array("i", chosen), None if keys is None else array("i", keys))


def test_a_slot_that_claims_more_than_it_can_hold_is_refused(twin):
    for held in (-1, 65, 2**62):
        with pytest.raises(ValueError, match="slot"):
            twin.scatter_lines(
                b"a\n", 0, 0, array("i", [0]), None, bytearray(64), 64, array("q", [held]), array("i", [0]), 1 << 20, 0
            )


# Keys to partitions


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(twin, key, expected):
    """The values that Apache Kafka's own UtilsTest has."""
    assert twin.murmur2(key) == twin.murmur2(bytearray(key)) == expected & 0xFFFFFFFF


@given(st.lists(st.binary(max_size=40)), st.integers(1, 2**31 - 1))
def test_keys_get_the_partitions_that_java_gives_them(keys, partitions):
    raw = b"".join(keys)
    spans, at = array("i"), 0
    for key in keys:
        spans.extend((at, at + len(key)))
        at += len(key)
    spans.extend((-1, 0))
    for twin in (COMPILED, PLAIN):
        chosen = memoryview(twin.partition_keys(raw, spans, partitions, 77)).cast("i").tolist()
        assert chosen == [(PLAIN.murmur2(key) & 0x7FFFFFFF) % partitions for key in keys] + [77]
        assert twin.murmur2(raw) == PLAIN.murmur2(raw)


@pytest.mark.parametrize("span", [(0, 4), (2, 1), (2**31 - 1, 2**31 - 1), (1, -(2**31))])
def test_keys_that_are_not_there_have_no_partition(twin, span):
    with pytest.raises(ValueError, match="line 1"):
        twin.partition_keys(b"abc", array("i", [0, 1, *span]), 3, 0)
    for partitions in (0, -1, 2**31):
        with pytest.raises(ValueError, match="partitions"):
            twin.partition_keys(b"abc", array("i", [0, 1]), partitions, 0)


# Records one by one


HEADERS = st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=50)), max_size=4)
RECORDS = st.lists(st.tuples(KEYS, KEYS, HEADERS, st.integers(0, 2**50)), min_size=1, max_size=20)


@given(RECORDS, st.integers(1, 2000))
def test_the_twins_build_alike(records, limit):
    one, other = COMPILED.RecordBuffer(limit), PLAIN.RecordBuffer(limit)
    for record in records:
        assert one.append(*record) == other.append(*record)
    assert bytes(one.view()) == bytes(other.view())
    assert (one.records, one.size, one.base_timestamp, one.max_timestamp) == (
        other.records,
        other.size,
        other.base_timestamp,
        other.max_timestamp,
    )


@given(RECORDS)
def test_what_is_appended_is_parsed(records):
    for twin in (COMPILED, PLAIN):
        buffer = twin.RecordBuffer(1 << 20)
        for record in records:
            assert buffer.append(*record) == buffer.size
        offsets, timestamps, keys, values, (ends, names, contents) = parsed(
            twin, buffer.view(), len(records), base=5, timestamp=buffer.base_timestamp
        )
        assert memoryview(offsets).cast("q").tolist() == list(range(5, 5 + len(records)))
        assert memoryview(timestamps).cast("q").tolist() == [record[3] for record in records]
        assert binary(keys) == [record[0] for record in records]
        assert binary(values) == [record[1] for record in records]
        flat = [header for record in records for header in record[2]]
        assert binary(names) == [name.encode() for name, _ in flat]
        assert binary(contents) == [content for _, content in flat]
        assert memoryview(ends).cast("i").tolist()[-1] == len(flat)
        assert buffer.max_timestamp == max(record[3] for record in records)


def test_a_record_beyond_the_limit_is_not_added_but_the_first_is(twin):
    buffer = twin.RecordBuffer(50)
    assert buffer.append(None, b"x" * 100, (), 1) > 50
    before = bytes(buffer.view())
    assert buffer.append(None, b"y", (), 2) == -1
    assert (bytes(buffer.view()), buffer.records, buffer.max_timestamp) == (before, 1, 1)


def test_any_buffer_is_a_key_or_a_value_and_a_string_is_not(twin):
    buffer = twin.RecordBuffer(1000)
    buffer.append(bytearray(b"k"), memoryview(b"value")[1:3], [(b"name", memoryview(b"v"))], 0)
    columns = parsed(twin, buffer.view(), 1)
    assert (binary(columns[2]), binary(columns[3])) == ([b"k"], [b"al"])
    for record in (
        ("k", b"", ()),
        (b"", "v", ()),
        (b"", b"", [("n", "v")]),
        (b"", b"", [(5, b"v")]),
        (b"", b"", [(None, b"v")]),
    ):
        with pytest.raises(TypeError):
            buffer.append(*record, 0)
    assert buffer.records == 1


def test_a_buffer_that_is_looked_at_does_not_move(twin):
    buffer = twin.RecordBuffer(1000)
    buffer.append(None, b"v", (), 0)
    with buffer.view(), pytest.raises(BufferError):
        buffer.append(None, b"w", (), 0)
    with buffer.view(), pytest.raises(BufferError):
        buffer.clear()
    buffer.clear()
    assert (buffer.size, buffer.records) == (0, 0)


def test_timestamps_may_fall_and_be_far_apart(twin):
    buffer = twin.RecordBuffer(1000)
    times = [5, -1, 2**62, 0]
    for time in times:
        buffer.append(None, None, (), time)
    assert memoryview(parsed(twin, buffer.view(), 4, timestamp=5)[1]).cast("q").tolist() == times
    with pytest.raises(ValueError, match="timestamp"):
        buffer.append(None, None, (), -(2**63))


# Records to columns


def test_append_time_is_every_records_timestamp(twin):
    buffer = twin.RecordBuffer(1000)
    for time in (1, 2, 3):
        buffer.append(None, b"v", (), time)
    assert memoryview(parsed(twin, buffer.view(), 3, timestamp=1, append=77)[1]).cast("q").tolist() == [77] * 3


def test_no_records_are_empty_columns(twin):
    offsets, timestamps, keys, values, headers = parsed(twin, b"", 0)
    assert (offsets, timestamps, binary(keys), binary(values)) == (b"", b"", [], [])
    assert headers[0] == bytes(4)


SOUND = bytes((2 * 12, 0, 0, 0, 2, 0x6B, 2, 0x76, 2, 2, 0x68, 2, 0x76))
"""One record: key k, value v, header h=v."""


@pytest.mark.parametrize(
    ("at", "byte", "why"),
    [
        (0, 2 * 11, "shorter than its fields"),
        (0, 2 * 13, "longer than the batch"),
        (0, 1, "a negative length"),
        (0, 0, "no fields at all"),
        (3, 1, "a negative offset delta"),
        (3, 2 * 5, "an offset delta beyond the last"),
        (4, 3, "a key length of -2"),
        (4, 2 * 60, "a key longer than the record"),
        (6, 2 * 60, "a value longer than the record"),
        (8, 1, "a negative number of headers"),
        (8, 0, "bytes behind no headers"),
        (8, 4, "more headers than there are"),
        (9, 1, "a header without a key"),
        (11, 5, "a header value length of -3"),
        (11, 0x80, "a length that never ends"),
    ],
)
def test_a_record_that_does_not_add_up_is_corrupt(twin, at, byte, why):
    assert binary(parsed(twin, SOUND, 1)[2]) == [b"k"]
    record = bytearray(SOUND)
    record[at] = byte
    with pytest.raises(CorruptBatch):
        parsed(twin, record, 1)


@pytest.mark.parametrize("count", [0, 2, -1, 2**31 - 1, 2**40])
def test_a_count_that_is_not_that_of_the_records_is_corrupt(twin, count):
    with pytest.raises(CorruptBatch):
        parsed(twin, SOUND, count, last=5)


@pytest.mark.parametrize("size", range(len(SOUND)))
def test_a_torn_record_is_corrupt(twin, size):
    with pytest.raises(CorruptBatch):
        parsed(twin, SOUND[:size], 1)


@pytest.mark.parametrize(
    "varint",
    [
        b"\x80\x80\x80\x80\x10",
        b"\xff\xff\xff\xff\x7f",
        b"\x80\x80\x80\x80\x80\x00",
        b"\xff" * 12,
    ],
)
def test_an_integer_of_more_than_32_bits_is_corrupt(twin, varint):
    with pytest.raises(CorruptBatch):
        parsed(twin, varint + SOUND[1:] + bytes(20), 1)
    body = bytes((0, 0)) + varint + bytes((1, 1, 0))
    with pytest.raises(CorruptBatch):
        parsed(twin, bytes((2 * len(body),)) + body, 1, last=2**31 - 1)


@pytest.mark.parametrize("varint", [b"\x80" * 9 + b"\x02", b"\xff" * 10, b"\x80" * 10 + b"\x00"])
def test_a_timestamp_delta_of_more_than_64_bits_is_corrupt(twin, varint):
    body = b"\x00" + varint + bytes((0, 1, 1, 0))
    with pytest.raises(CorruptBatch):
        parsed(twin, bytes((2 * len(body),)) + body, 1)


def test_the_largest_timestamp_delta_is_read_and_its_sum_checked(twin):
    body = b"\x00" + b"\xfe" + b"\xff" * 8 + b"\x01" + bytes((0, 1, 1, 0))
    record = bytes((2 * len(body),)) + body
    assert memoryview(parsed(twin, record, 1)[1]).cast("q").tolist() == [2**63 - 1]
    with pytest.raises(CorruptBatch):
        parsed(twin, record, 1, timestamp=1)


@pytest.mark.parametrize(("base", "last"), [(-1, 1), (2**63 - 1, 1)])
def test_offsets_beyond_64_bits_are_corrupt(twin, base, last):
    with pytest.raises(CorruptBatch):
        parsed(twin, SOUND, 1, base=base, last=last)


def mutated(data, records):
    changed = bytearray(records)
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.integers(0, 2))
        at = data.draw(st.integers(0, len(changed)))
        if kind == 0 and at < len(changed):
            changed[at] = data.draw(st.integers(0, 255))
        elif kind == 1:
            del changed[at : at + data.draw(st.integers(1, 8))]
        else:
            changed[at:at] = data.draw(st.binary(max_size=12))
    return bytes(changed)


def outcome(twin, records, count, last, base, timestamp, append):
    try:
        return parsed(twin, records, count, last=last, base=base, timestamp=timestamp, append=append)
    except CorruptBatch:
        return CorruptBatch


INT64 = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=300)
@given(st.data(), RECORDS)
def test_mutated_records_are_parsed_alike_or_refused_alike(data, records):
    buffer = COMPILED.RecordBuffer(1 << 20)
    for record in records:
        buffer.append(*record)
    changed = mutated(data, bytes(buffer.view()))
    arguments = (
        data.draw(st.sampled_from([len(records), len(records) + 1, max(len(records) - 1, 0), 2**31 - 1])),
        data.draw(st.sampled_from([len(records), 0, 2**31 - 1])),
        data.draw(st.just(0) | INT64),
        data.draw(st.just(0) | INT64),
        data.draw(st.none() | INT64),
    )
    assert outcome(COMPILED, changed, *arguments) == outcome(PLAIN, changed, *arguments)


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 20))
def test_any_bytes_are_parsed_alike_or_refused_alike(records, count):
    assert outcome(COMPILED, records, count, 100, 0, 0, None) == outcome(PLAIN, records, count, 100, 0, 0, None)


@given(RECORDS)
def test_values_are_written_where_there_is_room_given(records):
    for twin in (COMPILED, PLAIN):
        buffer = twin.RecordBuffer(1 << 20)
        for record in records:
            buffer.append(*record)
        data = bytes(buffer.view())
        room = memoryview(bytearray(len(data) + 5))
        own = twin.parse_records(data, len(records), len(records), 0, 0, None)
        lent = twin.parse_records(data, len(records), len(records), 0, 0, None, room)
        assert binary(lent[3]) == binary(own[3])
        assert lent[3][1].obj is room.obj
        if data:
            with pytest.raises(ValueError, match="room"):
                twin.parse_records(data, len(records), len(records), 0, 0, None, memoryview(bytearray(len(data) - 1)))


def test_a_column_lets_go_of_the_room_it_was_lent(twin):
    room = bytearray(100)
    data = bytes((12, 0, 0, 0, 1, 0, 0))
    lent = twin.parse_records(data, 1, 1, 0, 0, None, memoryview(room))
    with pytest.raises(BufferError):
        room.append(0)
    del lent
    room.append(0)
