"""Planner: what the driver asks a cluster, and tells it: ends of logs, as any consumer, and offsets of groups.

Most queries ask nothing that takes administration, which is a quarter of all imports here. So only who does imports it.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.sync import SyncConsumer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping

    from ingestd.client.group import OffsetAndMetadata
    from ingestd.consumer.settings import ConsumerSettings
    from ingestd.errors import IngestdError
    from ingestd.spark.cluster import Cluster

__all__ = ["Planner"]

T = TypeVar("T")

_log = logging.getLogger(__name__)
_FETCH_SECONDS: Final = 30.0
_COMMIT_SECONDS: Final = 5.0
"""A query waits for a commit between two micro-batches."""
_SILENCE: Final = 5.0
"""Seconds of waiting after which the log says so. It may go on for a minute."""


class Planner(SyncConsumer):
    """A consumer that also reads and commits the offsets of groups, without being a member of one."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        super().__init__(cluster.bootstrap, settings, cluster.client)
        self._bootstrap = ", ".join(cluster.bootstrap)

    def _call(self, work: Coroutine[Any, Any, T], doing: str, why: Callable[[], str] | None = None) -> T:
        telling = threading.Timer(_SILENCE, self._tell, [doing, why or self._why])
        telling.daemon = True
        telling.start()
        try:
            return super()._call(work, doing, why)
        finally:
            telling.cancel()

    def _tell(self, doing: str, why: Callable[[], str]) -> None:
        _log.warning("ingestd source: waiting for the cluster at %s: %s: %s", self._bootstrap, doing, why())

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where a group goes on, of those of these partitions of which it has committed an offset.

        Raises `KafkaError`, `DeadlineExceeded`.
        """
        from ingestd.client.admin import ClusterAdmin

        listing = ClusterAdmin(self._client).list_group_offsets({group: partitions}, timeout=_FETCH_SECONDS)
        (found,) = self._call(listing, f"offsets of group {group}")
        if found.error is not None:
            raise found.error
        for error in found.errors.values():
            raise error
        return {key: committed.offset for key, committed in found.offsets.items()}

    def topic_configs(self, topic: str, keys: Collection[str]) -> dict[str, str]:
        """Values of a topic's configurations. Raises `KafkaError`, `DeadlineExceeded`."""
        from ingestd.client.admin import ClusterAdmin, ConfigResource, ResourceType

        asked = [ConfigResource(ResourceType.topic, topic)]
        describing = ClusterAdmin(self._client).describe_configs(asked, keys=keys, timeout=_FETCH_SECONDS)
        (found,) = self._call(describing, f"configuration of topic {topic}")
        if found.error is not None:
            raise found.error
        return {name: entry.value or "" for name, entry in found.entries.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, IngestdError | None]:
        """Commit offsets of a group that has no members. Takes 5 s at most. Returns the error of each partition.

        If the group has members, that is UNKNOWN_MEMBER_ID. Raises `IngestdError` where all failed at once.
        """
        from ingestd.client.admin import ClusterAdmin

        asked: dict[tuple[str, int], int | OffsetAndMetadata] = dict(offsets.items())
        committing = ClusterAdmin(self._client).alter_group_offsets(group, asked, timeout=_COMMIT_SECONDS)
        outcomes = self._call(committing, f"committing offsets of group {group}")
        return {TopicPartition(one.topic, one.partition): one.error for one in outcomes}
