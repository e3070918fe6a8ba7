"""Files into a topic: each file in one task, its lines to record batches by the loops of a tail. No line is a row."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ingestd.errors import IngestdError
from ingestd.records.batch import HEADER_BYTES
from ingestd.records.codecs import Compression
from ingestd.records.lines import LineEncoder
from ingestd.spark.executors import packed, slow_executors
from ingestd.spark.writing import lent_outflow
from ingestd.tail.lines import line_end
from ingestd.tail.rotation import codec_of
from ingestd.tail.text import open_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from ingestd.spark.executors import Slow
    from ingestd.spark.outflow import Outflow
    from ingestd.spark.pipelines.text_files import TextFile
    from ingestd.spark.write_options import WriteOptions
    from ingestd.tail.text import Text

__all__ = ["send_files"]

_READ_BYTES: Final = 2 * 1024 * 1024
_ROOM: Final = 64 * 1024
"""What `LineEncoder` needs more than it is given, to take at least a line."""


def send_files(spark: SparkSession, files: Sequence[TextFile], options: WriteOptions) -> int:
    """Send the lines of local files, which executors see at the same paths. Returns how many there were.

    All are acknowledged then. The lines of a batch go to one partition, and batches to all in turn. A task that runs
    again sends the lines of its file again. Raises Spark's errors.
    """
    largest_first = sorted(files, key=lambda file: -file.size)
    tasks = spark.sparkContext.parallelize(largest_first, len(largest_first))
    return sum(tasks.map(_FileSender(options, slow_executors(spark))).collect())


class _FileSender:
    """Sends the lines of a file. Runs on executors."""

    def __init__(self, options: WriteOptions, slow: Slow | None = None) -> None:
        """`slow`: on the driver, see `packed`."""
        self._options = options
        self._slow = slow

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(self._slow, _FileSender, self._options)

    def __call__(self, file: TextFile) -> int:
        return _send_file(self._options, file)


def _send_file(options: WriteOptions, file: TextFile) -> int:
    path = file.local_path
    assert path is not None, "only local files are sent so"
    assert options.topic is not None, "the sink names the topic"
    with _reading(path):
        text = open_text(path, codec_of(path))
    with text, lent_outflow(options) as outflow:
        sender = _Sender(options, options.topic, outflow)
        for lines in _whole_lines(text, path, options.producer.batch_bytes):
            sender.send(lines)
        outflow.finish()
        return sender.lines


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Name the file in an error. Nothing else is done within: errors of a cluster may be of `OSError`, too."""
    try:
        yield
    except OSError as error:
        raise IngestdError(f"source.files: {path}: {error.strerror}") from error


class _Sender:
    """Lines of one file to batches of a topic."""

    def __init__(self, options: WriteOptions, topic: str, outflow: Outflow) -> None:
        self._topic = topic
        self._outflow = outflow
        self._partitions = outflow.partitions(topic)
        compression = Compression.of(options.producer.compression)
        self._encoder = LineEncoder(compression, options.producer.batch_bytes - HEADER_BYTES)
        self._out = memoryview(bytearray(_READ_BYTES + _ROOM))
        # Small files have few batches each: they do not all begin with the same partition.
        self._next = random.randrange(self._partitions)  # noqa: S311 - balance
        self.lines = 0

    def send(self, lines: memoryview) -> None:
        """Send whole lines. Waits while too much is on its way."""
        now = time.time_ns() // 1_000_000
        if len(self._out) < len(lines) + _ROOM:
            self._out = memoryview(bytearray(len(lines) + _ROOM))
        while lines:
            made = self._encoder.encode(lines, self._out, timestamp_ms=now)
            for _, start, length, records, _ in made.batches:
                # A copy: the producer keeps the batch until it is acknowledged, and `_out` is used again.
                self._outflow.send(self._topic, self._next, bytearray(self._out[start : start + length]), records)
                self._next = (self._next + 1) % self._partitions
                self.lines += records
            lines = lines[made.consumed :]


def _whole_lines(text: Text, path: str, longest: int) -> Iterator[memoryview]:
    """All of a text, in pieces of whole lines; a last line without a newline is one too. Raises `IngestdError`."""
    buffer = bytearray(_READ_BYTES)
    held = position = 0
    while True:
        with _reading(path):
            read = text.read_into(memoryview(buffer)[held:], position)
        if not read:
            break
        position += read
        held += read
        too_long = _too_long(buffer, held, longest)
        if too_long is not None:
            at = position - held + too_long
            raise IngestdError(f"source.files: {path}: the line at byte {at} of its text has more than {longest} bytes")
        whole = line_end(memoryview(buffer), 0, held)
        if whole:
            yield memoryview(buffer)[:whole]
            buffer[: held - whole] = buffer[whole:held]
            held -= whole
        elif held == len(buffer):
            buffer = bytearray(buffer) + bytearray(len(buffer))
    if held:
        yield memoryview(buffer)[:held]


def _too_long(buffer: bytearray, end: int, longest: int) -> int | None:
    """Where a line before `end` begins that has more than `longest` bytes; None if there is none."""
    start = 0
    while end - start > longest:
        newline = buffer.rfind(b"\n", start, start + longest + 1)
        if newline < 0:
            return start
        start = newline + 1
    return None
