"""Topic configs: what changes in the configuration of a source's topic changes on the target too."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from ingestd.client.admin import AlterOperation, ConfigChange, ConfigResource, ConfigSource, ResourceType
from ingestd.logs import get_logger
from ingestd.mirror.target_topics import REQUEST_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ingestd.client.admin import ClusterAdmin, ConfigsDescription

__all__ = ["NOT_COPIED", "TopicConfigs", "copied"]

NOT_COPIED: Final = (
    "message.timestamp.type",
    "message.timestamp.difference.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
"""Configurations that a topic on the target does not take from the source: records keep their own timestamps, and the
rest is about the brokers of one cluster."""

AT_ONCE: Final = 100
"""Topics whose configuration one look asks for. An answer has some forty values for each of them."""


def copied(described: ConfigsDescription, exclude: Sequence[str]) -> dict[str, str | None]:
    """What is set for the topic itself, and is copied: by key. `exclude` has patterns of keys that are not."""
    return {
        entry.name: entry.value
        for entry in described.entries.values()
        if entry.source == ConfigSource.topic
        and not entry.sensitive
        and entry.name not in NOT_COPIED
        and not any(re.fullmatch(pattern, entry.name) for pattern in exclude)
    }


def changes(
    ours: Mapping[str, str | None], before: Mapping[str, str | None], theirs: Mapping[str, str | None]
) -> list[ConfigChange]:
    """What to change on the target, where `theirs` is set. The source has set `ours`, and `before` at the last look.

    What the source sets, the target gets. What it does not set any more is removed. Anything else on the target stays.
    """
    wanted = [ConfigChange(key, value) for key, value in ours.items() if key not in theirs or theirs[key] != value]
    gone = [key for key in before if key not in ours and key in theirs]
    return wanted + [ConfigChange(key, operation=AlterOperation.delete) for key in gone]


class TopicConfigs:
    """Follows the configurations of topics, a hundred at each look, in turn.

    Invariants
        It changes keys that the source sets, and keys that it has seen set there. All others are left alone.
        A change that the target refuses is said once, and tried again at the topic's next turn.
    """

    def __init__(self, route: str, exclude: Sequence[str]) -> None:
        """`exclude`: patterns of keys that are left alone."""
        self._exclude = exclude
        self._log = get_logger("ingestd.supervisor").bind(route=route)
        self._seen: dict[str, Mapping[str, str | None]] = {}
        """By topic of the target: what its source had set when that was followed last."""
        self._refused: dict[str, str] = {}
        self._last = ""

    def made(self, name: str, described: ConfigsDescription) -> dict[str, str | None]:
        """What a topic gets that is made on the target now, from what its source has."""
        ours = self._seen[name] = copied(described, self._exclude)
        return dict(ours)

    async def follow(
        self, topics: Mapping[str, str], ours: Collection[str], source: ClusterAdmin, target: ClusterAdmin
    ) -> None:
        """Look at the next ones of `ours`. `topics` has all names at the source by those on the target.

        Raises `IngestdError` if a cluster does not answer.
        """
        for gone in self._seen.keys() - topics.keys():
            del self._seen[gone]
        turn = self._turn(sorted(ours))
        if not turn:
            return
        at_source = await self._described(source, [topics[name] for name in turn])
        at_target = await self._described(target, turn)
        wanted: dict[str, list[ConfigChange]] = {}
        for name in turn:
            there, here = at_source.get(topics[name]), at_target.get(name)
            if there is not None and here is not None:
                wanted[name] = changes(there, self._seen.get(name, {}), here)
        await self._change(target, {name: change for name, change in wanted.items() if change})
        for name in wanted.keys() - self._refused.keys():
            self._seen[name] = at_source[topics[name]]

    def _turn(self, names: Sequence[str]) -> list[str]:
        """The next topics, round and round."""
        begin = bisect_right(names, self._last)
        turn = [*names[begin:], *names[:begin]][:AT_ONCE]
        self._last = turn[-1] if turn else ""
        return turn

    async def _described(self, admin: ClusterAdmin, names: Sequence[str]) -> dict[str, dict[str, str | None]]:
        resources = [ConfigResource(ResourceType.topic, name) for name in names]
        found = {}
        for one in await admin.describe_configs(resources, timeout=REQUEST_TIMEOUT):
            if one.error is None:
                found[one.resource.name] = copied(one, self._exclude)
                self._refused.pop(one.resource.name, None)
            else:
                self._refuse(one.resource.name, f"it can not be read: {one.error}")
        return found

    async def _change(self, target: ClusterAdmin, wanted: Mapping[str, Sequence[ConfigChange]]) -> None:
        if not wanted:
            return
        asked = {ConfigResource(ResourceType.topic, name): change for name, change in wanted.items()}
        for outcome in await target.incremental_alter_configs(asked, timeout=REQUEST_TIMEOUT):
            name = outcome.resource.name
            if outcome.error is not None:
                self._refuse(name, f"it can not be changed on the target: {outcome.error}")
                continue
            self._refused.pop(name, None)
            kept = {one.name: one.value for one in wanted[name] if one.operation is AlterOperation.set}
            gone = [one.name for one in wanted[name] if one.operation is AlterOperation.delete]
            self._log.info("topic configuration followed", topic=name, set=kept, removed=gone)

    def _refuse(self, name: str, reason: str) -> None:
        if self._refused.get(name) != reason:
            self._refused[name] = reason
            self._log.warning("topic configuration not followed", topic=name, reason=reason)
