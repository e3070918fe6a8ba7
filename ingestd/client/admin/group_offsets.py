"""Group offsets: list, set and delete the offsets that groups have committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestd.checks import require_mapping
from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.partitions import PartitionOutcome
from ingestd.client.admin.targets import ToCoordinators
from ingestd.client.coordinators import CoordinatorKind
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import ErrorCode, IngestdError, KafkaError, raise_for_code
from ingestd.retry import Deadline
from ingestd.wire.requests import group_admin, groups

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ingestd.wire.requests import Build

__all__ = ["GroupOffsetAdmin", "GroupOffsets"]

_AT_ONCE = 100
"""Requests in flight: one for each group."""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """A group's committed offsets, and the partitions with an error; or the error of the whole group.

    A group that does not exist has no offsets, which is no error.
    """

    group_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    errors: Mapping[TopicPartition, KafkaError]
    error: IngestdError | None = None


class GroupOffsetAdmin(Administration):
    """Committed offsets. Each group's coordinator answers for it."""

    async def list_group_offsets(
        self,
        asked: Mapping[str, Collection[tuple[str, int]] | None],
        *,
        require_stable: bool = False,
        timeout: float = 30.0,
    ) -> list[GroupOffsets]:
        """The offsets of groups, for these partitions of each. None: for all that the group has committed.

        With `require_stable` it waits for offsets that an open transaction may still change (Kafka 2.5).
        """

        def build(group_ids: Sequence[str]) -> Build:
            (group,) = group_ids
            return groups.offset_fetch(group, asked[group], require_stable=require_stable)

        require_mapping("asked", asked, '{"group": None}')
        deadline = Deadline.after(timeout)
        names = list(asked)
        listed = []
        for first in range(0, len(names), _AT_ONCE):
            outcomes = await self._items(
                names[first : first + _AT_ONCE],
                ToCoordinators(self._client, CoordinatorKind.group, apart=True),
                build,
                lambda answer, group_ids: {group_ids[0]: _group_offsets(group_ids[0], answer)},
                deadline,
            )
            listed += [
                GroupOffsets(group, {}, {}, found) if isinstance(found, IngestdError) else found
                for group, found in outcomes.found.items()
            ]
        return listed

    async def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
        *,
        timeout: float = 30.0,
    ) -> list[PartitionOutcome]:
        """Set the offsets from which a group goes on. It must have no members (else: UNKNOWN_MEMBER_ID)."""

        def build(partitions: Sequence[TopicPartition]) -> Build:
            return groups.offset_commit(group, [_committed(one, offsets[one]) for one in partitions])

        return await self._of_partitions(
            group,
            offsets,
            build,
            lambda answer, _: {
                TopicPartition(topic, partition): error_of(code, f"{group}: {topic}-{partition}")
                for topic, partition, code in groups.read_offset_commit(answer)
            },
            timeout,
        )

    async def delete_group_offsets(
        self, group: str, partitions: Collection[tuple[str, int]], *, timeout: float = 30.0
    ) -> list[PartitionOutcome]:
        """Delete a group's offsets of topics that no member is subscribed to (else: GROUP_SUBSCRIBED_TO_TOPIC)."""

        def read(answer: Any, _: Sequence[TopicPartition]) -> Mapping[TopicPartition, IngestdError | None]:
            raise_for_code(answer.error_code, group)
            return {
                TopicPartition(topic.name, one.partition_index): error_of(
                    one.error_code, f"{group}: {topic.name}-{one.partition_index}"
                )
                for topic in answer.topics
                for one in topic.partitions
            }

        return await self._of_partitions(
            group, partitions, lambda asked: group_admin.offset_delete(group, asked), read, timeout
        )

    async def _of_partitions(
        self,
        group: str,
        partitions: Iterable[tuple[str, int]],
        build: Callable[[Sequence[TopicPartition]], Build],
        read: Callable[[Any, Sequence[TopicPartition]], Mapping[TopicPartition, IngestdError | None]],
        timeout: float,
    ) -> list[PartitionOutcome]:
        outcomes = await self._items(
            [TopicPartition(*partition) for partition in partitions],
            ToCoordinators(self._client, CoordinatorKind.group, lambda _: group),
            build,
            read,
            Deadline.after(timeout),
        )
        return [PartitionOutcome(*partition, error=outcomes.error(partition)) for partition in outcomes.found]


def _committed(partition: TopicPartition, offset: int | OffsetAndMetadata) -> groups.CommittedOffset:
    if isinstance(offset, OffsetAndMetadata):
        return groups.CommittedOffset(*partition, offset.offset, offset.leader_epoch, offset.metadata)
    return groups.CommittedOffset(*partition, offset)


def _group_offsets(group: str, answer: Any) -> GroupOffsets:
    code, committed = groups.read_offset_fetch(answer)
    raise_for_code(code, group)
    offsets, errors = {}, {}
    for one in committed:
        partition = TopicPartition(one.topic, one.partition)
        error = error_of(one.error, f"{group}: {partition}")
        if one.error is ErrorCode.unstable_offset_commit:
            raise KafkaError(one.error, f"{group}: {partition}")  # asked for again
        if error is not None:
            errors[partition] = error
        elif one.offset >= 0:
            offsets[partition] = OffsetAndMetadata(one.offset, one.leader_epoch, one.metadata)
    return GroupOffsets(group, offsets, errors)
