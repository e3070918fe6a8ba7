"""ConsumerProtocol: what members and their leader tell each other through the coordinator, to bytes and back.

Kafka's ConsumerProtocolSubscription versions 0 to 3 and ConsumerProtocolAssignment
(https://kafka.apache.org/protocol, KIP-429, KIP-792, KIP-881), each behind its version as an int16. Readers take the
fields that they know and ignore what a newer writer put behind them, so the highest version suits every reader.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.assignor import Assignment, Subscription
from ingestd.errors import ProtocolError
from ingestd.wire.codec import decode_entity, encode_entity
from ingestd.wire.requests.build import by_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ingestd.wire.codec import Buffer

__all__ = [
    "HIGHEST_VERSION",
    "PROTOCOL_TYPE",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
]

PROTOCOL_TYPE: Final = "consumer"
"""JoinGroup's protocol type of every group whose members speak this."""

HIGHEST_VERSION: Final = 3
_VERSION: Final = struct.Struct(">h")


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """The bytes of a subscription; an older `version` leaves out what it has no field for.

    0: topics, user data; 1: owned partitions; 2: generation; 3: rack.
    """
    module = _module("subscription", version)
    fields: dict[str, Any] = {"topics": tuple(sorted(subscription.topics)), "user_data": subscription.user_data}
    if version >= 1:
        fields["owned_partitions"] = _grouped(module, subscription.owned)
    if version >= 2:
        fields["generation_id"] = subscription.generation
    if version >= 3:
        fields["rack_id"] = subscription.rack
    return _VERSION.pack(version) + encode_entity(module.ConsumerProtocolSubscription(**fields))


def decode_subscription(data: Buffer, group_instance_id: str | None = None) -> Subscription:
    """A member's subscription; `group_instance_id` is what the coordinator's answer has beside the bytes.

    Raises `ProtocolError`.
    """
    version = _version(data)
    entity = decode_entity(_module("subscription", version).ConsumerProtocolSubscription, data[_VERSION.size :])
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
    module = _module("assignment", version)
    entity = module.ConsumerProtocolAssignment(
        assigned_partitions=_grouped(module, assignment.partitions), user_data=assignment.user_data
    )
    return _VERSION.pack(version) + encode_entity(entity)


def decode_assignment(data: Buffer) -> Assignment:
    """What the leader assigned; no bytes at all, which a coordinator may send, are no partitions.

    Raises `ProtocolError`.
    """
    if not len(data):
        return Assignment(())
    entity = decode_entity(_module("assignment", _version(data)).ConsumerProtocolAssignment, data[_VERSION.size :])
    return Assignment(_flat(entity.assigned_partitions), entity.user_data)


@lru_cache(maxsize=16)
def _module(kind: str, version: int) -> Any:
    return import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")


def _version(data: Buffer) -> int:
    if len(data) < _VERSION.size:
        raise ProtocolError(f"ConsumerProtocol: {len(data)} bytes, which hold no version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise ProtocolError(f"ConsumerProtocol version {version}")
    return min(version, HIGHEST_VERSION)


def _grouped(module: Any, partitions: Collection[TopicPartition]) -> tuple[Any, ...]:
    return tuple(
        module.TopicPartition(topic=topic, partitions=numbers) for topic, numbers in by_topic(partitions).items()
    )


def _flat(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    partitions = tuple(TopicPartition(entry.topic, number) for entry in topics for number in entry.partitions)
    if any(partition < 0 for _, partition in partitions):
        raise ProtocolError("ConsumerProtocol: a negative partition number")
    return partitions
