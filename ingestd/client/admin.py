"""Cluster administration: topics, partitions, configurations and offsets; typed results, an error for each item.

Requests go to the role that answers them (controller, leader, any broker) and are tried again, with the metadata
refreshed, where the cluster says that something has moved.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ingestd.client.answers import read_metadata, why_no_leader
from ingestd.client.metadata import Node
from ingestd.errors import ErrorCode, IngestdError, KafkaError, UnsupportedVersion, is_retriable, raise_for_code
from ingestd.retry import Deadline
from ingestd.wire import requests
from ingestd.wire.requests import EARLIEST, LATEST, NewPartitions, NewTopic, OffsetAt

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from ingestd.client.broker import Broker
    from ingestd.client.client import Client
    from ingestd.client.metadata import TopicMetadata
    from ingestd.wire.requests import Build

__all__ = [
    "EARLIEST",
    "LATEST",
    "ClusterAdmin",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "ConfigsDescription",
    "CreatedTopic",
    "ListedOffset",
    "NewPartitions",
    "NewTopic",
    "ResourceType",
    "TopicOutcome",
]


_PURPOSE = "administration"
"""Connections of its own: brokers answer the requests of one connection in turn, and creating topics takes time."""


class ResourceType(IntEnum):
    """What a configuration belongs to."""

    topic = 2
    broker = 4
    broker_logger = 8
    client_metrics = 16
    group = 32


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """What became of one topic in a request; `error` is None where it succeeded."""

    topic: str
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What became of one topic to create. Ids and counts are None and -1 where the broker does not give them."""

    topic: str
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic by name, or a broker by its id in digits; "" for the default of all brokers."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration. `value` is None where it is sensitive or has none.

    `source` is Kafka's number: 1 topic, 2 dynamic broker, 3 dynamic default broker, 4 static broker, 5 default,
    6 dynamic broker logger, 7 client metrics, 8 group.
    """

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.source == 5


@dataclass(frozen=True, slots=True)
class ConfigsDescription:
    """The configurations of one resource by name, or why there are none."""

    resource: ConfigResource
    entries: Mapping[str, ConfigEntry]
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """One partition's offset. -1 where no record is as late as the time asked for; the timestamp is that record's."""

    topic: str
    partition: int
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1
    error: IngestdError | None = None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster's id, its controller (with KRaft: whichever broker stands in for it) and its brokers."""

    cluster_id: str | None
    controller_id: int
    nodes: tuple[Node, ...]


