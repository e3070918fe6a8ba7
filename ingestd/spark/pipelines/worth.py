"""Worth: how many offsets make a file's worth of bytes, learned from each micro-batch that was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Worth"]


class Worth:
    """Tells the source, by a file, for how many offsets a micro-batch shall wait (`minOffsetsFile`).

    The source runs in a process of its own, beside the driver, which hears nothing else of the sink. What is learned
    from few rows is too small, because each file has a fixed part. Then the next micro-batch is larger, and tells more.
    """

    def __init__(self, file_bytes: int, file: Path) -> None:
        self._file_bytes = file_bytes
        self._file = file
        self._sizes: dict[int, int] = {}

    def wrote(self, batch: int, size: int) -> None:
        """The files of a micro-batch have so many bytes."""
        self._sizes = {batch: size}

    def read(self, batch: int, rows: int) -> None:
        """A micro-batch that is written has read so many rows."""
        size = self._sizes.pop(batch, 0)
        if not size or not rows:
            return
        whole = self._file.with_suffix(".new")
        whole.write_text(str(max(1, self._file_bytes * rows // size)))
        whole.replace(self._file)
