"""Leader: what the member that the coordinator chose does for all: topics' metadata, the assignor, everybody's part."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestd.consumer.group.assignor import Assignment, RebalanceProtocol, Subscription
from ingestd.consumer.group.assignors.consumer_protocol import decode_subscription, encode_assignment
from ingestd.errors import IngestdError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ingestd.client.client import Client
    from ingestd.client.metadata import ClusterMetadata, TopicPartition
    from ingestd.consumer.group.assignor import Assignor
    from ingestd.wire.requests.groups import JoinedMember

__all__ = ["Led", "lead", "partition_counts", "without_owned"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Led:
    """What came of leading: each member's assignment as bytes, and what the group's topics looked like."""

    assignments: Mapping[str, bytes]
    partitions: Mapping[str, int]
    """Partitions by topic: where these numbers change, the group has to share anew."""


async def lead(
    client: Client, assignor: Assignor, members: Sequence[JoinedMember], timeout: float, *, skip_assignment: bool
) -> Led:
    """Assign every member its partitions; `skip_assignment`: only look at the topics (KIP-814).

    A member whose bytes are not readable gets nothing: the others can do nothing about it. Raises `DeadlineExceeded`
    when no broker gave the metadata in time.
    """
    subscriptions = {member.member_id: _subscription(member) for member in members}
    topics = frozenset().union(*(subscription.topics for subscription in subscriptions.values()))
    cluster = client.metadata.snapshot
    missing = topics - cluster.topics.keys()
    if missing:
        cluster = await client.metadata.refresh(missing, timeout)
    counts = partition_counts(cluster, topics)
    if skip_assignment:
        return Led({}, counts)
    assignments = assignor.assign(cluster, subscriptions)
    if RebalanceProtocol.cooperative in assignor.rebalance_protocols:
        assignments = without_owned(assignments, subscriptions)
    strangers = assignments.keys() - subscriptions.keys()
    if strangers:
        raise IngestdError(f"assignor {assignor.name!r} named members that the group does not have: {strangers}")
    return Led({member: encode_assignment(assignment) for member, assignment in assignments.items()}, counts)


def _subscription(member: JoinedMember) -> Subscription:
    try:
        return decode_subscription(member.metadata, member.group_instance_id)
    except ProtocolError as error:
        _log.warning("member %s gets no partitions, its subscription is not readable: %s", member.member_id, error)
        return Subscription((), group_instance_id=member.group_instance_id)


def partition_counts(cluster: ClusterMetadata, topics: Collection[str]) -> dict[str, int]:
    """The number of partitions of each topic; 0 where it is not known."""
    known = cluster.topics
    return {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}


def without_owned(
    assignments: Mapping[str, Assignment], members: Mapping[str, Subscription]
) -> Mapping[str, Assignment]:
    """The assignments without what another member still owns (KIP-429): it is assigned once that has given it up."""
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
