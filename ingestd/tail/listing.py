"""Listing: what the globs match now. Nothing is opened, nothing shared: a thread makes it, since disks take time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from ingestd.tail.globs import Globs

__all__ = ["Listing", "list_files"]


@dataclass(slots=True)
class Listing:
    """One look at the directories: each thing once, whatever it is and however many names lead to it."""

    files: dict[tuple[int, int], tuple[str, os.stat_result]] = field(default_factory=dict)
    """By device and inode: a path, and what is there."""
    directories: set[str] = field(default_factory=set)
    """Directories that were looked into."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Paths or globs of which nothing can be known, and why."""


def list_files(globs: Globs) -> Listing:
    """Look into every directory that can hold a file of the globs."""
    listing = Listing()
    for entry in globs.walk(listing.directories, listing.troubles.setdefault):
        try:
            status = entry.stat()
        except OSError as error:
            listing.troubles.setdefault(entry.path, _why_not(entry, error))
        else:
            listing.files.setdefault((status.st_dev, status.st_ino), (entry.path, status))
    return listing


def _why_not(entry: os.DirEntry[str], error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "a symbolic link that leads nowhere" if entry.is_symlink() else "vanished"
    return f"can not be read: {error.strerror}"
