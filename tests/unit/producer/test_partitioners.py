"""Partitioners give the partitions that other clients give."""

from __future__ import annotations

from collections import Counter

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from ingestd.producer import partitioners
from ingestd.producer.partitioners import Keyed, RoundRobin, Sticky, crc32, fnv1a, murmur2

ALL = (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_the_java_client_by_its_own_test_vectors(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=70))
def test_murmur2_is_that_of_aiokafka(key: bytes) -> None:
    assert murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF


def test_fnv1a_and_crc32_by_published_vectors() -> None:
    assert [fnv1a(key) for key in (b"", b"a", b"foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]
    assert crc32(b"123456789") == 0xCBF43926


def test_a_negative_fnv1a_takes_its_absolute_value_after_gos_remainder() -> None:
    # "foobar" hashes to -1080231576 as Go's int32; Go: -1080231576 % 7 == -4.
    assert fnv1a(b"foobar") - (1 << 32) == -1080231576
    assert partitioners.hash_fnv1a("t").choose(b"foobar", None, range(7)) == 4


@pytest.mark.parametrize("name", ["fnv1a", "murmur2", "crc32"])
def test_hashing_needs_all_partitions_for_a_key_and_only_writable_ones_without(name: str) -> None:
    partitioner = partitioners.PARTITIONERS[name]("t")
    assert isinstance(partitioner, Keyed)
    assert partitioner.needs_consistency(b"key")
    assert not partitioner.needs_consistency(None)
    assert {partitioner.choose(b"key", b"%d" % number, ALL) for number in range(20)} == {
        partitioner.choose(b"key", None, ALL)
    }
    assert 0 <= partitioner.choose(None, b"value", ALL) < 5


def test_round_robin_takes_the_partitions_in_turn() -> None:
    partitioner = RoundRobin()
    assert [partitioner.choose(None, None, ALL[:3]) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_random_reaches_every_partition() -> None:
    partitioner = partitioners.random_choice("t")
    assert set(Counter(partitioner.choose(None, None, ALL) for _ in range(500))) == set(ALL)


def test_sticky_stays_until_its_batch_is_full_and_leaves_a_partition_that_is_not_writable() -> None:
    partitioner = Sticky()
    first = partitioner.choose(None, None, ALL)
    assert {partitioner.choose(None, None, ALL) for _ in range(50)} == {first}
    partitioner.batch_full((first + 1) % 5)
    assert partitioner.choose(None, None, ALL) == first
    others = tuple(number for number in ALL if number != first)
    second = others[partitioner.choose(None, None, others)]
    assert second != first
    assert ALL[partitioner.choose(None, None, ALL)] == second
    chosen = set()
    for _ in range(200):
        partitioner.batch_full(ALL[partitioner.choose(None, None, ALL)])
        chosen.add(partitioner.choose(None, None, ALL))
    assert chosen == set(ALL)
