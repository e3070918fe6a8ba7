"""Passing: what goes as it is, and what is made anew with the same records."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.fetched import FetchedBatch
from ingestd.mirror import passing
from ingestd.mirror.passing import made_anew, passes
from ingestd.records.batch import read_header, seal
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import decode_records

ORDERS = TopicPartition("orders", 3)
maybe = st.none() | st.binary(max_size=40)
records = st.lists(
    st.tuples(maybe, maybe, st.lists(st.tuples(st.text(max_size=5), maybe), max_size=3), st.integers(0, 2**41)),
    min_size=1,
    max_size=30,
)


def fetched(made, *, first=0, end=None, codec=Codec.lz4, base_offset=0):
    builder = BatchBuilder(2**20)
    for key, value, headers, timestamp in made:
        builder.append(key, value, headers, timestamp)
    data = memoryview(builder.build(Compression(codec)))
    struct.pack_into(">q", data, 0, base_offset)
    seal(data)
    return FetchedBatch(read_header(data), data, first, end)


def shown(batch):
    return [(one.key, one.value, one.headers, one.timestamp_ms) for one in decode_records(batch)]


@given(records, st.sampled_from(list(Codec)))
def test_what_is_made_anew_has_the_same_records(made, codec):
    batch = fetched(made, codec=codec)
    ((data, count),) = made_anew(batch, ORDERS)
    assert count == len(made)
    seal(data)
    assert shown(data) == shown(batch.data)


@given(records, st.integers(0, 40), st.integers(0, 40))
def test_a_part_of_a_batch_is_made_anew_without_the_rest(made, first, size):
    batch = fetched(made, first=first, end=first + size, base_offset=0)
    parts = [record for data, _ in made_anew(batch, ORDERS) for record in shown(data)]
    assert parts == shown(batch.data)[first : first + size]


def test_records_that_do_not_fit_into_one_batch_make_several(monkeypatch):
    monkeypatch.setattr(passing, "LARGEST_BATCH", 100)
    made = [(b"k", b"%d" % number * 20, [], number) for number in range(20)]
    batch = fetched(made)
    parts = list(made_anew(batch, ORDERS))
    assert len(parts) > 1
    assert sum(count for _, count in parts) == 20
    assert [record for data, _ in parts for record in shown(data)] == shown(batch.data)


def header_with(batch, **fields):
    return FetchedBatch(replace(batch.header, **fields), batch.data, batch.first, batch.end)


@pytest.mark.parametrize(
    ("fields", "first", "end", "as_it_is"),
    [
        ({}, 0, None, True),
        ({}, 0, 3, True),
        ({}, 1, None, False),
        ({}, 0, 2, False),
        ({"records": 2}, 0, None, False),
        ({"attributes": 8}, 0, None, False),
    ],
    ids=["whole", "up to the end", "begins before", "ends behind", "gaps", "time of the broker"],
)
def test_only_whole_batches_without_gaps_pass(fields, first, end, as_it_is):
    batch = fetched([(None, b"v", [], 1)] * 3, first=first, end=end)
    assert passes(header_with(batch, **fields)) is as_it_is
