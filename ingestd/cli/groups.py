"""`ingestd groups`: what groups there are, who is in them, how far they are behind, and where they go on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ingestd.cli.scope import offsets_at, partitions_in
from ingestd.cli.starts import moment_ms
from ingestd.client.admin import EARLIEST, LATEST, ClusterAdmin
from ingestd.errors import ConfigurationError, ErrorCode, IngestdError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ingestd.cli.configured import ClusterAccess
    from ingestd.client.admin import GroupDescription, GroupListing

__all__ = [
    "OffsetReset",
    "PartitionLag",
    "ResetKind",
    "ResetTo",
    "apply_resets",
    "delete_groups",
    "describe_groups",
    "group_lag",
    "list_groups",
    "moved_into_the_log",
    "parse_time",
    "plan_resets",
]

_INACTIVE = frozenset({"Empty", "Dead"})


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in one partition, and which member reads it; None where nothing is known.

    A group that has committed nothing in a partition that a member reads has no lag: it depends on that member where
    it begins. The end is that of the log, transactions that are open included.
    """

    group: str
    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    member_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None


class ResetKind(Enum):
    """Where offsets are reset to."""

    earliest = "the first offset there is"
    latest = "the end"
    offset = "an offset"
    time = "the first record at or after a time"
    shift = "so many further on"


@dataclass(frozen=True, slots=True)
class ResetTo:
    """Where to; `value` is the offset, the milliseconds since 1970, or how many to shift by (back if negative)."""

    kind: ResetKind
    value: int = 0


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """One partition's offset before (None: nothing committed) and after; or why it can not be reset.

    What lies outside of the log is moved to its nearer end.
    """

    group: str
    topic: str
    partition: int
    before: int | None
    after: int | None
    error: str | None = None


async def list_groups(
    access: ClusterAccess, *, states: Collection[str] = (), types: Collection[str] = ()
) -> list[GroupListing]:
    """Every group, by name. Raises the error of a node that did not answer: its groups would be missing."""
    async with access.client() as client:
        listing = await ClusterAdmin(client).list_groups(states=states, types=types)
    if listing.errors:
        raise next(iter(listing.errors.values()))
    return list(listing.items)


async def describe_groups(access: ClusterAccess, names: Sequence[str]) -> list[GroupDescription]:
    """Describe groups, in the order of `names`. Raises `KafkaError` for one that is not there."""
    async with access.client() as client:
        return await _described(ClusterAdmin(client), names)


async def group_lag(access: ClusterAccess, names: Sequence[str]) -> list[PartitionLag]:
    """The lag of groups in every partition that they have committed or read. Raises `KafkaError`."""
    async with access.client() as client:
        admin = ClusterAdmin(client)
        described = await _described(admin, names)
        committed = {one.group_id: one for one in await admin.list_group_offsets(dict.fromkeys(names))}
        lags: list[PartitionLag] = []
        for group in described:
            offsets = committed[group.group_id]
            if offsets.error is not None:
                raise offsets.error
            readers = {partition: member for member in group.members for partition in member.assignment}
            partitions = sorted({*offsets.offsets, *readers})
            ends = await offsets_at(admin, partitions, LATEST)
            for partition in partitions:
                known = offsets.offsets.get(partition)
                end = None if ends[partition].error is not None else ends[partition].offset
                member = readers.get(partition)
                lag = None if known is None or end is None else max(0, end - known.offset)
                reader = (None, None, None) if member is None else (
                    member.member_id, member.client_id, member.client_host
                )  # fmt: skip
                lags.append(
                    PartitionLag(group.group_id, *partition, None if known is None else known.offset, end, lag, *reader)
                )
    return lags


