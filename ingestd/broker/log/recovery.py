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


def load_segments(directory: Path, files: OpenFiles, config: TopicConfig, *, gaps: bool) -> list[Segment]:
    """The segments that follow each other, at least one. Files of others are removed. Raises `OSError`.

    `gaps`: offsets may be missing, because the cleaner left them out. Else a gap is damage.
    """
    finish_swaps(directory, LOG_SUFFIX)
    segments: list[Segment] = []
    torn = False
    for base_offset in sorted(int(path.stem) for path in directory.glob(f"*{LOG_SUFFIX}")):
        segment = Segment(files, directory, base_offset, config.index_interval)
        if segments and (torn or not _may_follow(base_offset, segments[-1].next_offset, gaps=gaps)):
            _log.warning(
                "segment does not follow the log, removed",
                segment=str(segment.path),
                expected=segments[-1].next_offset,
            )
            segment.delete()
            continue
        torn = segment.load(compacted=gaps)
        segments.append(segment)
    if not segments:
        segments.append(Segment(files, directory, 0, config.index_interval))
    known = {segment.base_offset for segment in segments}
    for path in directory.glob("*.index"):
        if int(path.stem) not in known:
            path.unlink()
    return segments


def _may_follow(base_offset: int, end_offset: int, *, gaps: bool) -> bool:
    """Whether a segment may come next. In a cleaned log, the last batches of a segment may have been removed."""
    return base_offset == end_offset or (gaps and base_offset > end_offset)


def load_start_offset(directory: Path, segments: list[Segment]) -> int:
    """Where the log starts. Raises `OSError`."""
    first = segments[0].base_offset
    path = directory / START_OFFSET_FILE
    if not path.exists():
        return first
    return min(max(first, int(path.read_text("ascii"))), segments[-1].next_offset)
