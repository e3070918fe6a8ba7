"""Passing: which batches may go to the target as they are, and the others made anew, record for record the same.

Small batches that come together are made anew too, into large ones: a producer sends one batch of a partition in a
request, so a backlog of small ones would crawl, and cost most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ingestd.records.batch import HEADER_BYTES, check_crc, patch_offset
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Compression
from ingestd.records.decode import decode_records, record_cursor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.mirror.filtering import RecordFilter

__all__ = ["LARGEST_BATCH", "PASSED", "WAYS", "Offsets", "Part", "Passage", "Unit", "passage", "split_offsets", "units"]

LARGEST_BATCH: Final = 1024 * 1024 - HEADER_BYTES
"""Bytes of records, before compression, of a batch that is made anew; a larger record has a batch of its own. It is
what topics take by default."""

Offsets: TypeAlias = "Sequence[tuple[int, int]]"
"""Offsets at the source: the first of consecutive ones, and how many."""

SMALL: Final = 8 * 1024
"""Bytes below which a batch is merged with others: making its records anew costs less than a batch does."""

FEWEST: Final = 4
"""Small batches that must follow each other to be merged. With less there is no backlog, and they pass as they are."""

UNIT_BYTES: Final = 512 * 1024
"""Bytes of batches that are made anew together, and acknowledged together."""

UNIT_BATCHES: Final = 2000
"""Batches that are made anew together, at most: grouping them is done in one go."""

STEP_BYTES: Final = 32 * 1024
"""Bytes of batches that are made anew until others may run."""

PASSED: Final = "passed"
PART: Final = "part"
GAPS: Final = "gaps"
LOG_APPEND_TIME: Final = "log_append_time"
OLD_FORMAT: Final = "old_format"
MERGED: Final = "merged"
FILTERED: Final = "filtered"
WAYS: Final = (PASSED, PART, GAPS, LOG_APPEND_TIME, OLD_FORMAT, MERGED, FILTERED)
"""How a batch went to the target: as it is, or made anew, and why."""

_CODEC_BITS: Final = 0b111


class Passage(NamedTuple):
    """A batch of the source, and how it goes to the target: one of `WAYS`."""

    batch: FetchedBatch
    way: str


@dataclass(frozen=True, slots=True)
class Part:
    """A batch for the target, not sealed. It is what was made of a unit, or a part of that. `offsets`: its records'."""

    data: memoryview
    records: int
    offsets: Offsets


def passage(batch: FetchedBatch, *, filtered: bool = False) -> Passage:
    """Whether the target takes this batch as it is. `filtered`: some of its records may be for nobody.

    Kafka refuses a batch with gaps between its offsets, which compaction leaves, and one whose records have the time
    of the broker. A batch of which the reader wants a part only can not pass as a whole. Messages of an old format
    were made into a batch by the consumer already: it passes.
    """
    if filtered:
        return Passage(batch, FILTERED)
    header = batch.header
    if not batch.whole:
        return Passage(batch, PART)
    if header.records != header.last_offset_delta + 1:
        return Passage(batch, GAPS)
    if header.log_append_time:
        return Passage(batch, LOG_APPEND_TIME)
    return Passage(batch, PASSED if header.leader_epoch >= 0 else OLD_FORMAT)


