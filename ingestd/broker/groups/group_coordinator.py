"""Group coordinator: which partition has which group, when they are loaded, and what is done with all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.coordinator.coordinator_log import CoordinatorLog
from ingestd.broker.coordinator.placement import coordinating_partition
from ingestd.broker.groups.consumer_group import ConsumerRules
from ingestd.broker.groups.group_partition import GroupPartition
from ingestd.broker.storage import NewTopic
from ingestd.broker.topics import OFFSETS_TOPIC
from ingestd.errors import ErrorCode, IngestdError, KafkaError
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.broker.clock import Clock
    from ingestd.broker.settings import BrokerSettings
    from ingestd.broker.storage import Storage
    from ingestd.tasks import TaskOwner

__all__ = ["GroupCoordinator"]

_CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
"""Kafka's (`offsets.topic.segment.bytes`)."""
_log = get_logger(__name__)


class GroupCoordinator:
    """The groups of the broker, in partitions of `__consumer_offsets`. The topic is made when it is needed first."""

    def __init__(self, storage: Storage, settings: BrokerSettings, clock: Clock, tasks: TaskOwner) -> None:
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._partitions: list[GroupPartition] = []
        self.rules = ConsumerRules(
            settings.consumer_assignors,
            settings.consumer_session_timeout,
            settings.consumer_heartbeat_interval,
        )

    def start(self) -> None:
        """Begin to load the groups, and to expire offsets. Needs an open storage."""
        if self._storage.topics.named(OFFSETS_TOPIC) is not None:
            self._take_partitions()
            self._tasks.start(self._load(), "load groups")
        self._tasks.start(self._expire(), "expire offsets")

    def close(self) -> None:
        """Stop all timers. What is in the log is there at the next start."""
        for partition in self._partitions:
            partition.close()

    def begin(self) -> None:
        """Make sure that there is somewhere to put groups. Raises `KafkaError` (COORDINATOR_NOT_AVAILABLE)."""
        if self._partitions:
            return
        try:
            topic = NewTopic(OFFSETS_TOPIC, self._settings.offsets_partitions, _CONFIG, self._settings.topic_defaults)
            self._storage.create([topic])
        except KafkaError as error:
            raise KafkaError(ErrorCode.coordinator_not_available, f"{OFFSETS_TOPIC}: {error}") from error
        self._take_partitions()
        for partition in self._partitions:
            partition.refusal = None  # there is nothing to load

    def of(self, group_id: str) -> GroupPartition:
        """The partition that has this group. Raises `KafkaError`: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR."""
        if not self._partitions:
            raise KafkaError(ErrorCode.not_coordinator, f"{group_id!r}: there are no groups yet; find the coordinator")
        partition = self._partitions[coordinating_partition(group_id, len(self._partitions))]
        if partition.refusal is not None:
            raise KafkaError(partition.refusal, f"{group_id!r}: the groups of its partition are not loaded")
        return partition

    def of_members(self, group_id: str) -> GroupPartition:
        """The same for what Kafka asks of groups with a name alone. Raises `KafkaError` (INVALID_GROUP_ID) too."""
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "the group id is empty")
        return self.of(group_id)

    @property
    def partitions(self) -> Iterable[GroupPartition]:
        """All partitions, also those that are not loaded yet."""
        return tuple(self._partitions)

    def topic_deleted(self, topic: str) -> None:
        """Delete all offsets of a topic. One that is made again under this name is another one."""
        for partition in self._partitions:
            for group in partition:
                partition.delete_offsets(group, [known for known in group.known_partitions if known[0] == topic])

    def _take_partitions(self) -> None:
        topic = self._storage.topics.named(OFFSETS_TOPIC)
        assert topic is not None
        for number in range(topic.partitions):
            partition = self._storage.partition(OFFSETS_TOPIC, number)
            assert partition is not None
            log = CoordinatorLog(self._storage, partition, self._settings.flush)
            delay = self._settings.initial_rebalance_delay
            self._partitions.append(GroupPartition(log, self._clock, delay, self._storage.topics, self.rules))

    async def _load(self) -> None:
        started = self._clock.monotonic()
        for number, partition in enumerate(self._partitions):
            try:
                await partition.load()
            except (IngestdError, OSError) as error:
                _log.error("groups not loaded", partition=f"{OFFSETS_TOPIC}-{number}", error=str(error))
        groups = sum(1 for partition in self._partitions for _group in partition)
        _log.info("groups loaded", groups=groups, seconds=round(self._clock.monotonic() - started, 3))

    async def _expire(self) -> None:
        while True:
            await self._clock.sleep(self._settings.offsets_retention_check_interval)
            now_ms, retention_ms = int(self._clock.wall() * 1000), int(self._settings.offsets_retention * 1000)
            for partition in self.partitions:
                if partition.refusal is None:
                    partition.expire(now_ms, retention_ms)
                await self._clock.sleep(0)
