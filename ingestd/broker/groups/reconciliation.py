"""Reconciliation: a member's next step to its target. It gives up first, and gets what nobody else has (KIP-848)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ingestd.broker.groups.consumer_values import Held, MemberState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from ingestd.broker.groups.consumer_values import TopicIdPartition

__all__ = ["Target", "reconciled", "without_unsubscribed"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a member is to have, and what decides when it gets it.

    `owners` are the members that have each partition now. `owned` is what this member says that it has; None: the same
    as before. `subscribed` are the topics that it reads.
    """

    epoch: int
    partitions: frozenset[TopicIdPartition]
    owners: Mapping[TopicIdPartition, str]
    owned: frozenset[TopicIdPartition] | None
    subscribed: Collection[UUID]

    def released(self, revoking: Collection[TopicIdPartition]) -> bool:
        """Whether the member has given all of these up."""
        return self.owned is not None and self.owned.isdisjoint(revoking)


def reconciled(member_id: str, held: Held, target: Target) -> Held:
    """The next step. The same value if the member has to wait."""
    if held.state is MemberState.unrevoked_partitions and not target.released(held.revoking):
        return held
    if held.state is MemberState.stable and held.epoch == target.epoch:
        return held
    wanted = {partition for partition in target.partitions if partition[0] in target.subscribed}
    kept = {partition: epoch for partition, epoch in held.assigned.items() if partition in wanted}
    revoking = {partition: epoch for partition, epoch in held.assigned.items() if partition not in wanted}
    if revoking and not target.released(revoking):
        return Held(held.epoch, held.epoch, MemberState.unrevoked_partitions, kept, revoking)
    missing = wanted.difference(kept)
    free = {partition for partition in missing if target.owners.get(partition, member_id) == member_id}
    state = MemberState.stable if len(free) == len(missing) else MemberState.unreleased_partitions
    return Held(target.epoch, held.epoch, state, {**kept, **dict.fromkeys(free, target.epoch)}, {})


def without_unsubscribed(held: Held, target: Target) -> Held:
    """The same without the topics that the member does not read any more, or on the way to it."""
    gone = {partition: epoch for partition, epoch in held.assigned.items() if partition[0] not in target.subscribed}
    if not gone:
        return held
    kept = {partition: epoch for partition, epoch in held.assigned.items() if partition not in gone}
    revoking = {**held.revoking, **gone}
    if target.released(revoking):
        return replace(held, previous_epoch=held.epoch, assigned=kept)
    return Held(held.epoch, held.epoch, MemberState.unrevoked_partitions, kept, revoking)
