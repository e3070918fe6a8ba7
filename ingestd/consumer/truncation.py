"""Truncation: is what was read still in the log of a new leader? Asked by OffsetForLeaderEpoch (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.leader_checks import LeaderCheck, LeaderChecks
from ingestd.wire.requests.offsets import EpochEndOf, offsets_for_leader_epochs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ingestd.client.metadata import PartitionMetadata
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.wire.requests import Build

__all__ = ["TruncationCheck", "TruncationChecks"]


class TruncationCheck(LeaderCheck):
    """A position, asked about at a leader. `diverged_at` is the answer; None: the log is the same.

    It stays None with a broker before Kafka 2.1, which knows no such question: nothing can be said against it.
    """

    __slots__ = ("diverged_at",)

    def __init__(self, consumer: PartitionConsumer, leader: PartitionMetadata) -> None:
        super().__init__(consumer, leader)
        self.diverged_at: int | None = None


class TruncationChecks(LeaderChecks[TruncationCheck]):
    """Asks leaders where the epoch of a position ends in their logs."""

    def ask(self, consumer: PartitionConsumer, leader: PartitionMetadata) -> None:
        """Check a partition's position, unless the same question is being asked already."""
        asked = self._under_way.get(consumer.key)
        if asked is None or asked.leader != leader or asked.outdated:
            self._begin(TruncationCheck(consumer, leader))

    def _question(self, checks: Mapping[TopicPartition, TruncationCheck]) -> Build:
        return offsets_for_leader_epochs(
            [EpochEndOf(*key, check.position.leader_epoch, check.leader.leader_epoch) for key, check in checks.items()]
        )

    def _subject(self, check: TruncationCheck) -> str:
        return f"epoch {check.position.leader_epoch}"

    def _parts(self, answer: Any) -> Iterator[tuple[TopicPartition, Any]]:
        return (
            (TopicPartition(topic.topic, part.partition), part) for topic in answer.topics for part in topic.partitions
        )

    def _read(self, check: TruncationCheck, part: Any) -> None:
        check.diverged_at = check.position.diverges_at(part.leader_epoch, part.end_offset)
