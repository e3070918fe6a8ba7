"""Broker consumer: one per broker. One fetch at a time for all partitions that this broker leads and that have room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingestd.consumer.fetched import cut
from ingestd.consumer.session import SESSION_ERRORS, FetchSession, PartitionFetch, SessionFetch
from ingestd.errors import ConnectionLost, CorruptBatch, DeadlineExceeded, ErrorCode, IngestdError, KafkaError
from ingestd.retry import Backoff
from ingestd.wire.fetch import FETCH, FetchAnswer, FetchedPartition, fetch_request, read_fetch_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ingestd.client.client import Client
    from ingestd.client.metadata import PartitionMetadata
    from ingestd.consumer.events import ConsumerEvents
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.settings import ConsumerSettings, TopicPartition
    from ingestd.tasks import TaskOwner

__all__ = ["BrokerConsumer"]

PURPOSE: Final = "fetch"
"""A fetch may be held back by the broker, and answers come in order: nothing else shares its connection."""

_FIRST_WAIT: Final = 0.01
"""Seconds. The wait doubles with every answer without records, so that a partition that gets room is not kept waiting long."""
_EMPTY_ANSWERS_AT_END: Final = 2


class BrokerConsumer:
    """Fetches from one broker; hands back the partitions that this broker does not serve.

    Invariants
        The loop runs only while a partition here is fetchable, and at most one request is under way.
        An answer for a partition that was moved, closed or repositioned meanwhile is dropped.
    """

    def __init__(
        self,
        client: Client,
        node_id: int,
        settings: ConsumerSettings,
        tasks: TaskOwner,
        events: ConsumerEvents,
        *,
        refused: Callable[[PartitionConsumer, FetchedPartition | IngestdError], None],
    ) -> None:
        self._client = client
        self._node_id = node_id
        self._settings = settings
        self._tasks = tasks
        self._events = events
        self._refused = refused
        self._partitions: dict[TopicPartition, PartitionConsumer] = {}
        self._leader_epochs: dict[TopicPartition, int] = {}
        self._session = FetchSession()
        self._backoff = Backoff()
        self._wait = _FIRST_WAIT
        self._empty_answers = 0
        self._loop: asyncio.Task[None] | None = None

    def add(self, consumer: PartitionConsumer, leader: PartitionMetadata) -> None:
        """Fetch this partition from here, from now on."""
        self._partitions[consumer.key] = consumer
        self._leader_epochs[consumer.key] = leader.leader_epoch
        self._wait = _FIRST_WAIT
        self._empty_answers = 0
        self.wake()

    def remove(self, consumer: PartitionConsumer) -> None:
        """Fetch it no more."""
        if self._partitions.get(consumer.key) is consumer:
            del self._partitions[consumer.key]
            del self._leader_epochs[consumer.key]

    def wake(self) -> None:
        """A partition may have become fetchable: see to it that the loop runs."""
        if (self._loop is None or self._loop.done()) and any(one.fetchable for one in self._partitions.values()):
            self._loop = self._tasks.start(self._run(), f"fetch from broker {self._node_id}")

    async def _run(self) -> None:
        await asyncio.sleep(0)  # partitions that are added together go into one request
        while ready := {key: one for key, one in self._partitions.items() if one.fetchable}:
            try:
                await self._fetch(ready)
            except (ConnectionLost, DeadlineExceeded, KafkaError) as error:
                self._session.lost()
                await self._wait_after(error, ready)
            except IngestdError as error:  # no retry mends a version or a framing that we do not share
                self._session.lost()
                for one in ready.values():
                    one.fail(error)

    async def _wait_after(self, error: IngestdError, ready: Mapping[TopicPartition, PartitionConsumer]) -> None:
        for one in ready.values():
            self._events.retried(one.topic, one.partition, error)
        self._client.metadata.wanted({one.topic for one in ready.values()}, f"fetch from broker {self._node_id}: {error}")
        if isinstance(error, KafkaError) and not error.retriable and error.code is not ErrorCode.broker_not_available:
            for one in ready.values():
                one.fail(error)
            return
        await asyncio.sleep(self._backoff.next_delay())

    async def _fetch(self, ready: Mapping[TopicPartition, PartitionConsumer]) -> None:
        settings = self._settings
        broker = self._client.broker(self._node_id, PURPOSE)
        connection = await broker.connection(settings.request_timeout)
        wanted = {key: self._asked(one) for key, one in ready.items()}
        by_id = all(fetch.topic_id is not None for fetch in wanted.values())
        version = connection.versions.pick(Api.fetch, LOWEST, HIGHEST if by_id else HIGHEST_BY_NAME)
        fetch = self._session.next_fetch(wanted)
        wait = min(self._wait, settings.fetch_max_wait)
        body = await connection.send(
            Api.fetch, version, self._request(version, fetch, wait), timeout=settings.request_timeout + wait
        )
        answer = read_fetch_response(version, body)
        if answer.error is not ErrorCode.none:
            self._session.refused(answer.error)
            raise KafkaError(answer.error, f"fetch from broker {self._node_id}")
        self._session.answered(answer.session_id)
        self._backoff.reset()
        self._take(answer, len(body), ready, wanted)

    def _asked(self, consumer: PartitionConsumer) -> PartitionFetch:
        topic = self._client.metadata.snapshot.topics.get(consumer.topic)
        return PartitionFetch(
            topic_id=None if topic is None else topic.topic_id,
            offset=consumer.position,
            leader_epoch=self._leader_epochs[consumer.key],
            max_bytes=max(1, min(self._settings.partition_max_bytes, consumer.share // 2)),
        )
