"""Recovery: what of a partition's directory is a log. What a crash left unfinished is cut off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.broker.log.log_start import START_OFFSET_FILE
from ingestd.broker.log.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment
from ingestd.broker.log.swaps import finish_swaps
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from ingestd.broker.log.files import OpenFiles
    from ingestd.broker.topic_config import TopicConfig

__all__ = ["Recovered", "load_segments"]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The `segments` of a log, at least one, where it starts, and the names in its directory."""

    segments: list[Segment]
    start_offset: int
    names: list[str]


def load_segments(directory: Path, files: OpenFiles, config: TopicConfig, *, gaps_until: int) -> Recovered:
    """The segments that follow each other. Others are set aside. Raises `OSError`.

    Before `gaps_until`, offsets may be missing, because the cleaner left them out. Elsewhere a gap is damage.
    """
    names = finish_swaps(directory, LOG_SUFFIX)
    segments: list[Segment] = []
    torn = False
    bases = sorted(int(name.removesuffix(LOG_SUFFIX)) for name in names if name.endswith(LOG_SUFFIX))
    start_offset = _read_start_offset(directory) if START_OFFSET_FILE in names else 0
    while len(bases) > 1 and bases[1] <= start_offset:
        # It was deleted. A loss of power may have brought back some of several, with a gap between them.
        Segment(files, directory, bases.pop(0), config.index_interval).delete()
    for base_offset in bases:
        segment = Segment(files, directory, base_offset, config.index_interval)
        if segments and (torn or not _may_follow(base_offset, segments[-1].next_offset, gaps_until=gaps_until)):
            _log.warning(
                "segment does not follow the log: its records are not served, and kept beside it",
                segment=str(segment.set_aside()),
                expected=segments[-1].next_offset,
            )
            continue
        if segments:
            # The last batches of the segment before may have been removed.
            segments[-1].next_offset = base_offset
        torn = segment.load(gaps_until=gaps_until)
        segments.append(segment)
    if not segments:
        segments.append(Segment(files, directory, 0, config.index_interval))
    known = {segment.base_offset for segment in segments}
    for name in names:
        if name.endswith(INDEX_SUFFIX) and int(name.removesuffix(INDEX_SUFFIX)) not in known:
            (directory / name).unlink(missing_ok=True)
    return Recovered(segments, min(max(segments[0].base_offset, start_offset), segments[-1].next_offset), names)


def _may_follow(base_offset: int, end_offset: int, *, gaps_until: int) -> bool:
    """Whether a segment may come next. The cleaner may have removed the last batches of the one before."""
    return base_offset == end_offset or end_offset < base_offset <= gaps_until


def _read_start_offset(directory: Path) -> int:
    return int((directory / START_OFFSET_FILE).read_text("ascii"))
