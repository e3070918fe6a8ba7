"""Comparison: one partition at the source and its copy on the target, record for record, in bounded memory.

Batches that have the same bytes are compared as they are, not decompressed. Others are decoded, and compared as lists.

At-least-once delivery copies a part of the log again after a crash. Then the target's records go back to an earlier
place of the source and on from there. So what does not fit is looked for in the source before the place that was
reached. If it is there, the comparison goes on from there, and the records up to that place count as duplicates. Each
record of the source must come on the target once at least, and the first times in the order of the source.

If a topic is deleted on the target while the mirror runs, what was on its way then comes first, and after it the whole
copy. Such records at the beginning count as duplicates too, if the copy has them again.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingestd.consumer.decoding import records_of
from ingestd.figures import in_count
from ingestd.records.batch import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.mirror.filtering import RecordFilter
    from ingestd.records.decode import Record

__all__ = ["Comparison", "Difference", "PartitionLog"]

NEEDLE: Final = 16
"""Records of the target that are looked for together: of several places the one is taken where most of them fit."""

AHEAD: Final = 1000
"""Records of each side that a difference is named by: whether what is expected comes later."""

NEAR: Final = 65536
"""Offsets that are looked through first for a place to go back to; then sixteen times as many, up to all."""

_FIELDS: Final = ("key", "value", "headers", "timestamp")
_row: Final = attrgetter("key", "value", "headers", "timestamp_ms")


class PartitionLog(Protocol):
    """A partition from `first` up to, not including, `end`."""

    @property
    def key(self) -> TopicPartition:
        """Topic and partition."""
        ...

    @property
    def first(self) -> int:
        """The first offset of the log. More than 0: what was before it is removed."""
        ...

    @property
    def end(self) -> int:
        """The offset to read up to."""
        ...

    def batches(self, start: int) -> AsyncGenerator[FetchedBatch, None]:
        """The batches from an offset on, CRCs checked. Raises `IngestdError`."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """The first record that is not as it should be.

    what: `missing` (on the target), `extra` (there alone), `order` (both sides have it, elsewhere), or which fields of
    it differ: `key`, `value`, `headers`, `timestamp`, several with commas between.
    source_offset, target_offset: of the record that is expected, and of what stands there; or the end of the log.
    """

    what: str
    source_offset: int
    target_offset: int


class _Reading:
    """A place in a log, and the batch behind it. The batch is decoded once a part of it is asked for."""

    def __init__(self, log: PartitionLog, record_filter: RecordFilter | None = None) -> None:
        """`record_filter`: only records that it takes count."""
        self.log = log
        self._filter = record_filter
        self.passed = 0
        """Records that were passed over since the start, those read again among them."""
        self._batches = log.batches(log.first)
        self._batch: FetchedBatch | None = None
        self._records: Sequence[Record] | None = None
        self._at = 0
        self._offset = log.first

    async def close(self) -> None:
        await self._batches.aclose()

    async def go(self, offset: int) -> None:
        """Read on from another place."""
        await self._batches.aclose()
        self._batches = self.log.batches(offset)
        self._batch, self._records, self._at, self._offset = None, None, 0, offset

    async def head(self) -> FetchedBatch | None:
        """The batch with the next record; None at the end."""
        while self._batch is None:
            batch = await anext(self._batches, None)
            if batch is None:
                return None
            self._batch, self._records, self._at = batch, None, 0
            if (not batch.whole or self._filter is not None) and not self.records:
                self._leave()
        return self._batch

    @property
    def untouched(self) -> FetchedBatch | None:
        """The batch, if all of it is still to come."""
        batch = self._batch
        return batch if batch is not None and batch.whole and self._at == 0 and self._filter is None else None

    @property
    def records(self) -> Sequence[Record]:
        """The rest of the batch. Not to be asked for at the end. Raises `CorruptBatch`, `UnsupportedCodec`."""
        assert self._batch is not None, "asked for behind the end"
        if self._records is None:
            self._records = self.decoded(self._batch)
        return self._records[self._at :] if self._at else self._records

    @property
    def offset(self) -> int:
        """Of the next record, if it is known; otherwise the place that was reached."""
        if self._batch is None:
            return self._offset
        if self._at or not self._batch.whole or self._filter is not None:
            return self.records[0].offset
        return self._batch.header.base_offset

    def decoded(self, batch: FetchedBatch) -> Sequence[Record]:
        """The records of a batch that count. Raises `CorruptBatch`, `UnsupportedCodec`."""
        records = records_of(batch, self.log.key, check_crc=False)
        return records if self._filter is None else list(filter(self._filter.takes, records))

    def pass_batch(self) -> int:
        """Pass over a batch of which nothing was passed yet. Returns how many records it has."""
        assert self._batch is not None, "asked for behind the end"
        count = self._batch.header.records
        self.passed += count
        self._leave()
        return count

    def pass_records(self, count: int) -> None:
        """Pass over some of `records`."""
        left = len(self.records)
        self.passed += count
        self._at += count
        if count == left:
            self._leave()

    def _leave(self) -> None:
        assert self._batch is not None, "asked for behind the end"
        self._offset = self._batch.next_offset
        self._batch, self._records, self._at = None, None, 0

    async def ahead(self, most: int) -> list[Record]:
        """The next records, at most so many. The place stays."""
        if await self.head() is None:
            return []
        found = list(self.records[:most])
        if len(found) == most or self._batch is None:
            return found
        async with aclosing(self.log.batches(self._batch.next_offset)) as batches:
            async for batch in batches:
                found += self.decoded(batch)[: most - len(found)]
                if len(found) == most:
                    break
        return found

    async def pass_to_one_of(self, rows: set[Any]) -> bool:
        """Pass over records until the next one is one of these. Returns whether there is one."""
        while await self.head() is not None:
            records = self.records
            met = [_row(record) in rows for record in records]
            if True in met:
                self.pass_records(met.index(True))
                return True
            self.pass_records(len(records))
        return False

    async def count_to(self, limit: int) -> int:
        """Pass over the records before an offset. Returns how many."""
        before = self.passed
        while (batch := await self.head()) is not None:
            if self.untouched is not None and batch.header.last_offset < limit:
                self.pass_batch()
                continue
            records = self.records
            due = sum(record.offset < limit for record in records)
            self.pass_records(due)
            if due < len(records):
                break
        return self.passed - before


class Comparison:
    """Compares a partition with its copy. For one call of `run`.

    Invariants
        A record of the source counts as copied once an equal one was met on the target, in order.
        In memory: what the logs fetched ahead, one decoded batch of each, and `AHEAD` records of each.
    """

    def __init__(
        self,
        source: PartitionLog,
        target: PartitionLog,
        *,
        limit: int,
        begun_later: bool = False,
        begun_at: int | None = None,
        record_filter: RecordFilter | None = None,
    ) -> None:
        """What is before `limit` at the source must be on the target. What is behind it may be.

        `begun_later`: the mirror may have begun to copy behind the first record of the source. `begun_at`: where it
        begins, if it has copied nothing yet. `record_filter`: which records of the source it copies.
        """
        self._source = _Reading(source, record_filter)
        self._target = _Reading(target)
        self._limit = limit
        self._begun_later = begun_later
        self._begun_at = begun_at
        self._reached = source.first
        """The offset at the source before which everything was met on the target."""
        self.notes: list[str] = []
        """What was not compared, and why."""
        self.source_records = 0
        """Records at the source: all that were met on the target, and those before the limit that were not."""
        self.target_records = 0
        self.duplicates = 0
        """Records on the target that were met there before."""

    async def run(self) -> Difference | None:
        """Compare all; None if all is the same. Raises `IngestdError` if a log can not be read."""
        try:
            await self._align()
            before = self._target.passed - self.duplicates
            difference = await self._compare()
            self.target_records = self._target.passed - before
            if difference is not None:
                await self._source.go(self._reached)
                self.source_records += await self._source.count_to(self._limit)
                self.target_records += await self._target.count_to(self._target.log.end)
            return difference
        finally:
            await self._source.close()
            await self._target.close()

    # The first records of both.

    async def _align(self) -> None:
        """Go to the first record that both may have, where the beginning of one was removed or never copied."""
        first, copy = await self._source.ahead(1), await self._target.ahead(1)
        if first and not copy and self._begun_at is not None and self._begun_at > first[0].offset:
            await self._source.go(self._begun_at)
            self._begin_at(self._begun_at)
            return
        if not copy and self._target.log.first > 0:
            self.notes.append(f"nothing is left on the target: its log begins at {self._target.log.first}")
            self._reached = self._limit
            return
        if not first and self._source.log.first > 0:
            self.notes.append(f"nothing is left at the source: its log begins at {self._source.log.first}")
            await self._target.go(self._target.log.end)
            return
        if not first or not copy or _row(first[0]) == _row(copy[0]):
            return
        heads = await self._source.ahead(AHEAD), await self._target.ahead(AHEAD)
        if self._source.log.first > 0 and await self._skip(self._target, heads[0]):
            older = self._target.passed
            met = _row((await self._target.ahead(1))[0])
            place = next(record.offset for record in heads[0] if _row(record) == met)
            if self._target.log.first > 0 and not older and place > self._source.offset:  # it begins later still
                await self._source.go(place)
                self._begin_at(place)
                return
            note = f"the source's log begins at {self._source.log.first}"
            self.notes.append(
                f"{note}; not compared: {in_count(older, 'older record')} on the target" if older else note
            )
        elif (self._target.log.first > 0 or self._begun_later) and await self._skip(self._source, heads[1]):
            self._begin_at(self._source.offset)
        elif self._source.log.first > 0:  # none of its first records was copied: what there is on the target is older
            await self._target.go(self._target.log.end)
            self.notes.append(f"the source's log begins at {self._source.log.first}; the target has none of it")
        elif not self._begun_later and await self._pass_what_came_first(heads[0][0], heads[1]):
            before = f"the target has {in_count(self.duplicates, 'record')} before the copy begins"
            self.notes.append(f"{before}: the topic was deleted there and made again")

    async def _pass_what_came_first(self, begin: Record, head: Sequence[Record]) -> bool:
        """Pass over records on the target that came before a copy of the source's beginning, and come in it again.

        Returns whether there are such; else both logs are at their first records.
        """
        source, target = self._source, self._target
        place = await self._find([_row(record) for record in head[:NEEDLE]], source.log.first, source.log.end)
        if place is not None:
            await source.go(place)
            many = await self._pass_to(_row(begin))
            at = target.offset
            if many and (place >= self._limit or await target.pass_to_one_of({_row(head[0])})):
                self.duplicates = many
                await source.go(source.log.first)
                await target.go(at)
                return True
        await source.go(source.log.first)
        await target.go(target.log.first)
        return False

    async def _pass_to(self, begin: Any) -> int:
        """Pass over what is the same on both sides, until this row comes on the target. Returns how many, or 0."""
        source, target = self._source, self._target
        many = 0
        while await target.head() is not None:
            copied = list(map(_row, target.records))
            if copied[0] == begin:
                return many
            if await source.head() is None:
                break
            due = copied.index(begin) if begin in copied else len(copied)
            most = min(due, len(source.records))
            same = _common(copied[:most], list(map(_row, source.records[:most])))
            if same < most:
                break
            many += same
            target.pass_records(same)
            source.pass_records(same)
        return 0

    def _begin_at(self, offset: int) -> None:
        """The source, which is there already, is compared from this offset on."""
        self._reached = offset
        why = f"the target's log begins at {self._target.log.first}" if self._target.log.first else "begun later"
        self.notes.append(f"{why}; compared from offset {offset} of the source on")

    async def _skip(self, reading: _Reading, head: Sequence[Record]) -> bool:
        """Go to the first record that is one of `head`; back to the start if there is none."""
        if await reading.pass_to_one_of(set(map(_row, head))):
            return True
        await reading.go(reading.log.first)
        return False

    # The records.

    async def _compare(self) -> Difference | None:
        source, target = self._source, self._target
        while True:
            await self._pass_over_the_same()
            if await target.head() is None:
                return await self._what_is_missing()
            place = await self._earlier_place()
            if place is not None:
                await source.go(place)
                continue
            if source.offset < self._reached:
                await source.go(self._reached)
                continue
            return await self._difference()

    async def _pass_over_the_same(self) -> None:
        source, target = self._source, self._target
        while True:
            theirs, ours = await source.head(), await target.head()
            if theirs is None or ours is None:
                return
            if (
                source.untouched is not None
                and target.untouched is not None
                and not theirs.header.base_offset < self._reached <= theirs.header.last_offset
                and _same_bytes(theirs, ours)
            ):
                again = theirs.header.last_offset < self._reached
                target.pass_batch()
                self._note(source.pass_batch(), again=again)
            elif not self._pass_same_records():
                return

    def _pass_same_records(self) -> bool:
        """Pass over the records at hand that are the same. Returns whether all are."""
        source, target = self._source, self._target
        records, copies = source.records, target.records
        if source.offset < self._reached:  # count apart what was met before
            records = [record for record in records if record.offset < self._reached]
        most = min(len(records), len(copies))
        rows, copied = list(map(_row, records[:most])), list(map(_row, copies[:most]))
        same = most if rows == copied else _common(rows, copied)
        again = source.offset < self._reached
        target.pass_records(same)
        source.pass_records(same)
        self._note(same, again=again)
        return same == most

    def _note(self, records: int, *, again: bool) -> None:
        if again:
            self.duplicates += records
        else:
            self.source_records += records
            if records:
                self._reached = self._source.offset

    async def _what_is_missing(self) -> Difference | None:
        """The target has no more."""
        source = self._source
        if self._reached >= self._limit:
            return None
        await source.go(self._reached)
        if await source.head() is None or source.offset >= self._limit:
            return None
        return Difference("missing", source.offset, self._target.log.end)

    # What does not fit.

    async def _earlier_place(self) -> int | None:
        """Where the target's next record is at the source, up to the place that was reached; None: nowhere."""
        needle = [_row(record) for record in await self._target.ahead(NEEDLE)]
        first, end, many = self._source.log.first, self._reached + 1, NEAR
        while end > first:
            start = max(first, end - many)
            place = await self._find(needle, start, end)
            if place is not None:
                return place
            end, many = start, many * 16
        return None

    async def _find(self, needle: list[Any], start: int, end: int) -> int | None:
        """The offset in [start, end) from which on most of `needle` fits; of several the last one."""
        best = None
        longest = 1
        wanted = needle[0]
        log = self._source.log
        open_places: list[tuple[int, int]] = []
        """Places where all fits so far, up to the end of what was looked at: offset, how many fit."""
        async with aclosing(log.batches(start)) as batches:
            async for batch in batches:
                records = self._source.decoded(batch)
                rows = list(map(_row, records))
                going, open_places = open_places, []
                for offset, fits in going:
                    length = fits + _common(needle[fits:], rows)
                    if length >= longest:
                        best, longest = offset, length
                    if length == fits + len(rows) and length < len(needle):
                        open_places.append((offset, length))
                for index in _places(rows, wanted):
                    if records[index].offset >= end:
                        break
                    length = _common(needle, rows[index : index + len(needle)])
                    if length >= longest:
                        best, longest = records[index].offset, length
                    if length == len(rows) - index and length < len(needle):
                        open_places.append((records[index].offset, length))
                if not open_places and records and records[-1].offset >= end:
                    break
        return best

    async def _difference(self) -> Difference:
        """What is wrong with the next records, of which both sides were not the same."""
        expected, found = await self._source.ahead(AHEAD), await self._target.ahead(AHEAD)
        target = found[0].offset
        if not expected:
            return Difference("extra", self._source.log.end, target)
        due = expected[0].offset
        rows, copies = list(map(_row, expected)), list(map(_row, found))
        later, comes = copies[0] in rows, rows[0] in copies
        if later and comes:
            return Difference("order", due, target)
        if later:
            return Difference("missing", due, target)
        if comes or due >= self._limit:
            return Difference("extra", due, target)
        differ = [name for name, one, other in zip(_FIELDS, rows[0], copies[0], strict=True) if one != other]
        return Difference(", ".join(differ), due, target)


def _same_bytes(one: FetchedBatch, other: FetchedBatch) -> bool:
    """Whether two whole batches hold the same records for certain: what is compressed is not looked into."""
    a, b = one.header, other.header
    if a.log_append_time or b.log_append_time:
        return False
    alike = (a.records, a.codec, a.base_timestamp, a.length) == (b.records, b.codec, b.base_timestamp, b.length)
    return alike and bytes(one.data[HEADER_BYTES:]) == bytes(other.data[HEADER_BYTES:])


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many values at the beginning are the same."""
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _places(rows: list[Any], wanted: Any) -> list[int]:
    """The indices of a value."""
    return [index for index, row in enumerate(rows) if row == wanted]
