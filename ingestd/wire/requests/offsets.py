"""Requests about offsets of partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import grouped_by_topic, made, milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = [
    "EARLIEST",
    "EARLIEST_LOCAL",
    "LATEST",
    "EpochEndOf",
    "OffsetAt",
    "list_offsets",
    "offsets_for_leader_epochs",
]

LATEST: Final = -1
"""`OffsetAt.timestamp_ms`: the offset after the last record, or the last stable offset with `read_committed`."""
EARLIEST: Final = -2
"""`OffsetAt.timestamp_ms`: the first offset that still exists."""
_MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
"""`OffsetAt.timestamp_ms`: the first offset on the leader's own disks. Before it is remote storage (KIP-405)."""
_FIRST_WITH: Final = {_MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8}
"""Versions before this one take such a question for a point in time."""
_NO_REPLICA: Final = -1


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """Asks for a partition's offset: EARLIEST, EARLIEST_LOCAL, LATEST, or the first from a time in milliseconds on."""

    topic: str
    partition: int
    timestamp_ms: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class EpochEndOf:
    """Asks where an epoch of a partition's log ends. The leader checks `current_leader_epoch`, unless it is -1."""

    topic: str
    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


def offsets_for_leader_epochs(partitions: Sequence[EpochEndOf]) -> Build:
    """For each epoch: the largest epoch up to it in the leader's log, and the offset after its last record (KIP-320).

    Versions before 3 are only for brokers: they need a permission that no consumer has.
    """

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("offset_for_leader_epoch", versions.pick(Api.offset_for_leader_epoch, 3, 4))
        topics = tuple(
            module.OffsetForLeaderTopic(
                topic=topic,
                partitions=tuple(
                    module.OffsetForLeaderPartition(
                        partition=one.partition,
                        current_leader_epoch=one.current_leader_epoch,
                        leader_epoch=one.leader_epoch,
                    )
                    for one in asked
                ),
            )
            for topic, asked in grouped_by_topic(partitions).items()
        )
        return made(module.OffsetForLeaderEpochRequest(replica_id=_NO_REPLICA, topics=topics))

    return build


def list_offsets(partitions: Sequence[OffsetAt], *, read_committed: bool = False, timeout_ms: int = 30_000) -> Build:
    """Offsets of partitions that the asked broker leads; the answer has one error per partition."""

    def build(versions: ApiVersions) -> RequestPayload:
        lowest = 2 if read_committed else 1
        lowest = max((_FIRST_WITH.get(partition.timestamp_ms, lowest) for partition in partitions), default=lowest)
        version = versions.pick(Api.list_offsets, lowest, 10)
        module = request_module("list_offsets", version)
        topics = []
        for topic, asked in grouped_by_topic(partitions).items():
            wanted = []
            for one in asked:
                epoch = {"current_leader_epoch": one.leader_epoch} if version >= 4 else {}
                wanted.append(
                    module.ListOffsetsPartition(partition_index=one.partition, timestamp=one.timestamp_ms, **epoch)
                )
            topics.append(module.ListOffsetsTopic(name=topic, partitions=tuple(wanted)))
        request: dict[str, Any] = {"replica_id": _NO_REPLICA, "topics": tuple(topics)}
        if version >= 2:
            request["isolation_level"] = int(read_committed)
        if version >= 10:
            request["timeout"] = milliseconds(timeout_ms)
        return made(module.ListOffsetsRequest(**request))

    return build
