"""Partitions are those of Kafka's Java client."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as reference
from hypothesis import given
from hypothesis import strategies as st

from ingestd.tail.partition import murmur2, partition_of_key


@given(key=st.binary(max_size=64))
def test_murmur2_is_that_of_another_client(key: bytes) -> None:
    assert murmur2(key) == reference(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "hash_"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_murmur2_is_that_of_kafkas_own_tests(key: bytes, hash_: int) -> None:
    assert murmur2(key) == hash_ & 0xFFFFFFFF  # UtilsTest.testMurmur2
    assert partition_of_key(key, 7) == (hash_ & 0x7FFFFFFF) % 7
