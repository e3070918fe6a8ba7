"""Lines to ready record batches. Each line of a buffer, without its newline, becomes the value of a record.

The batches are not sealed. Their sender patches the producer fields, which computes the CRC (`batch.patch_producer`).
`batch.seal` is for batches that no producer sends.

An empty line is a record with an empty value. A last line without a newline is a record too. All records of a call
carry one timestamp.
"""

from __future__ import annotations

from mmap import mmap
from typing import TYPE_CHECKING, Final, NamedTuple

from ingestd.errors import BufferFull
from ingestd.records.batch import HEADER_BYTES, write_unsealed_header
from ingestd.records.codecs import Codec, Compression, Compressor, compressor
from ingestd.records.loops import SLOT_FULL, allocate, encode_lines, scatter_lines

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["GATHERED", "LARGEST_BATCH_BYTES", "LineBatch", "LineEncoder", "LineEncoding"]

LARGEST_BATCH_BYTES: Final = 1 << 30
"""The largest `batch_bytes`."""

GATHERED: Final = 2
"""The records of a compressed batch may have this many times `batch_bytes` before compression."""

_LIKELY: Final = GATHERED + 0.5
"""If the last lines became this many times smaller, the next batch gathers `GATHERED` times `batch_bytes`."""

_RECORD_OVERHEAD: Final = 32
"""Bytes. A record without headers takes less than this besides its key and value."""

_SCRATCH_BYTES: Final = 64 << 20
"""Most bytes of all partitions' slots together, unless there are so many that each has the smallest size."""
_SMALLEST_SLOT: Final = 64 << 10
_UNLIMITED: Final = 1 << 62


class LineBatch(NamedTuple):
    """One batch in `out`: target partition, position, length, number of records, their bytes before compression."""

    partition: int
    start: int
    length: int
    records: int
    uncompressed: int


class LineEncoding(NamedTuple):
    """The batches that one call made of `raw[:consumed]`; the rest did not fit. Those of a partition are in order."""

    consumed: int
    batches: list[LineBatch]


