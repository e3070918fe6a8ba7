"""Returned: sorts a partition's batches that came back. Some are tried again, others end. None is in flight then."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingestd.errors import CorruptBatch
from ingestd.producer.batch import Verdict, judge

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from ingestd.errors import IngestdError
    from ingestd.producer.batch import Batch

__all__ = ["Returned", "sort_returned"]


@dataclass(slots=True)
class Returned:
    """What happens to the batches that were tried. Made by `sort_returned`."""

    left: list[Batch] = field(default_factory=list)
    """To be tried again, in order."""
    ended: list[tuple[Batch, IngestdError]] = field(default_factory=list)
    retried: list[IngestdError] = field(default_factory=list)
    """Why those in `left` came back, if they did."""
    decisive: IngestdError | None = None
    """The error that says how to go on."""
    missed: bool = False
    """The leader misses the sequence before the first of `left`, or before the suspect."""
    hole: bool = False
    """It is certain that the log lacks one of `ended`. So nothing after it can be appended under this epoch."""
    fatal: IngestdError | None = None
    """Nothing of this producer can be appended any more. Then only this and `ended` count."""


def sort_returned(
    queue: deque[Batch],
    suspected: Batch | None,
    halves: Callable[[Batch], tuple[Batch, Batch]],
    *,
    numbered: bool,
) -> Returned:
    """Take the batches that were tried from the front of `queue`, and put back those to try again.

    `suspected` was tried out of order. `halves` splits a batch that is too large, and raises `CorruptBatch`.
    """
    sorted_out = Returned()
    left = sorted_out.left
    while queue and queue[0].attempts:
        batch = queue.popleft()
        error, batch.error = batch.error, None
        if error is None:
            left.append(batch)
            continue
        verdict = judge(batch, error, numbered=numbered)
        if verdict is Verdict.FATAL:
            left.append(batch)
            sorted_out.fatal = error
            break
        if left and verdict in (Verdict.SPLIT, Verdict.FAIL):
            # Those before it may be in the log and keep their sequences until that is known. It is sent again behind
            # them, and refused again.
            verdict = Verdict.RENUMBER
        if verdict is Verdict.SPLIT:
            try:
                left.extend(halves(batch))
                sorted_out.retried.append(error)
                continue
            except CorruptBatch as damage:
                verdict, error = Verdict.FAIL, damage
        if verdict is Verdict.FAIL:
            sorted_out.ended.append((batch, error))
            sorted_out.hole = sorted_out.hole or not batch.uncertain
            continue
        left.append(batch)
        # OUT_OF_ORDER_SEQUENCE says something of the first alone, and of a suspect; behind these it only follows.
        if sorted_out.decisive is None and (verdict is Verdict.RETRY or batch is suspected or len(left) == 1):
            sorted_out.decisive = error
            sorted_out.missed = verdict is Verdict.RENUMBER
        sorted_out.retried.append(error)
    queue.extendleft(reversed(left))
    return sorted_out