class ClusterAdmin:
    """Administration through a client's connections. Holds nothing of its own: there is nothing to close.

    `timeout`, in seconds, is for the whole call, retries included. Errors of single items are in the results; what
    concerns the call as a whole is raised: `DeadlineExceeded`, `ConnectionLost`, `UnsupportedVersion`, `KafkaError`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout: float = 30.0
    ) -> list[CreatedTopic]:
        """Create topics. Brokers learn of them one after the other: the first use may still have to wait."""

        def outcome(answer: Any) -> list[CreatedTopic]:
            return [
                CreatedTopic(
                    topic.name,
                    getattr(topic, "topic_id", None),
                    getattr(topic, "num_partitions", -1),
                    getattr(topic, "replication_factor", -1),
                    _error(topic.error_code, topic.name, topic.error_message),
                )
                for topic in answer.topics
            ]

        def build(deadline: Deadline) -> Build:
            return requests.create_topics(topics, timeout_ms=_milliseconds(deadline), validate_only=validate_only)

        return await self._by_controller(build, outcome, timeout)

    async def delete_topics(self, topics: Collection[str], *, timeout: float = 30.0) -> list[TopicOutcome]:
        """Delete topics by name."""

        def outcome(answer: Any) -> list[TopicOutcome]:
            return [
                TopicOutcome(topic.name, _error(topic.error_code, topic.name, getattr(topic, "error_message", None)))
                for topic in answer.responses
            ]

        def build(deadline: Deadline) -> Build:
            return requests.delete_topics(topics, timeout_ms=_milliseconds(deadline))

        return await self._by_controller(build, outcome, timeout)

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False, timeout: float = 30.0
    ) -> list[TopicOutcome]:
        """Raise topics' number of partitions to the given total."""

        def outcome(answer: Any) -> list[TopicOutcome]:
            return [
                TopicOutcome(topic.name, _error(topic.error_code, topic.name, topic.error_message))
                for topic in answer.results
            ]

        def build(deadline: Deadline) -> Build:
            return requests.create_partitions(topics, timeout_ms=_milliseconds(deadline), validate_only=validate_only)

        return await self._by_controller(build, outcome, timeout)

    async def list_topics(self, *, include_internal: bool = False, timeout: float = 30.0) -> dict[str, TopicMetadata]:
        """Every topic of the cluster, by name; does not change what the client keeps refreshed."""
        answer = await self._by_any(requests.metadata(None), timeout)
        topics = read_metadata(answer).topics
        return {name: topics[name] for name in sorted(topics) if include_internal or not topics[name].internal}

    async def describe_topics(self, topics: Collection[str], *, timeout: float = 30.0) -> dict[str, TopicMetadata]:
        """The topics asked for, by name; what is wrong with one is in its `error`."""
        answer = await self._by_any(requests.metadata(tuple(topics)), timeout)
        return dict(read_metadata(answer).topics)

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        keys: Collection[str] | None = None,
        timeout: float = 30.0,
    ) -> list[ConfigsDescription]:
        """Configurations of topics (from any broker) and brokers (each from itself); None: all keys."""
        deadline = Deadline.after(timeout)
        by_node: dict[int | None, list[tuple[int, str, Collection[str] | None]]] = {}
        for resource in resources:
            own = resource.type in (ResourceType.broker, ResourceType.broker_logger) and resource.name != ""
            by_node.setdefault(int(resource.name) if own else None, []).append((resource.type, resource.name, keys))
        answers = await asyncio.gather(
            *(self._configs_of(node_id, asked, deadline) for node_id, asked in by_node.items())
        )
        return [description for answer in answers for description in answer]

    async def list_offsets(
        self, offsets: Sequence[OffsetAt], *, read_committed: bool = False, timeout: float = 30.0
    ) -> list[ListedOffset]:
        """Offsets of partitions, each from its leader, in the order asked; where the leader moved, asked again."""
        deadline = Deadline.after(timeout)
        found: dict[tuple[str, int, int], ListedOffset] = {}
        left = list(dict.fromkeys(offsets))
        async for attempt in self._client.settings.retry_backoff().attempts_until(deadline):
            if attempt:
                await self._client.metadata.refresh({asked.topic for asked in left}, deadline.remaining)
            for asked, listed in await self._offsets_once(left, deadline, read_committed=read_committed):
                found[asked.topic, asked.partition, asked.timestamp_ms] = listed
            left = [
                asked for asked in left if _try_again(found[asked.topic, asked.partition, asked.timestamp_ms], attempt)
            ]
            if not left:
                break
        return [found[asked.topic, asked.partition, asked.timestamp_ms] for asked in offsets]

    async def describe_cluster(self, *, timeout: float = 30.0) -> ClusterDescription:
        """Cluster id, controller, brokers; from metadata where brokers are older than 2.8."""
        deadline = Deadline.after(timeout)
        try:
            answer = await self._by_any(requests.describe_cluster(), timeout)
        except UnsupportedVersion:
            metadata = read_metadata(await self._by_any(requests.metadata(()), deadline.remaining))
            known = tuple(node for _, node in sorted(metadata.nodes.items()))
            return ClusterDescription(metadata.cluster_id, metadata.controller_id, known)
        raise_for_code(answer.error_code, answer.error_message or "DescribeCluster")
        nodes = tuple(
            Node(broker.broker_id, broker.host, broker.port, broker.rack)
            for broker in sorted(answer.brokers, key=lambda broker: int(broker.broker_id))
        )
        return ClusterDescription(answer.cluster_id, answer.controller_id, nodes)

    # How it is done

    async def _configs_of(
        self, node_id: int | None, asked: list[tuple[int, str, Collection[str] | None]], deadline: Deadline
    ) -> list[ConfigsDescription]:
        build = requests.describe_configs(asked)

        async def whom() -> Broker:
            if node_id is None:
                return await self._client.any(purpose=_PURPOSE)
            if node_id not in self._client.metadata.snapshot.nodes:
                await self._client.metadata.refresh((), deadline.remaining)
            return self._client.broker(node_id, _PURPOSE)

        answer = await self._retried(whom, lambda _: build, lambda answer: answer, deadline)
        return [_described(result) for result in answer.results]

    async def _offsets_once(
        self, offsets: Sequence[OffsetAt], deadline: Deadline, *, read_committed: bool
    ) -> list[tuple[OffsetAt, ListedOffset]]:
        # Kafka refuses a request that names a partition twice; the second question about it is a request of its own.
        by_leader: dict[tuple[Broker, int], list[OffsetAt]] = {}
        times: Counter[tuple[str, int]] = Counter()
        listed: list[tuple[OffsetAt, ListedOffset]] = []
        snapshot = self._client.metadata.snapshot
        unknown = {asked.topic for asked in offsets if snapshot.leader(asked.topic, asked.partition) is None}
        if unknown:
            snapshot = await self._client.metadata.refresh(unknown, deadline.remaining)
        for asked in offsets:
            node = snapshot.leader(asked.topic, asked.partition)
            if node is None:
                code = why_no_leader(snapshot, asked.topic, asked.partition)
                error = KafkaError(code, f"{asked.topic}-{asked.partition}")
                listed.append((asked, ListedOffset(asked.topic, asked.partition, error=error)))
                continue
            leader = self._client.broker(node.id, _PURPOSE)
            by_leader.setdefault((leader, times[asked.topic, asked.partition]), []).append(asked)
            times[asked.topic, asked.partition] += 1
        requested = (
            self._offsets_of(leader, asked, deadline, read_committed=read_committed)
            for (leader, _), asked in by_leader.items()
        )
        for answered in await asyncio.gather(*requested):
            listed += answered
        return listed

    async def _offsets_of(
        self, leader: Broker, offsets: Sequence[OffsetAt], deadline: Deadline, *, read_committed: bool
    ) -> list[tuple[OffsetAt, ListedOffset]]:
        build = requests.list_offsets(offsets, read_committed=read_committed, timeout_ms=_milliseconds(deadline))
        try:
            answer = await leader.request(build, self._request_timeout(deadline))
        except IngestdError as error:
            if not is_retriable(error):
                raise
            return [(asked, ListedOffset(asked.topic, asked.partition, error=error)) for asked in offsets]
        found = {
            (topic.name, partition.partition_index): _listed(topic.name, partition)
            for topic in answer.topics
            for partition in topic.partitions
        }
        unanswered = KafkaError(ErrorCode.unknown_server_error, "the broker left the partition out of its answer")
        return [
            (
                asked,
                found.get((asked.topic, asked.partition))
                or ListedOffset(asked.topic, asked.partition, error=unanswered),
            )
            for asked in offsets
        ]

    async def _by_controller(
        self, build: Callable[[Deadline], Build], outcome: Callable[[Any], list[_Outcome]], timeout: float
    ) -> list[_Outcome]:
        deadline = Deadline.after(timeout)

        async def controller() -> Broker:
            return await self._client.controller(deadline.remaining, purpose=_PURPOSE)

        def checked(answer: Any) -> list[_Outcome]:
            outcomes = outcome(answer)
            for item in outcomes:
                if item.error is not None and item.error.code is ErrorCode.not_controller:
                    raise item.error
            return outcomes

        return await self._retried(controller, build, checked, deadline)

    async def _by_any(self, build: Build, timeout: float) -> Any:
        async def any_broker() -> Broker:
            return await self._client.any(purpose=_PURPOSE)

        return await self._retried(any_broker, lambda _: build, lambda answer: answer, Deadline.after(timeout))

    async def _retried(
        self,
        whom: Callable[[], Awaitable[Broker]],
        build: Callable[[Deadline], Build],
        read: Callable[[Any], _Result],
        deadline: Deadline,
    ) -> _Result:
        """Ask until it is answered, the deadline passes, or an error says that trying again is of no use."""
        failed: IngestdError | None = None
        async for attempt in self._client.settings.retry_backoff().attempts_until(deadline):
            try:
                if attempt:
                    await self._client.metadata.refresh((), deadline.remaining)
                broker = await whom()
                return read(await broker.request(build(deadline), self._request_timeout(deadline)))
            except IngestdError as error:
                if not is_retriable(error):
                    raise
                if failed is None or not deadline.expired:  # what ends at the deadline is not why it came to that
                    failed = error
        assert failed is not None  # there is always a first attempt
        raise failed

    def _request_timeout(self, deadline: Deadline) -> float:
        return min(self._client.settings.request_timeout, deadline.remaining)


