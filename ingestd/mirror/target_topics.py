"""Target topics: sees to it that what is copied has a topic with enough partitions on the target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ingestd.client.admin import ConfigResource, NewPartitions, NewTopic, ResourceType
from ingestd.errors import ErrorCode, KafkaError
from ingestd.figures import in_count
from ingestd.retry import Backoff, Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingestd.client.admin import ClusterAdmin
    from ingestd.client.metadata import TopicMetadata
    from ingestd.mirror.route import MirrorRoute
    from ingestd.mirror.topic_configs import TopicConfigs

__all__ = ["PreparedTopics", "TargetTopics"]

REQUEST_TIMEOUT: Final = 30.0
"""Seconds for one question or change, retries included."""


KNOWN_WITHIN: Final = 5.0
"""Seconds until brokers know a topic that was created, or has grown. What they do not know by then is a problem."""


@dataclass(frozen=True, slots=True)
class PreparedTopics:
    """By name on the target: how many partitions can be written now; and why the others can not be.

    ids: of the topics that are there; without those whose brokers tell no id.
    made: topics that were created or have grown just now, with the first partition that is new.
    """

    partitions: Mapping[str, int]
    problems: Mapping[str, str]
    ids: Mapping[str, str] = field(default_factory=dict)
    made: Mapping[str, int] = field(default_factory=dict)


class TargetTopics:
    """Looks, creates and grows. Holds nothing of its own."""

    def __init__(self, route: MirrorRoute, configs: TopicConfigs, source: ClusterAdmin, target: ClusterAdmin) -> None:
        """`configs` says which configuration a new topic gets."""
        self._route = route
        self._configs = configs
        self._source = source
        self._target = target

    async def prepare(self, wanted: Mapping[str, TopicMetadata]) -> PreparedTopics:
        """Make topics of the target ready. `wanted` has the source's topics by their names on the target.

        Raises `IngestdError` if a cluster does not answer.
        """
        if not wanted:
            return PreparedTopics({}, {})
        problems: dict[str, str] = {}
        there = await self._there(list(wanted), problems)
        missing = [name for name in wanted if name not in there and name not in problems]
        have = {name: len(topic.partitions) for name, topic in there.items()}
        grown = {name: len(wanted[name].partitions) for name in have if have[name] < len(wanted[name].partitions)}
        made: dict[str, int] = {}
        if self._route.create_topics:
            made = dict.fromkeys(missing, 0) | {name: have[name] for name in grown}
            if missing:
                await self._create({name: wanted[name] for name in missing}, problems)
            if grown:
                await self._grow(grown, problems)
            if missing or grown:
                there = await self._there_soon(wanted, problems)
        have = {name: len(topic.partitions) for name, topic in there.items()}
        for name in wanted:
            count, need = have.get(name, 0), len(wanted[name].partitions)
            if count < need and name not in problems:
                allowed = "" if self._route.create_topics else ", and create_topics is false"
                problems[name] = f"{name} has {in_count(count, 'partition')} on the target, expected {need}{allowed}"
        ready = {name: count for name, count in have.items() if name not in problems}
        ids = {name: str(topic.topic_id) for name, topic in there.items() if topic.topic_id}
        return PreparedTopics(ready, problems, ids, {name: first for name, first in made.items() if name in ready})

    async def _there_soon(
        self, wanted: Mapping[str, TopicMetadata], problems: dict[str, str]
    ) -> dict[str, TopicMetadata]:
        """The topics that are there once brokers know what was made just now. They hear of it a moment later."""
        there: dict[str, TopicMetadata] = {}
        async for _ in Backoff().attempts_until(Deadline.after(KNOWN_WITHIN)):
            there = await self._there([name for name in wanted if name not in problems], problems)
            have = {name: len(topic.partitions) for name, topic in there.items()}
            if all(have.get(name, 0) >= len(wanted[name].partitions) for name in wanted if name not in problems):
                break
        return there

    async def _there(self, names: Sequence[str], problems: dict[str, str]) -> dict[str, TopicMetadata]:
        """The topics that are there."""
        described = await self._target.describe_topics(names, timeout=REQUEST_TIMEOUT)
        there = {}
        for name, topic in described.items():
            if topic.error is ErrorCode.none and topic.partitions:
                there[name] = topic
            elif topic.error not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
                problems[name] = f"the target says {topic.error.name.upper()}"
        return there

    async def _create(self, wanted: Mapping[str, TopicMetadata], problems: dict[str, str]) -> None:
        names = {topic.name: target for target, topic in wanted.items()}
        described = await self._source.describe_configs(
            [ConfigResource(ResourceType.topic, name) for name in names], timeout=REQUEST_TIMEOUT
        )
        new = []
        for one in described:
            target = names[one.resource.name]
            if one.error is not None:
                problems[target] = f"its configuration at the source can not be read: {one.error}"
                continue
            configs = self._configs.made(target, one)
            partitions = len(wanted[target].partitions)
            new.append(NewTopic(target, partitions, self._route.replication_factor, configs))
        for created in await self._target.create_topics(new, timeout=REQUEST_TIMEOUT) if new else ():
            if created.error is not None and not _is(created.error, ErrorCode.topic_already_exists):
                problems[created.topic] = f"it can not be created on the target: {created.error}"

    async def _grow(self, totals: Mapping[str, int], problems: dict[str, str]) -> None:
        wanted = [NewPartitions(name, total) for name, total in totals.items()]
        for outcome in await self._target.create_partitions(wanted, timeout=REQUEST_TIMEOUT):
            # Another host may have been faster. Whether there are enough is looked at afterwards.
            if outcome.error is not None and not _is(outcome.error, ErrorCode.invalid_partitions):
                problems[outcome.topic] = f"it can not get {totals[outcome.topic]} partitions: {outcome.error}"


def _is(error: Exception, code: ErrorCode) -> bool:
    return isinstance(error, KafkaError) and error.code is code
