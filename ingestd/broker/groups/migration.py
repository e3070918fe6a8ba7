"""Migration: a classic group with members as one of KIP-848, and back, as Kafka's `bidirectional` policy has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.broker.groups.classic_group import ClassicGroup
from ingestd.broker.groups.classic_member import Member as ClassicMember
from ingestd.broker.groups.consumer_group import ConsumerGroup
from ingestd.broker.groups.consumer_state import ConsumerState, Member
from ingestd.broker.groups.consumer_values import ClassicSide, Held, MemberState, Profile
from ingestd.broker.groups.embedded_protocol import read_assignment, read_subscription, write_assignment
from ingestd.errors import ErrorCode, KafkaError, ProtocolError
from ingestd.wire.consumer_protocol import PROTOCOL_TYPE

if TYPE_CHECKING:
    from ingestd.broker.groups.consumer_group import ConsumerRules
    from ingestd.broker.groups.consumer_state import Topics
    from ingestd.broker.groups.consumer_values import TopicIdPartition

__all__ = ["downgraded", "upgraded"]


def upgraded(group_id: str, classic: ClassicGroup, topics: Topics, rules: ConsumerRules, now: float) -> ConsumerGroup:
    """The group with the same members, who keep what they have. All of it is still to be saved.

    Raises `KafkaError` (GROUP_ID_NOT_FOUND) if its members do not say what they read, or have more than partitions.
    """
    if classic.protocol_type != PROTOCOL_TYPE:
        raise _refusal(group_id, "the group does not use the consumer embedded protocol")
    kept = ConsumerState(group_id, topics, classic.generation, target_epoch=classic.generation)
    taken: set[TopicIdPartition] = set()
    try:
        for one in classic.members.values():
            member = kept.members[one.id] = _upgraded(one, classic, topics, taken)
            taken |= member.held.assigned.keys()
    except (ProtocolError, KafkaError) as error:
        raise _refusal(group_id, str(error)) from error
    # Again, for the instances and owners.
    kept = ConsumerState(group_id, topics, classic.generation, 0, classic.generation, members=kept.members)
    kept.topics_hash = kept.hash_of_topics()
    for key, value in kept.records():
        kept.note(key, value)
    return ConsumerGroup.restored(kept, rules, now)


def _upgraded(one: ClassicMember, classic: ClassicGroup, topics: Topics, taken: set[TopicIdPartition]) -> Member:
    metadata = one.metadata(classic.protocol) or one.protocols[0][1]
    said = read_subscription(metadata, topics)
    has = read_assignment(one.assignment, topics) - taken
    profile = Profile(
        one.instance_id,
        said.rack,
        one.client_id,
        one.client_host,
        said.topics,
        None,
        one.rebalance_timeout,
        None,
        ClassicSide(one.session_timeout, one.protocols),
    )
    generation = classic.generation
    held = Held(generation, generation, MemberState.stable, dict.fromkeys(has, generation), {})
    return Member(one.id, profile, held, has)


def _refusal(group_id: str, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.group_id_not_found, f"Cannot upgrade classic group {group_id} to consumer group because {why}."
    )


def downgraded(kept: ConsumerState, now: float, initial_delay: float) -> ClassicGroup:
    """The classic group with the same members, all of whom are classic. They have their targets."""
    members = []
    for one in kept.members.values():
        classic = one.profile.classic
        assert classic is not None
        members.append(
            ClassicMember(
                one.id,
                one.profile.instance_id,
                one.profile.client_id,
                one.profile.client_host,
                classic.session_timeout,
                one.profile.rebalance_timeout,
                classic.protocols,
                now + classic.session_timeout,
                write_assignment(one.target or (), kept.topics, classic.protocols[0][1]),
                new=False,
            )
        )
    return ClassicGroup.taken_over(members, kept.epoch, initial_delay)