async def plan_resets(
    access: ClusterAccess, group: str, to: ResetTo, scope: Mapping[str, Collection[int] | None] | None = None
) -> list[OffsetReset]:
    """What resetting a group's offsets would do, and does not do yet.

    `scope` names partitions by topic, None standing for all of a topic's; without it: all that the group has committed.
    Raises `KafkaError` for a group or topic that is not there.
    """
    async with access.client() as client:
        admin = ClusterAdmin(client)
        (committed,) = await admin.list_group_offsets({group: None})
        if committed.error is not None:
            raise committed.error
        partitions = sorted(committed.offsets) if scope is None else await partitions_in(admin, scope)
        if not partitions:
            raise KafkaError(ErrorCode.group_id_not_found, f"{group}: it has committed nothing; name topics")
        first, end = await offsets_at(admin, partitions, EARLIEST), await offsets_at(admin, partitions, LATEST)
        at_time = await offsets_at(admin, partitions, to.value) if to.kind is ResetKind.time else end
    resets = []
    for partition in partitions:
        known = committed.offsets.get(partition)
        before = None if known is None else known.offset
        edges = first[partition], end[partition], at_time[partition]
        refused = next((edge.error for edge in edges if edge.error is not None), None)
        if refused is not None:
            resets.append(OffsetReset(group, *partition, before, None, str(refused)))
            continue
        after = _offset_after(to, before, *(edge.offset for edge in edges))
        error = "nothing is committed to shift from" if after is None else None
        resets.append(OffsetReset(group, *partition, before, after, error))
    return resets


async def apply_resets(access: ClusterAccess, group: str, resets: Sequence[OffsetReset]) -> list[OffsetReset]:
    """Commit what was planned; gives it back with the errors of partitions that failed.

    Raises `IngestdError` for a group that has members: they would go on where they are and commit over it.
    """
    async with access.client() as client:
        admin = ClusterAdmin(client)
        (described,) = await admin.describe_groups([group])
        if described.error is None and described.state not in _INACTIVE:
            raise IngestdError(
                f"{group} is {described.state} (members: {len(described.members)}): offsets can only be reset when it "
                "has none"
            )
        wanted = {(one.topic, one.partition): one.after for one in resets if one.after is not None and not one.error}
        outcomes = await admin.alter_group_offsets(group, wanted)
    errors = {(one.topic, one.partition): str(one.error) for one in outcomes if one.error is not None}
    return [
        OffsetReset(
            group, one.topic, one.partition, one.before, one.after, errors.get((one.topic, one.partition), one.error)
        )
        for one in resets
    ]


async def delete_groups(access: ClusterAccess, names: Sequence[str]) -> None:
    """Delete groups and their offsets. Raises `KafkaError`, or a group of them; the other groups are deleted."""
    async with access.client() as client:
        outcomes = await ClusterAdmin(client).delete_groups(names)
    errors: list[IngestdError] = [one.error for one in outcomes if one.error is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("groups not deleted", errors)


def moved_into_the_log(resets: Iterable[OffsetReset], to: ResetTo) -> Iterator[str]:
    """A line for each partition whose log does not have the offset that was asked for."""
    for one in resets:
        asked = to.value if to.kind is ResetKind.offset else (one.before or 0) + to.value
        if one.after is not None and to.kind in {ResetKind.offset, ResetKind.shift} and one.after != asked:
            yield (
                f"{one.topic}-{one.partition}: its log does not reach offset {asked}: {one.after}, its nearer end, is "
                "taken"
            )


def parse_time(text: str) -> int:
    """Milliseconds since 1970 from ISO 8601, local time if it names no zone. Raises `ConfigurationError`."""
    try:
        return moment_ms(text)
    except ValueError:
        raise ConfigurationError(f"--to-datetime {text!r}: expected ISO 8601, as in 2026-01-31T12:00:00") from None


def _offset_after(to: ResetTo, before: int | None, first: int, end: int, at_time: int) -> int | None:
    if to.kind is ResetKind.earliest:
        return first
    if to.kind is ResetKind.latest or (to.kind is ResetKind.time and at_time < 0):
        return end  # no record is as late as the time asked for
    if to.kind is ResetKind.time:
        return at_time
    if to.kind is ResetKind.offset:
        return min(max(to.value, first), end)
    return None if before is None else min(max(before + to.value, first), end)


async def _described(admin: ClusterAdmin, names: Sequence[str]) -> list[GroupDescription]:
    described = await admin.describe_groups(names)
    for group in described:
        if group.error is not None:
            raise group.error
    return described
