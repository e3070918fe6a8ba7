"""Message sets against themselves, and against readers and writers written elsewhere: aiokafka's, kafka-python's."""

from __future__ import annotations

import struct
import warnings
from zlib import crc32

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from ingestd.errors import CorruptBatch, UnsupportedCodec, UnsupportedVersion
from ingestd.records.batch import check_crc, read_header
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression
from ingestd.records.decode import Record, TimestampType, decode_records
from ingestd.records.message_set import (
    batches_of,
    decode_message_set,
    encode_message_set,
    message_set_of_batch,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, when it is imported
    from kafka.record.legacy_records import LegacyRecordBatchBuilder as PythonBuilder
    from kafka.record.memory_records import MemoryRecords as PythonMemoryRecords

CREATED = TimestampType.create_time
APPENDED = TimestampType.log_append_time
OLD_CODECS = [Codec.none, Codec.gzip, Codec.snappy, Codec.lz4]
MAGICS = st.sampled_from([0, 1])
PEERS_CAN = st.sampled_from([(0, Codec.none), (0, Codec.gzip), (1, Codec.none), (1, Codec.gzip), (1, Codec.lz4)])
"""They have no lz4 for magic 0, and no snappy without a library that is not here."""
BYTES = st.none() | st.binary(max_size=200)
FIELDS = st.lists(st.tuples(BYTES, BYTES, st.integers(0, 2**45)), min_size=1, max_size=20)


def records_of(fields, first=0):
    return [Record(first + n, time, CREATED, key, value) for n, (key, value, time) in enumerate(fields)]


def as_stored(record, magic):
    return record if magic else Record(record.offset, -1, record.timestamp_type, record.key, record.value)


def message(magic, offset, attributes, timestamp, key, value):
    """One message, written once more and otherwise."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, len(body) + 4, crc32(body)) + body


def moved(message_set, offset):
    """What a broker does to a set of one message: it gives it its offset."""
    return struct.pack(">q", offset) + message_set[8:]


@given(FIELDS, MAGICS, st.sampled_from(OLD_CODECS))
def test_what_is_encoded_is_decoded(fields, magic, codec):
    records = records_of(fields)
    encoded = encode_message_set(records, magic, Compression(codec))
    assert list(decode_message_set(encoded)) == [as_stored(record, magic) for record in records]


@given(FIELDS, PEERS_CAN)
def test_aiokafka_and_kafka_python_read_what_is_encoded(fields, kind):
    magic, codec = kind
    expected = [(n, key, value, time if magic else None) for n, (key, value, time) in enumerate(fields)]
    encoded = encode_message_set(records_of(fields), magic, Compression(codec))
    for reader in (MemoryRecords(encoded), PythonMemoryRecords(encoded)):
        read = []
        while batch := reader.next_batch():
            assert batch.validate_crc()
            read += [(each.offset, each.key, each.value, each.timestamp) for each in batch]
        assert read == expected


@given(FIELDS, PEERS_CAN)
def test_what_aiokafka_and_kafka_python_write_is_read(fields, kind):
    magic, codec = kind
    expected = [as_stored(record, magic) for record in records_of(fields)]
    for builder in (
        LegacyRecordBatchBuilder(magic, codec, 1 << 20),
        PythonBuilder(magic=magic, compression_type=codec, batch_size=1 << 20),
    ):
        for offset, (key, value, time) in enumerate(fields):
            if isinstance(builder, PythonBuilder):
                builder.append(offset, timestamp=time, key=key, value=value, headers=[])
            else:
                builder.append(offset, timestamp=time, key=key, value=value)
        written = bytes(builder.build())
        stored = written if codec is Codec.none else moved(written, len(fields) - 1)
        assert list(decode_message_set(stored)) == expected


def test_the_frame_checksum_of_lz4_in_magic_0_is_the_one_that_old_brokers_compute():
    # KAFKA-3160: xxHash32 over magic and descriptor, not over the descriptor alone.
    (record,) = records_of([(None, b"value" * 100, 0)])
    frames = {
        magic: encode_message_set([record], magic, Compression(Codec.lz4)).partition(b"\x04\x22\x4d\x18")
        for magic in (0, 1)
    }
    assert [frames[magic][2][:3].hex() for magic in (0, 1)] == ["60401a", "604082"]
    assert [second_byte(frames[0][1] + frames[0][2][:2]), second_byte(frames[1][2][:2])] == [0x1A, 0x82]


def second_byte(data):
    """The second lowest byte of xxHash32, for less than 16 bytes."""
    mask = 0xFFFFFFFF
    state = (374761393 + len(data)) & mask
    words, rest = len(data) // 4, len(data) % 4
    for (word,) in struct.iter_unpack("<I", data[: 4 * words]):
        state = (state + word * 3266489917) & mask
        state = ((state << 17 | state >> 15) * 668265263) & mask
    for byte in data[len(data) - rest :]:
        state = (state + byte * 374761393) & mask
        state = ((state << 11 | state >> 21) * 2654435761) & mask
    state = (state ^ state >> 15) * 2246822519 & mask
    state = (state ^ state >> 13) * 3266489917 & mask
    return (state ^ state >> 16) >> 8 & 0xFF


def test_a_wrapper_of_magic_1_has_the_offset_of_its_last_message_and_holds_relative_ones():
    wrapper = encode_message_set(records_of([(None, b"%d" % n, n) for n in range(5)]), 1, Compression(Codec.gzip))
    stored = moved(wrapper, 1004)
    assert [record.offset for record in decode_message_set(stored)] == [1000, 1001, 1002, 1003, 1004]


def test_a_compacted_wrapper_keeps_the_gaps_between_its_messages():
    from gzip import compress

    held = b"".join(message(1, within, 0, 7, None, b"v") for within in (0, 2, 5))
    wrapper = message(1, 105, Codec.gzip, 7, None, compress(held))
    assert [record.offset for record in decode_message_set(wrapper)] == [100, 102, 105]


def test_a_wrapper_of_magic_0_holds_absolute_offsets():
    from gzip import compress

    held = b"".join(message(0, offset, 0, 0, None, b"v") for offset in (70, 71, 90))
    wrapper = message(0, 90, Codec.gzip, 0, None, compress(held))
    assert [record.offset for record in decode_message_set(wrapper)] == [70, 71, 90]


def test_a_wrapper_that_the_broker_stamped_gives_its_time_to_all_its_messages():
    from gzip import compress

    held = b"".join(message(1, n, 0, 100 + n, None, b"v") for n in range(3))
    wrapper = message(1, 2, Codec.gzip | 8, 5555, None, compress(held))
    assert [(each.timestamp_ms, each.timestamp_type) for each in decode_message_set(wrapper)] == [(5555, APPENDED)] * 3


@given(FIELDS, MAGICS, st.sampled_from(OLD_CODECS), st.integers(0, 2**40))
def test_messages_become_batches_with_the_same_records(fields, magic, codec, first):
    records = [as_stored(record, magic) for record in records_of(fields, first)]
    if codec is Codec.none:
        stored = b"".join(message(magic, r.offset, 0, r.timestamp_ms, r.key, r.value) for r in records)
    elif magic:
        stored = moved(encode_message_set(records, magic, Compression(codec)), records[-1].offset)
    else:
        return  # absolute offsets within: brokers write those, not producers
    batches = list(batches_of(stored))
    for batch in batches:
        check_crc(batch)
    assert [record for batch in batches for record in decode_records(batch)] == records
    assert len(batches) == 1


def test_gaps_and_broker_stamps_begin_new_batches():
    stored = b"".join(
        (
            message(1, 10, 0, 1, b"a", b""),
            message(1, 11, 0, 2, b"b", None),
            message(1, 15, 0, 3, b"c", b""),
            message(1, 16, 8, 50, b"d", b""),
            message(1, 17, 8, 50, b"e", b""),
            message(1, 18, 8, 51, b"f", b""),
        )
    )
    batches = list(batches_of(stored))
    assert [(read_header(batch).base_offset, read_header(batch).records) for batch in batches] == [
        (10, 2),
        (15, 1),
        (16, 2),
        (18, 1),
    ]
    read = [record for batch in batches for record in decode_records(batch)]
    assert [(each.offset, each.timestamp_ms, each.timestamp_type, each.key) for each in read] == [
        (10, 1, CREATED, b"a"),
        (11, 2, CREATED, b"b"),
        (15, 3, CREATED, b"c"),
        (16, 50, APPENDED, b"d"),
        (17, 50, APPENDED, b"e"),
        (18, 51, APPENDED, b"f"),
    ]


def test_large_runs_become_batches_of_about_a_mebibyte():
    value = b"x" * 300_000
    stored = b"".join(message(0, offset, 0, 0, None, value) for offset in range(10))
    batches = list(batches_of(stored))
    assert [read_header(batch).records for batch in batches] == [3, 3, 3, 1]
    assert [record.offset for batch in batches for record in decode_records(batch)] == list(range(10))


def built(values, offset):
    from ingestd.records.batch import patch_offset, seal

    builder = BatchBuilder(1 << 20)
    for value in values:
        builder.append(None, value, (), 7)
    batch = memoryview(builder.build(Compression(Codec.none)))
    seal(batch)
    patch_offset(batch, offset, 0)
    return batch


def test_a_log_that_changed_its_format_is_read_through_and_batches_stay_views_into_it():
    old = message(1, 4, 0, 7, None, b"old")
    answer = memoryview(old + bytes(built([b"n0", b"n1"], 5)) + message(0, 7, 0, 0, None, b"down") + b"torn")
    batches = list(batches_of(answer))
    assert [record.value for batch in batches for record in decode_records(batch)] == [b"old", b"n0", b"n1", b"down"]
    assert batches[1].obj is answer.obj


@pytest.mark.parametrize("magic", [0, 1])
def test_a_torn_last_message_is_left_out(magic):
    first, second = (message(magic, n, 0, 7, b"key", b"value %d" % n) for n in range(2))
    for cut in range(len(second)):
        (batch,) = batches_of(first + second[:cut])
        assert [record.value for record in decode_records(batch)] == [b"value 0"]
    for cut in range(len(first)):
        assert list(batches_of(first[:cut])) == []


def test_what_comes_before_a_damaged_message_is_good():
    good = b"".join(message(1, n, 0, 7, None, b"good") for n in range(3))
    bad = bytearray(message(1, 3, 0, 7, None, b"bad"))
    bad[-1] ^= 1
    batches = batches_of(good + bytes(bad))
    assert read_header(next(batches)).records == 3
    with pytest.raises(CorruptBatch, match=r"offset 3: CRC-32 .* of a message that claims"):
        next(batches)


def test_headers_and_zstd_are_refused_by_name():
    with pytest.raises(UnsupportedVersion, match="headers need record batches"):
        encode_message_set([Record(0, 0, CREATED, None, b"", (("h", b""),))], 1, Compression())
    with pytest.raises(UnsupportedCodec, match="zstd needs record batches"):
        encode_message_set(records_of([(None, b"", 0)]), 1, Compression(Codec.zstd))
    with pytest.raises(UnsupportedCodec, match="offset 5: zstd in a message of magic 1"):
        list(decode_message_set(message(1, 5, Codec.zstd, 0, None, b"z")))
    with pytest.raises(UnsupportedCodec, match="compression type 6"):
        list(decode_message_set(message(1, 5, 6, 0, None, b"z")))


def test_wrappers_of_one_answer_may_hold_so_much_together_and_no_more():
    one = encode_message_set(records_of([(None, bytes(100_000), 0)]), 1, Compression(Codec.gzip))
    stored = b"".join(moved(one, offset) for offset in range(5))
    assert len(list(decode_message_set(stored, limit=600_000))) == 5
    records = decode_message_set(stored, limit=350_000)
    assert [next(records).offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(CorruptBatch, match="limit"):
        next(records)


def hostile():
    from gzip import compress

    plain = message(1, 0, 0, 0, None, b"v")
    yield "a wrapper within a wrapper", message(1, 0, Codec.gzip, 0, None, compress(message(1, 0, 1, 0, None, b"")))
    yield "another magic within", message(1, 0, Codec.gzip, 0, None, compress(message(0, 0, 0, 0, None, b"")))
    yield "torn within", message(1, 0, Codec.gzip, 0, None, compress(plain[:-1]))
    yield "a batch within", message(1, 0, Codec.gzip, 0, None, compress(plain[:16] + b"\2" + plain[17:]))
    yield "no value", message(1, 0, Codec.gzip, 0, None, None)
    for at, length in ((26, -2), (26, 2**31 - 1), (30, -2), (30, 2)):
        damaged = plain[:at] + struct.pack(">i", length) + plain[at + 4 :]
        yield f"length {length} at {at}", damaged[:12] + struct.pack(">I", crc32(damaged[16:])) + damaged[16:]
    yield "a negative offset", message(1, -1, 0, 0, None, b"")
    yield (
        "more messages than offsets",
        message(1, 0, Codec.gzip, 0, None, compress(plain + message(1, 1, 0, 0, None, b""))),
    )
    yield (
        "messages behind the wrapper's offset",
        message(0, 3, Codec.gzip, 0, None, compress(message(0, 4, 0, 0, None, None))),
    )
    yield "a length below any message's", plain[:8] + struct.pack(">i", 21) + plain[12:]
    yield "a negative length", plain[:8] + struct.pack(">i", -1) + plain[12:]


@pytest.mark.parametrize(("what", "data"), list(hostile()), ids=lambda each: each if isinstance(each, str) else "")
def test_what_does_not_add_up_is_refused(what, data):
    with pytest.raises(CorruptBatch):
        list(decode_message_set(data))
    with pytest.raises(CorruptBatch):
        list(batches_of(data))


@given(st.binary(max_size=300))
def test_random_bytes_are_read_or_refused(data):
    for read in (decode_message_set, batches_of):
        try:
            list(read(data, limit=1 << 16))
        except (CorruptBatch, UnsupportedCodec):
            continue


@given(FIELDS, MAGICS, st.sampled_from(OLD_CODECS))
def test_a_batch_becomes_the_same_records_as_a_message_set_compressed_alike(fields, magic, codec):
    builder = BatchBuilder(1 << 20)
    for key, value, time in fields:
        builder.append(key, value, (), time)
    batch = memoryview(builder.build(Compression(codec)))
    encoded = message_set_of_batch(batch, magic)
    assert list(decode_message_set(encoded)) == [as_stored(record, magic) for record in records_of(fields)]
    assert encoded[17] == read_header(batch).codec
