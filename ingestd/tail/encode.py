"""TailEncoder: whole lines to record batches, in one pass of compiled code; a key in a line costs a search more."""

from __future__ import annotations

import random
from array import array
from typing import TYPE_CHECKING, Final

from ingestd.daemon.source import BatchSpan, EncodedAgain, Encoding
from ingestd.patterns import BytesPattern
from ingestd.records.batch import read_header
from ingestd.records.codecs import Compression
from ingestd.records.decode import decode_records
from ingestd.records.lines import LineEncoder
from ingestd.records.loops import partition_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from ingestd.daemon.source import Lane
    from ingestd.records.lines import LineEncoding
    from ingestd.tail.route import TailRoute

__all__ = ["TailEncoder"]

_NO_KEY: Final = (-1, -1)

_ROOM: Final = 65536
"""What `encode` needs more than it is given, to take at least a line."""


class TailEncoder:
    """Encodes the lines of one tail. See `Encoder` for what it keeps between calls."""

    def __init__(self, route: TailRoute) -> None:
        compression = Compression.parse(route.compression, route.compression_level)
        # A batch has room for what Kafka adds to each line: 7 bytes and more, less the newline.
        self._lines = LineEncoder(compression, route.batch_bytes + route.batch_bytes // 8)
        self._by_key = route.partition == "key"
        self._key: BytesPattern | None = None
        if route.key_pattern is not None and route.key_from == "line":
            self._key = BytesPattern(route.key_pattern)
            self._group = route.key_group

    def encode(self, raw: memoryview, out: memoryview, *, lane: Lane, partitions: int, timestamp_ms: int) -> Encoding:
        """See `ingestd.daemon.source.Encoder.encode`. Raises `BufferFull` when `out` has no room for the first line."""
        assert lane.partition is not None, "who reads chooses a partition before this"
        if lane.partition >= 0 and self._key is None:
            made = self._lines.encode(raw, out, timestamp_ms=timestamp_ms, key=lane.key, partition=lane.partition)
        else:
            made = self._per_record(raw, out, lane.partition, partitions, timestamp_ms)
        return Encoding(made.consumed, [BatchSpan(*batch) for batch in made.batches])

    def encode_again(self, batch: memoryview, *, lane: Lane, partitions: int, timestamp_ms: int) -> list[EncodedAgain]:
        """See `ingestd.daemon.source.Encoder.encode_again`."""
        assert lane.partition is not None, "who reads chooses a partition before this"
        if lane.partition >= 0:
            return [EncodedAgain(lane.partition, read_header(batch).records, memoryview(bytearray(batch)))]
        raw = memoryview(b"".join((record.value or b"") + b"\n" for record in decode_records(batch)))
        again: list[EncodedAgain] = []
        while raw:
            out = memoryview(bytearray(len(raw) + _ROOM))
            made = self.encode(raw, out, lane=lane, partitions=partitions, timestamp_ms=timestamp_ms)
            for span in made.batches:
                data = bytearray(out[span.start : span.start + span.length])
                again.append(EncodedAgain(span.partition, span.records, memoryview(data)))
            raw = raw[made.consumed :]
        return again

    def _per_record(
        self, raw: memoryview, out: memoryview, partition: int, partitions: int, timestamp_ms: int
    ) -> LineEncoding:
        data = bytes(raw)
        lines = data.count(b"\n") + (not data.endswith(b"\n"))
        keys = None if self._key is None else array("i", self._find_keys(data, self._key))
        chosen: Buffer
        if partition >= 0:
            chosen = array("i", [partition]) * lines
        elif keys is None or not self._by_key:
            chosen = _in_turn(lines, partitions)
        else:
            # Lines without a key go together to any partition.
            chosen = partition_keys(data, keys, partitions, random.randrange(partitions))  # noqa: S311 - balance
        return self._lines.encode_partitioned(
            raw, out, chosen=chosen, partitions=partitions, timestamp_ms=timestamp_ms, keys=keys
        )

    def _find_keys(self, data: bytes, pattern: BytesPattern) -> Iterator[int]:
        """For each line, where its key starts and ends in `data`. A search never sees more than its line."""
        at = 0
        search, group = pattern.search, self._group
        for line in data.removesuffix(b"\n").split(b"\n"):
            length = len(line)
            start, end = search(line, 0, length)[group]
            if start < 0:
                yield from _NO_KEY
            else:
                yield at + start
                yield at + end
            at += length + 1


def _in_turn(lines: int, partitions: int) -> array[int]:
    """Line by line over all partitions, from any of them on: calls know nothing of each other."""
    first = random.randrange(partitions)  # noqa: S311 - balance, not cryptography
    turn = array("i", [(first + step) % partitions for step in range(partitions)])
    return (turn * (lines // partitions + 1))[:lines]
