"""The embedded broker in the place of a cluster, for tests that ask the same of both."""

from __future__ import annotations

import uuid
from functools import cached_property
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from embedded.process import BrokerProcess

__all__ = ["QUICK_GROUPS", "EmbeddedCluster"]

ADMIN_SECONDS = 30
QUICK_GROUPS = ("--consumer-heartbeat-interval", "0.3", "--consumer-session-timeout", "6")
"""The times that `harness.cluster` gives to Kafka's groups of KIP-848."""


class EmbeddedCluster:
    """What tests need of `harness.cluster.KafkaCluster`."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker

    @property
    def servers(self) -> str:
        return self.broker.servers

    @property
    def bootstrap(self) -> list[str]:
        return [self.broker.servers]

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def create_topic(self, name: str | None = None, *, partitions: int = 1) -> str:
        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(ADMIN_SECONDS)
        return name
