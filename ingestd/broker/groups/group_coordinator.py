"""Group coordinator: which partition has which group, when they are loaded, and what is done with all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.broker.coordinator.coordinator_log import CoordinatorLog
from ingestd.broker.coordinator.coordinator_topic import CoordinatorTopic
from ingestd.broker.coordinator.records import GROUP_RECORDS
from ingestd.broker.groups.consumer_group import ConsumerRules
from ingestd.broker.groups.group_partition import GroupPartition
from ingestd.broker.topics import OFFSETS_TOPIC
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.broker.clock import Clock
    from ingestd.broker.groups.group import TopicPartition
    from ingestd.broker.settings import BrokerSettings
    from ingestd.broker.storage import Partition, Storage
    from ingestd.tasks import TaskOwner

__all__ = ["GroupCoordinator"]

_log = get_logger(__name__)


class GroupCoordinator:
    """The groups of the broker, in partitions of `__consumer_offsets`."""

    def __init__(self, storage: Storage, settings: BrokerSettings, clock: Clock, tasks: TaskOwner) -> None:
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._topic = CoordinatorTopic(
            OFFSETS_TOPIC, settings.offsets_partitions, storage, settings.topic_defaults, self._partition
        )
        self.rules = ConsumerRules(
            settings.consumer_assignors,
            settings.consumer_session_timeout,
            settings.consumer_heartbeat_interval,
        )

    def _partition(self, partition: Partition) -> GroupPartition:
        log = CoordinatorLog(self._storage, partition, self._settings.flush, GROUP_RECORDS)
        delay = self._settings.initial_rebalance_delay
        return GroupPartition(log, self._clock, delay, self._storage.topics, self.rules)

    def start(self) -> None:
        """Begin to load the groups, and to expire offsets unless they are kept for ever. Needs an open storage."""
        if self._topic.open():
            self._tasks.start(self._load(), "load groups")
        if self._settings.offsets_retention:
            self._tasks.start(self._expire(), "expire offsets")

    def close(self) -> None:
        """Stop all timers. What is in the log is there at the next start."""
        self._topic.close()

    def begin(self) -> None:
        """Make sure that there is somewhere to put groups. Raises `KafkaError` (COORDINATOR_NOT_AVAILABLE)."""
        self._topic.begin()

    def of(self, group_id: str) -> GroupPartition:
        """The partition that has this group. Raises `KafkaError`: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR."""
        return self._topic.of(group_id)

    def of_members(self, group_id: str) -> GroupPartition:
        """The same for what Kafka asks of groups with a name alone. Raises `KafkaError` (INVALID_GROUP_ID) too."""
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "the group id is empty")
        return self.of(group_id)

    def number_of(self, group_id: str) -> int:
        """The number of the partition that has this group. Raises `KafkaError` (NOT_COORDINATOR) before `begin`."""
        return self._topic.number_of(group_id)

    def transaction_ended(self, where: TopicPartition, producer_id: int, *, commits: bool) -> None:
        """A producer's transaction has its marker in this partition, which may be one of the groups."""
        topic, number = where
        if topic == OFFSETS_TOPIC:
            self._topic.partitions[number].transaction_ended(producer_id, commits=commits)

    @property
    def partitions(self) -> Iterable[GroupPartition]:
        """All partitions, also those that are not loaded yet."""
        return self._topic.partitions

    def topic_deleted(self, topic: str) -> None:
        """Delete all offsets of a topic. One that is made again under this name is another one."""
        for partition in self.partitions:
            for group in partition:
                partition.delete_offsets(group, [known for known in group.known_partitions if known[0] == topic])

    async def _load(self) -> None:
        started = self._clock.monotonic()
        await self._topic.load()
        groups = sum(1 for partition in self.partitions for _group in partition)
        _log.info("groups loaded", groups=groups, seconds=round(self._clock.monotonic() - started, 3))

    async def _expire(self) -> None:
        while True:
            await self._clock.sleep(self._settings.offsets_retention_check_interval)
            now_ms, retention_ms = int(self._clock.wall() * 1000), int(self._settings.offsets_retention * 1000)
            for partition in self.partitions:
                if partition.refusal is None:
                    partition.expire(now_ms, retention_ms)
                await self._clock.sleep(0)
