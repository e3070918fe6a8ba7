"""Handing over: whether consumers can leave a mirror's source for its target, for `ingestd mirror hand-over`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import orjson

from ingestd.client.admin import ClusterAdmin
from ingestd.consumer.offsets import resolve_offsets
from ingestd.consumer.settings import Edge, Isolation
from ingestd.errors import ConfigurationError, IngestdError
from ingestd.figures import in_count
from ingestd.mirror.groups import GroupSync
from ingestd.mirror.positions import read_positions
from ingestd.mirror.selection import NAMING
from ingestd.mirror.target_topics import REQUEST_TIMEOUT
from ingestd.mirror.translations import Taken, Translations
from ingestd.mirror.verify import mirrored_partitions
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.client.client import Client
    from ingestd.client.metadata import TopicPartition
    from ingestd.daemon.status import GroupStatus
    from ingestd.mirror.positions import MirrorPosition
    from ingestd.mirror.route import MirrorRoute

__all__ = ["GroupVerdict", "HandOver", "hand_over", "way_back"]

POLL_INTERVAL: Final = 0.5
"""Seconds between two looks at the mirror's positions. It commits them that often."""


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """One group. lag: how many offsets of the mirrored partitions it has not read yet at the source.

    partitions: in how many of them it has committed. translated: of those, in how many it can go on at the target.
    problems: why it can not go over now. ahead: in how many partitions it goes on behind records that it has not read
    at the source: it has read there before, or was set back at the source.
    """

    group: str
    partitions: int
    translated: int
    lag: int
    problems: Sequence[str] = ()
    ahead: int = 0

    @property
    def ready(self) -> bool:
        """Whether its consumers can start on the target."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class HandOver:
    """One mirror. behind: by partition of the source, how many offsets up to the end it had are not copied.

    same_offsets: whether every record has the same offset on both sides. held_back: by partition of the source, how
    many of its offsets stand behind an open transaction; nobody can copy them before it ends.
    """

    mirror: str
    partitions: int
    behind: Mapping[str, int]
    groups: Sequence[GroupVerdict]
    same_offsets: bool
    held_back: Mapping[str, int] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether all groups can go over, and there are some."""
        return bool(self.groups) and not self.behind and all(group.ready for group in self.groups)


async def hand_over(route: MirrorRoute, source: Client, target: Client, *, timeout: float) -> HandOver:
    """Wait until the mirror has copied what there is now, at most `timeout` seconds, then translate its groups.

    The mirror runs meanwhile, elsewhere: only the two clusters are asked. Raises `ConfigurationError` where it
    translates no groups, `PositionsNotUnderstood`, and `IngestdError` if a cluster does not answer.
    """
    if not route.groups:
        raise ConfigurationError(
            f'mirrors.{route.name}.groups: expected patterns of groups to hand over, as in ["web-.*"]'
        )
    admins = ClusterAdmin(source), ClusterAdmin(target)
    pairs = await mirrored_partitions(route, source, target)
    ends, stable = [
        await resolve_offsets(source, dict.fromkeys(pairs, Edge.latest), isolation, REQUEST_TIMEOUT)
        for isolation in (Isolation.read_uncommitted, Isolation.read_committed)
    ]
    held_back = {str(one): end - stable[one] for one, end in ends.items() if stable[one] < end}
    topics = await admins[0].describe_topics(list({one.topic for one in pairs}), timeout=REQUEST_TIMEOUT)
    ids = {name: str(topic.topic_id or "") for name, topic in topics.items()}
    positions, behind = await _copied(route, admins[1], pairs, ids, ends, timeout)
    if not positions:
        raise IngestdError(
            f"mirror {route.name}: nothing was copied yet: of {in_count(len(pairs), 'partition')} that {route.source} "
            f"has now for it, none has a position in group {route.positions_group} on {route.target}"
        )
    translations = Translations(route, lambda: target)
    known = {one: to for one, to in pairs.items() if to in positions}
    await translations.take(
        {to: Taken(one, positions[to], positions[to].topic_id, positions[to].target_id) for one, to in known.items()},
        REQUEST_TIMEOUT,
    )
    statuses = await GroupSync(route).sync(*admins, known, translations)
    groups = await _verdicts(admins[0], statuses, ends)
    held_back = {one: offsets for one, offsets in held_back.items() if one in behind}
    return HandOver(route.name, len(pairs), behind, groups, translations.same_offsets, held_back)


