"""Imports that other packages make for conveniences of theirs, which every process of ours would pay for, kept out."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["command_of", "own_process", "without"]

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


def command_of(module: str) -> list[str]:
    """`python -m MODULE` in a fresh interpreter.

    It looks for modules in the current directory only if this process does, since a directory `ingestd` may be there.
    """
    safe_path = [] if _looks_for_modules_here() else ["-P"]
    return [sys.executable, *safe_path, "-m", module]


def _looks_for_modules_here() -> bool:
    try:
        here = os.getcwd()  # noqa: PTH109 - every process imports this module, few need pathlib
    except FileNotFoundError:  # it was removed
        return False
    return not {"", here}.isdisjoint(sys.path)
