"""Partition choice of a tail: by key as Java's default partitioner does, by file so that a file keeps its partition."""

from __future__ import annotations

__all__ = ["murmur2", "partition_of_key"]

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 (org.apache.kafka.common.utils.Utils.murmur2), as an unsigned 32-bit number."""
    length = len(data)
    value = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little")
        mixed = (part * _M) & _MASK
        mixed = ((mixed ^ (mixed >> 24)) * _M) & _MASK
        value = ((value * _M) & _MASK) ^ mixed
    rest = data[whole:]
    if rest:
        value = ((value ^ int.from_bytes(rest, "little")) * _M) & _MASK
    value = ((value ^ (value >> 13)) * _M) & _MASK
    return value ^ (value >> 15)


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a key among `partitions`, the same as every client with Java's default partitioner gives."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
