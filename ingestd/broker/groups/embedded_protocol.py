"""Embedded protocol: what classic members tell each other within JoinGroup and SyncGroup, as the broker reads it.

That is Kafka's ConsumerProtocol. The broker needs it where members of both protocols are in one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from ingestd.errors import ErrorCode, KafkaError, ProtocolError
from ingestd.wire.consumer_protocol import HIGHEST_VERSION, decode, encode, module_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.broker.groups.consumer_state import Topics
    from ingestd.broker.groups.consumer_values import TopicIdPartition

__all__ = ["Said", "read_assignment", "read_subscription", "write_assignment"]

_VERSION: Final = Struct(">h")


@dataclass(frozen=True, slots=True)
class Said:
    """What a member says in its join. All its protocols say the same, so the first one counts."""

    topics: frozenset[str]
    owned: frozenset[TopicIdPartition]
    rack: str | None


def read_subscription(metadata: bytes, topics: Topics) -> Said:
    """A member's subscription. Raises `KafkaError` (INCONSISTENT_GROUP_PROTOCOL)."""
    try:
        said = decode("subscription", metadata)
    except ProtocolError as error:
        raise KafkaError(ErrorCode.inconsistent_group_protocol, f"the subscription is not readable: {error}") from error
    owned = {one.topic: one.partitions for one in getattr(said, "owned_partitions", ())}
    return Said(frozenset(said.topics), _by_id(owned.items(), topics), getattr(said, "rack_id", None) or None)


def read_assignment(assignment: bytes, topics: Topics) -> frozenset[TopicIdPartition]:
    """A member's assignment. Raises `ProtocolError`, also for one with data of an assignor of the user's own."""
    if not assignment:
        return frozenset()
    said = decode("assignment", assignment)
    if said.user_data:
        raise ProtocolError("an assignor of its own has data in the assignment, which would be lost")
    return _by_id(((one.topic, one.partitions) for one in said.assigned_partitions), topics)


def _by_id(named: Iterable[tuple[str, Iterable[int]]], topics: Topics) -> frozenset[TopicIdPartition]:
    found: set[TopicIdPartition] = set()
    for name, numbers in named:
        topic = topics.named(name)
        if topic is not None:
            found.update((topic.topic_id, number) for number in numbers)
    return frozenset(found)


def write_assignment(partitions: Iterable[TopicIdPartition], topics: Topics, subscription: bytes) -> bytes:
    """An assignment in the version of a member's subscription. Topics that are gone have no name, and are left out."""
    version = min(_VERSION.unpack_from(subscription)[0], HIGHEST_VERSION)
    module = module_of("assignment", version)
    named: dict[str, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topic = topics.identified(topic_id)
        if topic is not None:
            named.setdefault(topic.name, []).append(number)
    assigned = tuple(module.TopicPartition(topic=name, partitions=tuple(numbers)) for name, numbers in named.items())
    return encode(module.ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=None))
