"""Consumer: gives out one partition consumer per partition, and finds each the broker that serves it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Self

from ingestd.consumer.broker_consumer import BrokerConsumer, Refusal
from ingestd.consumer.events import NoEvents
from ingestd.consumer.offsets import resolve_offsets
from ingestd.consumer.partition_consumer import PartitionConsumer
from ingestd.consumer.settings import ConsumerSettings, Edge, End, OutOfRange, Start, TopicPartition
from ingestd.errors import Closed, ConnectionLost, DeadlineExceeded, ErrorCode, IngestdError, KafkaError, is_retriable
from ingestd.retry import Backoff, Deadline
from ingestd.tasks import TaskOwner
from ingestd.wire.requests import metadata

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from ingestd.client.client import Client
    from ingestd.client.metadata import ClusterMetadata, PartitionMetadata
    from ingestd.consumer.events import ConsumerEvents

__all__ = ["Consumer"]

_REQUEST_TIMEOUT = 10.0
"""Seconds for one attempt at a question that any broker can answer."""

_LEAST_SHARE = 64 * 1024
"""Bytes of memory for each partition, however many there are."""

_GONE = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id})
"""A topic that stays away for `metadata_timeout` is deleted: its reader is told."""


class Consumer:
    """Reads partitions of topics. Async context manager; shares the client, and does not close it.

    Invariants
        One partition consumer per partition at a time.
        A partition is with the broker consumer of its leader, or waits for a retry, or is finished.
        After `close` no task and no timer of the consumer is left.
    """

    def __init__(
        self,
        client: Client,
        settings: ConsumerSettings | None = None,
        *,
        events: ConsumerEvents | None = None,
    ) -> None:
        self._client = client
        self._settings = settings or ConsumerSettings()
        self._events = events or NoEvents()
        self._tasks = TaskOwner(self._crashed)
        self._partitions: dict[TopicPartition, PartitionConsumer] = {}
        self._opening: set[TopicPartition] = set()
        self._brokers: dict[int, BrokerConsumer] = {}
        self._placed: dict[TopicPartition, tuple[int, PartitionMetadata]] = {}
        self._retries: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._closed = False
        self._stop_listening = client.metadata.listen(self._metadata_changed)

    async def topics(self) -> list[str]:
        """Every topic of the cluster, internal ones left out, in order of name. Raises `DeadlineExceeded`."""
        deadline = Deadline.after(self._settings.metadata_timeout)
        async for _attempt in Backoff().attempts_until(deadline):
            broker = await self._client.any()
            try:
                answer = await broker.request(metadata(None), min(_REQUEST_TIMEOUT, deadline.remaining))
            except (ConnectionLost, DeadlineExceeded) as error:
                last = error
                continue
            return sorted(topic.name for topic in answer.topics if not topic.is_internal)
        raise DeadlineExceeded(f"topics: no broker answered within {deadline.seconds:g} s") from last

    async def partitions(self, topic: str) -> list[int]:
        """The topic's partitions. Raises `KafkaError` when there is no such topic, `DeadlineExceeded`."""
        return list(await self._client.partitions(topic, self._settings.metadata_timeout))

    async def offsets(self, wanted: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """The offsets that these starts mean now. Raises `KafkaError` for an unknown partition, `DeadlineExceeded`."""
        return await resolve_offsets(self._client, wanted, self._settings.isolation, self._settings.metadata_timeout)

    async def consume_partition(self, topic: str, partition: int, start: Start, end: End = None) -> PartitionConsumer:
        """Read a partition from `start` on, up to but without `end`; both are resolved to offsets before this returns.

        Raises `Closed`; `IngestdError` when the partition is being read already; `KafkaError` when it does not exist;
        `DeadlineExceeded`. A literal offset is not checked here: the out-of-range policy decides at the first fetch.
        """
        key = TopicPartition(topic, partition)
        if self._closed:
            raise Closed(f"{key}: the consumer is closed")
        if key in self._partitions or key in self._opening:
            raise IngestdError(f"{key} is already read by this consumer; close that partition consumer first")
        self._opening.add(key)
        try:
            first, last = await self._resolve(key, start, end)
        finally:
            self._opening.discard(key)
        return self._add(key, first, last)

    async def consume_partitions(
        self, starts: Mapping[TopicPartition, Start]
    ) -> dict[TopicPartition, PartitionConsumer]:
        """Read all of these partitions, for ever, or none of them: `consume_partition` for thousands at once."""
        if self._closed:
            raise Closed("the consumer is closed")
        taken = [key for key in starts if key in self._partitions or key in self._opening]
        if taken:
            raise IngestdError(f"{taken[0]} is already read by this consumer; close that partition consumer first")
        deadline = Deadline.after(self._settings.metadata_timeout)
        self._opening.update(starts)
        try:
            known = {
                topic: frozenset(await self._client.partitions(topic, deadline.remaining))
                for topic in {key.topic for key in starts}
            }
            for key in starts:
                if key.partition not in known[key.topic]:
                    raise KafkaError(ErrorCode.unknown_topic_or_partition, str(key))
            offsets = await resolve_offsets(self._client, starts, self._settings.isolation, deadline.remaining)
        finally:
            self._opening.difference_update(starts)
        return {key: self._add(key, offset, None) for key, offset in offsets.items()}

    def _add(self, key: TopicPartition, first: int, last: int | None) -> PartitionConsumer:
        if self._closed:
            raise Closed(f"{key}: the consumer was closed")
        consumer = PartitionConsumer(
            key,
            first,
            last,
            check_crcs=self._settings.check_crcs,
            share=self._share,
            wake=self._wake,
            released=self._release,
        )
        self._partitions[key] = consumer
        self._place(consumer)
        return consumer

    def pause_all(self) -> None:
        """Pause every partition that is being read."""
        for consumer in self._partitions.values():
            consumer.pause()

    def resume_all(self) -> None:
        """Resume every partition that is being read."""
        for consumer in self._partitions.values():
            consumer.resume()

    async def close(self, timeout: float = 5.0) -> None:
        """Close every partition consumer, and give fetch sessions back within `timeout` seconds. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._stop_listening()
        for consumer in list(self._partitions.values()):
            consumer.close()
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()
        await self._tasks.close()
        deadline = Deadline.after(timeout)
        await asyncio.gather(*(broker.give_back(deadline) for broker in self._brokers.values()))
        self._brokers.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _resolve(self, key: TopicPartition, start: Start, end: End) -> tuple[int, int | None]:
        settings = self._settings
        deadline = Deadline.after(settings.metadata_timeout)
        if key.partition not in await self._client.partitions(key.topic, deadline.remaining):
            raise KafkaError(ErrorCode.unknown_topic_or_partition, str(key))

        async def offset(wanted: Start) -> int:
            if isinstance(wanted, int):
                return wanted
            found = await resolve_offsets(self._client, {key: wanted}, settings.isolation, deadline.remaining)
            return found[key]

        first = await offset(start)
        return first, None if end is None else await offset(end)

    def _share(self) -> int:
        return max(_LEAST_SHARE, self._settings.prefetch_bytes // max(1, len(self._partitions)))

    # Finding each partition its broker

    def _place(self, consumer: PartitionConsumer) -> None:
        if not consumer.live or self._partitions.get(consumer.key) is not consumer:
            return
        snapshot = self._client.metadata.snapshot
        known = snapshot.partition(*consumer.key)
        if known is None or known.leader not in snapshot.nodes:
            self._client.metadata.wanted({consumer.topic}, f"{consumer.key} has no known leader")
            self._retry_later(consumer)
            return
        if (retry := self._retries.pop(consumer.key, None)) is not None:
            retry.cancel()
        broker = self._brokers.get(known.leader)
        if broker is None:
            broker = self._brokers[known.leader] = BrokerConsumer(
                self._client, known.leader, self._settings, self._tasks, self._events, refused=self._refused
            )
        self._placed[consumer.key] = (known.leader, known)
        broker.add(consumer, known)

    def _take_away(self, consumer: PartitionConsumer) -> None:
        placed = self._placed.pop(consumer.key, None)
        if placed is not None:
            self._brokers[placed[0]].remove(consumer)

    def _retry_later(self, consumer: PartitionConsumer) -> None:
        if consumer.key in self._retries or self._closed:
            return
        delay = consumer.backoff.next_delay()
        self._retries[consumer.key] = asyncio.get_running_loop().call_later(delay, self._retry, consumer)

    def _retry(self, consumer: PartitionConsumer) -> None:
        self._retries.pop(consumer.key, None)
        self._place(consumer)

    def _metadata_changed(self, snapshot: ClusterMetadata) -> None:
        for key, consumer in list(self._partitions.items()):
            known = snapshot.partition(*key)
            if known is None or known.leader not in snapshot.nodes:
                continue
            placed = self._placed.get(key)
            if placed is None:
                # The answer that sent it away may be newer than this snapshot: the retry's backoff stays in force
                # unless the snapshot names another leader or term than the one that refused.
                if consumer.refused_by != (known.leader, known.leader_epoch):
                    self._place(consumer)
            elif placed[0] != known.leader or placed[1].leader_epoch < known.leader_epoch:
                self._take_away(consumer)
                self._place(consumer)

    def _wake(self, consumer: PartitionConsumer) -> None:
        placed = self._placed.get(consumer.key)
        if placed is not None:
            self._brokers[placed[0]].wake()

    def _release(self, consumer: PartitionConsumer) -> None:
        if self._partitions.get(consumer.key) is not consumer:
            return
        self._take_away(consumer)
        del self._partitions[consumer.key]
        if (retry := self._retries.pop(consumer.key, None)) is not None:
            retry.cancel()

    # What a broker refused

    def _refused(self, consumer: PartitionConsumer, refusal: Refusal) -> None:
        placed = self._placed.get(consumer.key)
        consumer.refused_by = None if placed is None else (placed[0], placed[1].leader_epoch)
        self._take_away(consumer)
        error = refusal.error
        if isinstance(error, KafkaError) and error.code is ErrorCode.offset_out_of_range:
            self._out_of_range(consumer, error)
            return
        if not is_retriable(error):
            consumer.fail(error)
            return
        self._events.retried(consumer.topic, consumer.partition, error)
        now = time.monotonic()
        if consumer.failing_since is None:
            consumer.failing_since = now
        gone = isinstance(error, KafkaError) and error.code in _GONE
        if gone and now - consumer.failing_since > self._settings.metadata_timeout:
            consumer.fail(error)
            return
        if refusal.leader >= 0:
            self._client.metadata.hint(consumer.topic, consumer.partition, refusal.leader, refusal.leader_epoch)
        if consumer.key not in self._placed:  # the hint may have placed it already
            self._client.metadata.wanted({consumer.topic}, f"{consumer.key}: {error}")
            self._retry_later(consumer)

    def _out_of_range(self, consumer: PartitionConsumer, error: KafkaError) -> None:
        policy = self._settings.out_of_range
        if policy is OutOfRange.error:
            consumer.fail(error)
            return
        edge = Edge.oldest if policy is OutOfRange.oldest else Edge.newest
        self._tasks.start(self._reposition(consumer, edge), f"new position of {consumer.key}")

    async def _reposition(self, consumer: PartitionConsumer, edge: Edge) -> None:
        asked = consumer.position
        try:
            offset = (await self.offsets({consumer.key: edge}))[consumer.key]
        except DeadlineExceeded as error:
            self._events.retried(consumer.topic, consumer.partition, error)
            self._retry_later(consumer)
            return
        except IngestdError as error:
            consumer.fail(error)
            return
        self._events.moved(consumer.topic, consumer.partition, asked, offset)
        consumer.move(offset)
        self._retry_later(consumer)  # with its backoff: a log that shrinks faster than we ask must not keep us busy

    def _crashed(self, error: BaseException) -> None:
        # A defect in the fetch loop: every reader learns of it, none waits for ever.
        failure = error if isinstance(error, IngestdError) else IngestdError(f"the consumer failed: {error!r}")
        for consumer in self._partitions.values():
            consumer.fail(failure)
