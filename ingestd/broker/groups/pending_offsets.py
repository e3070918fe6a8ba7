"""Pending offsets: what open transactions have committed to the groups of one partition. It counts when they commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.broker.coordinator.records import CommitKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ingestd.broker.coordinator.records import Committed

__all__ = ["PendingOffsets"]


@dataclass(slots=True)
class _Pending:
    """An offset, and when it was added. None: another one took its place."""

    added: int
    committed: Committed | None


class PendingOffsets:
    """Offsets by transaction, which its producer's id stands for.

    Invariants
        The offset that counts is the last one in the log. So one that was committed later and counts already, or a
        deletion, takes the place of a pending one. But until its transaction ends the partition is not stable.
    """

    def __init__(self) -> None:
        self._open: dict[int, dict[CommitKey, _Pending]] = {}
        self._additions = 0

    def __iter__(self) -> Iterator[CommitKey]:
        """What is pending, and would count. A key comes once for each transaction that has it."""
        return (key for offsets in self._open.values() for key, one in offsets.items() if one.committed is not None)

    def add(self, producer_id: int, offsets: Mapping[CommitKey, Committed]) -> list[CommitKey]:
        """A transaction commits offsets. Returns those that it had not, or that did not count any more."""
        known = self._open.setdefault(producer_id, {})
        new = [key for key in offsets if key not in known or known[key].committed is None]
        self._additions += 1
        known.update({key: _Pending(self._additions, committed) for key, committed in offsets.items()})
        return new

    def replace(self, keys: Iterable[CommitKey], before: int | None = None) -> list[CommitKey]:
        """Another offset, or none, takes the place of those that were added before. Returns one for each."""
        replaced = []
        for key in keys if self._open else ():
            for offsets in self._open.values():
                one = offsets.get(key)
                if one is not None and one.committed is not None and (before is None or one.added < before):
                    one.committed = None
                    replaced.append(key)
        return replaced

    def end(self, producer_id: int, *, commits: bool) -> tuple[dict[CommitKey, Committed], list[CommitKey]]:
        """The transaction has ended. Returns the offsets that count now, and a key for each that is not pending now."""
        counting: dict[CommitKey, Committed] = {}
        settled = []
        for key, one in self._open.pop(producer_id, {}).items():
            if one.committed is None:
                continue
            settled.append(key)
            if commits:
                counting[key] = one.committed
                settled += self.replace([key], one.added)
        return counting, settled

    def unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has committed an offset of this partition."""
        key = CommitKey(group_id, topic, partition)
        return any(key in offsets for offsets in self._open.values())
