"""Wanted: what the next fetch from a broker asks for. Only changes are looked at, so idle partitions cost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.consumer.fetch_session import PartitionFetch

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from ingestd.client.metadata import TopicPartition
    from ingestd.consumer.fetch_from import FetchFrom
    from ingestd.consumer.partition_consumer import PartitionConsumer

__all__ = ["Wanted"]


class Wanted:
    """The partitions of one broker consumer, and what to fetch of those that can be fetched now.

    Invariants
        After `update`, `fetches` is the same as if every partition had been looked at. Only those are looked at for
        which `changed` was called, and all of them if a partition's share of the memory has changed.
        `fetches` is in the order in which partitions get their turn: one that was just served comes last. A broker that
        keeps no session serves them in that order. If not all fit, it serves only the first ones.
    """

    def __init__(self, partition_max_bytes: int, share: Callable[[], int]) -> None:
        self.partitions: dict[TopicPartition, PartitionConsumer] = {}
        self.chosen: dict[TopicPartition, FetchFrom] = {}
        self.fetches: dict[TopicPartition, PartitionFetch] = {}
        self.names: dict[UUID | None, str] = {}
        """The topic of each id that is fetched."""
        self.bounded: set[TopicPartition] = set()
        """Those that are read up to an end."""
        self._partition_max_bytes = partition_max_bytes
        self._share = share
        self._share_before = share()
        self._changed: dict[TopicPartition, None] = {}
        """Those whose wants may have changed, in order, so that who came first is asked for first."""
        self._looked_at: set[TopicPartition] = set()
        self._without_id: set[TopicPartition] = set()

    @property
    def by_id(self) -> bool:
        """Whether the topic ids of all fetched partitions are known."""
        return not self._without_id

    def add(self, consumer: PartitionConsumer, chosen: FetchFrom) -> None:
        """A partition is fetched here from now on."""
        key = consumer.key
        self.partitions[key] = consumer
        self.chosen[key] = chosen
        if consumer.end is not None:
            self.bounded.add(key)
        self._changed[key] = None

    def remove(self, key: TopicPartition) -> None:
        """A partition is fetched here no more."""
        del self.partitions[key]
        del self.chosen[key]
        self.fetches.pop(key, None)
        self.bounded.discard(key)
        self._without_id.discard(key)
        self._changed.pop(key, None)
        self._looked_at.add(key)

    def changed(self, key: TopicPartition) -> None:
        """Whether or what to fetch of this partition may have changed."""
        self._changed[key] = None

    def update(self) -> None:
        """Make `fetches` what is wanted now."""
        share = self._share()
        if share != self._share_before:
            self._share_before = share
            self._changed |= dict.fromkeys(self.partitions)
        for key in self._changed:
            consumer = self.partitions.get(key)
            if consumer is None:
                continue
            self._looked_at.add(key)
            if consumer.fetchable:
                self._want(key, consumer)
            else:
                self.fetches.pop(key, None)
                self._without_id.discard(key)
        self._changed.clear()

    def take_looked_at(self) -> set[TopicPartition]:
        """All partitions that may have changed since the last call, removed ones included."""
        looked_at, self._looked_at = self._looked_at, set()
        return looked_at

    def _want(self, key: TopicPartition, consumer: PartitionConsumer) -> None:
        topic_id = consumer.standing.topic_id
        now = PartitionFetch(
            topic_id=topic_id,
            offset=consumer.position,
            leader_epoch=self.chosen[key].leader.leader_epoch,
            max_bytes=min(self._partition_max_bytes, consumer.room),
        )
        before = self.fetches.get(key)
        if before is not None and before.offset != now.offset:
            del self.fetches[key]  # it had its turn
        self.fetches[key] = now
        if topic_id is None:
            self._without_id.add(key)
        else:
            self._without_id.discard(key)
            self.names[topic_id] = key.topic
