"""Translations: keeps which offset on the target a record of the source has, in a compacted topic on the target.

    key      JSON: the partition at the source, and the number of a chunk of its stretches
    value    the ids of the topics at the source and on the target, from where on all is known, and the stretches

So the host that takes a partition over knows what the one before it has copied where. It is written before the position
that it stands for: see `GroupPositions`.
"""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

import orjson

from ingestd.client.admin import ClusterAdmin, NewTopic
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import ConsumerSettings
from ingestd.errors import ErrorCode, IngestdError, KafkaError
from ingestd.mirror.stretches import Stretches, decoded
from ingestd.producer.producer import AsyncProducer
from ingestd.producer.settings import ProducerSettings
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence

    from ingestd.client.client import Client
    from ingestd.mirror.positions import MirrorPosition
    from ingestd.mirror.route import MirrorRoute
    from ingestd.mirror.stretches import Stretch

__all__ = ["StoredChunk", "Taken", "Translations", "read_chunks", "restored"]

MOST_STRETCHES: Final = 1_000_000
"""Stretches of all partitions of a mirror that a host keeps: about 10 MB. Of partitions with more than their share, old
ones are thinned out: then an offset is translated to one that is not behind the right one."""

WRITTEN_AT_ONCE: Final = 500
"""Chunks that are on their way to the topic at the same time: about 300 kB."""

SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""Of the topic: what is not compacted yet is read too by a host that takes partitions over."""

_HEADER: Final = struct.Struct(">B16s16sq")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk of a partition's stretches, as it is in the topic.

    known_from: before this offset of the source nothing is known of what was copied.
    """

    partition: TopicPartition
    number: int
    source_id: str
    target_id: str
    known_from: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """A partition that a host takes over: at the source, and what is known of it.

    source_id, target_id: of its topics, empty where the cluster has none. fresh: its start was chosen just now.
    """

    source: TopicPartition
    position: MirrorPosition
    source_id: str
    target_id: str
    fresh: bool = False


@dataclass(slots=True, eq=False)
class _Book:
    """What is known of one partition."""

    source: TopicPartition
    stretches: Stretches
    source_id: str
    target_id: str


