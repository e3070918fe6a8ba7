"""Swaps: a cleaned segment takes the place of those that it was made from. After a kill, either is there as a whole.

The steps, and what a start finds after a kill behind each:

1. `NAME.cleaned` is written and synced. A start removes it.
2. It is renamed to `FIRST-END.swap`, and the directory is synced. From here on a start finishes the swap.
3. The segments from FIRST up to END are removed. The swap file is linked under the first one's name.
4. The directory is synced, the swap file is removed, and the directory is synced again.

The swap file is there until all other names are on the disk. So it does not matter in which order the disk takes them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ingestd.broker.log.files import sync_directory, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "CLEANED_SUFFIX",
    "end_swap",
    "expect_gaps",
    "finish_swaps",
    "link_swap",
    "prepare_swap",
    "read_cleaned_offset",
    "swap_path",
    "write_cleaned_offset",
]

CLEANED_SUFFIX: Final = ".cleaned"
_SWAP_SUFFIX: Final = ".swap"
_CLEANED_OFFSET_FILE: Final = "cleaned-offset"
_ANYWHERE: Final = (1 << 63) - 1


def swap_path(directory: Path, first: int, end: int) -> Path:
    """The swap file of the segments from `first` up to `end`."""
    return directory / f"{first:020d}-{end:020d}{_SWAP_SUFFIX}"


def prepare_swap(cleaned: Path, swap: Path) -> None:
    """Step 2, with a cleaned file that is on the disk. Raises `OSError`."""
    cleaned.rename(swap)
    sync_directory(swap.parent)


def link_swap(swap: Path, segment: Path) -> None:
    """The end of step 3: no old segment is there any more. Raises `OSError`."""
    os.link(swap, segment)


def end_swap(swap: Path) -> None:
    """Step 4. Raises `OSError`."""
    sync_directory(swap.parent)
    swap.unlink()
    sync_directory(swap.parent)


def finish_swaps(directory: Path, segment_suffix: str) -> list[str]:
    """Before a log is opened: remove what was not finished, and finish what was prepared. Raises `OSError`.

    Returns the names in the directory.
    """
    names = os.listdir(directory)  # noqa: PTH208 - no object for each file: there are thousands of partitions
    if not any(CLEANED_SUFFIX in name or name.endswith(_SWAP_SUFFIX) for name in names):
        return names
    for name in names:
        if CLEANED_SUFFIX in name:
            (directory / name).unlink()
    for name in sorted(names):
        if name.endswith(_SWAP_SUFFIX):
            first, end = map(int, name.removesuffix(_SWAP_SUFFIX).split("-"))
            for old in names:
                stem, dot, kind = old.partition(".")
                # An empty segment has no offsets, and its file is in the way all the same.
                replaced = stem.isdigit() and (first <= int(stem) < end or int(stem) == first)
                if replaced and dot + kind in {segment_suffix, ".index"}:
                    (directory / old).unlink(missing_ok=True)
            link_swap(directory / name, directory / f"{first:020d}{segment_suffix}")
            end_swap(directory / name)
    return os.listdir(directory)  # noqa: PTH208


def read_cleaned_offset(directory: Path) -> tuple[int, int]:
    """The offset up to which a log was cleaned, and the one up to which it may have gaps: both 0 if it never was.

    Raises `OSError`.
    """
    path = directory / _CLEANED_OFFSET_FILE
    if not path.exists():
        return 0, 0
    cleaned, *gaps = map(int, path.read_text("ascii").split())
    # Older versions wrote only the first.
    return cleaned, gaps[0] if gaps else _ANYWHERE


def write_cleaned_offset(directory: Path, offset: int) -> None:
    """Write how far a log was cleaned. Raises `OSError`."""
    _write(directory, offset, max(offset, read_cleaned_offset(directory)[1]))


def expect_gaps(directory: Path, until: int) -> None:
    """Write that offsets before `until` may be missing. Before the swap that leaves them out. Raises `OSError`."""
    cleaned, expected = read_cleaned_offset(directory)
    if until > expected:
        _write(directory, cleaned, until)


def _write(directory: Path, cleaned: int, gaps_until: int) -> None:
    write_atomically(directory / _CLEANED_OFFSET_FILE, f"{cleaned} {gaps_until}".encode("ascii"))
