"""Records that failed without anybody being told: counted until `flush` or `close` says so, and logged."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingestd.producer.message import OutgoingMessage

__all__ = ["Failures", "NotSent", "SendFailed"]

_log = logging.getLogger(__name__)

_PAUSE: Final = 10.0
"""Seconds between two lines in the log."""


@dataclass(frozen=True, slots=True)
class NotSent:
    """A record that failed: its index among the messages of `send_many`, and why."""

    index: int
    message: OutgoingMessage
    error: IngestdError


class SendFailed(IngestdError):
    """Records were not delivered. All others were.

    `error` is the first one's error. `records` says how many failed, by topic. `failures` says which, but only for
    `SyncProducer.send_many`: a producer does not keep records that it got one by one.
    """

    def __init__(
        self, error: IngestdError, records: Mapping[str, int], failures: Sequence[NotSent] = (), *, given: int = 0
    ) -> None:
        """`given`: how many records there were, failed or not; None if that is not known."""
        count = sum(records.values())
        topics = ", ".join(f"{topic}: {number}" for topic, number in records.items())
        of_all = f" of {given}" if given else ""
        noun = "record" if max(count, given) == 1 else "records"
        super().__init__(f"{count}{of_all} {noun} failed ({topics}), the first with: {error}")
        self.error = error
        self.records = dict(records)
        self.failures = tuple(failures)


class Failures:
    """Counts records that failed without a `done`, until `take`.

    Invariants
        Every record noted is in exactly one `SendFailed`, or, if nobody calls `take`, in the log.
        One line in the log stands for many records. The next one comes `_PAUSE` seconds later, or with `say`.
    """

    def __init__(self) -> None:
        self._first: IngestdError | None = None
        self._records: Counter[str] = Counter()
        self._unsaid: Counter[str] = Counter()
        self._said_at = float("-inf")

    def note(self, topic: str, records: int, error: IngestdError) -> None:
        """So many records of a topic failed, and had no `done`."""
        if not records:
            return
        if self._first is None:
            self._first = error
        self._records[topic] += records
        self._unsaid[topic] += records
        if time.monotonic() - self._said_at >= _PAUSE:
            self.say(error)

    def say(self, error: IngestdError | None = None) -> None:
        """Log what was not logged yet. `error` is the last one, if it is known."""
        if self._unsaid:
            self._said_at = time.monotonic()
            count = self._unsaid.total()
            topics = ", ".join(self._unsaid)
            self._unsaid.clear()
            _log.warning("records not delivered: %d for %s: %s", count, topics, error or self._first)

    def take(self) -> SendFailed | None:
        """What failed since the last call. The caller must tell somebody."""
        if self._first is None:
            return None
        failed = SendFailed(self._first, self._records)
        self._first = None
        self._records.clear()
        self._unsaid.clear()
        return failed