class _WithError(Protocol):
    @property
    def error(self) -> KafkaError | None: ...


_Outcome = TypeVar("_Outcome", bound=_WithError)
_Result = TypeVar("_Result")


def _milliseconds(deadline: Deadline) -> int:
    """What the broker may take: a little less than what is left, so that its answer comes before our own deadline."""
    return max(1, int(min(deadline.remaining, 3600.0) * 900))


def _error(code: ErrorCode, about: str, message: str | None) -> KafkaError | None:
    if code is ErrorCode.none:
        return None
    return KafkaError(code, f"{about}: {message}" if message else about)


def _described(result: Any) -> ConfigsDescription:
    resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
    entries = {
        entry.name: ConfigEntry(entry.name, entry.value, entry.config_source, entry.read_only, entry.is_sensitive)
        for entry in result.configs
    }
    return ConfigsDescription(resource, entries, _error(result.error_code, result.resource_name, result.error_message))


def _listed(topic: str, partition: Any) -> ListedOffset:
    return ListedOffset(
        topic,
        partition.partition_index,
        partition.offset,
        partition.timestamp,
        getattr(partition, "leader_epoch", -1),
        _error(partition.error_code, f"{topic}-{partition.partition_index}", None),
    )


def _try_again(listed: ListedOffset, attempt: int) -> bool:
    if isinstance(listed.error, KafkaError) and listed.error.code is ErrorCode.unknown_topic_or_partition:
        return attempt == 0  # once, for a partition that has moved; the refresh in between asks several times
    return listed.error is not None and is_retriable(listed.error)
