"""Partitioners: which partition a record goes to. A partitioner chooses an index into the list that it is offered.

Those that need consistency get all partitions of the topic, others only the writable ones. The hashes are the same as
in other clients: FNV-1a as sarama's hash partitioner, murmur2 as Java's, CRC32 as librdkafka's `consistent`.

| name here | elsewhere | records without a key |
|---|---|---|
| `murmur2` | Java's default; librdkafka's `murmur2_random` | one writable partition per batch |
| `crc32` | librdkafka's `consistent_random`, its default; sarama's CRC | any writable one; an empty key is none |
| `fnv1a` | sarama's hash; librdkafka's `fnv1a_random` | any writable partition |
| `murmur2-all`, `crc32-all`, `fnv1a-all` | librdkafka's `murmur2`, `consistent`, `fnv1a` | hashed as an empty key |
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from ingestd.records.loops import murmur2

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "PARTITIONERS",
    "Hashed",
    "Keyed",
    "Manual",
    "Partitioner",
    "PartitionerFactory",
    "RandomChoice",
    "RoundRobin",
    "Sticky",
    "all_crc32",
    "all_fnv1a",
    "all_murmur2",
    "consistent_crc32",
    "crc32",
    "custom",
    "fnv1a",
    "hash_fnv1a",
    "hash_murmur2",
    "manual",
    "murmur2",
    "murmur2_partition",
    "random_choice",
    "round_robin",
    "sticky",
]


class Partitioner(Protocol):
    """Chooses partitions for the records of one topic; one object per topic, used from its event loop alone."""

    def needs_consistency(self, key: bytes | None) -> bool:
        """Whether this record must get the same partition, whichever partitions are writable now."""
        ...

    def choose(self, key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int:
        """An index into `partitions`, which is not empty. Any other answer fails the record as an invalid partition."""
        ...

    def batch_full(self, partition: int) -> None:
        """The open batch of `partition` was closed. A sticky partitioner changes its partition now."""
        ...


PartitionerFactory: TypeAlias = Callable[[str], Partitioner]
"""Makes the partitioner of the topic named."""


def murmur2_partition(key: bytes, partitions: int) -> int:
    """The partition that Java's default partitioner gives `key` among `partitions`."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def fnv1a(key: bytes) -> int:
    """32-bit FNV-1a, unsigned."""
    value = 0x811C9DC5
    for byte in key:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def crc32(key: bytes) -> int:
    """CRC-32 (IEEE), unsigned."""
    return zlib.crc32(key)


def _sarama_index(key: bytes, count: int) -> int:
    signed = fnv1a(key)
    if signed >= 0x80000000:
        signed -= 0x1_0000_0000
    # Go's remainder has the sign of the dividend, and sarama then takes its absolute value.
    return abs(signed) % count


def _crc32_index(key: bytes, count: int) -> int:
    return crc32(key) % count


