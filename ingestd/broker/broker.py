"""The node that request handlers work for: its settings, storage, identity, and what all connections share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.broker.fetch_sessions import FetchSessions
from ingestd.broker.memory import MemoryBudget
from ingestd.broker.request_log import RequestLog
from ingestd.broker.storage import NewTopic, Partition, Storage
from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from ingestd.broker.request import Request
    from ingestd.broker.settings import BrokerSettings
    from ingestd.broker.topics import Topic

__all__ = ["Broker"]


class Broker:
    """One node that leads every partition and coordinates everything. There are no other nodes."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.storage = Storage(settings)
        self.memory = MemoryBudget(settings.max_in_flight_bytes)
        self.fetch_sessions = FetchSessions(settings.max_fetch_sessions)
        self.request_log = RequestLog(settings.request_log)

    @property
    def node_id(self) -> int:
        """This node's id."""
        return self.settings.node_id

    def address(self, request: Request) -> tuple[str, int]:
        """Host and port at which the sender of this request reaches the node."""
        return self.settings.advertised or request.local

    def leader_error(self, leader_epoch: int) -> ErrorCode:
        """The error for a client that gives `leader_epoch` (-1: none) as the leader's epoch (KIP-320)."""
        if leader_epoch in {-1, self.storage.leader_epoch}:
            return ErrorCode.none
        if leader_epoch < self.storage.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch

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
        """Create missing topics, if that is allowed. Returns, by name, why a topic could not be created."""
        errors: dict[str, KafkaError] = {}
        new: dict[str, NewTopic] = {}
        for name in names:
            if name in new or self.storage.topics.named(name) is not None:
                continue
            try:
                new[name] = NewTopic(name, self.settings.default_partitions, {}, self.settings.topic_defaults)
            except KafkaError as error:
                errors[name] = error
        if new:
            try:
                self.storage.create(new.values())
            except KafkaError as error:
                errors.update(dict.fromkeys(new, error))
        return errors
