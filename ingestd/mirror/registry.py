"""Registry: the producer ids that mirrors write with on one cluster. A compacted topic there, of one partition.

    key      the producer id, as digits
    value    JSON: `mirror`, its name; `source`, the id of the cluster that it reads; `through`, the ids of further
             clusters that some of it may have been on before; `time`, of the registration, in ms since 1970 UTC

An id is registered, and every in-sync replica has that, before anything is written under it. So an id that is met in
a log, and is not in the registry by then, is no mirror's, and never will be. Nothing is ever deleted here, because
batches may stay in a log for ever. A worker's start adds one small record.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from ingestd.client.admin import ClusterAdmin, ConfigResource, NewTopic, ResourceType
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.offsets import resolve_offsets
from ingestd.consumer.settings import ConsumerSettings, Edge, Isolation
from ingestd.errors import DeadlineExceeded, ErrorCode, IngestdError, KafkaError, is_retriable
from ingestd.logs import get_logger
from ingestd.mirror.origins import Fate, IdentityWanted, Origin, OriginsWanted
from ingestd.mirror.selection import REGISTRY_TOPIC
from ingestd.producer.identity import FetchedIdentities, ProducerIdentity
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.retry import Backoff, Deadline
from ingestd.wire.requests import metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ingestd.client.broker import Broker
    from ingestd.client.client import Client
    from ingestd.mirror.route import MirrorRoute

__all__ = ["Origins", "ProducerRegistry", "Registered", "cluster_id", "origin"]

TIMEOUT: Final = 10.0
"""Seconds for one step: to read on, to create the topic, to write."""

_PARTITION: Final = TopicPartition(REGISTRY_TOPIC, 0)


class Registered(NamedTuple):
    """What is registered of a producer id: the mirror's name, and the ids of clusters. See this module."""

    mirror: str
    source: str
    through: frozenset[str]


