"""The producers of one partition and their transactions: what a batch changes, and what is known after a restart."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from ingestd.broker.log.markers import marker_of
from ingestd.broker.log.producer_state import ProducerStates
from ingestd.broker.log.transactions import AbortedTransaction, LogEnd, OpenTransactions
from ingestd.errors import CorruptBatch
from ingestd.logs import get_logger
from ingestd.records.batch import NO_PRODUCER_ID
from ingestd.records.decode import ControlKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ingestd.broker.log.segment import Segment
    from ingestd.records.batch import BatchHeader
    from ingestd.records.decode import ControlMarker

__all__ = ["PartitionProducers"]

_SUFFIX: Final = ".producers"
_log = get_logger(__name__)


class PartitionProducers:
    """Keeps producer state, open transactions and the segments' lists of aborted transactions in step with the log.

    Invariants
        All of it is a function of the log: a snapshot, and a replay of the headers behind it, give it again.
        The list of a sealed segment is complete. The list of another one is made again by the replay.
    """

    def __init__(self, directory: Path, expiry: float) -> None:
        self._directory = directory
        self.states = ProducerStates(expiry)
        self.transactions = OpenTransactions()

    def check(self, header: BatchHeader, marker: ControlMarker | None) -> int | None:
        """The base offset that the same batch got before; None if the batch may be appended. Raises `KafkaError`."""
        if marker is not None:
            self.states.check_marker(marker)
        elif header.producer_id != NO_PRODUCER_ID and not header.control:
            return self.states.check(header)
        return None

    def appended(
        self, segment: Segment, header: BatchHeader, marker: ControlMarker | None, place: LogEnd, written: float
    ) -> None:
        """Remember a batch at `place`, the last one of `segment`. `written`: seconds since the epoch."""
        if marker is not None:
            self._ended(segment, header, marker, place, written)
        elif (
            header.producer_id != NO_PRODUCER_ID
            and not header.control
            and self.states.appended(header, place.offset, written)
        ):
            self.transactions.began(header.producer_id, place)

    def _ended(
        self, segment: Segment, header: BatchHeader, marker: ControlMarker, place: LogEnd, written: float
    ) -> None:
        first_offset = self.states.ended(marker, header.max_timestamp, written)
        if first_offset is None:
            return
        self.transactions.ended(marker.producer_id, place.offset)
        if marker.kind is ControlKind.abort and not segment.sealed:
            stable = self.transactions.first_open(place.offset + 1)
            segment.index.add_aborted(AbortedTransaction(marker.producer_id, first_offset, place.offset, stable))

    # On the disk.

    def load(self, segments: Sequence[Segment], names: Iterable[str]) -> None:
        """Read the newest usable snapshot. Then replay the batches after it. Raises `OSError`.

        `names`: those in the log's directory.
        """
        snapshots = sorted((name for name in names if name.endswith(_SUFFIX)), reverse=True)
        # Segments that have no index yet are read, to see which transactions were aborted in them.
        unsealed = (segment.base_offset for segment in segments if segment.size and not segment.sealed)
        replay_from = self._read_snapshot(snapshots, segments[0].base_offset, next(unsealed, segments[-1].next_offset))
        for producer in sorted(self.states, key=lambda one: one.first_offset):
            if producer.first_offset >= 0:
                self.transactions.began(producer.producer_id, _place_of(segments, producer.first_offset))
        try:
            self._replay(segments, replay_from)
        except CorruptBatch as error:
            # A sealed segment changed on the disk. Its readers get an error; the rest of the log is good.
            _log.error("log is damaged", partition=self._directory.name, error=str(error))
        self.states.expire()

    def _read_snapshot(self, snapshots: Iterable[str], first: int, last: int) -> int:
        """Read the newest snapshot of an offset from `first` to `last`. Returns that offset; `first` if there is none.

        After a snapshot from before the log's first segment, batches are missing for the replay. Producers would be
        held to sequences that are long past.
        """
        for path in map(self._directory.joinpath, snapshots):
            if first <= int(path.stem) <= last and self.states.read(path):
                return int(path.stem)
            path.unlink()
        return first

    def _replay(self, segments: Sequence[Segment], replay_from: int) -> None:
        behind = sum(segment.size for segment in segments)
        needed = _snapshots_needed(segments)
        for segment in segments:
            if segment.base_offset > replay_from and segment.base_offset in needed:
                self._write_snapshot(segment.base_offset)
            if segment.next_offset > replay_from:
                for position, header in segment.headers(max(replay_from, segment.base_offset)):
                    if header.producer_id != NO_PRODUCER_ID and header.base_offset >= replay_from:
                        marker = marker_of(segment.read(position, header.size), header) if header.control else None
                        place = LogEnd(header.base_offset, position - behind)
                        self.appended(segment, header, marker, place, segment.created)
            behind -= segment.size

    def write(self, segments: Sequence[Segment]) -> None:
        """Write the state as it is at the log's end, and remove the snapshots that no start needs.

        Also without producers: then the next start need not look for them in the whole log. If it can not be written,
        the next start replays from an older snapshot.
        """
        self.states.expire()
        end = segments[-1].next_offset
        if self._write_snapshot(end):
            needed = _snapshots_needed(segments) | {end}
            for path in self._directory.glob(f"*{_SUFFIX}"):
                if int(path.stem) not in needed:
                    path.unlink()

    def _write_snapshot(self, offset: int) -> bool:
        try:
            self.states.write(self._directory / f"{offset:020d}{_SUFFIX}")
        except OSError as error:
            _log.warning("producer snapshot not written", partition=self._directory.name, error=str(error))
            return False
        return True


def _snapshots_needed(segments: Sequence[Segment]) -> set[int]:
    """The offsets where a start may begin its replay: those of segments that have no index, or may be without one.

    What is before them may be deleted meanwhile. Then nothing else tells of its producers.
    """
    last_two = {segment.base_offset for segment in segments[-2:]}
    return last_two.union(segment.base_offset for segment in segments if not segment.sealed)


def _place_of(segments: Sequence[Segment], offset: int) -> LogEnd:
    """Where a batch begins, in a log that was just opened. Raises `OSError`."""
    at = max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    found = next(segments[at].headers(offset), None)
    # The segment with the beginning of a transaction may have been removed.
    position = 0 if found is None else found[0]
    return LogEnd(offset, position - sum(segment.size for segment in segments[at:]))
