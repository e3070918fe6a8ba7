"""Partition producer: one per topic partition. Numbers batches and keeps their order while the leader moves."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from enum import Enum, auto
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from ingestd.errors import (
    DeadlineExceeded,
    ErrorCode,
    KafkaError,
    TransactionFailed,
    is_retriable,
)
from ingestd.figures import in_count
from ingestd.producer.batch import surely_refused
from ingestd.producer.delivery import Delivery, deliver, untold
from ingestd.producer.identity import NO_SEQUENCE, next_sequence
from ingestd.producer.missing import why_unknown
from ingestd.producer.returned import sort_returned
from ingestd.producer.split import split
from ingestd.records.batch import patch_producer

if TYPE_CHECKING:
    from ingestd.client.metadata import TopicMetadata
    from ingestd.errors import IngestdError
    from ingestd.producer.batch import Batch
    from ingestd.producer.broker_producer import BrokerProducer
    from ingestd.producer.dispatcher import Dispatcher
    from ingestd.producer.events import ProducerEvents
    from ingestd.producer.identity import IdentityDesk, ProducerIdentity
    from ingestd.producer.ledger import Ledger
    from ingestd.producer.settings import ProducerSettings

__all__ = ["PartitionProducer"]


_QUIET: Final = 3600.0
"""After so many seconds a broker may have forgotten the producer (`producer.id.expiration.ms`, a day by default)."""
_BEYOND: Final = 10.0
"""Seconds to wait for a partition that the topic does not have: it never existed, or the topic was made again smaller.

