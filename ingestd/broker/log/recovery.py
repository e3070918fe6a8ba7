"""Recovery: what of a partition's directory is a log. What a crash left unfinished is cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.log.segment import LOG_SUFFIX, Segment
from ingestd.broker.log.swaps import finish_swaps
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from ingestd.broker.log.files import OpenFiles
    from ingestd.broker.topic_config import TopicConfig

__all__ = ["START_OFFSET_FILE", "load_segments", "load_start_offset"]

START_OFFSET_FILE: Final = "log-start-offset"
_log = get_logger(__name__)


def load_segments(directory: Path, files: OpenFiles, config: TopicConfig, *, gaps_until: int) -> list[Segment]:
    """The segments that follow each other, at least one. Files of others are removed. Raises `OSError`.

    Before `gaps_until`, offsets may be missing, because the cleaner left them out. Elsewhere a gap is damage.
    """
    finish_swaps(directory, LOG_SUFFIX)
    segments: list[Segment] = []
    torn = False
    bases = sorted(int(path.stem) for path in directory.glob(f"*{LOG_SUFFIX}"))
    start_offset = _read_start_offset(directory)
    while len(bases) > 1 and bases[1] <= start_offset:
        # It was deleted. A loss of power may have brought back some of several, with a gap between them.
        Segment(files, directory, bases.pop(0), config.index_interval).delete()
    for base_offset in bases:
        segment = Segment(files, directory, base_offset, config.index_interval)
        if segments and (torn or not _may_follow(base_offset, segments[-1].next_offset, gaps_until=gaps_until)):
            _log.warning(
                "segment does not follow the log, removed",
                segment=str(segment.path),
                expected=segments[-1].next_offset,
            )
            segment.delete()
            continue
        if segments:
            # The last batches of the segment before may have been removed.
            segments[-1].next_offset = base_offset
        torn = segment.load(gaps_until=gaps_until)
        segments.append(segment)
    if not segments:
        segments.append(Segment(files, directory, 0, config.index_interval))
    known = {segment.base_offset for segment in segments}
    for path in directory.glob("*.index"):
        if int(path.stem) not in known:
            path.unlink()
    return segments


def _may_follow(base_offset: int, end_offset: int, *, gaps_until: int) -> bool:
    """Whether a segment may come next. The cleaner may have removed the last batches of the one before."""
    return base_offset == end_offset or end_offset < base_offset <= gaps_until


def load_start_offset(directory: Path, segments: list[Segment]) -> int:
    """Where the log starts. Raises `OSError`."""
    return min(max(segments[0].base_offset, _read_start_offset(directory)), segments[-1].next_offset)


def _read_start_offset(directory: Path) -> int:
    path = directory / START_OFFSET_FILE
    return int(path.read_text("ascii")) if path.exists() else 0
