"""`ingestd metadata`: the brokers of a cluster, and where each topic's partitions are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.checks import address_text
from ingestd.client.admin import ClusterAdmin
from ingestd.errors import ErrorCode, KafkaError
from ingestd.figures import in_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingestd.cli.configured import ClusterAccess
    from ingestd.client.metadata import Node, PartitionMetadata, TopicMetadata

__all__ = ["ClusterListing", "PartitionListing", "TopicListing", "list_metadata"]


@dataclass(frozen=True, slots=True)
class PartitionListing:
    """One partition; the leader is -1 where there is none. `error` is Kafka's name for what is wrong with it."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TopicListing:
    """One topic."""

    topic: str
    partitions: Sequence[PartitionListing]


@dataclass(frozen=True, slots=True)
class ClusterListing:
    """A cluster's brokers, in order of their ids, and its topics, in order of their names."""

    cluster_id: str | None
    controller: int
    brokers: Sequence[Node]
    topics: Sequence[TopicListing]

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"cluster {self.cluster_id or '-'}: {in_count(len(self.brokers), 'broker')}"
        for node in self.brokers:
            marks = [f"rack {node.rack}"] if node.rack else []
            marks += ["controller"] if node.id == self.controller else []
            yield f"  {node.id}: {_address(node)}{''.join(f', {mark}' for mark in marks)}"
        for topic in self.topics:
            yield f"{topic.topic}: {in_count(len(topic.partitions), 'partition')}"
            for one in topic.partitions:
                replicas, in_sync = (",".join(map(str, nodes)) for nodes in (one.replicas, one.in_sync_replicas))
                error = "" if one.error is None else f", {one.error}"
                yield f"  {one.partition}: leader {one.leader}, replicas {replicas}, in sync {in_sync}{error}"


async def list_metadata(access: ClusterAccess, names: Sequence[str] = (), *, internal: bool = False) -> ClusterListing:
    """The cluster and the topics named; without names all of them, Kafka's own with `internal`.

    Raises `KafkaError` for a topic that is not there.
    """
    async with access.client() as client:
        admin = ClusterAdmin(client)
        cluster = await admin.describe_cluster()
        topics = await (admin.describe_topics(names) if names else admin.list_topics(include_internal=internal))
    for name in names:
        error = topics[name].error if name in topics else ErrorCode.unknown_topic_or_partition
        if error is not ErrorCode.none:
            raise KafkaError(error, name)
    return ClusterListing(
        cluster.cluster_id,
        cluster.controller_id,
        sorted(cluster.nodes, key=lambda node: node.id),
        [_topic(topics[name]) for name in sorted(topics)],
    )


def _topic(topic: TopicMetadata) -> TopicListing:
    return TopicListing(topic.name, [_partition(one) for one in topic.partitions])


def _partition(one: PartitionMetadata) -> PartitionListing:
    error = None if one.error is ErrorCode.none else one.error.name.upper()
    return PartitionListing(one.partition, one.leader, one.replicas, one.in_sync_replicas, error)


def _address(node: Node) -> str:
    return address_text(node.host, node.port)
