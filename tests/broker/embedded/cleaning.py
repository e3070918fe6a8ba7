"""The cleaner without a child process, for tests that clean often."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING
from unittest import mock

from ingestd.broker.cleaner import cleaner
from ingestd.broker.cleaner.cleaner import Cleaner
from ingestd.broker.cleaner.cleaning_process import CleaningFailed
from ingestd.broker.cleaner.log_cleaning import clean_log
from ingestd.broker.clock import Clock
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.broker.cleaner.job import Cleaned, Cleaning
    from ingestd.broker.log.partition_log import PartitionLog

__all__ = ["clean"]

MAP_BYTES = 1 << 20


class CleaningThread:
    """As `CleaningProcess`, in the thread that calls it."""

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning
        self._groups: Iterator[Cleaned] = iter(())

    def start(self) -> None:
        self._groups = clean_log(self._cleaning)

    def receive(self) -> Cleaned | None:
        try:
            return next(self._groups, None)
        except IngestdError as error:
            raise CleaningFailed(str(error)) from error

    def kill(self) -> None:
        pass

    def end(self) -> None:
        for group in self._cleaning.groups:
            group.cleaned.unlink(missing_ok=True)
            group.index.unlink(missing_ok=True)


class AtTime(Clock):
    """The time of the epoch is what a test says."""

    def __init__(self, now: float) -> None:
        self._now = now

    def wall(self) -> float:
        return self._now


def clean(log: PartitionLog, now: float, map_bytes: int = MAP_BYTES) -> None:
    """Clean a log until it is not dirty enough any more. `now`: seconds since the epoch. Nothing is synced."""
    with mock.patch.object(cleaner, "CleaningProcess", CleaningThread), mock.patch.object(os, "fsync"):
        owner = Cleaner(lambda: (log,), 15.0, map_bytes, AtTime(now))
        asyncio.run(owner.clean())
        owner.close()