class Unit:
    """Consecutive batches of one answer that go to the target together: one as it is, or some made anew."""

    __slots__ = ("_anew", "_merged", "_passages", "_whole", "batches")

    def __init__(self, passages: Sequence[Passage], *, merged: bool = False) -> None:
        """`merged`: several, which are made anew. Otherwise it is one."""
        self._anew = merged or passages[0].way not in (PASSED, OLD_FORMAT)
        self._merged = merged
        self._passages = passages
        self._whole: set[int] = set()
        """Of the batches, by number, those of which the filter took all, and which passed as they are."""
        self.batches = [batch for batch, _ in passages]

    @property
    def ways(self) -> list[str]:
        """How each of its batches goes to the target. With a filter that is known once `parts` are made."""
        instead = MERGED if self._merged else PASSED
        ways = [instead if way == PASSED else way for _, way in self._passages]
        for number in self._whole:
            ways[number] = PASSED
        return ways

    def sizes(self) -> dict[str, tuple[int, int]]:
        """By way, the bytes of its batches that go it, and how many they are."""
        ways = self.ways
        sizes = [batch.header.size for batch in self.batches]
        if ways.count(ways[0]) == len(ways):
            return {ways[0]: (sum(sizes), len(sizes))}
        return {
            one: (sum(size for size, way in zip(sizes, ways, strict=True) if way == one), ways.count(one))
            for one in dict.fromkeys(ways)
        }

    def parts(self, record_filter: RecordFilter | None = None) -> Iterator[Part | None]:
        """What goes to the target; None in between, where others may run. Raises `CorruptBatch`, `UnsupportedCodec`."""
        if self._anew:
            return self._made_anew(record_filter)
        batch = self.batches[0]
        check_crc(batch.data, batch.header)
        return iter((_as_it_is(batch),))

    def alone(self) -> Iterator[Unit]:
        """Its batches, each as a unit of its own."""
        return (Unit([one]) for one in self._passages)

    def _made_anew(self, record_filter: RecordFilter | None) -> Iterator[Part | None]:
        """Batches with the same records, or those that the filter takes. Codec, keys, headers and times stay."""
        compression = Compression(self.batches[0].header.codec)
        builder = BatchBuilder(LARGEST_BATCH)
        offsets: list[tuple[int, int]] = []
        done = 0
        for number, batch in enumerate(self.batches):
            header, data = batch.header, batch.data
            check_crc(data, header)
            kept = None
            if record_filter is not None:
                kept = record_filter.kept(decode_records(data, header=header))
                if header.length >= SMALL and all(kept) and passage(batch).way in (PASSED, OLD_FORMAT):
                    if builder.records:
                        yield _built(builder, compression, offsets)
                        offsets = []
                    self._whole.add(number)
                    yield _as_it_is(batch)
                    continue
            cursor = record_cursor(data, first=batch.first, end=batch.end, kept=kept, header=header)
            _join(offsets, cursor.copy_into(builder))
            while cursor.left:
                yield _built(builder, compression, offsets)
                offsets = cursor.copy_into(builder)
            done += header.length
            if done >= STEP_BYTES or record_filter is not None:
                done = 0
                yield None
        if builder.records:
            yield _built(builder, compression, offsets)


def units(passages: Iterable[Passage]) -> Iterator[Unit]:
    """Group the batches of one answer, in their order. Looks ahead by one unit only."""
    together: list[Passage] = []
    size = codec = 0
    for one in passages:
        header = one.batch.header
        length, its_codec = header.length, header.attributes & _CODEC_BITS
        if together and (size >= UNIT_BYTES or len(together) >= UNIT_BATCHES or its_codec != codec):
            yield from _grouped(together)
            together, size = [], 0
        if length >= SMALL and one.way in (PASSED, OLD_FORMAT):
            yield from _grouped(together)
            together, size = [], 0
            yield Unit([one])
        else:
            together.append(one)
            size += length
            codec = its_codec
    yield from _grouped(together)


def _grouped(together: Sequence[Passage]) -> Iterator[Unit]:
    if len(together) >= FEWEST:
        yield Unit(together, merged=True)
    else:
        yield from (Unit([one]) for one in together)


def _as_it_is(batch: FetchedBatch) -> Part:
    """The batch itself. Its CRC was checked."""
    header = batch.header
    data = batch.data if not batch.data.readonly else memoryview(bytearray(batch.data))
    patch_offset(data, 0, -1)
    return Part(data, header.records, ((header.base_offset, header.records),))


def split_offsets(offsets: Offsets, at: int) -> tuple[Offsets, Offsets]:
    """The first `at` of these offsets, and the others."""
    for index, (first, records) in enumerate(offsets):
        if at < records:
            cut = ((first, at),) if at else ()
            return (*offsets[:index], *cut), ((first + at, records - at), *offsets[index + 1 :])
        at -= records
    return offsets, ()


def _join(offsets: list[tuple[int, int]], more: Offsets) -> None:
    """Add higher offsets. The first of them may follow the last one."""
    if offsets and more:
        first, records = offsets[-1]
        if first + records == more[0][0]:
            offsets[-1] = first, records + more[0][1]
            more = more[1:]
    offsets.extend(more)


def _built(builder: BatchBuilder, compression: Compression, offsets: Offsets) -> Part:
    records = builder.records
    return Part(memoryview(builder.build(compression)), records, offsets)
