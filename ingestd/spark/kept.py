"""Kept: what a task in a Python worker leaves for the next one. Spark runs one task at a time in a worker."""

from __future__ import annotations

import atexit
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

__all__ = ["Kept"]


class _Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


class Kept(Generic[T]):
    """At most one thing with a `close`, of one key. It is closed when another key is asked for, and at exit.

    Invariants
        Nobody else has what `lent` gives. What a block did not end well with is closed, and not kept.
    """

    def __init__(self) -> None:
        self._held: tuple[Hashable, T] | None = None
        self._settled = False
        atexit.register(self.close)

    @contextmanager
    def lent(self, key: Hashable, make: Callable[[], T]) -> Iterator[T]:
        """What is kept under `key`, or else what `make` makes."""
        held, self._held = self._held, None
        if held is not None and held[0] != key:
            held[1].close()
            held = None
        one = make() if held is None else held[1]
        try:
            yield one
        except BaseException:
            one.close()
            raise
        self.close()
        self._held = key, one
        if not self._settled:
            # Spark's worker collects all garbage after every task. What is loaded by now is looked through no more.
            # Only once: what is frozen in a cycle is never freed.
            self._settled = True
            gc.freeze()

    def close(self) -> None:
        """Close what is kept."""
        held, self._held = self._held, None
        if held is not None:
            held[1].close()
