"""Topics: create, delete, add partitions, list, describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestd.checks import require_all_of, require_several
from ingestd.client.admin.calls import Administration, error_of
from ingestd.client.admin.targets import ToAny, ToController
from ingestd.client.answers import read_metadata
from ingestd.errors import ErrorCode, IngestdError, KafkaError
from ingestd.retry import Deadline
from ingestd.wire import requests
from ingestd.wire.requests import NewPartitions, NewTopic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from ingestd.client.metadata import TopicMetadata

__all__ = ["CreatedTopic", "NewPartitions", "NewTopic", "TopicAdmin", "TopicOutcome"]


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """The outcome of one topic in a request. `error` is None if it succeeded."""

    topic: str
    error: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """The outcome of one topic to create. Ids and counts are None and -1 if the broker does not give them."""

    topic: str
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    error: IngestdError | None = None


class TopicAdmin(Administration):
    """Topics. Changes go to the controller, all else to any broker."""

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout: float = 30.0
    ) -> list[CreatedTopic]:
        """Create topics. Brokers learn of them one after the other, so the first use may have to wait.

        If an attempt had no answer, and the next one finds a topic with the partitions and replicas that were asked
        for, it counts as created by this call. Any other topic is TOPIC_ALREADY_EXISTS.
        """
        deadline = Deadline.after(timeout)
        wanted = {topic.name: topic for topic in require_all_of(NewTopic, "topics", topics)}
        outcomes = await self._items(
            wanted,
            ToController(self._client),
            lambda names: requests.create_topics(
                [wanted[name] for name in names],
                timeout_ms=self._milliseconds(deadline),
                validate_only=validate_only,
            ),
            lambda answer, _: {topic.name: _created(topic) for topic in answer.topics},
            deadline,
        )
        created = {
            name: CreatedTopic(name, error=found) if isinstance(found, IngestdError) else found
            for name, found in outcomes.found.items()
        }
        there = [name for name in outcomes.unsure if _is(created[name].error, ErrorCode.topic_already_exists)]
        if there and not validate_only:
            for name, topic in (await self._looked_at(dict.fromkeys(there, 1), deadline)).items():
                if isinstance(topic, IngestdError):
                    created[name] = CreatedTopic(name, error=topic)
                elif _is_as_wanted(topic, wanted[name]):
                    created[name] = _as_created(topic)
        return [created[name] for name in wanted]

    async def delete_topics(self, topics: Iterable[str], *, timeout: float = 30.0) -> list[TopicOutcome]:
        """Delete topics by name. If an attempt had no answer, and a topic is gone after it, it counts as deleted.

        If the cluster has topic ids, topics are deleted by id. So an attempt that arrives late does not delete a new
        topic of the same name.
        """
        deadline = Deadline.after(timeout)
        names = list(dict.fromkeys(require_several("topics", topics)))
        if not names:
            return []
        ids = {
            name: topic.topic_id
            for name, topic in (await self._topics(names, deadline.remaining)).items()
            if topic.topic_id is not None and topic.error is ErrorCode.none
        }
        errors = await self._deleted(names, ids, deadline)
        # The broker that gave the id may not know yet that the name belongs to another topic.
        renamed = [name for name, error in errors.items() if _is(error, ErrorCode.unknown_topic_id)]
        errors |= await self._deleted(renamed, {}, deadline)
        return [TopicOutcome(name, error) for name, error in errors.items()]

    async def _deleted(
        self, names: Sequence[str], ids: Mapping[str, UUID], deadline: Deadline
    ) -> dict[str, IngestdError | None]:
        by_id = {topic_id: name for name, topic_id in ids.items()}

        def read(answer: Any, _: Sequence[str]) -> dict[str, IngestdError | None]:
            errors: dict[str, IngestdError | None] = {}
            for topic in answer.responses:
                name = topic.name if topic.name is not None else by_id.get(topic.topic_id, "")
                errors[name] = error_of(topic.error_code, name, getattr(topic, "error_message", None))
            return errors

        outcomes = await self._items(
            names,
            ToController(self._client),
            lambda asked: requests.delete_topics(asked, ids=ids, timeout_ms=self._milliseconds(deadline)),
            read,
            deadline,
        )
        gone = {ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id}
        return {name: outcomes.error(name, done=gone) for name in outcomes.found}

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False, timeout: float = 30.0
    ) -> list[TopicOutcome]:
        """Add partitions to topics, up to the given total.

        If an attempt had no answer, and a topic has that many after it, it succeeded.
        """
        deadline = Deadline.after(timeout)
        wanted = {topic.topic: topic for topic in require_all_of(NewPartitions, "topics", topics)}
        outcomes = await self._items(
            wanted,
            ToController(self._client),
            lambda names: requests.create_partitions(
                [wanted[name] for name in names],
                timeout_ms=self._milliseconds(deadline),
                validate_only=validate_only,
            ),
            lambda answer, _: {
                topic.name: error_of(topic.error_code, topic.name, topic.error_message) for topic in answer.results
            },
            deadline,
        )
        errors = {name: outcomes.error(name) for name in outcomes.found}
        refused = {name for name in outcomes.unsure if _is(errors[name], ErrorCode.invalid_partitions)}
        if refused and not validate_only:
            totals = {name: wanted[name].total for name in refused}
            for name, topic in (await self._looked_at(totals, deadline)).items():
                if isinstance(topic, IngestdError):
                    errors[name] = topic
                elif len(topic.partitions) == wanted[name].total:
                    errors[name] = None
        return [TopicOutcome(name, error) for name, error in errors.items()]

    async def list_topics(self, *, include_internal: bool = False, timeout: float = 30.0) -> dict[str, TopicMetadata]:
        """All topics of the cluster, by name. The client does not keep their metadata."""
        topics = await self._topics(None, timeout)
        return {name: topics[name] for name in sorted(topics) if include_internal or not topics[name].internal}

    async def describe_topics(self, topics: Collection[str], *, timeout: float = 30.0) -> dict[str, TopicMetadata]:
        """The topics asked for, by name. If something is wrong with one, its `error` says so."""
        return dict(await self._topics(tuple(require_several("topics", topics)), timeout))

    async def _looked_at(
        self, topics: Mapping[str, int], deadline: Deadline
    ) -> Mapping[str, TopicMetadata | IngestdError]:
        """The state of topics that an attempt without an answer may have changed, or the error.

        Brokers learn of changes a moment later than the controller. So while a topic has fewer partitions than `topics`
        says, it is asked for again, a few times.
        """
        settings = self._client.settings
        looked: Mapping[str, TopicMetadata] = {}
        async for attempt in settings.retry_backoff().attempts_until(deadline):
            try:
                looked = await self._topics(tuple(topics), deadline.remaining)
            except IngestdError as error:
                return looked or dict.fromkeys(topics, error)
            heard = all(len(looked[name].partitions) >= least for name, least in topics.items() if name in looked)
            if heard or attempt + 1 >= settings.metadata_attempts:
                break
        return looked

    async def _topics(self, topics: Collection[str] | None, timeout: float) -> Mapping[str, TopicMetadata]:
        return await self._one(
            ToAny(self._client),
            lambda: requests.metadata(topics),
            lambda answer: read_metadata(answer).topics,
            Deadline.after(timeout),
        )


def _created(topic: Any) -> CreatedTopic | IngestdError:
    error = error_of(topic.error_code, topic.name, topic.error_message)
    return error or CreatedTopic(
        topic.name,
        getattr(topic, "topic_id", None),
        getattr(topic, "num_partitions", -1),
        getattr(topic, "replication_factor", -1),
    )


def _is(error: IngestdError | None, code: ErrorCode) -> bool:
    return isinstance(error, KafkaError) and error.code is code


def _is_as_wanted(topic: TopicMetadata, wanted: NewTopic) -> bool:
    replicas = [list(partition.replicas) for partition in topic.partitions]
    if not replicas:
        return False
    if wanted.assignments is not None:
        return replicas == [list(assigned) for assigned in wanted.assignments]
    return wanted.partitions in (-1, len(replicas)) and all(
        wanted.replication_factor in (-1, len(nodes)) for nodes in replicas
    )


def _as_created(topic: TopicMetadata) -> CreatedTopic:
    return CreatedTopic(
        topic.name, topic.topic_id, len(topic.partitions), max(len(one.replicas) for one in topic.partitions)
    )
