"""Requests of administrators about transactions and producers (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.wire.apis import Api
from ingestd.wire.codec import request_module
from ingestd.wire.requests.build import by_topic, made

if TYPE_CHECKING:
    from collections.abc import Collection

    from kio.static.protocol import RequestPayload

    from ingestd.wire.requests.build import Build
    from ingestd.wire.versions import ApiVersions

__all__ = ["abort_transaction", "describe_producers", "describe_transactions", "list_transactions"]


def list_transactions(
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> Build:
    """The transactions that the asked broker coordinates; empty filters take any.

    By duration needs version 1 (Kafka 3.8, KIP-994), by a pattern of the transactional id version 2 (4.1, KIP-1152).
    """

    def build(versions: ApiVersions) -> RequestPayload:
        lowest = 2 if pattern is not None else 1 if longer_than_ms >= 0 else 0
        version = versions.pick(Api.list_transactions, lowest, 2)
        fields: dict[str, Any] = {"state_filters": tuple(states), "producer_id_filters": tuple(producer_ids)}
        if version >= 1:
            fields["duration_filter"] = longer_than_ms
        if version >= 2:
            fields["transactional_id_pattern"] = pattern
        return made(request_module("list_transactions", version).ListTransactionsRequest(**fields))

    return build


def describe_transactions(transactional_ids: Collection[str]) -> Build:
    """Transactions that the asked broker coordinates; the answer has one error per transactional id."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("describe_transactions", versions.pick(Api.describe_transactions, 0, 0))
        return made(module.DescribeTransactionsRequest(transactional_ids=tuple(transactional_ids)))

    return build


def describe_producers(partitions: Collection[tuple[str, int]]) -> Build:
    """The producers of partitions, as the asked broker knows them. The answer has one error per partition."""

    def build(versions: ApiVersions) -> RequestPayload:
        module = request_module("describe_producers", versions.pick(Api.describe_producers, 0, 0))
        return made(
            module.DescribeProducersRequest(
                topics=tuple(
                    module.TopicRequest(name=topic, partition_indexes=numbers)
                    for topic, numbers in by_topic(partitions).items()
                )
            )
        )

    return build


def abort_transaction(
    topic: str, partition: int, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> Build:
    """End a hanging transaction of a partition, by a marker for the leader to write."""

    def build(versions: ApiVersions) -> RequestPayload:
        version = versions.pick(Api.write_txn_markers, 1, 2)
        module = request_module("write_txn_markers", version)
        fields: dict[str, Any] = {"transaction_version": 0} if version >= 2 else {}
        marker = module.WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=(module.WritableTxnMarkerTopic(name=topic, partition_indexes=(partition,)),),
            coordinator_epoch=coordinator_epoch,
            **fields,
        )
        return made(module.WriteTxnMarkersRequest(markers=(marker,)))

    return build
