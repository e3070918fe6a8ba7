"""Leader: the member that the coordinator chose asks for metadata, and assigns partitions to all members."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.consumer.group.assignor import Assignment, RebalanceProtocol, Subscription
from ingestd.consumer.group.assignors.consumer_protocol import decode_subscription, encode_assignment
from ingestd.consumer.group.assignors.placement import partition_racks
from ingestd.errors import IngestdError, ProtocolError
from ingestd.figures import in_count

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ingestd.client.client import Client
    from ingestd.client.metadata import ClusterMetadata, Node, TopicPartition
    from ingestd.consumer.group.assignor import Assignor
    from ingestd.wire.requests.groups import JoinedMember

__all__ = ["Led", "SharedTopics", "lead", "without_owned"]

_log = logging.getLogger(__name__)


class SharedTopics:
    """The group's topics as they were when this member, the leader, assigned them. Says when to assign anew.

    If a member has a rack, replicas that move to other racks count as well (KIP-881). A node that is down keeps its
    rack, so a restart moves nothing.
    """

    def __init__(self, cluster: ClusterMetadata, topics: Collection[str], *, racked: bool = False) -> None:
        self._racked = racked
        self._nodes: dict[int, Node] = {}
        self._counts: Mapping[str, int] = dict.fromkeys(topics, 0)
        self._racks: Mapping[str, tuple[frozenset[str], ...]] = {}
        self.change(cluster)

    @property
    def names(self) -> Collection[str]:
        """The topics that any member subscribed to."""
        return self._counts.keys()

    @property
    def missing(self) -> list[str]:
        """Those that the cluster did not have."""
        return [topic for topic, count in self._counts.items() if not count]

    def change(self, cluster: ClusterMetadata) -> str | None:
        """What has changed since the last call, as a reason to assign anew. None: nothing."""
        counts, racks = self._counts, self._racks
        known = {name: cluster.topics[name] for name in counts if name in cluster.topics}
        self._counts = {name: len(known[name].partitions) if name in known else 0 for name in counts}
        if self._racked:
            self._nodes.update(cluster.nodes)
            held: dict[tuple[int, ...], frozenset[str]] = {}
            self._racks = {name: partition_racks(topic, self._nodes, held) for name, topic in known.items()}
        for name, count in self._counts.items():
            if count != counts[name]:
                return f"topic {name} has {in_count(count, 'partition')}"
        for name, now in self._racks.items():
            if now != racks.get(name):
                return f"replicas of topic {name} are in other racks"
        return None


@dataclass(frozen=True, slots=True)
class Led:
    """The leader's result: each member's assignment as bytes, and the group's topics as they were."""

    assignments: Mapping[str, bytes]
    topics: SharedTopics


async def lead(
    client: Client, assignor: Assignor, members: Sequence[JoinedMember], timeout: float, *, skip_assignment: bool
) -> Led:
    """Assign every member its partitions; `skip_assignment`: only look at the topics (KIP-814).

    A member with unreadable bytes gets nothing, because the others cannot mend that. Raises `DeadlineExceeded` if no
    broker gave the metadata in time.
    """
    subscriptions = {member.member_id: _subscription(member) for member in members}
    topics = frozenset().union(*(subscription.topics for subscription in subscriptions.values()))
    cluster = client.metadata.snapshot
    missing = topics - cluster.topics.keys()
    if missing:
        cluster = await client.metadata.refresh(missing, timeout)
    shared = SharedTopics(cluster, topics, racked=any(subscription.rack for subscription in subscriptions.values()))
    if skip_assignment:
        return Led({}, shared)
    assignments = assignor.assign(cluster, subscriptions)
    if RebalanceProtocol.cooperative in assignor.rebalance_protocols:
        assignments = without_owned(assignments, subscriptions)
    strangers = assignments.keys() - subscriptions.keys()
    if strangers:
        raise IngestdError(f"assignor {assignor.name!r} named members that the group does not have: {strangers}")
    return Led({member: encode_assignment(assignment) for member, assignment in assignments.items()}, shared)


def _subscription(member: JoinedMember) -> Subscription:
    try:
        return decode_subscription(member.metadata, member.group_instance_id)
    except ProtocolError as error:
        _log.warning("member %s gets no partitions, its subscription is not readable: %s", member.member_id, error)
        return Subscription((), group_instance_id=member.group_instance_id)


def without_owned(
    assignments: Mapping[str, Assignment], members: Mapping[str, Subscription]
) -> Mapping[str, Assignment]:
    """The assignments without the partitions that other members still own (KIP-429). They follow when given up."""
    owners: dict[TopicPartition, set[str]] = {}
    for member, subscription in members.items():
        for partition in subscription.owned:
            owners.setdefault(partition, set()).add(member)
    if not owners:
        return assignments
    nobody: set[str] = set()
    return {
        member: Assignment(
            tuple(
                partition
                for partition in assignment.partitions
                if not (claimed := owners.get(partition, nobody)) or member in claimed
            ),
            assignment.user_data,
        )
        for member, assignment in assignments.items()
    }