async def _copied(
    route: MirrorRoute,
    target: ClusterAdmin,
    pairs: Mapping[TopicPartition, TopicPartition],
    ids: Mapping[str, str],
    ends: Mapping[TopicPartition, int],
    timeout: float,
) -> tuple[dict[TopicPartition, MirrorPosition], dict[str, int]]:
    """The mirror's positions once they are at these ends of the source, or at the deadline; and what is missing.

    `ids`: of the topics at the source. A position in a topic that was made again since is none.
    """
    deadline = Deadline.after(timeout)
    present = {to: ids[one.topic] for one, to in pairs.items()}
    while True:
        stored = await read_positions(target, route.positions_group, route.source, REQUEST_TIMEOUT)
        positions = {to: at for to, at in stored.items() if not at.topic_id or present.get(to, "") in ("", at.topic_id)}
        reached = {one: positions[to].offset if to in positions else 0 for one, to in pairs.items()}
        behind = {str(one): end - reached[one] for one, end in ends.items() if reached[one] < end}
        if not behind or deadline.expired:
            return positions, behind
        await asyncio.sleep(min(POLL_INTERVAL, deadline.remaining))


async def _verdicts(
    source: ClusterAdmin, statuses: Sequence[GroupStatus], ends: Mapping[TopicPartition, int]
) -> list[GroupVerdict]:
    names = [one.group for one in statuses]
    described = {one.group_id: one for one in await source.describe_groups(names, timeout=REQUEST_TIMEOUT)}
    committed = {
        one.group_id: one.offsets
        for one in await source.list_group_offsets(dict.fromkeys(names), timeout=REQUEST_TIMEOUT)
    }
    verdicts = []
    for one in statuses:
        problems = [] if one.problem is None else [one.problem]
        there = described[one.group]
        if there.error is not None:
            problems.append(f"it can not be described at the source: {there.error}")
        elif there.members:
            members = ", ".join(sorted({f"{one.client_id} ({one.client_host})" for one in there.members}))
            problems.append(f"it has members at the source: {members}")
        lag = sum(
            max(0, ends[partition] - at.offset) for partition, at in committed[one.group].items() if partition in ends
        )
        verdicts.append(GroupVerdict(one.group, one.partitions, one.translated, lag, problems, one.ahead))
    return sorted(verdicts, key=lambda verdict: verdict.group)


_OF_ONE_TARGET: Final = frozenset({"replication_factor", "group", "send_back"})
"""Keys that say something of one target, or of one direction. They are not on the way back."""


def way_back(route: MirrorRoute) -> str:
    """The table of a mirror in the other direction, for what is written at the target from now on.

    It has every other key that is set. Raises `IngestdError` for a template: which topics come back under which names
    is not known.
    """
    if route.naming not in NAMING:
        expected = " or ".join(f'"{name}"' for name in NAMING)
        raise IngestdError(f"mirrors.{route.name}.naming: {route.naming!r} has no way back; expected {expected}")
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    back = replace(route, source=route.target, target=route.source, start=now)
    keys = {
        key: value for key, value in _set_keys(back, "naming").items() if key != "name" and key not in _OF_ONE_TARGET
    }
    said = [
        f"# Instead of [mirrors.{route.name}], not beside it: stop that one first.",
        f"# A group can come back once it has read what is written on {route.target} from {now} on.",
    ]
    if route.naming == "prefix":
        said.append(
            f"# It copies the topics of {route.target} with these names, so producers there must write to them:"
        )
        said.append(f"# what they write to {route.source}.TOPIC does not come back.")
    said += [
        f"# {key}: set for {route.target}; left out here" for key in sorted(_OF_ONE_TARGET & _set_keys(route).keys())
    ]
    return "\n".join([
        *said,
        f"[mirrors.{route.name}-back]",
        *(f"{key} = {_toml(value)}" for key, value in keys.items()),
    ])  # fmt: skip


def _set_keys(route: MirrorRoute, *always: str) -> dict[str, object]:
    """The keys of a mirror that are not as by default, and those of `always`."""
    defaults = {
        one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in fields(route)
    }
    values = {key: getattr(route, key) for key in defaults}
    return {key: value for key, value in values.items() if key in always or value != defaults[key]}


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    return orjson.dumps(value).decode()  # JSON's strings, numbers, booleans and arrays are TOML's
