"""Answers: makes values of Metadata answers, and merges newer values with older ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ingestd.client.metadata import NO_LEADER, ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from ingestd.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ingestd.client.metadata import NewLeader

__all__ = [
    "is_unknown",
    "keep_newer_leaders",
    "merge",
    "read_metadata",
    "unsettled",
    "why_no_leader",
    "with_leaders",
    "without_topics",
]

_UNSETTLED = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.listener_not_found,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    }
)


_FIRST_WITH_RELIABLE_EPOCHS: Final = 9
"""Brokers that speak no newer version (before Kafka 2.4) may name an old epoch for a new leader (KAFKA-9212)."""


def read_metadata(answer: Any) -> ClusterMetadata:
    """A Metadata answer of any version as a snapshot of what it names (version 0).

    A topic that was asked for by an unknown id is left out, because it has no name.
    """
    epochs = answer.__version__ >= _FIRST_WITH_RELIABLE_EPOCHS
    return ClusterMetadata(
        cluster_id=getattr(answer, "cluster_id", None),
        controller_id=answer.controller_id,
        nodes={node.node_id: Node(node.node_id, node.host, node.port, node.rack) for node in answer.brokers},
        topics={topic.name: _topic(topic, has_epoch=epochs) for topic in answer.topics if topic.name is not None},
    )


def _topic(topic: Any, *, has_epoch: bool) -> TopicMetadata:
    found = topic.partitions
    has_offline = bool(found) and hasattr(found[0], "offline_replicas")
    partitions = [
        PartitionMetadata(
            partition.partition_index,
            partition.leader_id,
            partition.leader_epoch if has_epoch else -1,
            partition.replica_nodes,
            partition.isr_nodes,
            partition.offline_replicas if has_offline else (),
            partition.error_code,
        )
        for partition in found
    ]
    partitions.sort(key=_number)
    if partitions and partitions[-1].partition != len(partitions) - 1:
        partitions = _without_holes(partitions)
    return TopicMetadata(
        topic.name, getattr(topic, "topic_id", None), tuple(partitions), topic.is_internal, topic.error_code
    )


def _number(partition: PartitionMetadata) -> int:
    return partition.partition


def _without_holes(partitions: Iterable[PartitionMetadata]) -> list[PartitionMetadata]:
    """Partitions by number. A broker may leave one out that it does not know yet, but `partitions[n]` must be n."""
    known = {partition.partition: partition for partition in partitions if partition.partition >= 0}
    missing = ErrorCode.leader_not_available
    return [
        known.get(number) or PartitionMetadata(number, NO_LEADER, -1, (), (), (), missing)
        for number in range(max(known, default=-1) + 1)
    ]


def unsettled(topic: TopicMetadata | None) -> ErrorCode:
    """The error of the topic, or of one of its partitions, after which asking again soon makes sense; else `none`."""
    if topic is None:
        return ErrorCode.unknown_topic_or_partition
    if topic.error is not ErrorCode.none:
        return topic.error if topic.error in _UNSETTLED else ErrorCode.none
    for partition in topic.partitions:
        if partition.error in _UNSETTLED:
            return partition.error
    return ErrorCode.none


def is_unknown(topic: TopicMetadata | None) -> bool:
    """Whether the cluster does not have the topic, as far as the client knows."""
    return topic is None or topic.error is ErrorCode.unknown_topic_or_partition


def merge(known: ClusterMetadata, news: ClusterMetadata) -> ClusterMetadata:
    """The snapshot after an answer about some topics. Other topics stay. Nodes and controller come from the answer.

    A partition keeps its leader if the answer's leader epoch is older. Brokers learn of a new leader one after the
    other, and one that lags must not undo what is known (KIP-320). What has not changed stays the same object: a topic,
    the mapping of topics, the mapping of nodes. So a listener sees at once what has changed.
    """
    changed = _changed(known.topics, news.topics)
    return ClusterMetadata(
        news.cluster_id or known.cluster_id,
        news.controller_id,
        known.nodes if known.nodes == news.nodes else news.nodes,
        {**known.topics, **changed} if changed else known.topics,
        known.version + 1,
    )


def without_topics(known: ClusterMetadata, names: Collection[str]) -> ClusterMetadata:
    """The snapshot without some topics."""
    topics = {name: topic for name, topic in known.topics.items() if name not in names}
    return replace(known, topics=topics, version=known.version + 1)


def keep_newer_leaders(known: ClusterMetadata, news: ClusterMetadata) -> ClusterMetadata:
    """A complete new snapshot. Leaders with a newer known epoch stay. Its version grows in any case.

    What has not changed stays the same object, as in `merge`.
    """
    changed = _changed(known.topics, news.topics)
    topics = known.topics
    if changed or known.topics.keys() != news.topics.keys():
        topics = {name: changed.get(name) or known.topics[name] for name in news.topics}
    nodes = known.nodes if known.nodes == news.nodes else news.nodes
    return replace(news, nodes=nodes, topics=topics, version=max(known.version + 1, news.version))


def _changed(known: Mapping[str, TopicMetadata], news: Mapping[str, TopicMetadata]) -> dict[str, TopicMetadata]:
    """The topics of the news that differ from the known ones, as they are from now on."""
    changed = {}
    for name, new in news.items():
        old = known.get(name)
        if old is None or (new != old and (newer := _newer(old, new)) != old):
            changed[name] = new if old is None else newer
    return changed


def _newer(old: TopicMetadata, new: TopicMetadata) -> TopicMetadata:
    if not old.partitions:
        return new
    if new.error is not ErrorCode.none and not new.partitions:
        passing = new.error in _UNSETTLED and new.error is not ErrorCode.unknown_topic_or_partition
        return replace(old, error=new.error) if passing else new
    if None not in (old.topic_id, new.topic_id) and old.topic_id != new.topic_id:
        return new  # deleted and created again: epochs start over
    stale = [
        number
        for number, (before, now) in enumerate(zip(old.partitions, new.partitions, strict=False))
        if now.leader_epoch < before.leader_epoch and now.leader_epoch >= 0
    ]
    if not stale:
        return new
    partitions = list(new.partitions)
    for number in stale:
        before = old.partitions[number]
        partitions[number] = replace(
            partitions[number], leader=before.leader, leader_epoch=before.leader_epoch, error=before.error
        )
    return replace(new, partitions=tuple(partitions))


def with_leaders(known: ClusterMetadata, leaders: Iterable[NewLeader]) -> ClusterMetadata | None:
    """The snapshot with those of these leaders that are newer. None if there are none.

    A leader counts if its epoch is newer than the known one, and its node is known or comes with it. A known node keeps
    its address.
    """
    nodes = dict(known.nodes)
    changed: dict[str, list[PartitionMetadata]] = {}
    for new in leaders:
        before = known.partition(new.topic, new.partition)
        if before is None or new.leader < 0 or new.leader_epoch <= before.leader_epoch:
            continue
        if new.node is not None:
            nodes.setdefault(new.leader, new.node)
        if new.leader not in nodes:
            continue
        partitions = changed.setdefault(new.topic, list(known.topics[new.topic].partitions))
        partitions[new.partition] = replace(
            before, leader=new.leader, leader_epoch=new.leader_epoch, error=ErrorCode.none
        )
    if not changed:
        return None
    topics = {name: replace(known.topics[name], partitions=tuple(moved)) for name, moved in changed.items()}
    return replace(
        known,
        nodes=known.nodes if len(nodes) == len(known.nodes) else nodes,
        topics={**known.topics, **topics},
        version=known.version + 1,
    )


def why_no_leader(snapshot: ClusterMetadata, topic: str, partition: int) -> ErrorCode:
    """The error for a partition without a known leader."""
    known = snapshot.topics.get(topic)
    if known is None:
        return ErrorCode.unknown_topic_or_partition
    if known.error is not ErrorCode.none:
        return known.error
    if not 0 <= partition < len(known.partitions):
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.leader_not_available
