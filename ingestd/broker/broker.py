"""What all connections share, and what goes on without them: storage, memory, fetch sessions, retention, compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.broker.cleaner.cleaner import Cleaner
from ingestd.broker.clock import Clock
from ingestd.broker.cluster import Cluster
from ingestd.broker.faults import Faults
from ingestd.broker.fetch_sessions import FetchSessions
from ingestd.broker.groups.group_coordinator import GroupCoordinator
from ingestd.broker.memory import MemoryBudget
from ingestd.broker.node import Node
from ingestd.broker.request_log import RequestLog
from ingestd.broker.security.users import Users
from ingestd.broker.storage import NewTopic, Partition, Storage
from ingestd.broker.topics import is_internal
from ingestd.broker.transactions.transaction_coordinator import TransactionCoordinator
from ingestd.errors import ErrorCode, KafkaError
from ingestd.logs import get_logger
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from ingestd.broker.settings import BrokerSettings
    from ingestd.broker.topics import Topic

__all__ = ["Broker"]

_FIRST_RETENTION: Final = 30.0
"""Seconds, as in Kafka (`log.initial.task.delay.ms`)."""
_log = get_logger(__name__)


class Broker:
    """All nodes of the cluster, which is one node unless more were asked for, over one storage.

    Its life: `start`, then connections come and go, then `close`. What goes on without a connection is a task of
    `tasks`. All of it sees the time of `clock`.

    Invariants
        Before `start` and after `close` no file of the data directory is touched, and no task runs.
    """

    def __init__(self, settings: BrokerSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or Clock()
        self.tasks = TaskOwner(self._crashed)
        self.storage = Storage(settings)
        self.cluster = Cluster(_nodes(settings), self.storage)
        self.users = Users(settings.data)
        self.groups = GroupCoordinator(self.storage, settings, self.clock, self.tasks)
        self.transactions = TransactionCoordinator(self.storage, settings, self.clock, self.tasks, self.groups)
        self.faults = Faults()
        self.cleaner = Cleaner(self.storage.logs, settings.cleaner_interval, settings.cleaner_map_bytes, self.clock)
        self.memory = MemoryBudget(settings.max_in_flight_bytes)
        self.fetch_sessions = FetchSessions(settings.max_fetch_sessions, self.clock)
        self.request_log = RequestLog(settings.request_log)

    def start(self) -> None:
        """Lock the data directory, recover it, and begin what goes on by itself. Needs a running event loop.

        Raises `ConfigurationError`, `OSError`; then nothing runs.
        """
        self.storage.open()
        try:
            self._look_for_users()
        except BaseException:
            self.storage.close()
            raise
        self.tasks.start(self._enforce_retention(), "retention")
        self.tasks.start(self.cleaner.run(), "cleaner")
        self.groups.start()
        self.transactions.start()

    def _look_for_users(self) -> None:
        if self.users.all() or not self.settings.security.mechanisms:
            return
        add = f"ingestd broker users add NAME --data {self.settings.data}"
        _log.warning("no users: nobody can authenticate with SASL until there are some", add=add)

    async def close(self) -> None:
        """End every task, then write everything to the disk and release the directory. Safe to call twice."""
        await self.tasks.close()
        self.transactions.close()
        self.cleaner.close()
        self.groups.close()
        self.storage.close()
        self.request_log.close()

    async def _enforce_retention(self) -> None:
        interval = self.settings.retention_check_interval
        # Soon after the start: otherwise a broker that keeps ending on a full disk would never make room.
        await self.clock.sleep(min(_FIRST_RETENTION, interval))
        while True:
            await self.storage.enforce_retention(self.clock.wall())
            await self.clock.sleep(interval)

    def _crashed(self, error: BaseException) -> None:
        _log.error("task failed", exc_info=error)

    def partition(self, topic: str, partition: int) -> Partition:
        """The partition. Raises `KafkaError` (UNKNOWN_TOPIC_OR_PARTITION)."""
        found = self.storage.partition(topic, partition)
        if found is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{topic}-{partition}")
        return found

    def topic_named(self, name: str) -> Topic:
        """The topic. Raises `KafkaError` (UNKNOWN_TOPIC_OR_PARTITION)."""
        found = self.storage.topics.named(name)
        if found is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, name)
        return found

    def topic_with_id(self, topic_id: UUID | None) -> Topic:
        """The topic. Raises `KafkaError` (UNKNOWN_TOPIC_ID)."""
        found = self.storage.topics.identified(topic_id)
        if found is None:
            raise KafkaError(ErrorCode.unknown_topic_id, str(topic_id))
        return found

    def create_on_demand(self, names: Iterable[str]) -> dict[str, KafkaError]:
        """Create missing topics that are not internal. Returns, by name, why a topic could not be created."""
        errors: dict[str, KafkaError] = {}
        new: dict[str, NewTopic] = {}
        for name in names:
            if name in new or is_internal(name) or self.storage.topics.named(name) is not None:
                continue
            try:
                self.storage.topics.check_no_collision(name)
                new[name] = NewTopic(
                    name,
                    self.settings.default_partitions,
                    {},
                    self.settings.topic_defaults,
                    len(self.cluster.nodes),
                )
            except KafkaError as error:
                errors[name] = error
        if new:
            try:
                self.storage.create(new.values())
            except KafkaError as error:
                errors.update(dict.fromkeys(new, error))
        return errors


def _nodes(settings: BrokerSettings) -> Iterator[Node]:
    """Each has the id and the advertised port that follow those of the one before."""
    for number in range(settings.nodes):
        host, port = settings.advertised or ("", 0)
        advertised = None if settings.advertised is None else (host, port + number)
        yield Node(settings.node_id + number, advertised)
