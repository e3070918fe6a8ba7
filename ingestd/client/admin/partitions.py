"""Replicas: moving partitions to other nodes, and electing leaders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.targets import ToController
from ingestd.client.metadata import TopicPartition
from ingestd.errors import ErrorCode, IngestdError, raise_for_code
from ingestd.retry import Deadline
from ingestd.wire.requests import reassignments

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["OngoingReassignment", "PartitionAdmin", "PartitionOutcome"]


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """The outcome of one partition in a request. `error` is None if it succeeded."""

    topic: str
    partition: int
    error: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """A partition that is being moved: node ids of all its replicas now, of those to add, and of those to remove."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class PartitionAdmin(Administration):
    """Replicas and leaders. Everything goes to the controller."""

    async def alter_partition_reassignments(
        self,
        targets: Mapping[tuple[str, int], Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout: float = 30.0,
    ) -> list[PartitionOutcome]:
        """Begin to move partitions to other replicas. The first one is the preferred leader. None cancels a move.

        If an attempt to cancel had no answer, and there is no move after it, it counts as cancelled.
        """
        deadline = Deadline.after(timeout)
        outcomes = await self._items(
            targets,
            ToController(self._client),
            lambda keys: reassignments.alter_partition_reassignments(
                {key: targets[key] for key in keys},
                timeout_ms=self._milliseconds(deadline),
                allow_replication_factor_change=allow_replication_factor_change,
            ),
            _reassigned,
            deadline,
        )
        cancelled = {ErrorCode.no_reassignment_in_progress}
        return [
            PartitionOutcome(topic, partition, outcomes.error((topic, partition), done=cancelled))
            for topic, partition in outcomes.found
        ]

    async def list_partition_reassignments(
        self, partitions: Collection[tuple[str, int]] | None = None, *, timeout: float = 30.0
    ) -> list[OngoingReassignment]:
        """The moves under way of these partitions; None: of all."""
        deadline = Deadline.after(timeout)

        def moves(answer: Any) -> list[OngoingReassignment]:
            raise_for_code(answer.error_code, answer.error_message or "ListPartitionReassignments")
            return [
                OngoingReassignment(
                    topic.name,
                    one.partition_index,
                    one.replicas,
                    one.adding_replicas,
                    one.removing_replicas,
                )
                for topic in answer.topics
                for one in topic.partitions
            ]

        return await self._one(
            ToController(self._client),
            lambda: reassignments.list_partition_reassignments(partitions, timeout_ms=self._milliseconds(deadline)),
            moves,
            deadline,
        )

    async def elect_leaders(
        self, partitions: Collection[tuple[str, int]] | None = None, *, unclean: bool = False, timeout: float = 30.0
    ) -> list[PartitionOutcome]:
        """Make preferred replicas the leaders of partitions. None: of all that need it.

        With `unclean` a partition without a leader gets one that is not in sync, and loses the records that it lacks.
        ELECTION_NOT_NEEDED is an error of a partition. But if an earlier attempt had no answer, it counts as elected.
        """
        deadline = Deadline.after(timeout)
        if partitions is None:
            return await self._one(
                ToController(self._client),
                lambda: reassignments.elect_leaders(None, timeout_ms=self._milliseconds(deadline), unclean=unclean),
                lambda answer: [
                    PartitionOutcome(one.topic, one.partition, error) for one, error in _elected(answer).items()
                ],
                deadline,
            )
        outcomes = await self._items(
            [TopicPartition(*partition) for partition in partitions],
            ToController(self._client),
            lambda keys: reassignments.elect_leaders(keys, timeout_ms=self._milliseconds(deadline), unclean=unclean),
            lambda answer, _: _elected(answer),
            deadline,
        )
        done = {ErrorCode.election_not_needed}
        return [PartitionOutcome(one.topic, one.partition, outcomes.error(one, done=done)) for one in outcomes.found]


def _reassigned(answer: Any, _: Sequence[tuple[str, int]]) -> dict[tuple[str, int], IngestdError | None]:
    raise_for_code(answer.error_code, answer.error_message or "AlterPartitionReassignments")
    return {
        (topic.name, one.partition_index): error_of(
            one.error_code, f"{topic.name}-{one.partition_index}", one.error_message
        )
        for topic in answer.responses
        for one in topic.partitions
    }


def _elected(answer: Any) -> dict[TopicPartition, IngestdError | None]:
    raise_for_code(getattr(answer, "error_code", ErrorCode.none), "ElectLeaders")
    return {
        TopicPartition(result.topic, one.partition_id): error_of(
            one.error_code, f"{result.topic}-{one.partition_id}", one.error_message
        )
        for result in answer.replica_election_results
        for one in result.partition_result
    }
