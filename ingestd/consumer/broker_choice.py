"""Broker choice: which broker each partition is fetched from: its leader, or the follower that it names (KIP-392)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.consumer.broker_consumer import BrokerConsumer
from ingestd.consumer.fetch_from import FetchFrom, Refusal
from ingestd.consumer.settings import Edge, OutOfRange, Recreation, Truncation
from ingestd.consumer.truncation import TruncationChecks
from ingestd.errors import (
    DeadlineExceeded,
    ErrorCode,
    IngestdError,
    KafkaError,
    LogTruncated,
    TopicRecreated,
    is_retriable,
)
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any
    from uuid import UUID

    from ingestd.client.client import Client
    from ingestd.client.metadata import ClusterMetadata, PartitionMetadata, TopicPartition
    from ingestd.consumer.events import ConsumerEvents
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.position import Position
    from ingestd.consumer.settings import ConsumerSettings, Start
    from ingestd.consumer.truncation import TruncationCheck
    from ingestd.retry import Deadline

__all__ = ["BrokerChoice"]

_GONE: Final = frozenset(
    {ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id}
)
"""A topic that is missing for `metadata_timeout` is deleted, and its reader is told."""

_LEAST_SHARE: Final = 64 * 1024
"""Bytes of memory for each partition, however many there are."""

_REPLICA_PENALTY: Final = 10.0
"""Seconds that a partition stays with its leader after a follower failed. Then the leader knows of the failure too."""


@dataclass(slots=True)
class _Placed:
    """Where a partition is fetched, and the timer that brings it back to its leader."""

    chosen: FetchFrom
    lease: asyncio.TimerHandle | None = None


class BrokerChoice:
    """Owns the broker consumers of a consumer, and decides which one fetches each partition.

    Invariants
        A partition is at one broker consumer, or a leader is asked about its log, or it waits for a retry, or it is
        finished.
        Nothing is fetched from a new leader before it confirmed that its log is the one that was read.
        If a follower fails or leaves the cluster, the partition goes back to its leader. That costs one retry.
    """

    def __init__(
        self,
        client: Client,
        settings: ConsumerSettings,
        events: ConsumerEvents,
        *,
        locate: Callable[[TopicPartition, Start], Awaitable[int]],
    ) -> None:
        self._client = client
        self._settings = settings
        self._events = events
        self.locate = locate
        self._tasks = TaskOwner(self._crashed)
        self.consumers: dict[TopicPartition, PartitionConsumer] = {}
        self._brokers: dict[int, BrokerConsumer] = {}
        self._placed: dict[TopicPartition, _Placed] = {}
        self._retries: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._relocating: set[TopicPartition] = set()
        """Partitions whose new offset is being looked up, as a policy says. Their old position must not be fetched."""
        self._checks = TruncationChecks(client, self._tasks, done=self._checked)
        self._stop_listening = client.metadata.listen(self._metadata_changed, self._topics)
        self._in_turn: dict[TopicPartition, PartitionConsumer] = {}
        self._news: asyncio.Future[None] | None = None
        self._closed = False

    def add(self, consumer: PartitionConsumer) -> None:
        """Have this partition fetched from now on."""
        self.consumers[consumer.key] = consumer
        self._place(consumer)
        self.told(consumer)

    def release(self, consumer: PartitionConsumer) -> None:
        """Fetch it no more."""
        if self.consumers.get(consumer.key) is consumer:
            self._take_away(consumer)
            del self.consumers[consumer.key]
            self._in_turn.pop(consumer.key, None)
            self._relocating.discard(consumer.key)
            if (retry := self._retries.pop(consumer.key, None)) is not None:
                retry.cancel()
            self._events.released(consumer.topic, consumer.partition)

    def wake(self, consumer: PartitionConsumer) -> None:
        """Whether or what to fetch of it may have changed."""
        placed = self._placed.get(consumer.key)
        if placed is not None:
            self._brokers[placed.chosen.node].wake(consumer)

    def repositioned(self, consumer: PartitionConsumer) -> None:
        """It has another position now: choose its broker anew."""
        if self.consumers.get(consumer.key) is consumer:
            self._relocating.discard(consumer.key)
            self._take_away(consumer)
            self._place(consumer)

    def share(self) -> int:
        """Bytes of memory for each partition."""
        return max(_LEAST_SHARE, self._settings.prefetch_bytes // max(1, len(self.consumers)))

    def told(self, consumer: PartitionConsumer) -> None:
        """It has something to hand out, or has ended, or is new."""
        if self.consumers.get(consumer.key) is consumer:
            self._in_turn[consumer.key] = consumer
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def next_in_turn(self) -> PartitionConsumer | None:
        """The partition consumer whose news is the oldest. None if none has any."""
        while self._in_turn:
            consumer = self._in_turn.pop(next(iter(self._in_turn)))
            if consumer.readable:
                return consumer
        return None

    async def news(self) -> None:
        """Wait until a partition consumer has something to hand out, has ended, or is new. For one task."""
        if self._news is not None:
            raise IngestdError("the messages of a consumer are read by two tasks at once; expected one")
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    def status(self, key: TopicPartition) -> dict[str, Any]:
        """Where the partition is fetched, for bug reports. None while no broker is chosen."""
        chosen = self.chosen_for(key)
        return (
            {"node": None, "leader": None} if chosen is None else {"node": chosen.node, "leader": chosen.leader.leader}
        )

    def chosen_for(self, key: TopicPartition) -> FetchFrom | None:
        """Where the partition is fetched. None while no broker is chosen."""
        placed = self._placed.get(key)
        return None if placed is None else placed.chosen

    async def close(self, deadline: Deadline) -> None:
        """End every fetch, and give fetch sessions back before the deadline."""
        self._closed = True
        self._stop_listening()
        for consumer in list(self.consumers.values()):
            self.release(consumer)
        await self._tasks.close()
        await asyncio.gather(*(broker.give_back(deadline) for broker in self._brokers.values()))
        self._brokers.clear()

    # Where a partition goes

    def _place(self, consumer: PartitionConsumer) -> None:
        if self._closed or not consumer.live or self.consumers.get(consumer.key) is not consumer:
            return
        if consumer.key in self._relocating:
            return
        snapshot = self._client.metadata.snapshot
        another = _is_another(consumer, snapshot)
        if another and _is_believed(consumer):
            self._recreated(consumer, snapshot.topics[consumer.topic].topic_id)
            return
        leader = snapshot.partition(*consumer.key)
        if leader is None and _is_deleted(consumer, snapshot):
            self._refused(consumer, Refusal(KafkaError(ErrorCode.unknown_topic_or_partition, str(consumer.key))))
            return
        if leader is None or leader.leader not in snapshot.nodes:
            self._client.metadata.wanted({consumer.topic}, f"{consumer.key} has no known leader")
            self._retry_later(consumer)
            return
        if (retry := self._retries.pop(consumer.key, None)) is not None:
            retry.cancel()
        if not another:  # if it is, a fetch by the known id will be refused
            if consumer.unchecked(leader.leader_epoch):
                self._checks.ask(consumer, leader)
                return
            consumer.standing.checked_epoch = leader.leader_epoch
        self._put(consumer, FetchFrom(leader.leader, leader))

    def _put(self, consumer: PartitionConsumer, chosen: FetchFrom) -> None:
        broker = self._brokers.get(chosen.node)
        if broker is None:
            broker = self._brokers[chosen.node] = BrokerConsumer(
                self._client,
                chosen.node,
                self._settings,
                self._tasks,
                self._events,
                share=self.share,
                refused=self._refused,
                preferred=self._preferred,
                to_leader=self._to_leader,
            )
        self._placed[consumer.key] = _Placed(chosen)
        self._events.placed(consumer.topic, consumer.partition, chosen.node, chosen.leader.leader)
        broker.add(consumer, chosen)

    def _take_away(self, consumer: PartitionConsumer) -> FetchFrom | None:
        placed = self._placed.pop(consumer.key, None)
        if placed is None:
            return None
        if placed.lease is not None:
            placed.lease.cancel()
        self._brokers[placed.chosen.node].remove(consumer)
        return placed.chosen

    def _retry_later(self, consumer: PartitionConsumer) -> None:
        if consumer.key in self._retries or self._closed:
            return
        delay = consumer.standing.backoff.next_delay()
        self._retries[consumer.key] = asyncio.get_running_loop().call_later(delay, self._retry, consumer)

    def _retry(self, consumer: PartitionConsumer) -> None:
        self._retries.pop(consumer.key, None)
        if consumer.key not in self._placed:
            self._place(consumer)

    def _metadata_changed(self, snapshot: ClusterMetadata) -> None:
        for key, consumer in list(self.consumers.items()):
            leader = snapshot.partition(*key)
            if leader is None or leader.leader not in snapshot.nodes:
                continue
            chosen = self.chosen_for(key)
            if chosen is None:
                # The refusal may be newer than this snapshot. So the retry waits for its backoff, unless the snapshot
                # names another leader, or another epoch, than the one that refused.
                if consumer.standing.refused_by != (leader.leader, leader.leader_epoch):
                    self._place(consumer)
            elif _is_outdated(chosen, leader, snapshot) or (_is_another(consumer, snapshot) and _is_believed(consumer)):
                self.repositioned(consumer)

    def _topics(self) -> set[str]:
        return {key.topic for key in self.consumers}

    # A replica that is closer than the leader

    def _preferred(self, consumer: PartitionConsumer, node: int) -> None:
        """The leader answers this reader with nothing but a replica that is closer to it."""
        placed = self._placed.get(consumer.key)
        if placed is None or placed.chosen.follower or self.consumers.get(consumer.key) is not consumer:
            return
        if node not in self._client.metadata.snapshot.nodes:
            consumer.standing.stay_with_leader(_REPLICA_PENALTY)
            self._client.metadata.wanted({consumer.topic}, f"{consumer.key}: its preferred replica {node} is not known")
            return
        self._take_away(consumer)
        self._put(consumer, FetchFrom(node, placed.chosen.leader))
        self._placed[consumer.key].lease = asyncio.get_running_loop().call_later(
            self._settings.replica_lease, self.repositioned, consumer
        )

    def _to_leader(self, consumer: PartitionConsumer) -> None:
        """The follower that it is fetched from has nothing more, and only its leader knows if that is the end."""
        consumer.standing.stay_with_leader(_REPLICA_PENALTY)
        self.repositioned(consumer)

    # What a broker refused

    def _refused(self, consumer: PartitionConsumer, refusal: Refusal) -> None:
        error = refusal.error
        chosen = self._take_away(consumer)
        if chosen is not None and chosen.follower:  # whatever the error is: the leader decides
            self._retried(consumer, error)
            consumer.standing.stay_with_leader(_REPLICA_PENALTY)
            self._client.metadata.wanted({consumer.topic}, f"{consumer.key}: its replica {chosen.node}: {error}")
            self._place(consumer)
            return
        if chosen is not None:
            consumer.standing.refused_by = (chosen.leader.leader, chosen.leader.leader_epoch)
        if isinstance(error, KafkaError) and error.code is ErrorCode.offset_out_of_range:
            self._out_of_range(consumer, error)
            return
        if not is_retriable(error):
            self._fail(consumer, error)
            return
        self._retried(consumer, error)
        failing = consumer.standing.failing()
        consumer.standing.gone = isinstance(error, KafkaError) and error.code in _GONE
        if consumer.standing.gone and failing > self._settings.metadata_timeout:
            self._fail(consumer, error)
            return
        if refusal.leader >= 0:
            self._client.metadata.hint(*consumer.key, refusal.leader, refusal.leader_epoch, refusal.node)
        if consumer.key not in self._placed:  # the hint may have placed it already
            self._client.metadata.wanted({consumer.topic}, f"{consumer.key}: {error}")
            self._retry_later(consumer)

    def _out_of_range(self, consumer: PartitionConsumer, error: KafkaError) -> None:
        policy = self._settings.out_of_range
        if policy is OutOfRange.error:
            self._fail(consumer, error)
            return
        self._go_on_from(consumer, Edge.earliest if policy is OutOfRange.earliest else Edge.latest)

    def _go_on_from(self, consumer: PartitionConsumer, edge: Edge) -> None:
        self._relocating.add(consumer.key)
        self._tasks.start(self._reposition(consumer, edge), f"new position of {consumer.key}")

    async def _reposition(self, consumer: PartitionConsumer, edge: Edge) -> None:
        asked = consumer.fetch_position
        try:
            offset = await self.locate(consumer.key, edge)
        except DeadlineExceeded as error:
            self._retried(consumer, error)
            if self._is_relocating(consumer, asked):
                self._go_on_from(consumer, edge)
            return
        except IngestdError as error:
            if self._is_relocating(consumer, asked):
                self._fail(consumer, error)
            return
        if not self._is_relocating(consumer, asked):
            return
        self._relocating.discard(consumer.key)
        self._events.moved(*consumer.key, asked.offset, offset)
        consumer.move(offset)
        self._retry_later(consumer)  # with its backoff, because a log may shrink faster than we ask

    def _is_relocating(self, consumer: PartitionConsumer, asked: Position) -> bool:
        """Whether it was not closed and did not get another position meanwhile."""
        current = self.consumers.get(consumer.key) is consumer and consumer.key in self._relocating
        return current and consumer.fetch_position == asked and not self._closed

    # A log that is not the one that was read

    def _checked(self, check: TruncationCheck, error: IngestdError | None) -> None:
        consumer = check.consumer
        if self.consumers.get(consumer.key) is not consumer or consumer.key in self._placed:
            return
        if error is not None:
            self._refused(consumer, Refusal(error))
            return
        if check.outdated:
            self._place(consumer)
            return
        consumer.standing.checked_epoch = check.leader.leader_epoch
        if check.diverged_at is not None:
            self._truncated(consumer, check.diverged_at)
        self._place(consumer)

    def _truncated(self, consumer: PartitionConsumer, diverged_at: int) -> None:
        read = consumer.fetch_position
        consumer.forget_from(diverged_at)
        if self._settings.truncation is Truncation.error:
            self._fail(consumer, LogTruncated(*consumer.key, read.offset, read.leader_epoch, diverged_at))
            return
        self._events.moved(*consumer.key, read.offset, diverged_at)
        consumer.move(diverged_at)

    def _recreated(self, consumer: PartitionConsumer, topic_id: UUID | None) -> None:
        self._take_away(consumer)
        if self._settings.recreation is Recreation.error or consumer.end is not None:
            was = f"{consumer.topic} was deleted and created again (id {topic_id}, was {consumer.standing.topic_id})"
            self._fail(consumer, TopicRecreated(f"{consumer.key} at offset {consumer.position}: {was}"))
            return
        consumer.begin_anew(topic_id)
        self._go_on_from(consumer, Edge.earliest)

    # Who is told

    def _retried(self, consumer: PartitionConsumer, error: IngestdError) -> None:
        self._events.retried(*consumer.key, error)
        consumer.report(error)

    def _fail(self, consumer: PartitionConsumer, error: IngestdError) -> None:
        self._events.failed(*consumer.key, error)
        consumer.fail(error)

    def _crashed(self, error: BaseException) -> None:
        # A defect in the fetch loop: every reader is told, so that none waits for ever.
        failure = error if isinstance(error, IngestdError) else IngestdError(f"the consumer failed: {error!r}")
        for consumer in self.consumers.values():
            self._fail(consumer, failure)


def _is_outdated(chosen: FetchFrom, leader: PartitionMetadata, snapshot: ClusterMetadata) -> bool:
    """Whether the snapshot says that the partition should not be fetched there any more."""
    if chosen.leader.leader_epoch < leader.leader_epoch:
        return True
    if chosen.follower:
        return chosen.node not in snapshot.nodes or chosen.node in leader.offline_replicas
    return chosen.node != leader.leader


def _is_deleted(consumer: PartitionConsumer, snapshot: ClusterMetadata) -> bool:
    """Whether the cluster says that it has no such topic."""
    topic = snapshot.topics.get(consumer.topic)
    return topic is not None and topic.error is ErrorCode.unknown_topic_or_partition


def _is_another(consumer: PartitionConsumer, snapshot: ClusterMetadata) -> bool:
    """Whether the snapshot says that this name now belongs to another topic than the one that is read."""
    topic = snapshot.topics.get(consumer.topic)
    if topic is None or topic.topic_id is None or consumer.standing.topic_id is None:
        return False
    return topic.topic_id != consumer.standing.topic_id


def _is_believed(consumer: PartitionConsumer) -> bool:
    """Whether metadata alone proves that the topic was deleted and created again.

    A broker that was away may still name the old topic. If fetches name the topic's id, nothing wrong can be read. So
    then it is believed only once a fetch was refused because of the id.
    """
    return consumer.standing.gone or not consumer.standing.fetched_by_id
