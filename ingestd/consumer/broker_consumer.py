"""Broker consumer: one per broker. One fetch at a time, for all its partitions that have room."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from ingestd.client.metadata import Node
from ingestd.consumer.ends import first_local_offset
from ingestd.consumer.fetch_from import Refusal
from ingestd.consumer.fetch_session import SESSION_ERRORS, FetchSession, PartitionFetch, SessionFetch, outside_session
from ingestd.consumer.fetched import cut
from ingestd.consumer.settings import Isolation, TopicPartition
from ingestd.consumer.wanted import Wanted
from ingestd.errors import CorruptBatch, ErrorCode, IngestdError, KafkaError, is_retriable
from ingestd.retry import Backoff
from ingestd.wire.apis import Api
from ingestd.wire.fetch import (
    FIRST_WITH_TOPIC_ID,
    FIRST_WITH_WHOLE_BATCHES,
    HIGHEST,
    HIGHEST_BY_NAME,
    LOWEST,
    FetchPartition,
    fetch_request,
    read_fetch_response,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from ingestd.client.client import Client
    from ingestd.consumer.events import ConsumerEvents
    from ingestd.consumer.fetch_from import FetchFrom
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.settings import ConsumerSettings
    from ingestd.retry import Deadline
    from ingestd.tasks import TaskOwner
    from ingestd.wire.codec import Buffer
    from ingestd.wire.connection import Connection
    from ingestd.wire.fetch import FetchAnswer, FetchedPartition

__all__ = ["BrokerConsumer"]

_log = logging.getLogger(__name__)

PURPOSE: Final = "fetch"
"""The broker may hold a fetch back, and answers come in order. So nothing else shares its connection."""

_FIRST_WAIT: Final = 0.01
"""Seconds. The wait doubles with every empty answer. So a partition that gets room waits for a short fetch only."""
_LAST_DOUBLING: Final = 10
_LOOK_EVERY: Final = 0.2
"""Seconds between checks. A partition that was left out of full answers in two checks is fetched alone."""
_REST: Final = 2
"""After a fetch of one partition alone, the others get the broker for so many times as long."""
_EMPTY_ANSWERS_OF_SILENT: Final = 8
"""So many in a row, to fetches of it alone, end a partition whose leader does not tell its local offset: over 1 s."""
_GIVE_BACK_TIMEOUT: Final = 1.0
_SLOW_ANSWER: Final = 3.0
"""Seconds, longer than a broker may hold an answer back. After that its partitions may have another leader."""


_PASSING: Final = SESSION_ERRORS | {ErrorCode.broker_not_available}
"""Errors of a whole fetch that may pass, although the protocol does not call them retriable."""


def _passes(error: IngestdError) -> bool:
    """Whether the fetch may succeed later. A retry does not help against a version or framing that we do not share."""
    return is_retriable(error) or (isinstance(error, KafkaError) and error.code in _PASSING)


def _wait_alone(empty_answers: int) -> float:
    """Seconds that the broker may hold back a fetch of one partition alone, after so many empty ones."""
    return _FIRST_WAIT * 2.0 ** min(empty_answers - 1, _LAST_DOUBLING) if empty_answers else 0.0


class _Reminder:
    """Calls `remind` every `_SLOW_ANSWER` seconds until cancelled."""

    def __init__(self, remind: Callable[[], None]) -> None:
        self._remind = remind
        self._arm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_SLOW_ANSWER, self._fire)

    def _fire(self) -> None:
        self._arm()
        self._remind()

    def cancel(self) -> None:
        """End it."""
        self._timer.cancel()


class BrokerConsumer:
    """Fetches from one broker, and hands back the partitions that it does not serve.

    Invariants
        The loop runs only while a partition here is fetchable, and at most one request is under way.
        An answer for a partition that was paused, moved, closed or repositioned meanwhile is dropped.
        A read ends before its last offset only by the rule in `ends.py`. The fetches of one partition alone, which that
        takes, use at most a third of the time.
    """

    def __init__(
        self,
        client: Client,
        node_id: int,
        settings: ConsumerSettings,
        tasks: TaskOwner,
        events: ConsumerEvents,
        *,
        share: Callable[[], int],
        refused: Callable[[PartitionConsumer, Refusal], None],
        preferred: Callable[[PartitionConsumer, int], None],
        to_leader: Callable[[PartitionConsumer], None],
    ) -> None:
        self._client = client
        self._node_id = node_id
        self._settings = settings
        self._tasks = tasks
        self._events = events
        self._refused = refused
        self._preferred = preferred
        self._to_leader = to_leader
        self._wanted = Wanted(settings.partition_max_bytes, share)
        self._unserved: set[TopicPartition] = set()
        self._untold: set[TopicPartition] = set()
        """Those that came here since the last fetch. This broker must tell how far it has their logs."""
        self._session = FetchSession()
        self._torn: set[TopicPartition] = set()
        """Those to fetch alone at once: their part of an answer had no whole batch."""
        self._left_out: dict[TopicPartition, None] = {}
        """Those to fetch alone, in this order: they had nothing, and may be at their ends."""
        self._left_out_from = 0.0
        """When to fetch the next one of them, on the monotonic clock."""
        self._stood: dict[TopicPartition, int] = {}
        """The positions, at the last check, of those that had nothing in a full answer."""
        self._next_look = 0.0
        self._backoff = Backoff()
        self._wait = _FIRST_WAIT
        self._under_way = False
        self._loop: asyncio.Task[None] | None = None

    def add(self, consumer: PartitionConsumer, chosen: FetchFrom) -> None:
        """Fetch this partition from here, from now on."""
        self._wanted.add(consumer, chosen)
        self._unserved.add(consumer.key)
        # Another broker's high watermark does not apply here. A bounded read needs this broker's.
        if consumer.log_end < 0 or consumer.end is not None:
            self._untold.add(consumer.key)
        consumer.standing.empty_answers = 0
        self._wait = _FIRST_WAIT
        self.wake(consumer)

    def remove(self, consumer: PartitionConsumer) -> None:
        """Fetch it no more."""
        if self._wanted.partitions.get(consumer.key) is consumer:
            self._wanted.remove(consumer.key)
            self._unserved.discard(consumer.key)
            self._untold.discard(consumer.key)
            self._torn.discard(consumer.key)
            self._left_out.pop(consumer.key, None)
            self._stood.pop(consumer.key, None)

    def wake(self, consumer: PartitionConsumer) -> None:
        """Whether or what to fetch of this partition may have changed. Starts the loop if it is needed."""
        self._wanted.changed(consumer.key)
        if (self._loop is None or self._loop.done()) and consumer.fetchable:
            self._loop = self._tasks.start(self._run(), f"fetch from broker {self._node_id}")

    async def give_back(self, deadline: Deadline) -> None:
        """Give the fetch session back to the broker, if that is quick. To be called after the loop's end."""
        if not self._session.established or self._under_way:
            return  # it would wait behind a request that is held back; the broker drops idle sessions
        try:
            broker = self._client.broker(self._node_id, PURPOSE)
            if broker.connected:
                connection = await broker.connection(deadline.remaining)
                version = connection.versions.pick(Api.fetch, LOWEST, HIGHEST)
                body = self._request(version, self._session.final_fetch(), 0.0, rack="")
                await connection.send(Api.fetch, version, body, timeout=min(_GIVE_BACK_TIMEOUT, deadline.remaining))
        except IngestdError as error:
            _log.debug("broker %d keeps a fetch session until it expires: %s", self._node_id, error)

    async def _run(self) -> None:
        await asyncio.sleep(0)  # partitions that are added together go into one request
        while self._has_work():
            try:
                await self._fetch()
            except IngestdError as error:
                self._session.lost()
                await self._failed(error)

    def _has_work(self) -> bool:
        self._wanted.update()
        return bool(self._wanted.fetches)

    async def _failed(self, error: IngestdError) -> None:
        """A fetch failed as a whole: partitions of followers go to their leaders. Then wait before the next fetch."""
        led: list[PartitionConsumer] = []
        for key in list(self._wanted.fetches):
            one = self._wanted.partitions.get(key)
            if one is None:  # taken away, because of one before
                continue
            if self._wanted.chosen[key].follower:
                self._refused(one, Refusal(error))
            else:
                led.append(one)
        if not led:
            return
        if not _passes(error):
            for one in led:
                self._fail(one, error)
            return
        for one in led:
            self._events.retried(*one.key, error)
            one.report(error)
        self._client.metadata.wanted({one.topic for one in led}, f"fetch from broker {self._node_id}: {error}")
        await asyncio.sleep(self._backoff.next_delay())

    def _fail(self, consumer: PartitionConsumer, error: IngestdError) -> None:
        self._events.failed(*consumer.key, error)
        consumer.fail(error)

    async def _fetch(self) -> None:
        settings, wanted = self._settings, self._wanted
        broker = self._client.broker(self._node_id, PURPOSE)
        connection = await broker.connection(settings.request_timeout)
        if not self._has_work():
            return
        version = connection.versions.pick(Api.fetch, LOWEST, HIGHEST if wanted.by_id else HIGHEST_BY_NAME)
        began = time.monotonic()
        if (alone := self._take_alone(began)) is not None:
            answer = await self._fetch_alone(connection, version, alone)
            now = time.monotonic()
            self._left_out_from = now + _REST * (now - began)
        else:
            answer = await self._fetch_together(connection, version)
        if answer.throttle_ms > 0:  # the broker reads nothing more from us for so long (KIP-219)
            await asyncio.sleep(min(answer.throttle_ms / 1000, settings.request_timeout))

    async def _fetch_together(self, connection: Connection, version: int) -> FetchAnswer:
        """Fetch everything that is wanted."""
        wanted = self._wanted
        asked = wanted.fetches.copy()
        looked_at = wanted.take_looked_at()
        if self._session.knows(self._untold):  # they were fetched here earlier, and the session still knows them
            self._session.lost()
        self._untold.clear()
        fetch = self._session.next_fetch(asked, looked_at)
        wait = min(self._wait, self._settings.fetch_max_wait)
        answer, size = await self._send(connection, version, fetch, asked, wait)
        self._session.answered(answer.session_id)
        # If a partition is alone, a batch above the limits comes whole (KIP-74). So asking again is no use.
        final = len(asked) == 1 or version < FIRST_WITH_WHOLE_BATCHES
        found = self._take(answer, size, asked, looked_at, final=final)
        self._wait = _FIRST_WAIT if found else min(self._wait * 2, self._settings.fetch_max_wait)
        if answer.throttle_ms == 0:  # a throttled answer is always empty
            self._note_left_out(asked, full=found)
        return answer

    def _take_alone(self, now: float) -> TopicPartition | None:
        """The next partition to ask for alone."""
        while waiting := self._torn or (self._left_out if now >= self._left_out_from else ()):
            key = next(iter(waiting))
            self._torn.discard(key)
            self._left_out.pop(key, None)
            if key in self._wanted.fetches:
                return key
        return None

    async def _fetch_alone(self, connection: Connection, version: int, key: TopicPartition) -> FetchAnswer:
        """Fetch one partition outside the session, which stays as it is.

        What is on the broker's disks comes at once. So the first such fetch is not held back, only later ones.
        """
        asked = {key: self._wanted.fetches[key]}
        consumer = self._wanted.partitions[key]
        wait = min(_wait_alone(consumer.standing.empty_answers), self._settings.fetch_max_wait)
        answer, size = await self._send(connection, version, outside_session(asked), asked, wait)
        if self._take(answer, size, asked, set(), final=True):
            # It only had to wait for its turn. The others may have to as well.
            self._left_out.clear()
            self._next_look = time.monotonic() + _LOOK_EVERY
        elif answer.throttle_ms == 0 and self._is_short_of_end(consumer, asked):
            await self._had_nothing(consumer, asked)
        return answer

    async def _send(
        self,
        connection: Connection,
        version: int,
        fetch: SessionFetch,
        asked: Mapping[TopicPartition, PartitionFetch],
        wait: float,
    ) -> tuple[FetchAnswer, int]:
        """The answer to one fetch, and its size in bytes."""
        for key in fetch.named:
            self._wanted.partitions[key].standing.fetched_by_id = version >= FIRST_WITH_TOPIC_ID
        self._under_way = True
        reminder = self._remind_later(asked)
        try:
            body = await connection.send(
                Api.fetch,
                version,
                self._request(version, fetch, wait, self._rack(asked)),
                timeout=self._settings.request_timeout + wait,
            )
        finally:
            reminder.cancel()
        self._under_way = False
        answer = read_fetch_response(version, body)
        if answer.error is not ErrorCode.none:
            self._session.refused(answer.error)
            raise KafkaError(answer.error, f"fetch from broker {self._node_id}")
        self._backoff.reset()
        return answer, len(body)

    def _rack(self, asked: Iterable[TopicPartition]) -> str:
        """The rack to send. A leader that knows it sends readers to a closer replica instead of serving them."""
        rack = self._settings.rack
        return rack if rack and all(self._wanted.partitions[key].standing.follows for key in asked) else ""

    def _remind_later(self, asked: Iterable[TopicPartition]) -> _Reminder:
        """While the broker owes an answer, ask for metadata again and again: it may hang, and not only be slow."""
        reason = f"broker {self._node_id} owes an answer"
        return _Reminder(lambda: self._client.metadata.wanted({key.topic for key in asked}, reason))

    def _request(self, version: int, fetch: SessionFetch, wait: float, rack: str) -> list[Buffer]:
        settings = self._settings
        topics: dict[tuple[str, UUID | None], list[FetchPartition]] = {}
        for key, asked in fetch.named.items():
            topics.setdefault((key.topic, asked.topic_id), []).append(
                FetchPartition(key.partition, asked.offset, asked.max_bytes, asked.leader_epoch)
            )
        forgotten: dict[tuple[str, UUID | None], list[int]] = {}
        for key, topic_id in fetch.forgotten.items():
            forgotten.setdefault((key.topic, topic_id), []).append(key.partition)
        return fetch_request(
            version,
            [(*topic, partitions) for topic, partitions in topics.items()],
            max_wait_ms=int(wait * 1000),
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            read_committed=settings.isolation is Isolation.read_committed,
            session_id=fetch.session_id,
            session_epoch=fetch.session_epoch,
            forgotten=[(*topic, partitions) for topic, partitions in forgotten.items()],
            rack=rack,
        )

    def _take(
        self,
        answer: FetchAnswer,
        answer_bytes: int,
        asked: Mapping[TopicPartition, PartitionFetch],
        looked_at: set[TopicPartition],
        *,
        final: bool,
    ) -> bool:
        """Give each partition its part of an answer. Whether there were records in it."""
        nodes = {node.id: Node(node.id, node.host, node.port, node.rack) for node in answer.nodes}
        told = looked_at.copy()
        sent_away: list[tuple[PartitionConsumer, int]] = []
        for part in answer.partitions:
            key = TopicPartition(part.topic or self._wanted.names.get(part.topic_id, ""), part.partition)
            consumer = self._still_asked(key, asked)
            if consumer is None:
                continue
            self._wanted.changed(key)
            if part.error is not ErrorCode.none:
                self._unserved.discard(key)
                self._refused(consumer, self._refusal(key, consumer, part, nodes))
                continue
            told.add(key)
            consumer.learned(part.high_watermark, part.last_stable_offset, part.log_start_offset)
            if part.preferred_read_replica >= 0:
                sent_away.append((consumer, part.preferred_read_replica))
            elif len(part.records):
                self._offer(consumer, part, answer_bytes, final=final)
        self._serve(asked)
        self._tell(told)
        for consumer, node in sent_away:
            self._preferred(consumer, node)
        return any(len(part.records) for part in answer.partitions)

    def _serve(self, asked: Mapping[TopicPartition, PartitionFetch]) -> None:
        """The first good answer since they came here: earlier errors do not count any more."""
        for key in [key for key in self._unserved if key in asked]:
            self._unserved.discard(key)
            self._wanted.partitions[key].standing.served()

    def _tell(self, keys: Iterable[TopicPartition]) -> None:
        """Tell the events how far behind these are: their log or their reader may have moved."""
        for key in keys:
            consumer = self._wanted.partitions.get(key)
            if consumer is not None and consumer.log_end >= 0:
                self._events.answered(*key, consumer.reached, consumer.log_end)

    def _refusal(
        self, key: TopicPartition, consumer: PartitionConsumer, part: FetchedPartition, nodes: Mapping[int, Node]
    ) -> Refusal:
        detail = f"{key}, offset {consumer.position}, broker {self._node_id}"
        error = KafkaError(part.error, detail)
        return Refusal(error, part.leader_id, part.leader_epoch, nodes.get(part.leader_id))

    def _still_asked(
        self, key: TopicPartition, asked: Mapping[TopicPartition, PartitionFetch]
    ) -> PartitionConsumer | None:
        """The consumer of a partition. None if it was taken away, paused or repositioned since the request."""
        fetch = asked.get(key)
        consumer = self._wanted.partitions.get(key)
        if fetch is None or consumer is None or self._wanted.fetches.get(key) is not fetch:
            return None
        return consumer if consumer.live and not consumer.paused and consumer.position == fetch.offset else None

    def _offer(self, consumer: PartitionConsumer, part: FetchedPartition, answer_bytes: int, *, final: bool) -> None:
        try:
            fetched = cut(
                part.records,
                answer_bytes,
                position=consumer.position,
                end=consumer.end,
                isolation=self._settings.isolation_level,
                aborted=[(one.producer_id, one.first_offset) for one in part.aborted_transactions],
            )
        except IngestdError as error:
            self._fail(consumer, type(error)(f"{consumer.key} at offset {consumer.position}: {error}"))
            return
        if fetched.next_offset == consumer.position:
            if not final:
                self._torn.add(consumer.key)
                return
            size = len(part.records)
            torn = CorruptBatch(f"{consumer.key} at offset {consumer.position}: no batch of it in {size} bytes")
            self._fail(consumer, torn)
            return
        self._events.fetched(*consumer.key, fetched.size)
        consumer.offer(fetched)

    # An end that no batch reaches

    def _note_left_out(self, asked: Mapping[TopicPartition, PartitionFetch], *, full: bool) -> None:
        """Note what to fetch alone: bounded reads that had nothing, although their logs have reached their ends.

        A `full` answer may have had no room for them. Then they count only if they had nothing in two checks.
        """
        now = time.monotonic()
        if not self._wanted.bounded or (full and (self._left_out or now < self._next_look)):
            return
        self._next_look = now + _LOOK_EVERY
        before, self._stood = self._stood, {}
        for key in asked:  # those that wait longest first
            consumer = self._wanted.partitions.get(key)
            if consumer is not None and self._is_short_of_end(consumer, asked):
                self._stood[key] = consumer.position
                if not full or before.get(key) == consumer.position:
                    self._left_out[key] = None

    def _is_short_of_end(self, consumer: PartitionConsumer, asked: Mapping[TopicPartition, PartitionFetch]) -> bool:
        """Whether its position is still the one in the request, and its log has reached the end of the read."""
        return (
            consumer.end is not None
            and consumer.log_end >= consumer.end
            and self._still_asked(consumer.key, asked) is consumer
        )

    async def _had_nothing(self, consumer: PartitionConsumer, asked: Mapping[TopicPartition, PartitionFetch]) -> None:
        """A fetch of it alone was empty: find out whether this is its end. See `ends.py`."""
        standing = consumer.standing
        standing.empty_answers += 1
        chosen = self._wanted.chosen[consumer.key]
        if chosen.follower:
            self._to_leader(consumer)
            return
        at = consumer.position, chosen.leader.leader_epoch
        if standing.remote == at:
            return
        leader = self._client.broker(self._node_id)
        try:
            first = await first_local_offset(leader, consumer.key, chosen.leader.leader_epoch, _SLOW_ANSWER)
        except IngestdError as error:
            if self._still_asked(consumer.key, asked) is consumer:
                self._refused(consumer, Refusal(error))
            return
        if consumer.end is None or self._still_asked(consumer.key, asked) is not consumer:
            return
        if first is not None and first > consumer.position:
            standing.remote = at
        elif first is not None or standing.empty_answers >= _EMPTY_ANSWERS_OF_SILENT:
            consumer.move(consumer.end)
