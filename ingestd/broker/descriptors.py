"""Descriptors: what connections and segments leave to the other files that the broker opens.

The kernel hands out the lowest free number. So whoever takes none beyond a line leaves all that are beyond it. Without
that, clients could take the last one, and the broker could open no segment, write no list, and import no schema.
"""

from __future__ import annotations

import resource
import sys
from typing import Final

__all__ = ["end_of_connections", "end_of_segments"]

_LEFT_BY_SEGMENTS: Final = 32
_LEFT_BY_CONNECTIONS: Final = 64


def end_of_connections() -> int:
    """No connection has this number, or a higher one."""
    return _end(_LEFT_BY_CONNECTIONS, at_most=0.5)


def end_of_segments() -> int:
    """No segment has this number, or a higher one, but the only one that is open."""
    return _end(_LEFT_BY_SEGMENTS, at_most=0.25)


def _end(left: int, at_most: float) -> int:
    limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return limit - min(left, int(limit * at_most))