class ProducerRegistry:
    """The registry on one cluster, read as far as it was needed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._found: dict[int, Registered] = {}
        self._next = 0
        """The offset to read on from."""
        self._reading = asyncio.Lock()
        self._begun = self._done = 0
        """Numbers of the last reading that began, and of the last one that succeeded."""
        self._there = False

    async def find(self, producer_ids: Collection[int]) -> dict[int, Registered]:
        """Those of these ids that are registered now. Reads to the end if one is not known. Raises `IngestdError`."""
        if any(producer_id not in self._found for producer_id in producer_ids):
            await self._read_to_the_end()
        return {known: self._found[known] for known in producer_ids if known in self._found}

    async def all(self) -> dict[int, Registered]:
        """Every id that is registered now. Raises `IngestdError`."""
        await self._read_to_the_end()
        return dict(self._found)

    async def _read_to_the_end(self) -> None:
        """Read on to an end that is no older than this call. Those that call meanwhile share the next reading."""
        number = self._begun + 1
        async with self._reading:
            if self._done < number:
                mine = self._begun = self._begun + 1
                await self._read()
                self._done = mine

    async def _read(self) -> None:
        if self._client.metadata.snapshot.partition(*_PARTITION) is None and not await self._is_there():
            return  # no mirror writes to this cluster
        end = (await resolve_offsets(self._client, {_PARTITION: Edge.latest}, Isolation.read_uncommitted, TIMEOUT))[
            _PARTITION
        ]
        if end < self._next:  # somebody has made the topic again
            self._next = 0
        if end == self._next:
            return
        async with Consumer(self._client, ConsumerSettings(out_of_range="earliest")) as consumer:
            async for record in await consumer.consume_partition(*_PARTITION, self._next, end):
                self._take(record.key, record.value)
        self._next = end

    async def _is_there(self) -> bool:
        """Whether the cluster has the topic: one question, while a refresh asks for a missing topic again and again."""
        error = await self._said_by(await self._client.any(), TIMEOUT)
        if error not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition, ErrorCode.leader_not_available):
            raise KafkaError(error, f"{REGISTRY_TOPIC}, which has the producer ids of mirrors, can not be read")
        return error is not ErrorCode.unknown_topic_or_partition

    async def _said_by(self, broker: Broker, timeout: float) -> ErrorCode:
        (topic,) = (await broker.request(metadata([REGISTRY_TOPIC]), timeout)).topics
        code: ErrorCode = topic.error_code
        return code

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        try:
            said = orjson.loads(value or b"")
            found = Registered(str(said["mirror"]), str(said["source"]), frozenset(map(str, said["through"])))
            self._found[int(key or b"")] = found
        except (ValueError, TypeError, KeyError) as error:
            raise IngestdError(
                f"{REGISTRY_TOPIC} has the record {key!r}, {value!r}; expected a producer id, and JSON with mirror, "
                "source and through, as mirrors write it"
            ) from error

    async def register(self, producer_id: int, registered: Registered) -> None:
        """Have the cluster keep this, on every in-sync replica. Raises `IngestdError`."""
        value = {
            "mirror": registered.mirror,
            "source": registered.source,
            "through": sorted(registered.through),
            "time": time.time_ns() // 1_000_000,
        }
        self._there = False  # if this fails, it is looked for again
        settings = ProducerSettings(delivery_timeout=TIMEOUT, metadata_timeout=TIMEOUT, create_topics=False, linger=0.0)
        async with AsyncProducer(self._client, settings) as producer:
            await producer.send_and_wait(
                REGISTRY_TOPIC, orjson.dumps(value), key=b"%d" % producer_id, partition=_PARTITION.partition
            )
        self._there = True

    async def prepare(self, replication_factor: int, *, create: bool) -> None:
        """See to it that the topic is there, and keeps what is written. Raises `IngestdError`."""
        if self._there:
            return
        admin = ClusterAdmin(self._client)
        if not await self._is_there():
            if not create:
                raise IngestdError(
                    f"{REGISTRY_TOPIC} is missing, and create_topics is false: expected it with one partition and "
                    "cleanup.policy=compact"
                )
            new = NewTopic(REGISTRY_TOPIC, 1, replication_factor, {"cleanup.policy": "compact"})
            (created,) = await admin.create_topics([new], timeout=TIMEOUT)
            error = created.error
            if error is not None and not (
                isinstance(error, KafkaError) and error.code is ErrorCode.topic_already_exists
            ):
                raise error
            for node in (await self._client.metadata.refresh({REGISTRY_TOPIC}, TIMEOUT)).nodes:
                await self._until_known(node)
        (described,) = await admin.describe_configs(
            [ConfigResource(ResourceType.topic, REGISTRY_TOPIC)], timeout=TIMEOUT
        )
        if described.error is not None:
            raise described.error
        policy = described.entries["cleanup.policy"].value
        if policy != "compact":
            raise KafkaError(
                ErrorCode.invalid_config,
                f"{REGISTRY_TOPIC} has cleanup.policy={policy}; expected compact, since nothing in it may be lost",
            )
        self._there = True

    async def _until_known(self, node: int) -> None:
        """Wait until a broker knows the topic. Else it would tell the mirror that comes back that there is none."""
        deadline = Deadline.after(TIMEOUT)
        async for _attempt in Backoff().attempts_until(deadline):
            said = await self._said_by(self._client.broker(node), deadline.remaining)
            if said is not ErrorCode.unknown_topic_or_partition:
                return
        raise DeadlineExceeded(f"broker {node} does not know {REGISTRY_TOPIC} within {deadline.shown} s")


async def cluster_id(client: Client, timeout: float = TIMEOUT) -> str:
    """The id that a cluster has given itself. Raises `IngestdError` if it does not tell."""
    snapshot = client.metadata.snapshot
    if snapshot.cluster_id is None:
        snapshot = await client.metadata.refresh((), timeout)
    if snapshot.cluster_id is None:
        raise KafkaError(ErrorCode.unsupported_version, "the cluster says no id of its own; Kafka 0.10.1 and later do")
    return snapshot.cluster_id


def origin(registered: Registered, source: str, target: str, *, send_back: bool) -> Origin:
    """What becomes of what was registered at `source`, for a mirror to `target`: ids of clusters.

    Within one cluster nothing comes back: a mirror may copy there what another one has copied.
    """
    before = registered.through | {registered.source}
    said = f"mirror {registered.mirror}, from cluster {registered.source}"
    if registered.through:
        said += f", and through it from {', '.join(sorted(registered.through))}"
    fate = Fate.PASSES
    if source != target and not send_back:
        if registered.source == target:
            fate = Fate.CAME_BACK
        elif target in before:
            fate = Fate.UNCLEAR
    return Origin(fate, before - {source}, said)


class Origins:
    """Answers a mirror's workers, in the supervisor: who writes at the source, and what to write with on the target."""

    def __init__(self, route: MirrorRoute, client: Callable[[str], Client]) -> None:
        """`client` gives the supervisor's client of a cluster, by name, once the clusters are started."""
        self._route = route
        self._client = client
        self._registries: dict[str, ProducerRegistry] = {}
        self._failures = 0
        """In a row, to have a producer id."""
        self._said = ""
        self._log = get_logger("ingestd.supervisor").bind(route=route.name)

    async def answer(self, question: object) -> dict[int, Origin] | ProducerIdentity:
        """Answer a question of `origins.py`. Raises `IngestdError`."""
        match question:
            case OriginsWanted(producer_ids):
                return await self._origins(producer_ids)
            case IdentityWanted(previous, through):
                try:
                    return await self._identity(previous, through)
                except IngestdError as error:
                    self._tell(error)
                    raise
            case _:
                raise AssertionError(f"not a question for a mirror's finder: {question!r}")

    async def _origins(self, producer_ids: Collection[int]) -> dict[int, Origin]:
        route = self._route
        found = await self._registry(route.source).find(producer_ids)
        if not found:
            return {}
        source, target = [await cluster_id(self._client(name)) for name in (route.source, route.target)]
        return {
            producer_id: origin(registered, source, target, send_back=route.send_back)
            for producer_id, registered in found.items()
        }

    async def _identity(self, previous: ProducerIdentity | None, through: frozenset[str]) -> ProducerIdentity:
        route = self._route
        identity = await FetchedIdentities(self._client(route.target), TIMEOUT).acquire(previous)
        if previous is None or identity.producer_id != previous.producer_id:
            registry = self._registry(route.target)
            await registry.prepare(route.replication_factor, create=route.create_topics)
            registered = Registered(route.name, await cluster_id(self._client(route.source)), through)
            await registry.register(identity.producer_id, registered)
            self._log.debug("producer id registered", producer_id=identity.producer_id, through=sorted(through))
        self._failures = 0
        return identity

    def _tell(self, error: IngestdError) -> None:
        """The first of these that passes by itself is not said: a coordinator that loads answers the next attempt."""
        self._failures += 1
        if (self._failures > 1 or not is_retriable(error)) and str(error) != self._said:
            self._said = str(error)
            self._log.warning("mirror can not write: it has no registered producer id", error=str(error))

    def _registry(self, cluster: str) -> ProducerRegistry:
        if cluster not in self._registries:
            self._registries[cluster] = ProducerRegistry(self._client(cluster))
        return self._registries[cluster]
