"""Imports that other packages make for conveniences of theirs, which every process of ours would pay for, kept out."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["own_process", "without"]

own_process = False
"""Whether this process is the `ingestd` command's, which says what is to be said of imports once its log is set up."""


@contextmanager
def without(module: str) -> Iterator[None]:
    """Within the block an import of `module` is an ImportError, unless it was imported before; afterwards as ever."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # what makes the import system raise ImportError
    try:
        yield
    finally:
        del sys.modules[module]
