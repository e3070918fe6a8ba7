"""What kafka-python does that its users have to know."""

from __future__ import annotations

import gc
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["left_sockets"]


@contextmanager
def left_sockets() -> Iterator[None]:
    """Around the last that is done with a client; also a decorator.

    kafka-python 3.0.12 leaves the socket of a connection that is being made when its client is closed to the garbage
    collector. Python says so wherever it finds it next, which would be in a test that has nothing to do with it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
