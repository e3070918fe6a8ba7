"""Lines become records of the right partition and key; read back by another client's decoder."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from ingestd.daemon.source import PER_RECORD, Lane
from ingestd.records.batch import patch_producer
from ingestd.tail.partition import partition_of_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.tail.route import TailRoute

Records = dict[int, list[tuple[bytes | None, bytes]]]


def encode(route: TailRoute, raw: bytes, lane: Lane, partitions: int = 4, room: int | None = None) -> Records:
    encoder = route.encoder()
    records: Records = {}
    at = 0
    while at < len(raw):
        out = memoryview(bytearray(len(raw) + 65536 if room is None else room))
        made = encoder.encode(
            memoryview(raw)[at:], out, lane=lane, partitions=partitions, timestamp_ms=1_700_000_000_000
        )
        assert made.consumed > 0
        at += made.consumed
        for span in made.batches:
            batch = out[span.start : span.start + span.length]
            patch_producer(batch, 1, 0, 0)
            decoded = list(DefaultRecordBatch(bytes(batch)))
            assert len(decoded) == span.records
            records.setdefault(span.partition, []).extend((record.key, record.value) for record in decoded)
    return records


def all_of(records: Records) -> list[tuple[bytes | None, bytes]]:
    return [record for partition in sorted(records) for record in records[partition]]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_of_one_partition_keep_their_order_and_bytes(make_route: Callable[..., Any], compression: str) -> None:
    lines = [b"", b"one", b"two \xff\x00", b"x" * 5000, b"last\r"] * 50
    records = encode(make_route(compression=compression), b"\n".join(lines) + b"\n", Lane(3, b"key"))
    assert records == {3: [(b"key", line) for line in lines]}


def test_round_robin_gives_every_partition_its_share_in_order(make_route: Callable[..., Any]) -> None:
    lines = [b"%d" % number for number in range(402)]
    records = encode(make_route(partition="round-robin"), b"\n".join(lines) + b"\n", Lane(PER_RECORD))
    assert sorted(len(part) for part in records.values()) == [100, 100, 101, 101]
    for part in records.values():
        numbers = [int(value) for _, value in part]
        assert numbers == sorted(numbers)
    assert sorted(int(value) for _, value in all_of(records)) == list(range(402))


def test_keys_in_lines_go_where_javas_partitioner_puts_them(make_route: Callable[..., Any]) -> None:
    route = make_route(partition="key", key_pattern=r"^\S+ user=(?P<key>\w*)")
    lines = [b"%d user=u%d ok" % (number, number % 17) for number in range(300)] + [b"1 user= empty", b"no key", b""]
    random.Random(1).shuffle(lines)
    records = encode(route, b"\n".join(lines) + b"\n", Lane(PER_RECORD))
    assert sorted(value for _, value in all_of(records)) == sorted(lines)
    without = set()
    for partition, part in records.items():
        for key, value in part:
            if key is None:
                assert value in {b"no key", b""}
                without.add(partition)
            else:
                assert value.split(b"user=")[1].split()[0:1] in ([key], [b"empty"])
                assert partition == partition_of_key(key, 4)
    assert len(without) == 1


def test_a_search_for_a_key_never_leaves_its_line(make_route: Callable[..., Any]) -> None:
    # \s matches a newline: on the whole buffer, the first line would get the second one's word.
    route = make_route(key_pattern=r"id=\s*(\w+)$")
    assert encode(route, b"id=\nabc\nid=7\n", Lane(2)) == {2: [(None, b"id="), (None, b"abc"), (b"7", b"id=7")]}


def test_no_line_stalls_the_search_for_its_key(make_route: Callable[..., Any]) -> None:
    # Python's `re` tries each way to cut the words: 2 ** 200. The watchdog killed the worker every 33 s, for ever.
    route = make_route(key_pattern=r"^(?P<key>(\w+\s?)+)$")
    lines = [b"a" * 200 + b"!", b"a b", b"w" * 100_000 + b"!"]
    assert encode(route, b"\n".join(lines) + b"\n", Lane(2)) == {
        2: [(None, lines[0]), (b"a b", b"a b"), (None, lines[2])]
    }


def test_a_key_may_be_of_bytes_that_are_not_utf8(make_route: Callable[..., Any]) -> None:
    route = make_route(key_pattern='name="(.+)" käse')
    lines = [b'name="caf\xe9" k\xc3\xa4se', b'name="\x00\xff" k\xc3\xa4se', b'name="a" k\xe4se']
    found = encode(route, b"\n".join(lines) + b"\n", Lane(2))[2]
    assert [key for key, _ in found] == [b"caf\xe9", b"\x00\xff", None]


def test_what_does_not_fit_is_encoded_by_the_next_call(make_route: Callable[..., Any]) -> None:
    raw = b"".join(bytes(random.Random(number).choices(range(32, 127), k=300)) + b"\n" for number in range(1000))
    route = make_route(compression="none", partition="key", key_pattern="^(..)")
    records = encode(route, raw, Lane(PER_RECORD), room=100_000)
    assert sorted(value for _, value in all_of(records)) == sorted(raw.split(b"\n")[:-1])


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_batch_for_a_partition_that_is_no_more_is_spread_over_the_others_by_its_keys(
    make_route: Callable[..., Any], compression: str
) -> None:
    route = make_route(partition="key", key_pattern=r"^(\w+)", compression=compression)
    encoder = route.encoder()
    raw = b"".join(b"k%d %d\n" % (number % 40, number) for number in range(4000)) + b"\n- no key\n"
    out = memoryview(bytearray(len(raw) + 65536))
    lane = Lane(PER_RECORD)
    first = encoder.encode(memoryview(raw), out, lane=lane, partitions=6, timestamp_ms=1_700_000_000_000)
    assert first.consumed == len(raw)
    records: Records = {}
    for span in first.batches:
        batch = out[span.start : span.start + span.length]
        patch_producer(batch, 1, 0, 0)  # It was on its way already.
        before = bytes(batch)
        for again in encoder.encode_again(batch, lane=lane, partitions=2, timestamp_ms=1_700_000_000_000):
            patch_producer(again.batch, 2, 0, 0)
            decoded = list(DefaultRecordBatch(bytes(again.batch)))
            assert len(decoded) == again.records
            records.setdefault(again.partition, []).extend((record.key, record.value) for record in decoded)
        assert bytes(batch) == before
    assert sorted(value for _, value in all_of(records)) == sorted(raw.splitlines())
    for partition, found in records.items():
        assert all(key is None or partition_of_key(key, 2) == partition for key, _ in found)
    for key in (b"k0", b"k39"):
        values = [value for found_key, value in all_of(records) if found_key == key]
        assert values == [line for line in raw.splitlines() if line.split(b" ")[0] == key]


def test_a_batch_whose_new_partition_is_known_is_copied_as_it_is(make_route: Callable[..., Any]) -> None:
    encoder = make_route().encoder()
    out = memoryview(bytearray(1 << 20))
    raw = memoryview(b"one\ntwo\n")
    (span,) = encoder.encode(raw, out, lane=Lane(5, b"key"), partitions=6, timestamp_ms=0).batches
    batch = out[span.start : span.start + span.length]
    (again,) = encoder.encode_again(batch, lane=Lane(1, b"key"), partitions=2, timestamp_ms=0)
    assert (again.partition, again.records, bytes(again.batch)) == (1, 2, bytes(batch))
    batch[:] = bytes(len(batch))
    patch_producer(again.batch, 1, 0, 0)
    assert [record.value for record in DefaultRecordBatch(bytes(again.batch))] == [b"one", b"two"]
