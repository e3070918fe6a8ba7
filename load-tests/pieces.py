"""The pieces on one core, without processes, files and network: GB a second of each hot loop, codec and whole encoding.

CPU time is measured, the best of several rounds in alternation, so that a busy machine blurs little. A gigabyte is of
the bytes that go in, uncompressed: lines for what encodes, records for what decodes.
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from typing import TYPE_CHECKING

import results
from accesslog import AccessLog
from crc32c import crc32c

from ingestd.records import loops
from ingestd.records.batch import HEADER_BYTES, patch_producer
from ingestd.records.builder import BatchBuilder
from ingestd.records.codecs import Codec, Compression, compressor, decompress
from ingestd.records.decode import decode_columns
from ingestd.records.lines import LineEncoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SLAB = 1 << 20
SLABS = 4
PARTITIONS = 4
TARGETS = {"lines -> records": 5.0, "batch -> columns": 2.0}
"""GB a second that these must reach on one core."""
COMPRESSIONS = (
    Compression(Codec.none),
    Compression(Codec.lz4),
    Compression(Codec.lz4, -1),
    Compression(Codec.lz4, -3),
    Compression(Codec.zstd, 1),
    Compression(Codec.zstd, 3),
    Compression(Codec.snappy),
    Compression(Codec.gzip),
)


class Piece:
    """Something to repeat: `run` works through `size` bytes."""

    def __init__(self, name: str, size: int, run: Callable[[], object], ratio: float | None = None) -> None:
        self.name = name
        self.size = size
        self.ratio = ratio
        self._run = run
        self._best = float("inf")

    def measure(self, seconds: float) -> None:
        """Repeat for about `seconds`, and keep the best."""
        self._run()
        ends = time.process_time() + seconds
        while (start := time.process_time()) < ends:
            self._run()
            self._best = min(self._best, time.process_time() - start)

    @property
    def speed(self) -> float:
        """GB a second."""
        return self.size / self._best / 1e9


class OneBatch(loops.RecordIntake):
    """What a producer is while a batch is open."""

    def __init__(self) -> None:
        super().__init__(loops.Allowance(1 << 60))
        builder = BatchBuilder(1 << 30)
        builder.append(None, b"opens the batch: what follows goes the short way", (), 1)
        topic = self._intakes["topic"] = loops.TopicIntake()
        topic.sticky = builder


def loops_of(slabs: list[bytes], records: list[bytes], counts: list[int]) -> list[Piece]:
    """The hot loops."""
    out = bytearray(2 * SLAB)
    lines = [slab.split(b"\n")[:-1] for slab in slabs]
    chosen = [array("i", [number % PARTITIONS for number in range(len(each))]) for each in lines]
    slots = bytearray(PARTITIONS * SLAB)

    def scatter() -> None:
        for slab, partitions in zip(slabs, chosen, strict=True):
            loops.scatter_lines(
                slab, 0, 0, partitions, None, slots, SLAB, bytearray(8 * PARTITIONS), bytearray(4 * PARTITIONS),
                1 << 40, HEADER_BYTES,
            )  # fmt: skip

    def append() -> None:
        builder = BatchBuilder(1 << 30)
        add = builder.append
        for each in lines:
            for line in each:
                add(None, line, (), 1)

    def send() -> None:
        accept = OneBatch().send
        for each in lines:
            for line in each:
                accept("topic", line)

    spans = []
    for slab in slabs:
        ends = memoryview(loops.line_ends(slab)).cast("i").tolist()
        # The key is what a line starts with: the client's address, and what follows up to 12 bytes.
        spans.append(array("i", [at for start in [0, *(end + 1 for end in ends[:-1])] for at in (start, start + 12)]))

    raw, plain = sum(map(len, slabs)), sum(map(len, records))
    return [
        Piece("lines -> records", raw, lambda: [loops.encode_lines(slab, 0, out, 1 << 30, None) for slab in slabs]),
        Piece(f"lines -> records of {PARTITIONS} partitions", raw, scatter),
        Piece(
            "partitions of keys of 12 bytes",
            raw,
            lambda: [loops.partition_keys(slab, keys, PARTITIONS, 0) for slab, keys in zip(slabs, spans, strict=True)],
        ),
        Piece(
            "batch -> columns",
            plain,
            lambda: [
                loops.parse_records(each, count, count - 1, 0, 0, None)
                for each, count in zip(records, counts, strict=True)
            ],
        ),
        Piece("records one by one", raw, append),
        Piece("records one by one, as `send` takes them", raw, send),
        Piece("CRC-32C", plain, lambda: [crc32c(each) for each in records]),
    ]


def codecs(records: list[bytes]) -> list[Piece]:
    """Compressing the records of a batch in place, and decompressing them."""
    out = memoryview(bytearray(2 * SLAB))
    size = sum(map(len, records))
    pieces = []
    for compression in COMPRESSIONS[1:]:
        tool = compressor(compression)
        packed = [bytes(tool.compress(each)) for each in records]
        ratio = size / sum(map(len, packed))

        def pack(into: Callable[..., int] = tool.compress_into) -> None:
            for each in records:
                into(each, out)

        def unpack(codec: Codec = compression.codec, packed: list[bytes] = packed) -> None:
            for each in packed:
                decompress(codec, each, 4 * SLAB)

        pieces.append(Piece(f"compress {name_of(compression)}", size, pack, ratio))
        if compression.level in (None, 1):
            pieces.append(Piece(f"decompress {compression.codec.name}", size, unpack, ratio))
    return pieces


def wholes(slabs: list[bytes]) -> list[Piece]:
    """Lines to sealed batches, and batches to columns."""
    out = memoryview(bytearray(2 * SLAB))
    raw = sum(map(len, slabs))
    pieces = []
    for compression in COMPRESSIONS:
        encoder = LineEncoder(compression, 2 * SLAB)

        def encode(encoder: LineEncoder = encoder) -> list[bytes]:
            batches = []
            for slab in slabs:
                (batch,) = encoder.encode(slab, out, timestamp_ms=0).batches
                patch_producer(out[: batch.length], 1, 0, 0)
                batches.append(batch)
            return batches

        batches = []
        for slab in slabs:
            (made,) = encoder.encode(slab, out, timestamp_ms=0).batches
            batches.append(bytes(out[: made.length]))
        ratio = raw / sum(map(len, batches))
        pieces.append(Piece(f"lines -> sealed batch, {name_of(compression)}", raw, encode, ratio))
        if compression.level in (None, 1):

            def decode(batches: list[bytes] = batches) -> None:
                for batch in batches:
                    decode_columns(batch)

            pieces.append(Piece(f"batch -> columns, {compression.codec.name}", raw, decode, ratio))
    return pieces


def name_of(compression: Compression) -> str:
    """For the table."""
    return compression.codec.name if compression.level is None else f"{compression.codec.name} {compression.level}"


def main() -> int:
    """Measure, report; 1 when a loop misses its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each piece in each round")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()

    log = AccessLog()
    slabs = [b"".join(log.blocks(SLAB)) for _ in range(SLABS)]
    records, counts = [], []
    out = bytearray(2 * SLAB)
    for slab in slabs:
        _, written, count = loops.encode_lines(slab, 0, out, 1 << 30, None)
        records.append(bytes(out[:written]))
        counts.append(count)

    pieces = [*loops_of(slabs, records, counts), *codecs(records), *wholes(slabs)]
    for _ in range(given.rounds):
        for piece in pieces:
            piece.measure(given.seconds)

    figures: Mapping[str, Mapping[str, float | None]] = {
        piece.name: {"gb_per_s": round(piece.speed, 3), "cpu_s_per_gb": round(1 / piece.speed, 3), "ratio": piece.ratio}
        for piece in pieces
    }
    settings = {
        "loops": "compiled" if loops.COMPILED else "plain",
        "line_bytes": sum(map(len, slabs)) / sum(counts),
        "slab_bytes": SLAB,
    }
    results.print_table(
        f"The pieces on one core, {settings['loops']} loops, {settings['line_bytes']:.0f} bytes a line, slabs of 1 MiB",
        ("piece", "GB/s", "CPU s per GB", "ratio"),
        [(piece.name, piece.speed, 1 / piece.speed, piece.ratio or 0.0) for piece in pieces],
        "Best CPU time of several rounds. Ratio: bytes in to bytes out, 0 where nothing is compressed.",
    )
    print(results.save("pieces", settings, figures))
    missed = {name: least for name, least in TARGETS.items() if (figures[name]["gb_per_s"] or 0.0) < least}
    for name, least in missed.items():
        print(f"missed: {name} at {figures[name]['gb_per_s']} GB/s, target {least}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
