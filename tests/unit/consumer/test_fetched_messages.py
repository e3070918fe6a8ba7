"""Fetched data of old formats: messages of magic 0 and 1 are read as the batches that they are made into."""

import struct

import pytest

from ingestd.consumer.decoding import records_of
from ingestd.consumer.fetched import cut
from ingestd.consumer.settings import Isolation, TopicPartition
from ingestd.errors import CorruptBatch
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import Record, TimestampType
from ingestd.records.message_set import encode_message_set

WHERE = TopicPartition("t", 0)


def wrapper(last_offset, values, codec=Codec.gzip):
    """Messages of magic 1 in one wrapper, as the broker stores it."""
    records = [Record(n, 7, TimestampType.create_time, None, value) for n, value in enumerate(values)]
    return struct.pack(">q", last_offset) + encode_message_set(records, 1, Compression(codec))[8:]


def take(data, position=0, end=None):
    records = memoryview(data)
    return cut(records, len(records), position=position, end=end, isolation=Isolation.read_committed, aborted=())


def read(fetched):
    return [
        (record.offset, record.value)
        for batch in fetched.batches
        for record in records_of(batch, WHERE, check_crc=True)
    ]


def test_a_wrapper_is_read_from_the_asked_offset_to_the_end():
    fetched = take(wrapper(12, [b"a", b"b", b"c"]) + wrapper(15, [b"d", b"e", b"f"]), position=11, end=14)
    assert read(fetched) == [(11, b"b"), (12, b"c"), (13, b"d")]
    assert fetched.next_offset == 16


def test_what_is_made_counts_as_memory_and_is_bounded_and_the_rest_is_fetched_again():
    large = [bytes(4 * 1024 * 1024)]
    data = b"".join(wrapper(offset, large) for offset in range(10))
    assert len(data) < 100_000
    fetched = take(data)
    assert [offset for offset, _ in read(fetched)] == [0, 1, 2, 3]
    assert fetched.next_offset == 4
    assert fetched.size > 16 * 1024 * 1024
    again = take(b"".join(wrapper(offset, large) for offset in range(4, 10)), position=fetched.next_offset)
    assert [offset for offset, _ in read(again)] == [4, 5, 6, 7]


def test_a_damaged_message_is_an_error_when_it_comes_first():
    damaged = bytearray(wrapper(5, [b"x"]))
    damaged[-1] ^= 1
    fetched = take(wrapper(4, [b"good"]) + damaged)
    assert (read(fetched), fetched.next_offset) == ([(4, b"good")], 5)
    with pytest.raises(CorruptBatch, match="CRC-32"):
        take(damaged, position=5)
