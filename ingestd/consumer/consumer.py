"""Consumer: opens a partition consumer for each partition, and answers questions about topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ingestd.checks import require_client, require_settings, require_several
from ingestd.client.group import OffsetAndMetadata
from ingestd.consumer.broker_choice import BrokerChoice
from ingestd.consumer.events import NoEvents
from ingestd.consumer.merged import MergedReader
from ingestd.consumer.offsets import resolve_offsets
from ingestd.consumer.partition_consumer import PartitionConsumer
from ingestd.consumer.position import Position
from ingestd.consumer.settings import ConsumerSettings, End, Isolation, Start, TopicPartition
from ingestd.errors import Closed, ConnectionLost, DeadlineExceeded, ErrorCode, IngestdError, KafkaError
from ingestd.figures import in_count
from ingestd.retry import Backoff, Deadline
from ingestd.tasks import same_loop
from ingestd.wire.requests import metadata

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import AsyncIterator, Collection, Mapping
    from types import TracebackType
    from typing import Any

    from ingestd.client.client import Client
    from ingestd.client.metadata import TopicMetadata
    from ingestd.consumer.events import ConsumerEvents
    from ingestd.records.decode import Record

__all__ = ["Consumer"]

_REQUEST_TIMEOUT = 10.0
"""Seconds for one attempt at a question that any broker can answer."""


class Consumer:
    """Reads partitions of topics, each from its own start. Shares a client, which it does not close.

    Example:
        async with Client(["kafka-1:9092"]) as client, Consumer(client) as consumer:
            for partition in await consumer.partitions("orders"):
                reading = await consumer.consume_partition("orders", partition, "earliest", "latest")
                async for record in reading:
                    print(record.offset, record.key, record.value)

    A start is an offset, "earliest", "latest", `AtTime.of(moment)`, or a committed offset of a group. Without an end,
    reading goes on for ever. A `PartitionConsumer` gives records one by one, in `chunks`, as `columns` or as whole
    `batches`. Each form goes on where the last one stopped. `messages` gives the records of all partitions in turn. For
    members of a group, which share partitions and commit offsets, there is `ConsumerGroup`. For threads without an
    event loop there is `SyncConsumer`.

    What most programs set, in `ConsumerSettings`: `isolation="read_committed"`, and `out_of_range="earliest"` for a
    start that retention may have removed.

    Invariants
        One partition consumer per partition at a time.
        After `close` no task and no timer of the consumer is left.
    """

    def __init__(
        self,
        client: Client,
        settings: ConsumerSettings | None = None,
        *,
        events: ConsumerEvents | None = None,
    ) -> None:
        """Asks for nothing yet. `events` hears of fetches and errors, for metrics. Raises `ConfigurationError`."""
        require_client(client)
        self._client = client
        self._settings = require_settings(settings, ConsumerSettings)
        self._opening: set[TopicPartition] = set()
        self._choice = BrokerChoice(client, self._settings, events or NoEvents(), locate=self._locate)
        self._merged = MergedReader(self._choice)
        self._loop: AbstractEventLoop | None = None
        self._closed = False
        self._stop_status = client.add_status("consumer", self.status)

    async def topics(self) -> list[str]:
        """Every topic of the cluster, internal ones left out, in order of name. Raises `DeadlineExceeded`."""
        deadline = Deadline.after(self._settings.metadata_timeout)
        async for _attempt in Backoff().attempts_until(deadline):
            broker = await self._client.any()
            try:
                answer = await broker.request(metadata(None), min(_REQUEST_TIMEOUT, deadline.remaining))
            except (ConnectionLost, DeadlineExceeded) as error:
                last = error
                continue
            return sorted(topic.name for topic in answer.topics if not topic.is_internal)
        raise DeadlineExceeded(f"topics: no broker answered within {deadline.shown} s ({last})") from last

    async def describe(self, topics: Collection[str]) -> dict[str, TopicMetadata]:
        """Topics with their ids and partitions, as the cluster has them now. Those that do not exist have that error.

        Raises `DeadlineExceeded`.
        """
        snapshot = await self._client.metadata.refresh(topics, self._settings.metadata_timeout)
        return {topic: snapshot.topics[topic] for topic in topics if topic in snapshot.topics}

    async def partitions(self, topic: str) -> list[int]:
        """The topic's partitions. Raises `KafkaError` when there is no such topic, `DeadlineExceeded`."""
        return list(await self._client.partitions(topic, self._settings.metadata_timeout))

    async def offsets(self, wanted: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """The offsets that these starts mean now. Raises `KafkaError` for an unknown partition, `DeadlineExceeded`."""
        return await resolve_offsets(
            self._client, wanted, self._settings.isolation_level, self._settings.metadata_timeout
        )

    async def consume_partition(self, topic: str, partition: int, start: Start, end: End = None) -> PartitionConsumer:
        """Read a partition from `start` to before `end`. Both are resolved to offsets before this returns.

        Raises `Closed`; `IngestdError` when the partition is being read already; `KafkaError` when it does not exist;
        `DeadlineExceeded`. A literal offset is not checked here: the out-of-range policy decides at the first fetch.
        """
        key = TopicPartition(topic, partition)
        ends = {} if end is None else {key: end}
        return (await self._open({key: start}, ends))[key]

    async def consume_partitions(
        self, starts: Mapping[TopicPartition, Start]
    ) -> dict[TopicPartition, PartitionConsumer]:
        """Read all of these partitions without an end, or none of them: `consume_partition` for thousands at once.

        Raises what `consume_partition` raises.
        """
        return await self._open(starts, {})

    def messages(self) -> AsyncIterator[Record]:
        """Records of all partitions that are being read, and of those that are added later. For one task.

        They are in order within each partition. Partitions take turns, one batch each. Awaits nothing while there are
        records at hand. Ends when no partition is being read any more. An error that ends a partition is raised once.
        To read the others, iterate again. One of the partitions may also be read by itself: no record comes twice.
        """
        return self._merged.stream

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch no more of these partitions until they are resumed. Others are ignored. Raises `WrongLoop`."""
        for consumer in self._read(partitions):
            consumer.pause()

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these partitions again. Those that are not being read are ignored. Raises `WrongLoop`."""
        for consumer in self._read(partitions):
            consumer.resume()

    def pause_all(self) -> None:
        """Pause every partition that is being read."""
        self.pause(list(self._choice.consumers))

    def resume_all(self) -> None:
        """Resume every partition that is being read."""
        self.resume(list(self._choice.consumers))

    def status(self) -> dict[str, Any]:
        """What the consumer does now, for bug reports, in values that JSON can hold. Part of `Client.status`."""
        return {
            "isolation": self._settings.isolation_level.name,
            "rack": self._settings.rack,
            "prefetch_bytes": self._settings.prefetch_bytes,
            "fetched_bytes": sum(consumer.fetched_bytes for consumer in self._choice.consumers.values()),
            "partitions": {
                str(key): consumer.status() | self._choice.status(key)
                for key, consumer in self._choice.consumers.items()
            },
        }

    async def close(self, timeout: float = 5.0) -> None:
        """Close every partition consumer, and give fetch sessions back within `timeout` seconds. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._stop_status()
        for consumer in list(self._choice.consumers.values()):
            consumer.close()
        await self._choice.close(Deadline.after(timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(
        self, starts: Mapping[TopicPartition, Start], ends: Mapping[TopicPartition, Start]
    ) -> dict[TopicPartition, PartitionConsumer]:
        self._check_open()
        taken = [key for key in starts if key in self._choice.consumers or key in self._opening]
        if taken:
            raise IngestdError(f"{taken[0]} is already read by this consumer; close that partition consumer first")
        deadline = Deadline.after(self._settings.metadata_timeout)
        self._opening.update(starts)
        try:
            unknown = await self._unknown(starts, deadline)
            if unknown:  # they may be newer than our metadata
                await self._client.metadata.refresh({key.topic for key in unknown}, deadline.remaining)
                unknown = await self._unknown(unknown, deadline)
            if unknown:
                count = len(await self._client.partitions(unknown[0].topic, deadline.remaining))
                told = f"{unknown[0]}: the topic has {in_count(count, 'partition')}"
                raise KafkaError(ErrorCode.unknown_topic_or_partition, told)
            isolation = self._settings.isolation_level
            first = await resolve_offsets(self._client, starts, isolation, deadline.remaining)
            last = await resolve_offsets(self._client, ends, isolation, deadline.remaining) if ends else {}
        finally:
            self._opening.difference_update(starts)
        self._check_open()
        return {key: self._add(key, start, first[key], last.get(key)) for key, start in starts.items()}

    async def _unknown(self, keys: Collection[TopicPartition], deadline: Deadline) -> list[TopicPartition]:
        """Those that their topics do not have, according to metadata."""
        known = {
            topic: frozenset(await self._client.partitions(topic, deadline.remaining))
            for topic in {key.topic for key in keys}
        }
        return [key for key in keys if key.partition not in known[key.topic]]

    def _read(self, partitions: Collection[TopicPartition]) -> list[PartitionConsumer]:
        """Those that are being read. Raises `WrongLoop` in another thread, which could not wake the fetch loops."""
        self._loop = same_loop(self._loop, "the consumer")
        consumers = self._choice.consumers
        return [consumers[key] for key in require_several("partitions", partitions) if key in consumers]

    def _check_open(self) -> None:
        self._loop = same_loop(self._loop, "the consumer")
        if self._closed:
            raise Closed("the consumer is closed")

    def _add(self, key: TopicPartition, start: Start, first: int, end: int | None) -> PartitionConsumer:
        topic = self._client.metadata.snapshot.topics.get(key.topic)
        consumer = PartitionConsumer(
            key,
            Position(first, start.leader_epoch) if isinstance(start, OffsetAndMetadata) else Position(first),
            end,
            self._choice,
            topic_id=None if topic is None else topic.topic_id,
            committed=self._settings.isolation is Isolation.read_committed,
            check_crcs=self._settings.check_crcs,
        )
        self._choice.add(consumer)
        return consumer

    async def _locate(self, key: TopicPartition, start: Start) -> int:
        return (await self.offsets({key: start}))[key]
