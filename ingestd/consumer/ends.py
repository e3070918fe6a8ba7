"""Ends: from which offset on a leader has everything at hand. An empty answer is the end of a read only from there on.

A read up to an end meets no batch at that end if compaction took the last ones. So an empty answer must stand for it.
But an empty answer can also mean that a leader is slow. Kafka answers with no records, no error and the same high
watermark if it reads the partition from remote storage (KIP-405) and that takes longer than
`remote.fetch.max.wait.ms` (KIP-1018), or is throttled (KIP-956). It may do the same if another partition of the request
is read from remote storage: before Kafka 4.2 to a partition that would be read from there too, since 4.2 to one whose
next batch is larger than the limits.

What is on a leader's own disks comes at once if nothing else is asked for. So the rule is: a fetch of the partition
alone had nothing, and then the leader said that its local log begins at the position or before it.

Two things cannot be known:

- Whether remote storage still has records from an offset on, other than by reading them. A read whose rest lies there
  goes on until they come. If none is left, its reader must give up, as `SyncConsumer` does after its `patience`.
- Whether a broker has everything at hand if it does not tell where its local log begins (ListOffsets before version 8,
  or the answer -1). Apache Kafka before 3.5 has. Others are given time: see `BrokerConsumer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.errors import ErrorCode, KafkaError, UnsupportedVersion
from ingestd.wire.requests import OffsetAt, list_offsets
from ingestd.wire.requests.offsets import EARLIEST_LOCAL

if TYPE_CHECKING:
    from ingestd.client.broker import Broker
    from ingestd.client.metadata import TopicPartition

__all__ = ["first_local_offset"]


async def first_local_offset(leader: Broker, key: TopicPartition, leader_epoch: int, timeout: float) -> int | None:
    """Where the leader's local log of the partition begins; None if it does not tell. `timeout` in seconds.

    Raises `KafkaError` (not the leader, authorization), `DeadlineExceeded`, `ConnectionLost`.
    """
    try:
        answer = await leader.request(list_offsets([OffsetAt(*key, EARLIEST_LOCAL, leader_epoch)]), timeout)
    except UnsupportedVersion:
        return None
    for part in (part for topic in answer.topics for part in topic.partitions):
        if part.error_code is not ErrorCode.none:
            raise KafkaError(part.error_code, f"{key}, its first local offset")
        return None if part.offset < 0 else int(part.offset)
    raise KafkaError(ErrorCode.unknown_server_error, f"{key}: the broker left it out of its answer")
