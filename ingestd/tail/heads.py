"""Heads: how files begin, for one round of examinations. What begins in another way is neither's copy.

So of a log with thousands of generations, a new file is compared with those alone that begin as it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.tail.generation import Phase
from ingestd.tail.known import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.tail.facts import Place
    from ingestd.tail.file_id import FileId
    from ingestd.tail.generation import Generation

__all__ = ["Heads"]

_MOST: Final = 8192
"""So many heads of files, and of generations, are remembered. What has none is compared with all."""


class Heads:
    """The heads of one round.

    A file is compared with what is read now even where it has other content: that may have been truncated. A head says
    that it was not, in this round. A truncation after that can not be how a file came that began in another way before.
    So heads are of use for one round. The finder and its thread use them by turns.
    """

    def __init__(self) -> None:
        self.seen: dict[FileId, bytes] = {}
        """Of the files to examine, before the first of them was examined."""
        self.examined: dict[FileId, bytes] = {}
        """Of those that were found to be text just now, as they were examined."""
        self._known: dict[str, bytes] = {}
        """Of generations, by source."""

    def see(self, file: FileId, head: bytes) -> None:
        """This file begins so now."""
        if len(self.seen) < _MOST:
            self.seen[file] = head

    def alike(self, longer: Place, shorter: Place) -> bool:
        """Whether one file begins as another one does, as far as is known."""
        return self.seen.get(longer.file, b"").startswith(self.seen.get(shorter.file, b""))

    def note(self, source: str, head: bytes) -> None:
        """This generation begins so. It is in its file now."""
        if head and len(self._known) < _MOST:
            self._known[source] = head

    def apart_from(self, head: bytes) -> Callable[[Generation], bool]:
        """Says of a generation whether it and a file with this head do not begin alike.

        Of an empty head, nothing is known.
        """
        known = self._known
        hashes: dict[int, str] = {}

        def is_apart(generation: Generation) -> bool:
            other = known.get(generation.source)
            if other is not None:
                return not (other.startswith(head) or head.startswith(other))
            if generation.phase is Phase.READING:
                return False
            witness = generation.known.witness
            if witness is None or not 0 < witness.head_bytes <= len(head):
                return False
            if witness.head_bytes not in hashes:
                hashes[witness.head_bytes] = digest_of(head[: witness.head_bytes])
            return hashes[witness.head_bytes] != witness.head

        return is_apart

    def clear(self) -> None:
        """The round is over."""
        self.seen.clear()
        self.examined.clear()
        self._known.clear()
