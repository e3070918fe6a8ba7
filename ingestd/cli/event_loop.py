"""Runs a verb's coroutine on the fastest event loop there is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["run_async"]

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; uvloop's where it exists, else asyncio's own loop."""
    try:
        import uvloop  # noqa: PLC0415 - there is none for Windows
    except ImportError:
        return asyncio.run(work)
    result: T = uvloop.run(work)
    return result