class Manual:
    """Every record names its partition. A record that does not is refused."""

    def needs_consistency(self, key: bytes | None) -> bool:  # noqa: ARG002 - the protocol's arguments
        """Always: the caller decides."""
        return True

    def choose(self, key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int:  # noqa: ARG002
        """No index: a record that comes here names no partition."""
        return -1

    def batch_full(self, partition: int) -> None:
        """Of no interest."""


class RandomChoice:
    """Any writable partition, record by record."""

    def needs_consistency(self, key: bytes | None) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def choose(self, key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int:  # noqa: ARG002
        """Uniform."""
        return random.randrange(len(partitions))  # noqa: S311 - spreading, not cryptography

    def batch_full(self, partition: int) -> None:
        """Of no interest."""


class RoundRobin:
    """The writable partitions in turn, record by record."""

    def __init__(self) -> None:
        self._turn = 0

    def needs_consistency(self, key: bytes | None) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def choose(self, key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int:  # noqa: ARG002
        """The one after the last."""
        index = self._turn % len(partitions)
        self._turn = index + 1
        return index

    def batch_full(self, partition: int) -> None:
        """Of no interest."""


class Sticky:
    """One writable partition until its batch is full, then another: large batches, evenly spread (KIP-480)."""

    def __init__(self) -> None:
        self._partition: int | None = None
        self._offered: Sequence[int] = ()
        self._index = 0

    def needs_consistency(self, key: bytes | None) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def choose(self, key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int:  # noqa: ARG002
        """The current partition, as long as it is writable."""
        if partitions is self._offered and self._partition is not None:
            return self._index
        if self._partition in partitions:
            self._index = partitions.index(self._partition)
        else:
            self._index = random.randrange(len(partitions))  # noqa: S311 - spreading, not cryptography
            self._partition = partitions[self._index]
        self._offered = partitions
        return self._index

    def batch_full(self, partition: int) -> None:
        """Choose anew for the next record."""
        if partition == self._partition:
            self._partition = None


@dataclass(frozen=True, slots=True)
class Keyed:
    """By hash of the key, among all partitions. `keyless` chooses for records without a key, of the writable ones."""

    index: Callable[[bytes, int], int]
    """From a key and the number of partitions to the index."""
    keyless: Partitioner
    empty_is_none: bool = False
    """An empty key counts as none."""

    def needs_consistency(self, key: bytes | None) -> bool:
        """Only a record with a key: this is decided record by record."""
        return key is not None and not (self.empty_is_none and not key)

    def choose(self, key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int:
        """By the key's hash."""
        if key is None or (self.empty_is_none and not key):
            return self.keyless.choose(key, value, partitions)
        return self.index(key, len(partitions))

    def batch_full(self, partition: int) -> None:
        """For the records without a key."""
        self.keyless.batch_full(partition)


@dataclass(frozen=True, slots=True)
class Hashed:
    """By hash of the key, among all partitions. A missing key is hashed as an empty one."""

    index: Callable[[bytes, int], int]
    """From a key and the number of partitions to the index."""

    def needs_consistency(self, key: bytes | None) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def choose(self, key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int:  # noqa: ARG002
        """By the key's hash."""
        return self.index(key or b"", len(partitions))

    def batch_full(self, partition: int) -> None:
        """Of no interest."""


@dataclass(frozen=True, slots=True)
class _Custom:
    function: Callable[[bytes | None, bytes | None, Sequence[int]], int]
    consistent: bool

    def needs_consistency(self, key: bytes | None) -> bool:  # noqa: ARG002
        return self.consistent

    def choose(self, key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int:
        return self.function(key, value, partitions)

    def batch_full(self, partition: int) -> None:
        pass


def manual(topic: str) -> Partitioner:  # noqa: ARG001 - a PartitionerFactory
    """Records name their partition."""
    return Manual()


def random_choice(topic: str) -> Partitioner:  # noqa: ARG001
    """Any writable partition."""
    return RandomChoice()


def round_robin(topic: str) -> Partitioner:  # noqa: ARG001
    """Writable partitions in turn."""
    return RoundRobin()


def sticky(topic: str) -> Partitioner:  # noqa: ARG001
    """One writable partition per batch."""
    return Sticky()


def hash_fnv1a(topic: str) -> Partitioner:  # noqa: ARG001
    """As sarama's hash partitioner: FNV-1a of the key; without a key at random."""
    return Keyed(_sarama_index, RandomChoice())


def hash_murmur2(topic: str) -> Partitioner:  # noqa: ARG001
    """As Java's default: murmur2 of the key; without a key sticky."""
    return Keyed(murmur2_partition, Sticky())


def consistent_crc32(topic: str) -> Partitioner:  # noqa: ARG001
    """As librdkafka's `consistent_random`: CRC32 of the key; without a key, or with an empty one, at random."""
    return Keyed(_crc32_index, RandomChoice(), empty_is_none=True)


def all_fnv1a(topic: str) -> Partitioner:  # noqa: ARG001
    """As librdkafka's `fnv1a`: no key is hashed as an empty one."""
    return Hashed(_sarama_index)


def all_murmur2(topic: str) -> Partitioner:  # noqa: ARG001
    """As librdkafka's `murmur2`: no key is hashed as an empty one."""
    return Hashed(murmur2_partition)


def all_crc32(topic: str) -> Partitioner:  # noqa: ARG001
    """As librdkafka's `consistent`: no key is hashed as an empty one."""
    return Hashed(_crc32_index)


def custom(
    function: Callable[[bytes | None, bytes | None, Sequence[int]], int], *, consistent: bool
) -> PartitionerFactory:
    """A partitioner from a function of key, value and partitions to an index.

    `consistent`: it is offered all partitions, not only the writable ones.
    """
    return lambda topic: _Custom(function, consistent)  # noqa: ARG005


PARTITIONERS: Final[dict[str, PartitionerFactory]] = {
    "manual": manual,
    "random": random_choice,
    "round-robin": round_robin,
    "sticky": sticky,
    "fnv1a": hash_fnv1a,
    "murmur2": hash_murmur2,
    "crc32": consistent_crc32,
    "fnv1a-all": all_fnv1a,
    "murmur2-all": all_murmur2,
    "crc32-all": all_crc32,
}
"""By the names that a configuration uses."""
