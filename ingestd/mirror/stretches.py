"""Stretches: which offset on the target a record of the source has. They translate the offsets of groups.

source   0 1 2 3 4 · 6 7 8 9        5 is the marker of a transaction, which is not copied
target   0 1 2 3 4   5 6 7 8        two stretches: (0, 0, 5) and (6, 5, 4)
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["CHUNK", "Stretch", "Stretches", "decoded", "encoded"]

CHUNK: Final = 64
"""Most stretches that are stored as one piece. The piece that grows is stored again with each new stretch."""

LEAST: Final = 4 * CHUNK
"""Stretches that a partition may keep, however little memory there is."""


class Stretch(NamedTuple):
    """Consecutive records of the source that are consecutive on the target: the first one's offsets, and how many.

    Without records it stands for stretches that were thinned out: offsets from `source` on, up to the next stretch, are
    translated to `target`, which is not behind the right one.
    """

    source: int
    target: int
    records: int


@dataclass(slots=True, eq=False)
class _Chunk:
    """Stretches as they are stored. Its number grows with its place. `first`: the first one's offset at the source."""

    number: int
    first: int
    data: bytes

    @property
    def length(self) -> int:
        return sum(byte < 0x80 for byte in self.data) // 3


class Stretches:
    """The stretches of one partition, in order. Old ones stay as bytes: about ten of them each.

    Invariants
        Offsets of the source and of the target grow from stretch to stretch.
        A translated offset is never behind the first record that is not before it at the source: nothing is skipped.
        The chunks of `changes`, in order, lead from one state to the next. Where they stop half way, the stored chunks,
        put together in order of their numbers, still translate without skipping.
    """

    def __init__(self, *, known_from: int = 0, number: int = 0) -> None:
        """`known_from`: nothing is known of what was copied before this offset. `number`: of the first chunk."""
        self.known_from = known_from
        self._chunks: list[_Chunk] = []
        """All but the last one. They are full, but for those that were thinned out."""
        self._tail: list[Stretch] = []
        """The last chunk. Empty only if there are no stretches."""
        self._number = number
        """Of the last chunk."""
        self._unused = number + 1
        """Lower than any number that comes later, higher than any before."""
        self._stored: set[int] = set()
        """The numbers of chunks that are stored, or were to be."""
        self._changed: set[int] = set()
        self._count = 0

    @classmethod
    def restored(cls, stored: Mapping[int, bytes], number: int, *, known_from: int = 0) -> Stretches:
        """What was stored, by number. New chunks get numbers from `number` on, or higher ones. Raises `ValueError`."""
        made = cls(known_from=known_from, number=max(number, max(stored, default=-1) + 1))
        made._stored = set(stored)
        for each in sorted(stored):
            found = decoded(stored[each])
            if not found:
                continue
            # A host that lost the partition may have stored something late. What the next one stored holds.
            while made._chunks and (kept := _before(decoded(made._chunks[-1].data), *found[0][:2])) is not None:
                last = made._chunks.pop()
                if kept:
                    made._chunks.append(_Chunk(last.number, last.first, encoded(kept)))
                    break
            made._chunks.append(_Chunk(each, found[0].source, stored[each]))
        # The last one, and small ones before it, become one that nobody has written yet.
        while made._chunks and (not made._tail or made._chunks[-1].length + len(made._tail) <= CHUNK):
            made._tail = decoded(made._chunks.pop().data) + made._tail
        made._count = sum(chunk.length for chunk in made._chunks) + len(made._tail)
        return made

    def clear(self) -> None:
        """Forget all: these were offsets of another log."""
        self._chunks, self._tail, self._count, self.known_from = [], [], 0, 0
        self._begin()

    def __len__(self) -> int:
        return self._count

    @property
    def can_be_pruned(self) -> bool:
        """Whether `prune` may find something."""
        return bool(self._chunks) or self.known_from > 0

    def __iter__(self) -> Iterator[Stretch]:
        for chunk in self._chunks:
            yield from decoded(chunk.data)
        yield from self._tail

    def add(self, source: int, target: int, records: int) -> None:
        """Records were copied. What was known of later ones, on either side, no longer holds: they come again."""
        self._cut(source, target)
        if self._tail:
            last = self._tail[-1]
            if last.records and (last.source + last.records, last.target + last.records) == (source, target):
                self._tail[-1] = last._replace(records=last.records + records)  # not stored again for that: see `grow`
                return
            if len(self._tail) >= CHUNK:
                self._changed.add(self._number)
                self._chunks.append(_Chunk(self._number, self._tail[0].source, encoded(self._tail)))
                self._tail = []
                self._begin()
        self._tail.append(Stretch(source, target, records))
        self._count += 1
        self._changed.add(self._number)

    def grow(self, target: int, before: int) -> None:
        """The last stretch reaches to this end on the target. `before`: nothing from this on at the source was copied.

        What is stored says where the last one begins. The mirror's position says where it ends.
        """
        if self._tail:
            last = self._tail[-1]
            records = min(target - last.target, before - last.source)  # some may be acknowledged behind the position
            if last.records and records > last.records:
                self._tail[-1] = Stretch(last.source, last.target, records)

    def translate(self, offset: int) -> int | None:
        """Where a group goes on that has read everything before `offset` at the source; None if that is not known.

        Between stretches it is the next one's beginning, before the first one its beginning, behind the last its end.
        """
        if not self._count or offset < self.known_from:
            return None
        following = None
        found = self._tail
        if offset < found[0].source:
            index = bisect_right(self._chunks, offset, key=lambda chunk: chunk.first)
            found = decoded(self._chunks[max(0, index - 1)].data) if self._chunks else found
            following = decoded(self._chunks[index].data)[0] if index < len(self._chunks) else self._tail[0]
        place = bisect_right(found, offset, key=lambda one: one.source)
        if not place:
            return found[0].target
        last = found[place - 1]
        if offset < last.source + last.records:
            return last.target + offset - last.source
        after = found[place] if place < len(found) else following
        if after is None or not last.records:
            return last.target + last.records
        return after.target

    def uncovered(self, target: int) -> int:
        """The first offset on the target, from this one on, at which is no record that was copied last."""
        first = max(0, bisect_right(self._chunks, target, key=lambda chunk: decoded(chunk.data)[0].target) - 1)
        later = (one for chunk in self._chunks[first:] for one in decoded(chunk.data))
        for one in chain(later, self._tail):
            if one.target > target:
                break
            target = max(target, one.target + one.records)
        return target

    def prune(self, log_start: int) -> None:
        """Forget what no group can be at: the source's log begins at `log_start`."""
        if self._chunks:
            firsts = [*(chunk.first for chunk in self._chunks[1:]), self._tail[0].source]
            gone = self._chunks[: bisect_right(firsts, log_start)]
            self._changed.update(chunk.number for chunk in gone)
            self._count -= sum(chunk.length for chunk in gone)
            del self._chunks[: len(gone)]
        if log_start >= self.known_from:
            self.known_from = 0

    def thin(self, most: int) -> None:
        """Keep at most so many (but `LEAST`): of the older half every second one goes, as often as needed."""
        while self._count > max(LEAST, most) and len(self._chunks) > 1:
            ends = list(accumulate(chunk.length for chunk in self._chunks))
            old = self._chunks[: bisect_right(ends, ends[-1] // 2) + 1]  # two stretches at least, so that one goes
            kept = [one._replace(records=0) for chunk in old for one in decoded(chunk.data)][::2]
            made = [kept[at : at + CHUNK] for at in range(0, len(kept), CHUNK)]
            self._changed.update(chunk.number for chunk in old)
            self._count -= sum(chunk.length for chunk in old) - len(kept)
            self._chunks[: len(old)] = [
                _Chunk(chunk.number, some[0].source, encoded(some)) for chunk, some in zip(old, made, strict=False)
            ]

    def changes(self) -> list[tuple[int, bytes | None]]:
        """What is to be stored since the last call, in this order: chunks by number; None: delete it."""
        if not self._changed:
            return []
        there = {chunk.number: chunk.data for chunk in self._chunks}
        if self._tail:
            there[self._number] = encoded(self._tail)
        last = max(there, default=-1)
        gone = sorted(self._stored - there.keys())
        kept = sorted(self._changed & there.keys())
        self._changed = set()
        self._stored = (self._stored & there.keys()).union(kept)
        return [
            *((number, None) for number in reversed(gone) if number > last),
            *((number, there[number]) for number in kept),
            *((number, None) for number in gone if number < last),
        ]

    def _begin(self) -> None:
        """Begin a chunk, under a number that is not used yet."""
        self._number = self._unused
        self._unused += 1
        self._changed.add(self._number)

    def _cut(self, source: int, target: int) -> None:
        """Forget what is at or behind this place, at the source or on the target."""
        while self._tail and (kept := _before(self._tail, source, target)) is not None:
            self._count -= len(self._tail) - len(kept)
            self._tail = kept
            self._changed.add(self._number)
            if kept:
                return
            if self._chunks:
                self._tail = decoded(self._chunks.pop().data)
            # A host that lost the partition may still write under the old number. What holds gets a higher one.
            self._begin()


def _before(stretches: Sequence[Stretch], source: int, target: int) -> list[Stretch] | None:
    """What of these stretches is before this place on both sides; None if all is."""
    last = stretches[-1]
    if last.source < source and last.source + last.records <= source and last.target + last.records <= target:
        return None
    kept = [one for one in stretches if one.source < source and one.target + min(one.records, 1) <= target]
    if kept:
        last = kept[-1]
        kept[-1] = last._replace(records=min(last.records, source - last.source, target - last.target))
    return kept


def encoded(stretches: Iterable[Stretch]) -> bytes:
    """Stretches as bytes: of each the distances to the end of the one before, and the number of records, as varints."""
    data = bytearray()
    source = target = 0
    for one in stretches:
        for number in (one.source - source, one.target - target, one.records):
            left = number
            while left > 0x7F:
                data.append(left & 0x7F | 0x80)
                left >>= 7
            data.append(left)
        source, target = one.source + one.records, one.target + one.records
    return bytes(data)


def decoded(data: Sequence[int]) -> list[Stretch]:
    """The same again. Raises `ValueError` for bytes that stop in the middle of one."""
    numbers = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    if shift or len(numbers) % 3:
        raise ValueError(f"{len(data)} bytes are not whole stretches; expected three varints for each")
    found = []
    source = target = 0
    for index in range(0, len(numbers), 3):
        source, target, records = source + numbers[index], target + numbers[index + 1], numbers[index + 2]
        found.append(Stretch(source, target, records))
        source, target = source + records, target + records
    return found
