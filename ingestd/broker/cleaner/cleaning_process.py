"""The child process that cleans one log, as the broker sees it."""

from __future__ import annotations

import pickle
import subprocess
from typing import TYPE_CHECKING

from ingestd import imports
from ingestd.broker.cleaner.job import Failed
from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from ingestd.broker.cleaner.job import Cleaned, Cleaning

__all__ = ["CleaningFailed", "CleaningProcess"]


class CleaningFailed(IngestdError):
    """A log was not cleaned, or only in part."""


class CleaningProcess:
    """Starts, answers, ends. Its calls block and belong to one thread; `kill` may come from any."""

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, and tell it what to clean. Raises `OSError`."""
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            imports.command_of("ingestd.broker.cleaner.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        pickle.dump(self._cleaning, self._process.stdin)
        self._process.stdin.flush()

    def receive(self) -> Cleaned | None:
        """The next group that is clean; None when all are. Raises `CleaningFailed`."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            answer: Cleaned | Failed = pickle.load(self._process.stdout)  # noqa: S301 - from our own child
        except EOFError:
            if status := self._process.wait():
                raise CleaningFailed(f"the cleaning process ended with status {status}") from None
            return None
        if isinstance(answer, Failed):
            raise CleaningFailed(answer.reason)
        return answer

    def kill(self) -> None:
        """End the process now. A `receive` that waits ends too."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """Kill the process if it runs, wait for its end, and remove what it left. Raises `OSError`."""
        if self._process is not None:
            with self._process:
                self._process.kill()
        for group in self._cleaning.groups:
            group.cleaned.unlink(missing_ok=True)
            group.index.unlink(missing_ok=True)
