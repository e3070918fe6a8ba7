"""Partitioners against librdkafka's own, which are part of its public interface: asked key by key, without a broker."""

from __future__ import annotations

import ctypes

import pytest
from harness.librdkafka import LIBRARY
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.producer.partitioners import PARTITIONERS

KEYS = st.binary(max_size=70)
COUNTS = st.integers(1, 1000)


def theirs(name: str, key: bytes | None, count: int) -> int:
    function = LIBRARY[f"rd_kafka_msg_partitioner_{name}"]
    function.restype = ctypes.c_int32
    function.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int32, *[ctypes.c_void_p] * 2]
    return function(None, key, len(key or b""), count, None, None)


def ours(name: str, key: bytes | None, count: int) -> int:
    return PARTITIONERS[name]("topic").choose(key, None, range(count))


@pytest.mark.parametrize(
    ("name", "peer"), [("crc32-all", "consistent"), ("murmur2-all", "murmur2"), ("fnv1a-all", "fnv1a")]
)
@given(key=st.none() | KEYS, count=COUNTS)
@example(key=None, count=7)
def test_every_key_goes_where_librdkafka_puts_it(name: str, peer: str, key: bytes | None, count: int) -> None:
    assert ours(name, key, count) == theirs(peer, key, count)


@pytest.mark.parametrize(
    ("name", "peer"), [("crc32", "consistent_random"), ("murmur2", "murmur2_random"), ("fnv1a", "fnv1a_random")]
)
@given(key=KEYS, count=COUNTS)
@example(key=b"\x80\xff", count=1000)
def test_records_with_a_key_go_where_librdkafka_puts_them(name: str, peer: str, key: bytes, count: int) -> None:
    if key or peer != "consistent_random":
        assert ours(name, key, count) == theirs(peer, key, count)
    else:
        assert not PARTITIONERS[name]("topic").needs_consistency(key)


def test_an_empty_key_counts_as_none_where_it_does_in_librdkafka() -> None:
    for name, spread in (("crc32", True), ("murmur2", False), ("fnv1a", False)):
        assert (len({ours(name, b"", 50) for _ in range(40)}) > 1) is spread