class LineEncoder:
    """Makes record batches with at most `batch_bytes` of records as they are sent. A longer line gets its own batch.

    A compressed batch gathers up to `GATHERED` times as many bytes, for as long as lines compress that well: fewer
    batches cost less here, on the network and in the broker. Between calls it keeps scratch memory, and how well the
    last lines compressed. Not thread-safe.
    """

    def __init__(self, compression: Compression, batch_bytes: int) -> None:
        if not 0 < batch_bytes <= LARGEST_BATCH_BYTES:
            raise ValueError(f"batch_bytes {batch_bytes}: expected 1 to {LARGEST_BATCH_BYTES}")
        self._compression = compression
        self._batch_bytes = batch_bytes
        self._largest = batch_bytes if compression.codec is Codec.none else GATHERED * batch_bytes
        """Most bytes of records before compression."""
        self._gather = self._largest
        """The bytes that will probably compress to `batch_bytes`."""
        self._scratch = bytearray()
        self._slots: mmap | None = None

    def encode(
        self, raw: Buffer, out: memoryview, *, timestamp_ms: int, key: bytes | None = None, partition: int = 0
    ) -> LineEncoding:
        """Encode lines of `raw`, all for one partition, into batches in `out`, as many as fit.

        It always consumes something if `out` is as large as `raw`, the key and 64 KiB together. Raises `BufferFull` if
        `out` has no room for the first record, `ValueError` for a line of 2 GiB.
        """
        lines = memoryview(raw)
        batches: list[LineBatch] = []
        output = _Output(out, self._compression, timestamp_ms)
        consumed = 0
        while consumed < len(lines):
            if self._compression.codec is Codec.none:
                end, batch = self._encode_plain(lines, consumed, output, key, partition)
            else:
                end, batch = self._encode_compressed(lines, consumed, output, key, partition)
            if batch is None:
                break
            consumed = end
            batches.append(batch)
        return _progress(consumed, batches, len(lines), len(out))

    def _encode_plain(
        self, lines: memoryview, start: int, output: _Output, key: bytes | None, partition: int
    ) -> tuple[int, LineBatch | None]:
        """Write the records straight to their place in `out`."""
        end, written, records = encode_lines(lines, start, output.records_room(), self._batch_bytes, key)
        return end, output.finish(partition, Codec.none, written, records, written) if records else None

    def _encode_compressed(
        self, lines: memoryview, start: int, output: _Output, key: bytes | None, partition: int
    ) -> tuple[int, LineBatch | None]:
        """Write the records to scratch memory, then compress them to their place in `out`."""
        scratch, end, written, records = self._encode_to_scratch(lines, start, self._gather, key)
        room = len(output.records_room())
        most = self._batch_bytes if records > 1 else written
        batch = output.compress(partition, memoryview(scratch)[:written], records, most)
        if batch is not None:
            if _LIKELY * batch.length <= written:
                self._gather = self._largest
        elif written > most and room >= most:
            self._gather = self._batch_bytes
            return self._encode_compressed(lines, start, output, key, partition)
        elif not output.used and room:
            # It is the first batch, and it neither compresses nor fits: take only as many lines as surely fit.
            scratch, end, written, records = self._encode_to_scratch(lines, start, min(room, self._batch_bytes), key)
            if written <= room:
                batch = output.compress(partition, memoryview(scratch)[:written], records, written)
        return end, batch

    def _encode_to_scratch(
        self, lines: memoryview, start: int, limit: int, key: bytes | None
    ) -> tuple[bytearray, int, int, int]:
        if not self._scratch:
            self._scratch = allocate(self._largest)
        end, written, records = encode_lines(lines, start, self._scratch, limit, key)
        if records:
            return self._scratch, end, written, records
        line = _first_line_bytes(lines, start)
        scratch = allocate(line + len(key or b"") + _RECORD_OVERHEAD)
        return scratch, *encode_lines(lines, start, scratch, limit, key)

    def encode_partitioned(
        self,
        raw: Buffer,
        out: memoryview,
        *,
        chosen: Buffer,
        partitions: int,
        timestamp_ms: int,
        keys: Buffer | None = None,
    ) -> LineEncoding:
        """Encode lines of `raw` for many partitions, in one pass, into batches in `out`.

        `chosen` has an int32 for each line: its partition, 0 to `partitions` - 1. `keys`, if given, has two int32 for
        each line: where its key starts and ends in `raw`. A negative start means no key.

        From the first line that does not fit, all lines are left: `consumed` is a prefix of `raw`. It always consumes
        something if `out` is as large as `raw`, the first key and 64 KiB together. Raises `BufferFull` if `out` has no
        room for the first record, `ValueError` for a partition out of range, or a line that `chosen` or `keys` lack.
        """
        lines = memoryview(raw)
        run = _PartitionedRun(self, lines, chosen, keys, partitions)
        encoding = None
        if self._compression.codec is not Codec.none:
            # Compressed, all of `raw` nearly always fits. If it does not, room is counted as if nothing compressed.
            encoding = run.encode(_Output(out, self._compression, timestamp_ms), reserve=False)
        if encoding is None:
            encoding = run.encode(_Output(out, self._compression, timestamp_ms), reserve=True)
        assert encoding is not None, "with room reserved every batch fits"
        return _progress(encoding.consumed, encoding.batches, len(lines), len(out))

    def slots(self, partitions: int) -> tuple[Buffer, int]:
        """Scratch memory with a slot for each partition, and the bytes of a slot. Unused pages cost nothing."""
        if partitions <= 0:
            raise ValueError(f"{partitions} partitions: expected at least 1")
        slot_bytes = min(self._batch_bytes, max(_SMALLEST_SLOT, _SCRATCH_BYTES // partitions))
        if self._slots is None or len(self._slots) < slot_bytes * partitions:
            self._slots = mmap(-1, slot_bytes * partitions)
        return self._slots, slot_bytes


class _Output:
    """The output buffer: ready batches, one after the other."""

    def __init__(self, out: memoryview, compression: Compression, timestamp_ms: int) -> None:
        self._out = out
        self._codec = compression.codec
        self._compressor: Compressor = compressor(compression)
        self._timestamp_ms = timestamp_ms
        self.used = 0

    def records_room(self) -> memoryview:
        """The memory for the next batch's records. Its header goes before them."""
        return self._out[self.used + HEADER_BYTES :]

    @property
    def room(self) -> int:
        """Bytes left."""
        return len(self._out) - self.used

    def compress(self, partition: int, records: memoryview, count: int, most: int) -> LineBatch | None:
        """Make a batch of `records`. They are stored as they are if compression gains nothing.

        None if it does not fit, or if its records would take more than `most` bytes.
        """
        size = len(records)
        room = self.records_room()[:most]
        length = self._compressor.compress_into(records, room[: size - 1]) if self._codec is not Codec.none else -1
        if length >= 0:
            return self.finish(partition, self._codec, length, count, size)
        if size > len(room):
            return None
        room[:size] = records
        return self.finish(partition, Codec.none, size, count, size)

    def finish(self, partition: int, codec: Codec, length: int, records: int, uncompressed: int) -> LineBatch:
        """Write the header before `length` bytes of records that are in place."""
        start, end = self.used, self.used + HEADER_BYTES + length
        write_unsealed_header(
            self._out[start:end],
            records=records,
            codec=codec,
            base_timestamp=self._timestamp_ms,
            max_timestamp=self._timestamp_ms,
        )
        self.used = end
        return LineBatch(partition, start, end - start, records, uncompressed)


class _PartitionedRun:
    """One pass over lines that go to many partitions."""

    def __init__(
        self, encoder: LineEncoder, lines: memoryview, chosen: Buffer, keys: Buffer | None, partitions: int
    ) -> None:
        self._lines = lines
        self._chosen = memoryview(chosen).cast("B").cast("i")
        self._keys = None if keys is None else memoryview(keys).cast("B").cast("i")
        self._partitions = partitions
        self._scratch, self._slot_bytes = encoder.slots(partitions)
        self._slots = memoryview(self._scratch)
        self._written = memoryview(bytearray(8 * partitions)).cast("q")
        self._records = memoryview(bytearray(4 * partitions)).cast("i")

    def encode(self, output: _Output, *, reserve: bool) -> LineEncoding | None:
        """Fill slots and turn full ones into batches. None if a batch did not fit, which `reserve` prevents."""
        batches: list[LineBatch] = []
        start = line = 0
        self._clear()
        while True:
            budget = output.room - self._pending() if reserve else _UNLIMITED
            start, line, stop = scatter_lines(
                self._lines, start, line, self._chosen, self._keys, self._scratch, self._slot_bytes,
                self._written, self._records, budget, HEADER_BYTES,
            )  # fmt: skip
            if stop != SLOT_FULL:
                break
            partition = self._chosen[line]
            if self._records[partition]:
                batch = self._flush(partition, output)
            else:
                record = self._alone(start, line)
                if len(record) + HEADER_BYTES > budget:
                    break
                batch = output.compress(partition, record, 1, len(record))
                start = min(start + _first_line_bytes(self._lines, start) + 1, len(self._lines))
                line += 1
            if batch is None:
                return None
            batches.append(batch)
        for partition in range(self._partitions):
            if self._records[partition]:
                batch = self._flush(partition, output)
                if batch is None:
                    return None
                batches.append(batch)
        return LineEncoding(start, batches)

    def _flush(self, partition: int, output: _Output) -> LineBatch | None:
        """Turn the records of a slot into a batch, and empty the slot."""
        at = partition * self._slot_bytes
        records = self._slots[at : at + self._written[partition]]
        batch = output.compress(partition, records, self._records[partition], len(records))
        self._written[partition] = self._records[partition] = 0
        return batch

    def _alone(self, start: int, line: int) -> memoryview:
        """The record of a line that is larger than a slot."""
        key = None
        if self._keys is not None and self._keys[2 * line] >= 0:
            key = bytes(self._lines[self._keys[2 * line] : self._keys[2 * line + 1]])
        scratch = allocate(_first_line_bytes(self._lines, start) + len(key or b"") + _RECORD_OVERHEAD)
        _, written, _ = encode_lines(self._lines, start, scratch, 0, key)
        return memoryview(scratch)[:written]

    def _pending(self) -> int:
        """Bytes that the slots' records and their batches' headers take if nothing compresses."""
        return sum(self._written) + HEADER_BYTES * sum(1 for records in self._records if records)

    def _clear(self) -> None:
        for partition in range(self._partitions):
            self._written[partition] = self._records[partition] = 0


def _first_line_bytes(lines: memoryview, start: int) -> int:
    """Length of the line that starts at `start`."""
    step = 1 << 20
    for at in range(start, len(lines), step):
        found = bytes(lines[at : at + step]).find(b"\n")
        if found >= 0:
            return at + found - start
    return len(lines) - start


def _progress(consumed: int, batches: list[LineBatch], raw: int, out: int) -> LineEncoding:
    if raw and not batches:
        raise BufferFull(f"{out} bytes have no room for the first record of {raw} bytes of lines")
    return LineEncoding(consumed, batches)
