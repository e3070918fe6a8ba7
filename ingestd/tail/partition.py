"""Partition choice of a tail: by key as Java's default partitioner does, by file so that a file keeps its partition."""

from __future__ import annotations

from ingestd.records.loops import murmur2

__all__ = ["murmur2", "partition_of_key"]


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a key among `partitions`, the same as every client with Java's default partitioner gives."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
