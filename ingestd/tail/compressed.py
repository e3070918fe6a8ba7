"""What was compressed after rotation: not read, but recognised, so that bytes that were not delivered are named."""

from __future__ import annotations

import gzip
import os
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from ingestd.tail.identity import HEAD_BYTES

if TYPE_CHECKING:
    from ingestd.tail.identity import Identity, Nearby

__all__ = ["CompressedCopy", "compressed_copy"]

_SUFFIX: Final = ".gz"
_SIZE_FIELD_BYTES: Final = 4


class CompressedCopy(NamedTuple):
    """A compressed file, and the bytes in it before compression (modulo 4 GiB: RFC 1952, ISIZE)."""

    path: str
    size: int


def compressed_copy(identity: Identity, nearby: Nearby) -> CompressedCopy | None:
    """The gzip file beside a file that has its content, by the fingerprint; None when there is none.

    Raises `OSError` as `Nearby.of` does.
    """
    for path, _ in nearby.of(identity)[1]:
        if not path.endswith(_SUFFIX):
            continue
        try:
            with gzip.open(path) as stream:
                head = stream.read(HEAD_BYTES)
            with open(path, "rb") as raw:
                raw.seek(-_SIZE_FIELD_BYTES, os.SEEK_END)
                size = int.from_bytes(raw.read(_SIZE_FIELD_BYTES), "little")
        except (OSError, EOFError, zlib.error):
            continue  # unreadable or still being written: nothing to recognise it by
        if identity.fingerprint.fits(head):
            return CompressedCopy(path, size)
    return None
