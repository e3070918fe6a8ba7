"""Truncation: is what was read still in the log of a new leader? OffsetForLeaderEpoch tells (KIP-320)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingestd.client.metadata import TopicPartition
from ingestd.errors import ErrorCode, IngestdError, KafkaError, UnsupportedVersion
from ingestd.wire.requests.offsets import EpochEndOf, offsets_for_leader_epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingestd.client.client import Client
    from ingestd.client.metadata import PartitionMetadata
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.tasks import TaskOwner

__all__ = ["TruncationCheck", "TruncationChecks"]

_REQUEST_TIMEOUT: Final = 10.0
"""Seconds. After that the leader, or its successor, is asked again."""


class TruncationCheck:
    """A position that a partition's leader is asked about. `diverged_at` is the answer; None: the log is the same.

    It stays None with a broker before Kafka 2.1, which has no such request. Then the log is taken to be the same.
    """

    __slots__ = ("consumer", "diverged_at", "leader", "position")

    def __init__(self, consumer: PartitionConsumer, leader: PartitionMetadata) -> None:
        self.consumer = consumer
        self.leader = leader
        self.position = consumer.fetch_position
        self.diverged_at: int | None = None

    @property
    def outdated(self) -> bool:
        """Whether the reader has another position by now, so that the answer does not apply."""
        return not self.consumer.live or self.consumer.fetch_position != self.position


class TruncationChecks:
    """Asks each leader where the epochs of positions end in its logs. Partitions that come together share a request.

    Each check ends in one call of `done`, with None, or with the error if there was no answer. A check that was
    replaced by a newer one of its partition ends without that call.
    """

    def __init__(
        self, client: Client, tasks: TaskOwner, *, done: Callable[[TruncationCheck, IngestdError | None], None]
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._done = done
        self._waiting: dict[int, list[TruncationCheck]] = {}
        self._under_way: dict[TopicPartition, TruncationCheck] = {}

    def ask(self, consumer: PartitionConsumer, leader: PartitionMetadata) -> None:
        """Check a partition's position, unless the same check is under way already."""
        asked = self._under_way.get(consumer.key)
        if asked is not None and asked.leader == leader and not asked.outdated:
            return
        check = self._under_way[consumer.key] = TruncationCheck(consumer, leader)
        waiting = self._waiting.setdefault(leader.leader, [])
        waiting.append(check)
        if len(waiting) == 1:
            self._tasks.start(self._ask_leader(leader.leader), f"broker {leader.leader} is asked about its logs")

    async def _ask_leader(self, node_id: int) -> None:
        await asyncio.sleep(0)
        checks = {check.consumer.key: check for check in self._waiting.pop(node_id)}
        errors: dict[TopicPartition, IngestdError] = {}
        try:
            errors = await self._answers(node_id, checks)
        except UnsupportedVersion:
            pass  # it knows no such question
        except IngestdError as error:
            errors = dict.fromkeys(checks, error)
        for key, check in checks.items():
            if self._under_way.get(key) is check:
                del self._under_way[key]
                self._done(check, errors.get(key))

    async def _answers(
        self, node_id: int, checks: Mapping[TopicPartition, TruncationCheck]
    ) -> dict[TopicPartition, IngestdError]:
        """Fill in the leader's answers. Returns the errors of the others."""
        question = offsets_for_leader_epochs(
            [EpochEndOf(*key, check.position.leader_epoch, check.leader.leader_epoch) for key, check in checks.items()]
        )
        answer = await self._client.broker(node_id).request(question, _REQUEST_TIMEOUT)
        errors: dict[TopicPartition, IngestdError] = {
            key: KafkaError(ErrorCode.unknown_server_error, f"{key}: broker {node_id} left it out of its answer")
            for key in checks
        }
        for topic in answer.topics:
            for part in topic.partitions:
                key = TopicPartition(topic.topic, part.partition)
                check = checks.get(key)
                if check is None:
                    continue
                if part.error_code is ErrorCode.none:
                    check.diverged_at = check.position.diverges_at(part.leader_epoch, part.end_offset)
                    del errors[key]
                else:
                    errors[key] = KafkaError(part.error_code, f"{key}, epoch {check.position.leader_epoch}")
        return errors
