"""Log directories: where brokers keep their logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.partitions import PartitionOutcome
from ingestd.client.admin.targets import ToNodes
from ingestd.errors import ErrorCode, IngestdError, raise_for_code
from ingestd.retry import Deadline
from ingestd.wire.requests import log_dirs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["BrokerLogDirs", "LogDir", "LogDirAdmin", "LogDirReplica", "ReplicaMove"]


@dataclass(frozen=True, slots=True)
class LogDirReplica:
    """A partition's log in a directory: bytes, offsets that it lags behind, and whether it is being moved there."""

    topic: str
    partition: int
    size: int
    offset_lag: int
    future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """One directory. Bytes of its volume are -1 if the broker does not say (before Kafka 3.3)."""

    path: str
    replicas: tuple[LogDirReplica, ...]
    total_bytes: int = -1
    usable_bytes: int = -1
    error: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class BrokerLogDirs:
    """One node's directories, or the error."""

    node_id: int
    log_dirs: tuple[LogDir, ...] = ()
    error: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """The outcome of one replica to move. `outcome` has the partition and its error."""

    node_id: int
    outcome: PartitionOutcome


class LogDirAdmin(Administration):
    """Log directories. Each node answers for itself."""

    async def describe_log_dirs(
        self,
        nodes: Collection[int] | None = None,
        *,
        partitions: Collection[tuple[str, int]] | None = None,
        timeout: float = 30.0,
    ) -> list[BrokerLogDirs]:
        """The directories of nodes (None: all), with the sizes of these partitions (None: all)."""
        deadline = Deadline.after(timeout)
        outcomes = await self._items(
            await self._nodes(deadline) if nodes is None else nodes,
            ToNodes(self._client, int),
            lambda _: log_dirs.describe_log_dirs(partitions),
            lambda answer, asked: dict.fromkeys(asked, _log_dirs(answer)),
            deadline,
        )
        return [
            BrokerLogDirs(node, error=found) if isinstance(found, IngestdError) else BrokerLogDirs(node, found)
            for node, found in outcomes.found.items()
        ]

    async def alter_replica_log_dirs(
        self, moves: Mapping[tuple[int, str, int], str], *, timeout: float = 30.0
    ) -> list[ReplicaMove]:
        """Begin to move replicas, by (node, topic, partition), to another directory of their node."""
        outcomes = await self._items(
            moves,
            ToNodes(self._client, lambda replica: int(replica[0])),
            lambda replicas: log_dirs.alter_replica_log_dirs({one[1:]: moves[one] for one in replicas}),
            lambda answer, asked: {
                (asked[0][0], topic.topic_name, one.partition_index): error_of(
                    one.error_code, f"{topic.topic_name}-{one.partition_index}"
                )
                for topic in answer.results
                for one in topic.partitions
            },
            Deadline.after(timeout),
        )
        return [
            ReplicaMove(node, PartitionOutcome(topic, partition, outcomes.error((node, topic, partition))))
            for node, topic, partition in outcomes.found
        ]


def _log_dirs(answer: Any) -> tuple[LogDir, ...]:
    raise_for_code(getattr(answer, "error_code", ErrorCode.none), "DescribeLogDirs")
    return tuple(
        LogDir(
            result.log_dir,
            tuple(
                LogDirReplica(topic.name, one.partition_index, one.partition_size, one.offset_lag, one.is_future_key)
                for topic in result.topics
                for one in topic.partitions
            ),
            getattr(result, "total_bytes", -1),
            getattr(result, "usable_bytes", -1),
            error_of(result.error_code, result.log_dir),
        )
        for result in answer.results
    )
