"""Sticky: as even as subscriptions allow, then near (racks), then as little moved as can be (KIP-54, KIP-881).

Eager: every member gives everything up before it joins. Its user data says what it had, and in which generation. The
user data is that of Java's StickyAssignor, versions 0 and 1.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Final

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.assignor import RebalanceProtocol
from ingestd.consumer.group.assignors.retention import Claim, retain
from ingestd.errors import ProtocolError
from ingestd.wire.primitives import BodyReader, array_length, string
from ingestd.wire.requests.build import by_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ingestd.client.metadata import ClusterMetadata
    from ingestd.consumer.group.assignor import Assignment, Subscription

__all__ = ["StickyAssignor", "decode_claim", "encode_claim"]

NO_GENERATION: Final = -1
_INT32: Final = struct.Struct(">i")
_SMALLEST_TOPIC: Final = 6
_log = logging.getLogger(__name__)


class StickyAssignor:
    """Kafka's "sticky". Remembers the last assignment of this member, for the leader of the next rebalance."""

    name = "sticky"
    rebalance_protocols = frozenset({RebalanceProtocol.eager})

    def __init__(self) -> None:
        self._last: Claim | None = None

    def user_data(self, topics: Collection[str]) -> bytes | None:  # noqa: ARG002 - part of what an assignor is
        """What this member had, and in which generation. Empty before its first assignment."""
        return None if self._last is None else encode_claim(self._last)

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Share the partitions of all topics among the members that subscribed to them."""
        claims = {}
        for member, subscription in members.items():
            if not subscription.user_data:
                continue
            try:
                claims[member] = decode_claim(subscription.user_data)
            except ProtocolError as error:
                _log.warning("sticky assignor: what member %s claims to own is not readable: %s", member, error)
        return retain(cluster, members, claims)

    def on_assignment(self, assignment: Assignment, member_id: str, generation: int) -> None:  # noqa: ARG002 - as above
        """Remember it."""
        self._last = Claim(tuple(assignment.partitions), generation)


def encode_claim(claim: Claim) -> bytes:
    """Java's sticky user data, version 1: topics with their partitions, then the generation."""
    grouped = by_topic(claim.partitions)
    parts = [array_length(len(grouped), flexible=False)]
    for topic, numbers in grouped.items():
        parts += [
            string(topic, flexible=False),
            array_length(len(numbers), flexible=False),
            struct.pack(f">{len(numbers)}i", *numbers),
        ]
    parts.append(_INT32.pack(claim.generation))
    return b"".join(parts)


def decode_claim(user_data: bytes) -> Claim:
    """A member's claim from its sticky user data; version 0 has no generation. Raises `ProtocolError`."""
    reader = BodyReader(memoryview(user_data), flexible=False)
    partitions: list[TopicPartition] = []
    for _ in range(reader.array_length(_SMALLEST_TOPIC)):
        topic = reader.string()
        numbers = reader.unpack(struct.Struct(f">{reader.array_length(_INT32.size)}i"))
        partitions += [TopicPartition(topic, number) for number in numbers]
    generation = reader.int32() if len(reader.rest()) >= _INT32.size else NO_GENERATION
    return Claim(tuple(partitions), generation)
