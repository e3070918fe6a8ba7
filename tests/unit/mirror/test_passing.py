"""Passing: what goes as it is, what is made anew with the same records, and what is merged."""

import struct
from types import SimpleNamespace

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from ingestd.consumer.fetched import FetchedBatch
from ingestd.errors import CorruptBatch
from ingestd.mirror import passing
from ingestd.mirror.filtering import RecordFilter
from ingestd.mirror.passing import FEWEST, SMALL, UNIT_BYTES, passage, split_offsets, units
from ingestd.records.batch import patch_offset, read_header, seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import decode_records

maybe = st.none() | st.binary(max_size=40)
record_lists = st.lists(
    st.tuples(maybe, maybe, st.lists(st.tuples(st.text(max_size=5), maybe), max_size=3), st.integers(0, 2**41)),
    min_size=1,
    max_size=30,
)


def fetched(made, *, first=0, end=None, codec=Codec.lz4, base_offset=0, stamped=None):
    """A batch of these records. `stamped`: the broker's time, if it gave one."""
    builder = BatchBuilder(2**22)
    for key, value, headers, timestamp in made:
        builder.append(key, value, headers, timestamp)
    data = memoryview(builder.build(Compression(codec)))
    if stamped is not None:
        struct.pack_into(">h", data, 21, 8 | data[22])
        struct.pack_into(">q", data, 35, stamped)
    patch_offset(data, base_offset, 3)
    seal(data)
    return FetchedBatch(read_header(data), data, first, end)


def passed(batches):
    """What goes to the target, with the ways and the numbers of batches of each unit."""
    found, parts = [], []
    for unit in units(map(passage, batches)):
        found.append(unit.ways)
        parts += [part for part in unit.parts() if part is not None]
    for part in parts:
        seal(part.data)
    return found, parts


def read(parts):
    """The records of batches, by aiokafka's reader, with their offsets at the source."""
    found = []
    for part in parts:
        batch = DefaultRecordBatch(bytes(part.data))
        assert batch.validate_crc()
        records = list(batch)
        assert [record.offset for record in records] == list(range(part.records))
        offsets = [offset for start, count in part.offsets for offset in range(start, start + count)]
        found += [
            (offset, record.key, record.value, record.headers, record.timestamp)
            for offset, record in zip(offsets, records, strict=True)
        ]
    return found


def wanted(batches):
    """The records that a reader of these batches gets."""
    return [
        (record.offset, record.key, record.value, list(record.headers), record.timestamp_ms)
        for batch in batches
        for record in decode_records(batch.data, first=batch.first, end=batch.end)
    ]


@given(st.lists(record_lists, min_size=1, max_size=12), st.data())
def test_every_record_goes_to_the_target_once_as_it_was_and_in_order(lists, data):
    offset = data.draw(st.integers(0, 2**40))
    first = offset + data.draw(st.integers(0, 10))
    codecs = st.sampled_from(data.draw(st.lists(st.sampled_from(list(Codec)), min_size=1, max_size=2)))
    batches = []
    for made in lists:
        offset += data.draw(st.integers(0, 2))  # markers of transactions, or what is hidden
        stamped = data.draw(st.sampled_from([None, None, 12345]))
        batches.append(fetched(made, base_offset=offset, first=first, codec=data.draw(codecs), stamped=stamped))
        offset += len(made)
    expected = wanted(batches)
    ways, parts = passed(batches)
    assert [len(unit) for unit in ways] == [1] * len(batches) or sum(map(len, ways)) == len(batches)
    assert read(parts) == expected


@given(record_lists, st.sampled_from(list(Codec)))
def test_times_of_the_broker_become_the_records_own(made, codec):
    batch = fetched(made, codec=codec, stamped=777)
    ways, (part,) = passed([batch])
    assert ways == [["log_append_time"]]
    assert [row[4] for row in read([part])] == [777] * len(made)
    assert read_header(part.data).codec in (codec, Codec.none)


@given(record_lists, st.integers(0, 40), st.integers(0, 40))
def test_a_part_of_a_batch_is_made_anew_without_the_rest(made, first, size):
    batch = fetched(made, first=first, end=first + size)
    expected = wanted([batch])
    _, parts = passed([batch])
    assert read(parts) == expected


def test_records_that_do_not_fit_into_one_batch_make_several(monkeypatch):
    monkeypatch.setattr(passing, "LARGEST_BATCH", 100)
    batch = fetched([(b"k", b"%d" % number * 20, [], number) for number in range(20)], base_offset=7, stamped=5)
    _, parts = passed([batch])
    assert len(parts) > 1
    assert read(parts) == wanted([batch])


def test_the_offsets_of_a_part_join_where_they_follow_each_other():
    batches = [fetched([(None, b"v", [], 1)] * 3, base_offset=base) for base in (10, 13, 17, 20)]
    _, (part,) = passed(batches)
    assert list(part.offsets) == [(10, 6), (17, 6)]


