"""Transaction partition: the transactional ids of one partition of `__transaction_state`. Its log has a change first.

Nothing waits here: whoever asks gets a future.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ingestd.broker.transactions.marker_writer import Marker
from ingestd.broker.transactions.transaction import (
    COMPLETE,
    NONE,
    PREPARED,
    Ids,
    TransactionState,
)
from ingestd.broker.transactions.transitions import completed, ended, fenced, initialized, with_partitions
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ingestd.broker.clock import Clock
    from ingestd.broker.coordinator.coordinator_log import CoordinatorLog
    from ingestd.broker.coordinator.transaction_records import TransactionRecord
    from ingestd.broker.transactions.marker_writer import MarkerWriter
    from ingestd.broker.transactions.transaction import TopicPartition, Transaction
    from ingestd.broker.transactions.transitions import End, Start

__all__ = ["Outcome", "TransactionPartition"]

_RETRY: Final = 1.0
"""Seconds. A record that the disk does not take, and that nobody asks for, is written again then."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request, and the producer's ids from now on."""

    error: ErrorCode
    ids: Ids = Ids(NONE, NONE)  # noqa: RUF009 - frozen


class TransactionPartition:
    """Transactional ids, and the way of their changes into the log.

    Invariants
        Nothing is answered before `load` is through.
        What is known is what the log has, in its order. It is answered when it is on the disk with `Flush.always`.
        Markers are written when it is on the disk that the transaction ends so. The transaction is complete when they
        are on the disk, and the record that says so. A start that finds one in between writes all its markers again.
        So the next transaction begins when the one before is complete.
        The end of a transaction is answered then: readers have all of it, or nothing.
    """

    def __init__(
        self,
        log: CoordinatorLog[TransactionRecord],
        clock: Clock,
        markers: MarkerWriter,
        new_id: Callable[[], int],
        version: int,
    ) -> None:
        self.refusal: ErrorCode | None = ErrorCode.coordinator_load_in_progress
        """Why nothing is answered now; None if it is."""
        self._log = log
        self._clock = clock
        self._markers = markers
        self._new_id = new_id
        self._version = version
        self._known: dict[str, Transaction] = {}
        self._adding: dict[str, asyncio.Future[Outcome]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def __iter__(self) -> Iterator[tuple[str, Transaction]]:
        return iter(tuple(self._known.items()))

    def get(self, transactional_id: str) -> Transaction | None:
        """What is known of this transactional id; None: nothing."""
        return self._known.get(transactional_id)

    # Its life.

    async def load(self) -> None:
        """Take what is known from the log, and go on with it. Raises `IngestdError`, `OSError`."""
        replayed: dict[str, Transaction] = {}
        try:
            async for batch in self._log.replay():
                for transactional_id, value in batch.records:
                    if value is None:
                        replayed.pop(transactional_id, None)
                    else:
                        replayed[transactional_id] = value
        except BaseException:
            self.refusal = ErrorCode.coordinator_not_available
            raise
        self._known = replayed
        self.refusal = None
        for transactional_id, value in replayed.items():
            if value.state in PREPARED:
                self._write_markers(transactional_id, value, lambda _error: None)
            self._schedule(transactional_id, value)

    def close(self) -> None:
        """Stop the timers, and set no more. An fsync may still end."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # What producers ask.

    def initialize(self, transactional_id: str, asked: Start) -> asyncio.Future[Outcome]:
        """Give a producer its id and epoch. Raises `KafkaError`.

        If the producer before left a transaction open, that is aborted, and the answer is CONCURRENT_TRANSACTIONS.
        """
        new = initialized(self._known.get(transactional_id), asked, self._new_id, self._now_ms())
        self._store(transactional_id, new)
        if new.state is TransactionState.prepare_abort:
            return self._end(transactional_id, new, Outcome(ErrorCode.concurrent_transactions))
        return self._answered(Outcome(ErrorCode.none, new.ids))

    def add(
        self, transactional_id: str, ids: Ids, partitions: Collection[TopicPartition], version: int = 0
    ) -> asyncio.Future[Outcome]:
        """Add partitions to the producer's transaction. Raises `KafkaError`. `version`: as in `End`."""
        known = self._known.get(transactional_id)
        new = with_partitions(known, ids, partitions, version, self._now_ms())
        if new is known:
            return self._answered(Outcome(ErrorCode.none, ids))
        self._store(transactional_id, new)
        adding = self._adding[transactional_id] = self._answered(Outcome(ErrorCode.none, ids))
        adding.add_done_callback(partial(self._added, transactional_id))
        # Who asked may be gone before it is added. Others wait for it too.
        return asyncio.shield(adding)

    def _added(self, transactional_id: str, added: asyncio.Future[Outcome]) -> None:
        if self._adding.get(transactional_id) is added:
            del self._adding[transactional_id]

    def being_added(self, transactional_id: str) -> asyncio.Future[Outcome] | None:
        """What was added last to the transaction, if that is not on the disk yet."""
        return self._adding.get(transactional_id)

    def end(self, transactional_id: str, asked: End) -> asyncio.Future[Outcome]:
        """Commit or abort the producer's transaction. Done when readers see that. Raises `KafkaError`."""
        known = self._known.get(transactional_id)
        new = ended(known, asked, self._new_id, self._now_ms())
        if new is known:
            return self._answered(Outcome(ErrorCode.none, known.ids))
        self._store(transactional_id, new)
        return self._end(transactional_id, new, Outcome(ErrorCode.none, completed(new, NONE).ids))

    def expire(self, retention_ms: int) -> None:
        """Forget transactional ids that nobody has used for so long."""
        now_ms = self._now_ms()
        for transactional_id, known in self:
            unused = known.state in COMPLETE or known.state is TransactionState.empty
            if not unused or now_ms - known.updated_ms < retention_ms:
                continue
            try:
                self._log.write([(transactional_id, None)], now_ms)
            except KafkaError:
                return  # There is no room. The log has said so.
            del self._known[transactional_id]

    # The way into the log.

    def _store(self, transactional_id: str, new: Transaction) -> None:
        self._log.write([(transactional_id, new)], self._now_ms())
        self._known[transactional_id] = new
        self._schedule(transactional_id, new)

    def _answered(self, outcome: Outcome) -> asyncio.Future[Outcome]:
        """Done when all that is known is on the disk."""
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._log.when_written(lambda error: _settle(waiting, error, outcome))
        return waiting

    def _end(self, transactional_id: str, prepared: Transaction, outcome: Outcome) -> asyncio.Future[Outcome]:
        """Done when the transaction is complete."""
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def written(error: ErrorCode) -> None:
            if error is ErrorCode.none:
                self._write_markers(transactional_id, prepared, partial(_settle, waiting, outcome=outcome))
            else:
                _settle(waiting, error, outcome)

        self._log.when_written(written)
        return waiting

    def _write_markers(self, transactional_id: str, prepared: Transaction, done: Callable[[ErrorCode], None]) -> None:
        marker = Marker(prepared.ids, prepared.commits, self._log.epoch)
        self._markers.write(marker, prepared.partitions, partial(self._complete, transactional_id, prepared, done))

    def _complete(self, transactional_id: str, prepared: Transaction, done: Callable[[ErrorCode], None]) -> None:
        complete = completed(prepared, self._now_ms())
        try:
            self._log.write([(transactional_id, complete)], self._now_ms())
        except KafkaError as error:
            # The producer asks again meanwhile.
            done(error.code)
            self._later(
                transactional_id, _RETRY, partial(self._complete, transactional_id, prepared, lambda _error: None)
            )
            return
        self._log.when_written(partial(self._completed, transactional_id, complete, done))

    def _completed(
        self, transactional_id: str, complete: Transaction, done: Callable[[ErrorCode], None], error: ErrorCode
    ) -> None:
        # Not before: a start that misses the record writes the markers again. They would end the next transaction.
        if error is ErrorCode.none:
            self._known[transactional_id] = complete
            self._schedule(transactional_id, complete)
        done(error)

    # Timeouts.

    def _schedule(self, transactional_id: str, known: Transaction) -> None:
        """Be told when an ongoing transaction has taken too long."""
        if known.state is not TransactionState.ongoing:
            self._cancel(transactional_id)
        elif transactional_id not in self._timers:
            left = (known.times_out_ms() - self._now_ms()) / 1000
            self._later(transactional_id, left, partial(self._time_out, transactional_id))

    def _later(self, transactional_id: str, seconds: float, call: Callable[[], None]) -> None:
        if self._closed:
            return

        def rung() -> None:
            del self._timers[transactional_id]
            call()

        self._cancel(transactional_id)
        self._timers[transactional_id] = self._clock.call_later(max(0.0, seconds), rung)

    def _cancel(self, transactional_id: str) -> None:
        timer = self._timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()

    def _time_out(self, transactional_id: str) -> None:
        known = self._known[transactional_id]
        if known.times_out_ms() > self._now_ms():
            self._schedule(transactional_id, known)
            return
        _log.info("transaction timed out", transactional_id=transactional_id, producer_id=known.producer_id)
        new = fenced(known, self._version, self._now_ms())
        try:
            self._store(transactional_id, new)
        except KafkaError:
            self._later(transactional_id, _RETRY, partial(self._time_out, transactional_id))
            return
        self._end(transactional_id, new, Outcome(ErrorCode.none))

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)


def _settle(waiting: asyncio.Future[Outcome], error: ErrorCode, outcome: Outcome) -> None:
    if not waiting.done():  # else its client is gone
        waiting.set_result(outcome if error is ErrorCode.none else Outcome(error))
