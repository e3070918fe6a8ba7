"""Which partition of an internal topic coordinates a group. The same as in Kafka, for any group id."""

from __future__ import annotations

from typing import Final

__all__ = ["coordinating_partition"]

_SIGN: Final = 1 << 31
_CARRY: Final = 0xFFFFFFFF


def coordinating_partition(key: str, partitions: int) -> int:
    """The partition of this group id, out of so many. Java's `abs` of its smallest integer counts as 0, as in Kafka."""
    code = _java_hash(key)
    return (0 if code == -_SIGN else abs(code)) % partitions


def _java_hash(text: str) -> int:
    """Java's `String.hashCode`, which is over UTF-16."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8) + units[at + 1]) & _CARRY
    return (code ^ _SIGN) - _SIGN
