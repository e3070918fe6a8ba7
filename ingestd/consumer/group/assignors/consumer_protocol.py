"""Consumer protocol: subscriptions and assignments, as members send them to each other, to bytes and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.assignor import Assignment, Subscription
from ingestd.errors import ProtocolError
from ingestd.wire.consumer_protocol import HIGHEST_VERSION, decode, encode, module_of
from ingestd.wire.requests.build import by_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ingestd.wire.codec import Buffer

__all__ = ["decode_assignment", "decode_subscription", "encode_assignment", "encode_subscription"]


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """The bytes of a subscription. An older `version` leaves out fields that it does not have.

    0: topics, user data; 1: owned partitions; 2: generation; 3: rack.
    """
    module = module_of("subscription", version)
    fields: dict[str, Any] = {"topics": tuple(sorted(subscription.topics)), "user_data": subscription.user_data}
    if version >= 1:
        fields["owned_partitions"] = _grouped(module, subscription.owned)
    if version >= 2:
        fields["generation_id"] = subscription.generation
    if version >= 3:
        fields["rack_id"] = subscription.rack
    return encode(module.ConsumerProtocolSubscription(**fields))


def decode_subscription(data: Buffer, group_instance_id: str | None = None) -> Subscription:
    """A member's subscription; `group_instance_id` is what the coordinator's answer has beside the bytes.

    Raises `ProtocolError`.
    """
    entity = decode("subscription", data)
    version = entity.__version__
    return Subscription(
        topics=entity.topics,
        owned=_flat(entity.owned_partitions) if version >= 1 else (),
        generation=entity.generation_id if version >= 2 else -1,
        rack=(entity.rack_id or None) if version >= 3 else None,
        user_data=entity.user_data,
        group_instance_id=group_instance_id,
    )


def encode_assignment(assignment: Assignment, version: int = HIGHEST_VERSION) -> bytes:
    """The bytes of an assignment; all versions are laid out alike."""
    module = module_of("assignment", version)
    entity = module.ConsumerProtocolAssignment(
        assigned_partitions=_grouped(module, assignment.partitions), user_data=assignment.user_data
    )
    return encode(entity)


def decode_assignment(data: Buffer) -> Assignment:
    """The assignment of the leader. A coordinator may send no bytes: then there are no partitions.

    Raises `ProtocolError`.
    """
    if not len(data):
        return Assignment(())
    entity = decode("assignment", data)
    return Assignment(_flat(entity.assigned_partitions), entity.user_data)


def _grouped(module: Any, partitions: Collection[TopicPartition]) -> tuple[Any, ...]:
    return tuple(
        module.TopicPartition(topic=topic, partitions=numbers) for topic, numbers in by_topic(partitions).items()
    )


def _flat(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    partitions = tuple(TopicPartition(entry.topic, number) for entry in topics for number in entry.partitions)
    if any(partition < 0 for _, partition in partitions):
        raise ProtocolError("ConsumerProtocol: a negative partition number")
    return partitions