class Translations:
    """One mirror's, in the supervisor. Partitions are those of the target. Belongs to its event loop.

    Invariants
        What could not be written is written with the next attempt, and never in place of something newer.
        At most `MOST_STRETCHES` are kept, and a few hundred of each partition.
    """

    def __init__(self, route: MirrorRoute, target: Callable[[], Client]) -> None:
        """`target` gives the target's client, once there is one. Raises `IngestdError` before."""
        self._target = target
        self._topic = route.offsets_topic
        self._replication_factor = route.replication_factor
        self._books: dict[TopicPartition, _Book] = {}
        self._unwritten: dict[tuple[TopicPartition, int], bytes | None] = {}
        """By partition at the source and number of the chunk."""
        self._touched: set[TopicPartition] = set()
        self._producer: AsyncProducer | None = None
        self._writing = asyncio.Lock()
        self._there = False

    async def prepare(self, timeout: float) -> None:
        """Create the topic if it is missing. Raises `IngestdError`."""
        if self._there:
            return
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(SEGMENT_BYTES),
            "min.cleanable.dirty.ratio": "0.1",
        }
        wanted = NewTopic(self._topic, 1, self._replication_factor, configs)
        (made,) = await ClusterAdmin(self._target()).create_topics([wanted], timeout=timeout)
        if made.error is not None and not (
            isinstance(made.error, KafkaError) and made.error.code is ErrorCode.topic_already_exists
        ):
            raise made.error
        self._there = True

    async def take(self, taken: Mapping[TopicPartition, Taken], timeout: float) -> None:
        """Learn what is known of these partitions from now on. Raises `IngestdError`."""
        wanted = {one.source for one in taken.values()}
        stored: dict[TopicPartition, dict[int, StoredChunk]] = {one: {} for one in wanted}
        async for partition, number, chunk in read_chunks(self._target(), self._topic, timeout):
            if partition in wanted:
                if chunk is None:
                    stored[partition].pop(number, None)
                else:
                    stored[partition][number] = chunk
        for to, one in taken.items():
            self._books[to] = _begun(one, stored[one.source].values())
            self._touched.add(to)
            await asyncio.sleep(0)  # there may be thousands

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """These went to another host."""
        for to in partitions:
            book = self._books.pop(to, None)
            self._touched.discard(to)
            if book is not None:
                for key in [key for key in self._unwritten if key[0] == book.source]:
                    del self._unwritten[key]

    def copied(self, to: TopicPartition, source_id: str, stretches: Iterable[Stretch]) -> None:
        """Records were copied, in this order, from the topic at the source that has this id."""
        book = self._books.get(to)
        if book is None:
            return
        if source_id and source_id != book.source_id:
            book.stretches.clear()  # the topic was made again
            book.source_id = source_id
        for one in stretches:
            book.stretches.add(*one)
        book.stretches.thin(MOST_STRETCHES // len(self._books))
        self._touched.add(to)

    def holds(self, to: TopicPartition) -> bool:
        """Whether the partition was taken, and not dropped since."""
        return to in self._books

    def translate(self, to: TopicPartition, offset: int) -> int | None:
        """An offset at the source as one on the target. See `Stretches.translate`."""
        book = self._books.get(to)
        return None if book is None else book.stretches.translate(offset)

    def known_from(self, to: TopicPartition) -> int:
        """The first offset at the source from which on a partition's offsets can be translated."""
        return self._books[to].stretches.known_from

    def target_id(self, to: TopicPartition) -> str:
        """The id of the topic on the target; empty if its cluster has none."""
        return self._books[to].target_id

    def uncovered(self, to: TopicPartition, target: int) -> int:
        """See `Stretches.uncovered`."""
        return self._books[to].stretches.uncovered(target)

    @property
    def same_offsets(self) -> bool:
        """Whether every record that was copied has the same offset on both sides."""
        return all(one.source == one.target for book in self._books.values() for one in book.stretches)

    def several(self) -> dict[TopicPartition, TopicPartition]:
        """The partitions that may have something to prune: by those at the source."""
        return {book.source: to for to, book in self._books.items() if book.stretches.can_be_pruned}

    def prune(self, to: TopicPartition, log_start: int) -> None:
        """Forget what is before the first offset at the source."""
        if to in self._books:
            self._books[to].stretches.prune(log_start)
            self._touched.add(to)

    async def write(self, timeout: float) -> None:
        """Write what changed. Raises `IngestdError` if that can not be done: the next call tries again."""
        deadline = Deadline.after(timeout)
        async with self._writing:
            self._gather()
            while self._unwritten:
                some = list(self._unwritten.items())[:WRITTEN_AT_ONCE]
                await self._send(some, deadline)
                for key, value in some:
                    if key in self._unwritten and self._unwritten[key] is value:
                        del self._unwritten[key]

    def _gather(self) -> None:
        for to in self._touched:
            book = self._books[to]
            for number, data in book.stretches.changes():
                self._unwritten.pop((book.source, number), None)
                self._unwritten[book.source, number] = None if data is None else _value(book, data)
        self._touched.clear()

    async def _send(self, some: Sequence[tuple[tuple[TopicPartition, int], bytes | None]], deadline: Deadline) -> None:
        if self._producer is None:
            settings = ProducerSettings(compression="lz4", linger=0.0, delivery_timeout=30.0)
            self._producer = AsyncProducer(self._target(), settings)
        sent = [self._producer.send_future(self._topic, value, key=_key(*key), partition=0) for key, value in some]
        try:
            await deadline.wait_for(asyncio.gather(*sent), f"writing {len(sent)} chunks to {self._topic}")
        finally:
            for one in sent:
                one.cancel()

    async def close(self, timeout: float) -> None:
        """Stop. What was not written by now is not."""
        if self._producer is not None:
            await self._producer.close(timeout)
            self._producer = None


async def read_chunks(
    target: Client, topic: str, timeout: float
) -> AsyncIterator[tuple[TopicPartition, int, StoredChunk | None]]:
    """All chunks that are in the topic now, oldest first; None for one that was deleted. Raises `IngestdError`."""
    deadline = Deadline.after(timeout)
    settings = ConsumerSettings(prefetch_bytes=8 * 1024 * 1024, metadata_timeout=timeout)
    async with Consumer(target, settings) as consumer:
        reading = await consumer.consume_partition(topic, 0, "earliest", "latest")
        chunks = reading.chunks()
        while True:
            try:
                records = await deadline.wait_for(anext(chunks), f"reading {topic}")
            except StopAsyncIteration:
                return
            for record in records:
                partition, number = _place(topic, record.key)
                yield (
                    partition,
                    number,
                    None if record.value is None else _chunk(topic, partition, number, record.value),
                )


def restored(one: Taken, chunks: Iterable[StoredChunk], number: int) -> Stretches:
    """A partition's stretches up to its position, of what is stored of it. `number`: of the first new chunk."""
    stored, known_from = {}, 0
    for chunk in sorted(chunks, key=lambda chunk: chunk.number, reverse=True):
        if (chunk.source_id, chunk.target_id) == (one.source_id, one.target_id):
            stored[chunk.number], known_from = chunk.data, chunk.known_from
        else:
            stored[chunk.number] = b""  # of a topic that was made again; deleted with the next change
    stretches = Stretches.restored(stored, number, known_from=known_from)
    position = one.position
    if len(stretches) and not one.fresh:
        stretches.grow(position.target_offset, position.offset)
        return stretches
    if not len(stretches) and position.target_offset > 0:
        # What is on the target was not copied by this mirror, or it was before that was noted: no offset is known.
        stretches.known_from = position.offset
    stretches.add(position.offset, max(0, position.target_offset), 0)
    return stretches


def _begun(one: Taken, chunks: Collection[StoredChunk]) -> _Book:
    # Higher than the numbers of a host that lost the partition and may still write.
    now = time.time_ns() // 1_000_000
    number = max(now, max((chunk.number for chunk in chunks), default=0) + 1)
    return _Book(one.source, restored(one, chunks, number), one.source_id, one.target_id)


def _key(partition: TopicPartition, number: int) -> bytes:
    return orjson.dumps({"topic": partition.topic, "partition": partition.partition, "chunk": number})


def _place(topic: str, key: bytes | None) -> tuple[TopicPartition, int]:
    try:
        said = orjson.loads(key or b"")
        return TopicPartition(said["topic"], said["partition"]), said["chunk"]
    except (ValueError, TypeError, KeyError) as error:
        raise IngestdError(f"{topic}: a record's key is {key!r}; expected one that a mirror writes") from error


def _value(book: _Book, data: bytes) -> bytes:
    ids = (UUID(one).bytes if one else bytes(16) for one in (book.source_id, book.target_id))
    return _HEADER.pack(_VERSION, *ids, book.stretches.known_from) + data


def _chunk(topic: str, partition: TopicPartition, number: int, value: bytes) -> StoredChunk:
    try:
        version, source_id, target_id, known_from = _HEADER.unpack_from(value)
        data = bytes(value[_HEADER.size :])
        decoded(data)
    except (struct.error, ValueError) as error:
        raise IngestdError(f"{topic}: chunk {number} of {partition} can not be understood: {error}") from error
    if version != _VERSION:
        raise IngestdError(f"{topic}: chunk {number} of {partition} has version {version}; expected {_VERSION}")
    return StoredChunk(partition, number, _shown(source_id), _shown(target_id), known_from, data)


def _shown(topic_id: bytes) -> str:
    return str(UUID(bytes=topic_id)) if any(topic_id) else ""
