"""Files being written, rotated and remembered line by line, and what a topic then must hold."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from accesslog import AccessLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Delivered", "LogWriter", "Written"]

WRITE_SECONDS = 0.005


@dataclass(slots=True)
class Written:
    """Every line written, unique over all files: where it stands in its stream."""

    streams: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, stream: str, lines: Sequence[bytes]) -> None:
        """Note lines, without their line feeds, in the order in which they are written to a stream."""
        number = self.counts.get(stream, 0)
        for line in lines:
            assert line not in self.streams, f"written twice: {line[:200]!r}"
            self.streams[line] = (stream, number)
            number += 1
        self.counts[stream] = number

    def __len__(self) -> int:
        return len(self.streams)

    def compare(self, read: Mapping[int, Sequence[bytes]]) -> Delivered:
        """What came of it. Order is that of first occurrences, within a stream and a partition.

        A line that came in several partitions was sent again after a death; which of them came first is not known, so
        its place says nothing about order.
        """
        delivered = Delivered(lines=len(self))
        partitions_of: dict[bytes, set[int]] = {}
        for partition, values in read.items():
            for value in values:
                partitions_of.setdefault(value, set()).add(partition)
        for partition, values in read.items():
            last: dict[str, int] = {}
            for value in dict.fromkeys(values):
                known = self.streams.get(value)
                if known is None:
                    delivered.foreign.append(value[:200])
                elif len(partitions_of[value]) == 1:
                    stream, number = known
                    if number < last.get(stream, -1):
                        delivered.disordered.append((partition, stream, number))
                    last[stream] = max(number, last.get(stream, -1))
        delivered.missing = [place for line, place in self.streams.items() if line not in partitions_of]
        delivered.duplicates = sum(map(len, read.values())) - len(partitions_of)
        return delivered


@dataclass(slots=True)
class Delivered:
    """How a topic differs from what was written to the files."""

    lines: int
    missing: list[tuple[str, int]] = field(default_factory=list)
    foreign: list[bytes] = field(default_factory=list)
    """Records that no file ever had as a line."""
    disordered: list[tuple[int, str, int]] = field(default_factory=list)
    """(partition, stream, line): a first occurrence behind that of a later line."""
    duplicates: int = 0

    @property
    def complete(self) -> bool:
        """Every line is there."""
        return not self.missing

    def check(self, *, duplicates: bool) -> None:
        """Fail unless every line is there, nothing else, in order; and, unless `duplicates` are allowed, once."""
        assert not self.missing, f"{len(self.missing)} of {self.lines} lines missing, the first: {self.missing[:5]}"
        assert not self.foreign, f"{len(self.foreign)} records are no line of any file, the first: {self.foreign[:3]}"
        assert not self.disordered, f"{len(self.disordered)} lines out of order, the first: {self.disordered[:5]}"
        if not duplicates:
            assert self.duplicates == 0, f"{self.duplicates} of {self.lines} lines came more than once"


class LogWriter:
    """Writes an access log at a steady rate from a thread, as a web server does; rotates it when told to.

    Invariants
        A line counts as written once the kernel has it.
        Whoever leaves the block has the thread behind him.
    """

    def __init__(self, path: Path, written: Written, *, seed: int = 1, rate: int = 2_000_000) -> None:
        self.path = path
        self._written = written
        self._stream = path.name
        self._log = AccessLog(seed)
        self._rate = rate
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"writer of {path.name}", daemon=True)
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join(30)
        self._file.close()
        if self._failure is not None:
            raise self._failure

    def rotate(self, to: Path) -> None:
        """Rename the file and go on in a new one of the old name, as logrotate does with `create`."""
        with self._lock:
            self.path.rename(to)
            self._file.close()
            self._file = self.path.open("ab", buffering=0)

    def truncate(self, copy_to: Path) -> None:
        """Copy the file and empty it, as logrotate does with `copytruncate`, here without losing lines in between."""
        with self._lock:
            copy_to.write_bytes(self.path.read_bytes())
            self._file.truncate(0)

    def _run(self) -> None:
        started = time.monotonic()
        written = 0
        try:
            while not self._ended.wait(WRITE_SECONDS):
                due = int((time.monotonic() - started) * self._rate) - written
                if due > 0:
                    chunk = b"".join(self._log.blocks(due))
                    with self._lock:
                        self._written.add(self._stream, chunk.splitlines())
                        self._file.write(chunk)
                    written += len(chunk)
        except BaseException as failure:  # noqa: BLE001 - raised where the block is left
            self._failure = failure
