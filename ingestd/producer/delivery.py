"""Delivery: how a record or a batch ended. Every accepted one ends in exactly one."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ingestd.records.loops import tell_results

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.errors import IngestdError

__all__ = ["Delivered", "Delivery", "RecordEnds", "SplitEnds", "deliver", "untold"]


class Delivery(NamedTuple):
    """The end of one batch: an offset, or the error that ended it.

    `base_offset` is the offset of the batch's first record. It is -1 if the broker did not say: with acks=0, and if
    only the acknowledgement of a later batch tells that this one is in the log. `log_append_time_ms` is -1 unless the
    topic stamps records itself.
    """

    topic: str
    partition: int
    records: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    error: IngestdError | None = None


Delivered: TypeAlias = "Callable[[Delivery], None]"
"""Called exactly once for each accepted batch, on the event loop. It must not raise and must not block."""


class SplitEnds(ABC):
    """A `Delivered` of a batch that may become two. Then each of these has one of its own, and it is not called."""

    __slots__ = ()

    @property
    def alone(self) -> bool:
        """Whether a batch is split until the records that the broker refuses are alone. If not, all of it fails."""
        return False

    @abstractmethod
    def __call__(self, whole: Delivery) -> None:
        """Tell the end of the batch."""

    @abstractmethod
    def split(self, at: int) -> tuple[SplitEnds, SplitEnds]:
        """Those of the first `at` records, and those of the others."""


class RecordEnds(SplitEnds):
    """The callbacks of a batch's records, in order: a `Delivered` that tells each of its own end.

    `dones` may be shorter than the batch: the last records then have none.
    """

    __slots__ = ("_dones",)

    def __init__(self, dones: list[Delivered | None]) -> None:
        self._dones = dones

    def __call__(self, whole: Delivery) -> None:
        """Tell each record."""
        topic, partition, _, base, appended_at, error = whole
        if error is None and tell_results(self._dones, partition, base, appended_at):
            return
        nowhere = Delivery(topic, partition, 1, -1, appended_at, error) if base < 0 else None
        make = partial(tuple.__new__, Delivery)  # twice as fast as the class
        for index, done in enumerate(self._dones):
            if done is not None:
                try:
                    done(nowhere or make((topic, partition, 1, base + index, appended_at, error)))
                except Exception as damage:  # noqa: BLE001 - as in `deliver`
                    _report(whole, damage)

    @property
    def told(self) -> int:
        """How many records have a callback."""
        return len(self._dones) - self._dones.count(None)

    def split(self, at: int) -> tuple[RecordEnds, RecordEnds]:
        """The callbacks of the first `at` records, and those of the others."""
        return RecordEnds(self._dones[:at]), RecordEnds(self._dones[at:])


def untold(done: Delivered | None, records: int) -> int:
    """How many records of a batch have no callback."""
    if done is None:
        return records
    return records - done.told if isinstance(done, RecordEnds) else 0


def deliver(done: Delivered, delivery: Delivery) -> None:
    """Call `done`. If it raises, the loop's exception handler is told, and everything else goes on."""
    try:
        done(delivery)
    except Exception as error:  # noqa: BLE001 - whatever the caller's code raises, the other batches' ends must come
        _report(delivery, error)


def _report(delivery: Delivery, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"{delivery.topic}[{delivery.partition}]: a delivery callback raised", "exception": error}
    )