A node may take a while to hear of added partitions, or of anything after it stood still. This is longer.
"""
_MARKERS: Final = 0.01
"""Seconds in which the end of the transaction before this one is likely to be in the log."""


class _State(Enum):
    RESTING = auto()
    """Nothing was offered yet, or everything failed. No broker is asked for."""
    SENDING = auto()
    """The leader is known, and batches go to it as they come."""
    RETURNING = auto()
    """A batch came back, or the leader moved: nothing is sent until everything in flight is back."""
    WAITING = auto()
    """Backing off, or waiting for a leader."""
    IDENTIFYING = auto()
    """Waiting for a producer id or a new epoch."""
    ADDING = auto()
    """Waiting to be part of the transaction."""
    ENDED = auto()
    """Everything has failed, and nothing more is accepted."""


class PartitionProducer:
    """Hands numbered batches to the broker producer of the current leader.

    Invariants
        A batch is sent again with the identity and the sequence it got first. They change only when the log certainly
        lacks it: nothing is in flight, and the leader misses an earlier sequence.
        Nothing newer overtakes a batch that is being retried. After an error nothing is sent until everything in
        flight is back. Then the first batch goes alone. Only an acknowledgement opens the window again.
        The first batch to a leader goes alone too, and so does the first one of an identity. A broker that has no state
        of a producer takes any sequence, so a hole could pass unseen.
        While SENDING the first `_in_flight` batches of the queue are in flight, and the next to send follows them.
        Every batch accepted ends in exactly one call of `done`, when no transport holds its memory.
        In a transaction nothing is sent before the partition is part of it, and nothing after a hole. After a hole the
        partition is doomed: everything fails until the transaction has ended.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        settings: ProducerSettings,
        dispatcher: Dispatcher,
        desk: IdentityDesk | None,
        ledger: Ledger,
        events: ProducerEvents | None,
    ) -> None:
        """`desk` is None if the producer is not idempotent, and if its transactions give it its identity."""
        self.topic = topic
        self.partition = partition
        self._settings = settings
        self._dispatcher = dispatcher
        self._desk = desk
        self._ledger = ledger
        self._events = events
        self._transaction = dispatcher.transaction
        self._idempotent = settings.numbered
        self._window = settings.window
        self._expires = settings.delivery_timeout != float("inf")
        self._backoff = settings.backoff()
        self._state = _State.RESTING
        self._queue: deque[Batch] = deque()
        self._in_flight = 0
        self._settled = False
        self._identity: ProducerIdentity | None = None
        self._needs_identity = desk is not None
        self._added = False
        self._doomed: IngestdError | None = None
        self._sequence = 0
        self._offered_at = 0.0
        self._broker: BrokerProducer | None = None
        self._leader: tuple[int, int] | None = None
        self._unknown_since: float | None = None
        self._trouble: IngestdError | None = None
        self._suspects: list[Batch] = []
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"

    @property
    def trouble(self) -> str | None:
        """What its batches wait for, for people. None if there are none."""
        if not self._queue:
            return None
        return f"{self}: {self._why()}"

    def _why(self) -> str:
        """What holds the first batch up, as far as is known."""
        refused = self._dispatcher.metadata.last_error
        if self._state is _State.IDENTIFYING and self._desk is not None:
            return f"no producer id yet: {self._desk.trouble or refused or 'no broker has answered'}"
        if self._state is _State.WAITING and refused is not None and self._known_leader() is None:
            return str(refused)
        if self._trouble is not None:
            return f"the last trouble: {self._trouble}"
        return "it was not sent yet" if self._leader is None else f"no answer from node {self._leader[0]}"

    # What the topic producer calls

    def offer(self, batch: Batch) -> None:
        """Queue a batch. It ends in `done`, also when the partition has ended."""
        if self._doomed is not None:
            self.refuse(batch, self._doomed)
            return
        if not self._queue:
            if batch.accepted_at - self._offered_at > _QUIET:
                self._settled = False
            self._offered_at = batch.accepted_at
        self._queue.append(batch)
        if self._state is _State.SENDING:
            if self._in_flight < (self._window if self._settled else 1):
                self._broker.ready(self)  # type: ignore[union-attr]  # SENDING implies a broker
        elif self._state is _State.RESTING:
            self._find_leader()
        if self._expires and self._expiry is None:
            self._arm_expiry()

    def metadata_changed(self) -> None:
        """The topic's metadata was replaced: go to the new leader if there is one."""
        if self._state is _State.WAITING:
            if self._known_leader() not in (None, self._leader):
                self._find_leader()
        elif self._state is _State.SENDING and self._known_leader() not in (None, self._leader):
            if self._in_flight:
                self._state = _State.RETURNING
            else:
                self._find_leader()

    def recall(self, error: IngestdError) -> None:
        """Fail with `error` what was never sent. What was sent goes on to its end."""
        never: list[tuple[Batch, IngestdError]] = []
        queue = self._queue
        while len(queue) > self._in_flight and not queue[-1].attempts and queue[-1].sequence == NO_SEQUENCE:
            never.append((queue.pop(), error))
        self._end_batches(never[::-1])

    def end(self, error: IngestdError) -> None:
        """Fail everything left with `error`. The caller has aborted every connection that may hold a batch."""
        self._state = _State.ENDED
        self._cancel_timer()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._fail_all(error)

    def refuse(self, batch: Batch, error: IngestdError) -> None:
        """End a batch that came too late to be queued."""
        self._end_batches([(batch, error)])

    # What the transaction calls

    def added(self, identity: ProducerIdentity) -> None:
        """It is part of the transaction: its batches may go, under this identity."""
        self._added = True
        if identity != self._identity:
            self._begin_identity(identity)
        if self._state is _State.ADDING:
            self._find_leader()

    def doom(self, error: IngestdError) -> None:
        """Fail what is not in flight, what comes back, and all that comes until the transaction has ended."""
        if self._state is _State.ENDED or self._doomed is not None:
            return
        if self._in_flight:
            self._be_doomed(error)
            self._state = _State.RETURNING
        else:
            self._rest(error)

    def leave(self) -> None:
        """The transaction has ended; nothing is queued and nothing in flight."""
        self._added = False
        self._doomed = None
        if self._state is not _State.ENDED:
            self._cancel_timer()
            self._state = _State.RESTING

    def _be_doomed(self, error: IngestdError) -> None:
        if self._transaction is not None and self._doomed is None:
            self._doomed = error
            self._transaction.doomed(self)

    # What the broker producer calls

    def next(self, broker: BrokerProducer) -> Batch | None:
        """The batch that `broker` sends next. None: there is none, it must wait, or the leader is another broker."""
        if self._state is not _State.SENDING or broker is not self._broker:
            return None
        in_flight = self._in_flight
        if in_flight >= (self._window if self._settled else 1) or in_flight >= len(self._queue):
            return None
        if self._suspects:
            return self._suspects[-1]
        return self._queue[in_flight]

    def take(self, batch: Batch) -> None:
        """`batch` came from `next` and goes into a request: number it if it has no number yet, and seal it."""
        if not self._idempotent:
            patch_producer(batch.data, NO_SEQUENCE, NO_SEQUENCE, NO_SEQUENCE)
        elif batch.sequence == NO_SEQUENCE:
            self._number(batch, self._sequence)
            self._sequence = next_sequence(batch.sequence, batch.records)
        batch.attempts += 1
        self._in_flight += 1

    def acknowledged(self, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        """The leader has appended `batch`, now or in an earlier attempt."""
        if self._state is _State.ENDED:
            return
        self._in_flight -= 1
        queue = self._queue
        self._suspects = []
        # Sequences have no holes, so all batches before it are in the log too, whatever was answered for them. It must
        # count now: a leader that restarts may forget it before it is asked again.
        while (before := queue.popleft()) is not batch:
            self._acknowledge(before, -1, -1)
        self._settled = True
        if self._transaction is not None:
            self._transaction.started = True
        self._trouble = None
        self._backoff.reset()
        self._acknowledge(batch, base_offset, log_append_time_ms)
        if self._state is _State.SENDING:
            if len(queue) > self._in_flight:
                self._broker.ready(self)  # type: ignore[union-attr]  # SENDING implies a broker
            if self._expires and self._expiry is None:
                self._arm_expiry()
        elif not self._in_flight:
            self._all_back()

    def returned(self, batch: Batch, error: IngestdError) -> None:
        """`batch` is back with `error`, and no transport holds its memory."""
        if self._state is _State.ENDED:
            return
        self._in_flight -= 1
        self._state = _State.RETURNING
        batch.error = error
        if not surely_refused(error):
            batch.uncertain = True
        elif isinstance(error, KafkaError) and error.code is ErrorCode.corrupt_message:
            batch.corrupt += 1
        if not self._in_flight:
            self._all_back()

    @property
    def moved(self) -> bool:
        """Whether it waits for batches to come back from a node that is not the leader any more."""
        return self._state is _State.RETURNING and self._known_leader() not in (None, self._leader)

    def unreachable(self, error: IngestdError) -> None:
        """The leader cannot be connected to."""
        if self._state is not _State.SENDING:
            return
        if self._in_flight:
            self._state = _State.RETURNING
        elif is_retriable(error):
            self._tell_retried(error)
            self._back_off(error)
        elif isinstance(error, KafkaError) and error.fatal:
            self._dispatcher.fatal(error)
        else:
            self._rest(error)

    # Recovery: when nothing is in flight, decide what happens to the batches that came back

    def _all_back(self) -> None:
        if self._doomed is None:
            self._recover()
        else:
            self._rest(self._doomed)

    def _recover(self) -> None:
        """Fail, split, renumber, or send again: see `Verdict`."""
        suspected = self._suspects[-1] if self._suspects else None
        returned = sort_returned(self._queue, suspected, self._halves, numbered=self._idempotent)
        ended, decisive = returned.ended, returned.decisive
        for error in returned.retried:
            self._tell_retried(error)
        if returned.fatal is not None:
            self._end_batches(ended)
            self._state = _State.WAITING
            self._dispatcher.fatal(returned.fatal)
            return
        uncertain = any(batch.uncertain for batch in self._numbered())
        if self._idempotent and (returned.hole or (ended and not uncertain)):
            self._renumber(ended[0][1])
        elif returned.missed and decisive is not None:
            self._seek_end_of_log(suspected, decisive)
        else:
            self._go_on(decisive)
        self._end_batches(ended)
        self._expire()

    def _go_on(self, error: IngestdError | None) -> None:
        """Send the queue again: at once to a new leader, else after a pause. `error`: the reason."""
        self._suspects = []
        if error is None or self._known_leader() not in (None, self._leader):
            self._settled = False
            self._find_leader()
        else:
            self._back_off(error)

    def _halves(self, batch: Batch) -> tuple[Batch, Batch]:
        """Split a batch that is too large. The halves share its sequences, so there is no hole."""
        halves = split(batch, self._ledger)
        if batch.sequence != NO_SEQUENCE:
            self._number(halves[0], batch.sequence)
            self._number(halves[1], next_sequence(batch.sequence, halves[0].records))
        return halves

    def _number(self, batch: Batch, sequence: int) -> None:
        identity = self._identity
        assert identity is not None
        batch.sequence = sequence
        transactional = self._transaction is not None
        if self._transaction is not None:
            self._transaction.sent = True
        patch_producer(batch.data, identity.producer_id, identity.epoch, sequence, transactional=transactional)

    def _seek_end_of_log(self, suspected: Batch | None, error: IngestdError) -> None:
        """The leader misses the sequence before the first batch, or before the suspect that was tried last.

        If the first one may have been appended earlier, later ones may have been too. A leader that was restarted
        remembers only the last of them. It takes a later batch only if it has all before it. So they are tried from the
        last one backwards. The one that it takes tells how far the log goes. If it takes none, it has none.
        """
        self._settled = False
        if suspected is not None:
            self._suspects.pop()
        elif self._queue[0].uncertain:
            self._suspects = [batch for batch in self._numbered()[1:] if batch.uncertain]
        if self._suspects:
            self._find_leader()
        else:
            self._renumber(error)

    def _numbered(self) -> list[Batch]:
        return [batch for batch in takewhile(_was_tried, self._queue) if batch.sequence != NO_SEQUENCE]

    def _renumber(self, error: IngestdError) -> None:
        """Begin again from sequence 0 under a new epoch: it is certain that nothing of the queue is in the log.

        A transaction has one epoch. So there the partition fails with `error`, which led to this.
        """
        if self._transaction is not None:
            self._rest(TransactionFailed(f"{self}: an earlier batch failed, so nothing more can be appended: {error}"))
            return
        self._suspects = []
        self._settled = False
        self._needs_identity = True
        for batch in takewhile(_was_tried, self._queue):
            batch.sequence = NO_SEQUENCE
            batch.uncertain = False
        repeated = self._backoff.attempts
        delay = self._backoff.next_delay()
        if repeated:
            self._state = _State.WAITING
            self._timer = asyncio.get_running_loop().call_later(delay, self._find_leader)
        else:
            self._find_leader()

    def _identified(self, identity: ProducerIdentity) -> None:
        if self._state is not _State.IDENTIFYING:
            return
        self._begin_identity(identity)
        self._find_leader()

    def _begin_identity(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self._needs_identity = False
        self._sequence = 0
        self._settled = False

    # Routing

    def _known_leader(self) -> tuple[int, int] | None:
        known = self._dispatcher.metadata.snapshot.partition(self.topic, self.partition)
        return None if known is None or known.leader < 0 else (known.leader, known.leader_epoch)

    def _find_leader(self) -> None:
        """Go on: get an identity if there is none, then find the leader, then send."""
        self._cancel_timer()
        if self._needs_identity:
            assert self._desk is not None
            if self._identity is not None or self._desk.first is None:
                self._state = _State.IDENTIFYING
                self._desk.ask(self._identity, self._identified)
                return
            self._begin_identity(self._desk.first)
        leader = self._known_leader()
        if leader is None:
            self._await_leader()
            return
        self._unknown_since = None
        if self._transaction is not None and not self._added:
            self._state = _State.ADDING
            self._transaction.add(self)
            return
        if leader != self._leader:
            self._leader = leader
            self._settled = False
        self._broker = self._dispatcher.broker(leader[0])
        self._state = _State.SENDING
        if self._queue:
            self._broker.ready(self)

    def _await_leader(self) -> None:
        self._leader = None
        self._state = _State.WAITING
        metadata = self._dispatcher.metadata
        delay = self._backoff.next_delay()
        self._trouble = self._trouble or KafkaError(ErrorCode.leader_not_available, str(self))
        if metadata.snapshot.partition(self.topic, self.partition) is None:
            error, limit = self._unknown(metadata.snapshot.topics.get(self.topic))
            now = time.monotonic()
            # The first snapshot may be old. Only a newer one can be final.
            final = self._unknown_since is not None and not is_retriable(error)
            if self._unknown_since is None:
                self._unknown_since = now
            left = self._unknown_since + limit - now
            if left <= 0 or final:
                if not final and not isinstance(error, KafkaError):
                    error = DeadlineExceeded(f"{self}: it was not known within {limit:g} s; {error}")
                self._rest(error)
                return
            delay = min(delay, left)
        else:
            self._unknown_since = None
        # A source of metadata may answer at once. Then the leader is found before `wanted` returns.
        self._timer = asyncio.get_running_loop().call_later(delay, self._find_leader)
        metadata.wanted((self.topic,), f"{self} has no known leader", create=self._settings.create_topics)

    def _unknown(self, topic: TopicMetadata | None) -> tuple[IngestdError, float]:
        """Why the partition is not known, and for how many seconds that may be so."""
        patience = self._settings.metadata_timeout
        if topic is None or not topic.partitions:
            return why_unknown(self._dispatcher.metadata, self.topic, self._settings), patience
        if topic.error is not ErrorCode.none:
            return KafkaError(topic.error, str(self)), patience
        had = f"{self}: the topic has {in_count(len(topic.partitions), 'partition')}"
        return KafkaError(ErrorCode.unknown_topic_or_partition, had), min(patience, _BEYOND)

    def _back_off(self, error: IngestdError) -> None:
        self._trouble = error
        self._state = _State.WAITING
        self._settled = False
        delay = self._backoff.next_delay()
        if isinstance(error, KafkaError) and error.code is ErrorCode.concurrent_transactions:
            delay = min(delay, _MARKERS)
        self._timer = asyncio.get_running_loop().call_later(delay, self._find_leader)
        if not isinstance(error, KafkaError) or error.refresh_metadata:
            self._dispatcher.metadata.wanted((self.topic,), f"{self}: {error}")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Endings

    def _acknowledge(self, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        if self._events is not None:
            seconds = time.monotonic() - batch.accepted_at
            self._events.acknowledged(self.topic, self.partition, batch.records, len(batch.data), seconds)
        self._finish(batch, Delivery(self.topic, self.partition, batch.records, base_offset, log_append_time_ms))

    def _end_batches(self, ended: list[tuple[Batch, IngestdError]]) -> None:
        for batch, error in ended:
            if self._transaction is not None and batch.sequence != NO_SEQUENCE:
                self._transaction.hole = True
            if self._events is not None:
                self._events.failed(self.topic, self.partition, batch.records, error)
            if self._transaction is None:
                self._ledger.failures.note(self.topic, untold(batch.done, batch.records), error)
            self._finish(batch, Delivery(self.topic, self.partition, batch.records, error=error))

    def _finish(self, batch: Batch, delivery: Delivery) -> None:
        if batch.done is not None:
            deliver(batch.done, delivery)
        if batch.reserved:
            self._ledger.release(batch.reserved)
        self._ledger.leave(batch.generation)

    def _fail_all(self, error: IngestdError) -> None:
        left = [(batch, error) for batch in self._queue]
        self._queue.clear()
        self._suspects = []
        self._end_batches(left)

    def _rest(self, error: IngestdError) -> None:
        """Fail the queue (nothing is in flight). The next batch, or the next transaction, begins anew."""
        self._cancel_timer()
        self._state = _State.RESTING
        self._leader = self._unknown_since = None
        self._backoff.reset()
        self._be_doomed(error)
        self._fail_all(error)

    def _arm_expiry(self) -> None:
        if self._queue:
            delay = self._queue[0].deadline - time.monotonic()
            self._expiry = asyncio.get_running_loop().call_later(max(0.0, delay), self._expiry_due)

    def _expiry_due(self) -> None:
        self._expiry = None
        self._expire()

    def _expire(self) -> None:
        """Fail batches past their deadline that are not in flight. Those in flight are checked when they are back."""
        if not self._expires or self._state in (_State.RETURNING, _State.ENDED):
            return
        now = time.monotonic()
        ended: list[tuple[Batch, IngestdError]] = []
        first = self._in_flight
        while len(self._queue) > first and self._queue[first].deadline <= now:
            batch = self._queue[first]
            if first and batch.sequence != NO_SEQUENCE:
                break
            del self._queue[first]
            self._suspects = []
            tried = f"not acknowledged within {now - batch.accepted_at:.1f} s, {in_count(batch.attempts, 'attempt')}"
            ended.append((batch, DeadlineExceeded(f"{self}: {tried}; {self._why()}")))
        if self._expiry is None and self._queue and self._queue[0].deadline > now:
            self._arm_expiry()
        self._end_batches(ended)
        if ended and self._transaction is not None:
            self.doom(TransactionFailed(f"{self}: a batch before failed: {ended[0][1]}"))

    def _tell_retried(self, error: IngestdError) -> None:
        if self._events is not None:
            self._events.retried(self.topic, self.partition, error)


def _was_tried(batch: Batch) -> bool:
    return batch.attempts > 0
