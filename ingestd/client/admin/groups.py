"""Groups: list, describe and delete them, and remove members."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ingestd.checks import require_all_of, require_several
from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.group_values import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    described_classic_group,
    described_consumer_group,
)
from ingestd.client.admin.targets import PURPOSE, ToCoordinators, ToNodes
from ingestd.client.coordinators import CoordinatorKind
from ingestd.errors import ErrorCode, IngestdError, KafkaError, UnsupportedVersion, raise_for_code
from ingestd.retry import Deadline
from ingestd.wire.requests import group_admin
from ingestd.wire.requests.groups import leave_group

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ingestd.client.broker import Broker

__all__ = [
    "GroupAdmin",
    "GroupDescription",
    "GroupListing",
    "GroupOutcome",
    "Listing",
    "MemberDescription",
    "MemberOutcome",
    "MemberToRemove",
]

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Listing(Generic[Item]):
    """The lists of all nodes together, and the nodes that did not answer, by id, with the error."""

    items: tuple[Item, ...]
    errors: Mapping[int, IngestdError]


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The outcome of one group in a request. `error` is None if it succeeded."""

    group_id: str
    error: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class MemberToRemove:
    """A member by its id, or a static member by its name (KIP-345)."""

    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberOutcome:
    """The outcome of one member to remove. `error` is None if it is not in the group any more."""

    member: MemberToRemove
    error: IngestdError | None = None


class GroupAdmin(Administration):
    """Groups. Each group's coordinator answers for it. Listing asks every node."""

    async def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = (), timeout: float = 30.0
    ) -> Listing[GroupListing]:
        """All groups, by name. With arguments: only those of these states ("Stable", …) and types ("consumer", …).

        Filters by state need Kafka 2.6, by type 3.8. Raises `UnsupportedVersion` if no node can filter so.
        """
        deadline = Deadline.after(timeout)

        def read(answer: Any, nodes: Sequence[int]) -> Mapping[int, list[GroupListing]]:
            raise_for_code(answer.error_code, "ListGroups")
            listed = [
                GroupListing(
                    group.group_id,
                    group.protocol_type,
                    getattr(group, "group_state", ""),
                    getattr(group, "group_type", "").lower(),
                )
                for group in answer.groups
            ]
            return dict.fromkeys(nodes, listed)

        outcomes = await self._items(
            await self._nodes(deadline),
            ToNodes(self._client, int),
            lambda _: group_admin.list_groups(states, types),
            read,
            deadline,
        )
        groups: dict[str, GroupListing] = {}
        errors: dict[int, IngestdError] = {}
        for node, found in outcomes.found.items():
            if isinstance(found, IngestdError):
                errors[node] = found
            else:
                groups |= {group.group_id: group for group in found}
        return Listing(tuple(groups[name] for name in sorted(groups)), errors)

    async def describe_groups(self, groups: Iterable[str], *, timeout: float = 30.0) -> list[GroupDescription]:
        """Describe groups of both protocols, in the order asked."""
        deadline = Deadline.after(timeout)
        asked = list(dict.fromkeys(require_several("groups", groups)))
        found: dict[str, GroupDescription | IngestdError] = {}
        try:
            found = await self._describe_with(asked, consumer=True, deadline=deadline)
        except UnsupportedVersion:
            found = dict.fromkeys(asked, UnsupportedVersion("no broker has ConsumerGroupDescribe"))
        classic = [group for group in asked if _may_be_classic(found[group])]
        if classic:
            found |= await self._describe_with(classic, consumer=False, deadline=deadline)
        there = [group for group in asked if not isinstance(found[group], IngestdError)]
        nodes = await self._client.coordinators(there, CoordinatorKind.group, deadline.remaining, purpose=PURPOSE)
        return [_placed(group, found[group], nodes.get(group)) for group in asked]

    async def delete_groups(self, groups: Iterable[str], *, timeout: float = 30.0) -> list[GroupOutcome]:
        """Delete groups that have no members, and their offsets.

        If an attempt had no answer, and a group is gone after it, it counts as deleted.
        """
        outcomes = await self._items(
            require_several("groups", groups),
            ToCoordinators(self._client, CoordinatorKind.group),
            group_admin.delete_groups,
            lambda answer, _: {
                result.group_id: error_of(result.error_code, result.group_id) for result in answer.results
            },
            Deadline.after(timeout),
        )
        gone = {ErrorCode.group_id_not_found}
        return [GroupOutcome(group, outcomes.error(group, done=gone)) for group in outcomes.found]

    async def remove_group_members(
        self,
        group: str,
        members: Sequence[MemberToRemove] | None = None,
        *,
        reason: str = "removed by an administrator",
        timeout: float = 30.0,
    ) -> list[MemberOutcome]:
        """Remove members (None: all) from a group. One that still runs joins again. Several at once need Kafka 2.4.

        If an attempt had no answer, and a member is gone after it, it counts as removed.
        """
        deadline = Deadline.after(timeout)
        if members is None:
            (described,) = await self.describe_groups([group], timeout=timeout)
            if described.error is not None:
                raise described.error
            members = [
                MemberToRemove(group_instance_id=one.group_instance_id)
                if one.group_instance_id is not None
                else MemberToRemove(one.member_id)
                for one in described.members
            ]
        outcomes = await self._items(
            require_all_of(MemberToRemove, "members", members),
            ToCoordinators(self._client, CoordinatorKind.group, lambda _: group),
            lambda asked: leave_group(group, [(one.member_id, one.group_instance_id) for one in asked], reason=reason),
            _left,
            deadline,
        )
        gone = {ErrorCode.unknown_member_id}
        return [MemberOutcome(member, outcomes.error(member, done=gone)) for member in outcomes.found]

    async def _describe_with(
        self, groups: Sequence[str], *, consumer: bool, deadline: Deadline
    ) -> dict[str, GroupDescription | IngestdError]:
        read = described_consumer_group if consumer else described_classic_group
        outcomes = await self._items(
            groups,
            ToCoordinators(self._client, CoordinatorKind.group),
            group_admin.describe_consumer_groups if consumer else group_admin.describe_classic_groups,
            lambda answer, _: {group.group_id: read(group) for group in answer.groups},
            deadline,
        )
        return outcomes.found


def _placed(
    group: str, found: GroupDescription | IngestdError, coordinator: Broker | IngestdError | None
) -> GroupDescription:
    if isinstance(found, IngestdError):
        return GroupDescription(group, error=found)
    if coordinator is None or isinstance(coordinator, IngestdError):
        return found
    return replace(found, coordinator=coordinator.node.id)


def _may_be_classic(found: GroupDescription | IngestdError) -> bool:
    """Whether to ask by the classic protocol: the broker is older, or the group is a classic one."""
    if isinstance(found, KafkaError):
        return found.code in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version)
    return isinstance(found, UnsupportedVersion)


def _left(answer: Any, asked: Sequence[MemberToRemove]) -> Mapping[MemberToRemove, IngestdError | None]:
    raise_for_code(answer.error_code, "LeaveGroup")
    if not hasattr(answer, "members"):
        return dict.fromkeys(asked)
    by_instance = {one.group_instance_id: one for one in asked if one.group_instance_id is not None}
    by_id = {one.member_id: one for one in asked if one.group_instance_id is None}
    return {
        one: error_of(member.error_code, member.group_instance_id or member.member_id)
        for member in answer.members
        if (one := by_instance.get(member.group_instance_id) or by_id.get(member.member_id)) is not None
    }
