"""How much work something is, counted: a busy machine makes it no more."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["lines_run"]

T = TypeVar("T")


def lines_run(work: Callable[[], T]) -> tuple[int, T]:
    """How many lines of Python run in `work`, in this thread, and what it returns."""
    count = 0

    def line(_frame: Any, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        result = work()
    finally:
        sys.settrace(before)
    return count, result
