"""Waiting records: those of one topic whose partitions are not known yet. They wait in order, and not for ever."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from ingestd.errors import DeadlineExceeded, IngestdError, KafkaError, is_retriable
from ingestd.producer.batch import Batch
from ingestd.producer.breaker import CircuitBreaker
from ingestd.producer.delivery import Delivery, deliver, untold
from ingestd.producer.missing import why_unknown
from ingestd.producer.open_batch import OpenBatch
from ingestd.records.loops import RecordBuffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.producer.delivery import Delivered
    from ingestd.producer.dispatcher import Dispatcher
    from ingestd.producer.events import ProducerEvents
    from ingestd.producer.ledger import Ledger
    from ingestd.producer.settings import ProducerSettings
    from ingestd.records.loops import TopicIntake

__all__ = ["OutgoingRecord", "Waiting", "WaitingRecords"]

UNKNOWN_PARTITION = -1
"""What a delivery says of a record that failed before it had a partition."""

_HOLDING_BYTES: Final = 256
"""Bytes of the objects of one waiting record, beside its key and value."""


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record that waits alone for its topic's metadata, because its key or another field decides its partition."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int
    done: Delivered | None
    reserved: int
    generation: int
    records: int = 1


Waiting: TypeAlias = OutgoingRecord | Batch


class WaitingRecords:
    """Records and batches of a topic that wait for its partitions to be known.

    Invariants
        They are given out in the order in which they came.
        With a sticky partitioner records without a key wait in batches, and each batch gets one partition.
        They wait no longer than the metadata timeout. While the breaker is open nothing waits.
    """

    def __init__(
        self,
        topic: str,
        settings: ProducerSettings,
        dispatcher: Dispatcher,
        ledger: Ledger,
        events: ProducerEvents | None,
        intake: TopicIntake,
        *,
        sticky: bool,
    ) -> None:
        """`sticky`: whether records without a key may share a batch whatever its partition will be."""
        self._topic = topic
        self._settings = settings
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._events = events
        self._intake = intake
        self._sticky = sticky
        self._breaker = CircuitBreaker(settings.breaker_failures, settings.breaker_pause)
        self._waiting: deque[Waiting] = deque()
        self._undecided: OpenBatch | None = None
        """The batch that records without a key are collected in."""
        self._since = 0.0
        self._backoff = settings.backoff()
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        """Whether a record has to wait behind others."""
        return bool(self._waiting)

    @property
    def asking(self) -> bool:
        """Whether partitions are asked for, because something waits for them."""
        return self._timer is not None

    @property
    def trouble(self) -> str | None:
        """What is waited for, for people. None if nothing waits."""
        return f"{self._topic}: {self._missing()}" if self._waiting or self._undecided is not None else None

    def hold(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        done: Delivered | None,
    ) -> None:
        """Have a record wait. Raises why the partitions are not known, while the breaker is open."""
        if self._breaker.open:
            raise self._missing()
        if key is None and self._sticky and not (self._waiting and isinstance(self._waiting[-1], OutgoingRecord)):
            self._collect(value, headers, timestamp_ms, done)
        else:
            RecordBuffer(1).append(key, value, headers, timestamp_ms)  # raises now for what no batch takes
            self._close_undecided()
            size = len(key or b"") + len(value or b"") + _HOLDING_BYTES
            self._ledger.reserve(size)
            self._waiting.append(OutgoingRecord(key, value, headers, timestamp_ms, done, size, self._ledger.enter()))
        if self._timer is None:
            self._since = time.monotonic()
            self._backoff.reset()
            self._await_metadata()

    def close_batch(self) -> None:
        """Collect no more records in the batch that is open."""
        if self._undecided is not None:
            self._undecided.close()

    def take(self) -> deque[Waiting]:
        """Give out everything: the partitions are known now."""
        self._breaker.succeeded()
        return self._take()

    def fail_all(self, error: IngestdError) -> None:
        """Fail everything that waits."""
        for item in self._take():
            self.fail(item, error)

    def fail(self, item: Waiting, error: IngestdError) -> None:
        """Fail what was given out."""
        if self._events is not None:
            self._events.failed(self._topic, UNKNOWN_PARTITION, item.records, error)
        if self._dispatcher.transaction is None:
            self._ledger.failures.note(self._topic, untold(item.done, item.records), error)
        if item.done is not None:
            deliver(item.done, Delivery(self._topic, UNKNOWN_PARTITION, item.records, error=error))
        self._ledger.release(item.reserved)
        self._ledger.leave(item.generation)

    # How it is done

    def _collect(
        self,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        done: Delivered | None,
    ) -> None:
        """Put a record into a batch whose partition is chosen later, when the partitions are known."""
        if self._undecided is None:
            self._undecided = OpenBatch(self._settings, self._ledger, self._waits)
        undecided = self._undecided
        if not undecided.append(None, value, headers, timestamp_ms, done):
            undecided.append(None, value, headers, timestamp_ms, done)
        self._intake.sticky = undecided.builder if undecided.builder.records else None

    def _waits(self, batch: Batch) -> None:
        self._intake.sticky = None
        self._waiting.append(batch)

    def _close_undecided(self) -> None:
        if self._undecided is not None:
            self._undecided.close()
            self._undecided = None

    def _missing(self) -> IngestdError:
        """Why the topic's partitions are not known."""
        return why_unknown(self._dispatcher.metadata, self._topic, self._settings)

    def _await_metadata(self) -> None:
        """Ask again and again until the partitions are known, the time is over, or an answer is final."""
        error = self._missing()
        limit = min(self._settings.metadata_timeout, self._settings.delivery_timeout)
        left = self._since + limit - time.monotonic()
        # The first snapshot may be old. Only a newer one can be final.
        final = self._backoff.attempts > 0 and not is_retriable(error)
        if left <= 0 or final:
            self._breaker.failed()
            if not final and not isinstance(error, KafkaError):
                error = DeadlineExceeded(f"{self._topic}: its partitions were not known within {limit:g} s; {error}")
            self.fail_all(error)
            return
        self._timer = asyncio.get_running_loop().call_later(min(left, self._backoff.next_delay()), self._await_metadata)
        reason = f"records wait for the partitions of {self._topic}"
        self._dispatcher.metadata.wanted((self._topic,), reason, create=self._settings.create_topics)

    def _take(self) -> deque[Waiting]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close_undecided()
        waiting, self._waiting = self._waiting, deque()
        return waiting
