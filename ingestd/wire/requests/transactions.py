"""Requests of producers with an identity: producer ids and transactions (KIP-98, KIP-360, KIP-447, KIP-890).

`implicit` is KIP-890's second part, in force if the cluster's `transaction.version` is 2 or more. Then a partition or a
group becomes part of a transaction by its first batch or offset, and the answer to the end has the next epoch. The
request versions tell the broker which of the two ways a client uses, so a transaction keeps to one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import by_topic, grouped_by_topic, made, milliseconds
from ingestd.wire.requests.groups import committed_topics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kio.static.protocol import RequestPayload

    from ingestd.errors import ErrorCode
    from ingestd.wire.requests.build import Build
    from ingestd.wire.requests.groups import CommittedOffset
    from ingestd.wire.versions import ApiVersions

__all__ = [
    "add_offsets_to_transaction",
    "add_partitions_to_transaction",
    "end_transaction",
    "init_producer_id",
    "read_added_partitions",
    "read_transaction_offsets",
    "transaction_offset_commit",
]


def init_producer_id(
    transactional_id: str | None = None,
    *,
    transaction_timeout_ms: int = 60_000,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> Build:
    """A producer id and epoch. With the ones held before, the same id with the next epoch (version 3, KIP-360)."""

    def build(versions: ApiVersions) -> RequestPayload:
        if transactional_id is not None and versions.embedded:
            # Those before transactions give producer ids, but have none of the rest.
            versions.pick(Api.end_txn, 0, 5)
        version = versions.pick(Api.init_producer_id, 3 if producer_id >= 0 else 0, 5)
        module = request_module("init_producer_id", version)
        fields: dict[str, Any] = {
            "transactional_id": transactional_id,
            "transaction_timeout": milliseconds(transaction_timeout_ms),
        }
        if version >= 3:
            fields["producer_id"] = producer_id
            fields["producer_epoch"] = producer_epoch
        return made(module.InitProducerIdRequest(**fields))

    return build


def add_partitions_to_transaction(
    transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[tuple[str, int]]
) -> Build:
    """Add partitions to the transaction, before their first batch. Version 4 is only between brokers."""
    wanted = by_topic(partitions)

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("add_partitions_to_txn", versions.pick(Api.add_partitions_to_txn, 0, 3))
        return made(
            module.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=producer_epoch,
                v3_and_below_topics=tuple(
                    module.AddPartitionsToTxnTopic(name=topic, partitions=numbers) for topic, numbers in wanted.items()
                ),
            )
        )

    return build


def read_added_partitions(answer: Any) -> Iterator[tuple[str, int, ErrorCode]]:
    """Each partition's topic, number and error."""
    for topic in answer.results_by_topic_v3_and_below:
        for partition in topic.results_by_partition:
            yield topic.name, partition.partition_index, partition.partition_error_code


def add_offsets_to_transaction(transactional_id: str, producer_id: int, producer_epoch: int, group_id: str) -> Build:
    """Add a group whose offsets the transaction will commit, before the first offset."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("add_offsets_to_txn", versions.pick(Api.add_offsets_to_txn, 0, 4))
        return made(
            module.AddOffsetsToTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                group_id=group_id,
            )
        )

    return build


def end_transaction(
    transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool, implicit: bool
) -> Build:
    """Commit or abort. With `implicit` the answer has the producer id and epoch to go on with (version 5)."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.end_txn, 5, 5) if implicit else versions.pick(Api.end_txn, 0, 4)
        return made(
            request_module("end_txn", version).EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                committed=commit,
            )
        )

    return build


def transaction_offset_commit(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group_id: str,
    offsets: Iterable[CommittedOffset],
    *,
    generation: int = -1,
    member_id: str = "",
    group_instance_id: str | None = None,
    implicit: bool,
) -> Build:
    """Offsets of a group that become visible with the transaction. A member of the group needs version 3 (KIP-447)."""
    topics_offsets = grouped_by_topic(offsets)

    def build(versions: ApiVersions) -> RequestPayload:
        is_member = bool(member_id) or generation >= 0 or group_instance_id is not None
        lowest, highest = (5, 5) if implicit else (3 if is_member else 0, 4)
        version = versions.pick(Api.txn_offset_commit, lowest, highest)
        module = request_module("txn_offset_commit", version)
        topics = committed_topics(
            module.TxnOffsetCommitRequestTopic,
            module.TxnOffsetCommitRequestPartition,
            topics_offsets,
            with_epoch=version >= 2,
        )
        fields: dict[str, Any] = {
            "transactional_id": transactional_id,
            "group_id": group_id,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "topics": topics,
        }
        if version >= 3:
            fields |= {"generation_id": generation, "member_id": member_id, "group_instance_id": group_instance_id}
        return made(module.TxnOffsetCommitRequest(**fields))

    return build


def read_transaction_offsets(answer: Any) -> Iterator[tuple[str, int, ErrorCode]]:
    """Each partition's topic, number and error."""
    for topic in answer.topics:
        for partition in topic.partitions:
            yield topic.name, partition.partition_index, partition.error_code