@given(st.lists(record_lists, min_size=1, max_size=6), st.sets(st.sampled_from(list(Codec)), min_size=1, max_size=2))
def test_a_filter_leaves_out_records_and_nothing_else(lists, codecs):
    batches, offset = [], 0
    for number, made in enumerate(lists):
        batches.append(fetched(made, base_offset=offset, codec=sorted(codecs)[number % len(codecs)]))
        offset += len(made)
    chosen = RecordFilter([], ["[^a-m]*"], {}, {})
    expected = [row for row in wanted(batches) if row[1] is None or chosen.takes(SimpleNamespace(key=row[1]))]
    parts = [
        part
        for unit in units(passage(batch, filtered=True) for batch in batches)
        for part in unit.parts(chosen)
        if part is not None
    ]
    for part in parts:
        seal(part.data)
    assert read(parts) == expected


def test_a_large_batch_of_which_a_filter_takes_all_passes_as_it_is_in_its_place():
    everything = RecordFilter([], [], {}, {})
    whole, cut = sized(SMALL, 4), sized(SMALL, 5)
    batches = [*small(4), whole, FetchedBatch(cut.header, cut.data, 6, None), *small(2, 6)]
    (unit,) = units(passage(batch, filtered=True) for batch in batches)
    parts = [part for part in unit.parts(everything) if part is not None]
    assert unit.ways == [*["filtered"] * 4, "passed", *["filtered"] * 3]
    assert [list(part.offsets) for part in parts] == [[(0, 4)], [(4, 1)], [(6, 2)]]
    assert parts[1].data.obj is whole.data.obj


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=6), st.integers(0, 30))
def test_offsets_are_split_where_a_batch_is(gaps, at):
    offsets, end = [], 0
    for gap, records in gaps:
        offsets.append((end + gap, records))
        end += gap + records
    flat, first, second = (
        [offset for start, count in part for offset in range(start, start + count)]
        for part in (offsets, *split_offsets(offsets, at))
    )
    assert (first, second) == (flat[:at], flat[at:])


# Which.


def sized(size, base_offset, codec=Codec.none):
    return fetched([(None, b"x" * size, [], 1)], base_offset=base_offset, codec=codec)


def ways_of(*batches):
    return [unit.ways for unit in units(map(passage, batches))]


def small(count, base_offset=0, codec=Codec.none):
    return [sized(10, base_offset + number, codec) for number in range(count)]


def test_small_batches_that_come_together_are_merged():
    assert ways_of(*small(FEWEST)) == [["merged"] * FEWEST]


def test_a_few_small_batches_pass_as_they_are():
    assert ways_of(*small(FEWEST - 1)) == [["passed"]] * (FEWEST - 1)


def test_a_large_batch_passes_between_small_ones():
    batches = [*small(FEWEST), sized(SMALL, 4), *small(FEWEST, 5)]
    assert ways_of(*batches) == [["merged"] * FEWEST, ["passed"], ["merged"] * FEWEST]


def test_batches_of_another_codec_are_not_merged():
    batches = [fetched([(None, b"x" * 200, [], 1)], base_offset=n, codec=Codec(3 + n // 4)) for n in range(8)]
    assert ways_of(*batches) == [["merged"] * 4, ["merged"] * 4]


def test_large_batches_that_can_not_pass_are_merged_up_to_a_bound():
    batches = [fetched([(None, b"x" * 100_000, [], 1)], base_offset=n, codec=Codec.none, stamped=5) for n in range(13)]
    per_unit = -(-UNIT_BYTES // 100_000)
    assert [len(unit) for unit in ways_of(*batches)] == [per_unit, per_unit, 1]


def test_batches_that_compaction_left_are_counted_by_their_own_reason():
    gap = with_gap(sized(10, 2))
    assert ways_of(*small(2), gap, *small(2, 4)) == [["merged", "merged", "gaps", "merged", "merged"]]


def with_gap(batch):
    """A batch whose header says that an offset before its record's is missing."""
    struct.pack_into(">i", batch.data, 23, 1)
    seal(batch.data)
    return FetchedBatch(read_header(batch.data), batch.data, batch.first, batch.end)


def test_a_damaged_batch_among_small_ones_is_found_alone():
    batches = small(6)
    batches[4].data[70] ^= 1
    (unit,) = units(map(passage, batches))
    with pytest.raises(CorruptBatch):
        list(unit.parts())
    good = [one for alone in list(unit.alone())[:4] for one in alone.parts()]
    assert sum(part.records for part in good if part is not None) == 4
    with pytest.raises(CorruptBatch):
        list(list(unit.alone())[4].parts())


def header_with(batch, **fields):
    return FetchedBatch(batch.header._replace(**fields), batch.data, batch.first, batch.end)


@pytest.mark.parametrize(
    ("fields", "first", "end", "way"),
    [
        ({}, 0, None, "passed"),
        ({}, 0, 3, "passed"),
        ({}, 1, None, "part"),
        ({}, 0, 2, "part"),
        ({"records": 2}, 0, None, "gaps"),
        ({"attributes": 8}, 0, None, "log_append_time"),
        ({"leader_epoch": -1}, 0, None, "old_format"),
    ],
    ids=["whole", "up to the end", "begins before", "ends behind", "gaps", "time of the broker", "old messages"],
)
def test_only_whole_batches_without_gaps_pass(fields, first, end, way):
    batch = fetched([(None, b"v", [], 1)] * 3, first=first, end=end)
    assert passage(header_with(batch, **fields)).way == way
