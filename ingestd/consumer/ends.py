"""Ends: whether what a leader had nothing of is gone, or only not at hand (KIP-405). Asked by ListOffsets.

A read up to an end meets no batch at that end where compaction took them all, so empty answers must stand for it. But a
leader also answers with nothing, no error and the same watermarks where it reads from remote storage and that takes too
long (`remote.fetch.max.wait.ms`, KIP-1018), is throttled (KIP-956), or, before Kafka 4.2, serves another such partition
of the same request. What it has on its own disks comes at once. So its first local offset tells the two apart: from
there on, nothing means that there is nothing; below it, it means nothing, however often it is said. But from Kafka 4.2
on, one that reads another partition of the request from remote storage leaves out a batch that is above the limits: so
the last word is an answer to a fetch of nothing else.

What cannot be known: whether remote storage still has records of an offset, other than by reading them. A read whose
rest lies there goes on until they come; if none is left (a topic that was compacted before its log went to remote
storage), it is the reader who must give up, as `SyncConsumer` does after its `patience`. And whether a broker that
does not tell its first local offset (ListOffsets before version 8, or -1 for an answer) has everything at hand. Apache
Kafka before 3.5 has; of others that speak its protocol nothing but patience tells: more empty answers, over more than a
second, each of which may be held back longer than the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.leader_checks import LeaderCheck, LeaderChecks
from ingestd.wire.requests import OffsetAt, list_offsets
from ingestd.wire.requests.offsets import EARLIEST_LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ingestd.client.metadata import PartitionMetadata
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.wire.requests import Build

__all__ = ["EndCheck", "EndChecks"]


class EndCheck(LeaderCheck):
    """A position at which a leader has nothing, although its log goes on.

    `by_itself`: whether it was asked for nothing else. `at_hand`: whether all that it has from there on is on its
    disks; None where it does not say.
    """

    __slots__ = ("at_hand", "by_itself")

    def __init__(self, consumer: PartitionConsumer, leader: PartitionMetadata, *, by_itself: bool) -> None:
        super().__init__(consumer, leader)
        self.by_itself = by_itself
        self.at_hand: bool | None = None


class EndChecks(LeaderChecks[EndCheck]):
    """Asks leaders from which offset on they have their logs at hand."""

    def ask(self, consumer: PartitionConsumer, leader: PartitionMetadata, *, by_itself: bool) -> None:
        """Ask the leader that had nothing of it what it has at hand."""
        self._begin(EndCheck(consumer, leader, by_itself=by_itself))

    def _question(self, checks: Mapping[TopicPartition, EndCheck]) -> Build:
        return list_offsets(
            [OffsetAt(*key, EARLIEST_LOCAL, check.leader.leader_epoch) for key, check in checks.items()]
        )

    def _subject(self, check: EndCheck) -> str:  # noqa: ARG002 - the same for all
        return "its first local offset"

    def _parts(self, answer: Any) -> Iterator[tuple[TopicPartition, Any]]:
        return (
            (TopicPartition(topic.name, part.partition_index), part)
            for topic in answer.topics
            for part in topic.partitions
        )

    def _read(self, check: EndCheck, part: Any) -> None:
        check.at_hand = None if part.offset < 0 else part.offset <= check.position.offset
