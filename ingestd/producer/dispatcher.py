"""Dispatcher: the first stage. Owns the topic producers, which get records and batches, and the broker producers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ingestd.client.metadata import require_topic_name
from ingestd.errors import DeadlineExceeded
from ingestd.producer.broker_producer import BrokerProducer
from ingestd.producer.identity import IdentityDesk
from ingestd.producer.topic_producer import TopicProducer

if TYPE_CHECKING:
    from ingestd.client.client import Client
    from ingestd.client.metadata import ClusterMetadata, MetadataSource
    from ingestd.errors import IngestdError
    from ingestd.producer.events import ProducerEvents
    from ingestd.producer.identity import IdentitySource
    from ingestd.producer.ledger import Ledger
    from ingestd.producer.settings import ProducerSettings
    from ingestd.producer.transactions import Transactions
    from ingestd.records.loops import TopicIntake
    from ingestd.retry import Deadline
    from ingestd.tasks import TaskOwner

__all__ = ["Dispatcher"]


class Dispatcher:
    """Owns the topic producers and the broker producers of one producer.

    Invariants
        Each topic and each node has one producer as long as this lives, so sequences survive idle times.
        After `end` nothing is in a transport and nothing is queued.
    """

    def __init__(
        self,
        client: Client,
        settings: ProducerSettings,
        identities: IdentitySource,
        ledger: Ledger,
        tasks: TaskOwner,
        events: ProducerEvents | None,
        intakes: dict[str, TopicIntake],
        transactions: Transactions | None = None,
    ) -> None:
        """`intakes` gets an entry for each topic with its first record: it lets records go the short way.

        With `transactions` the identity of every partition is that of the open transaction, and `identities` is not
        asked.
        """
        self.metadata: MetadataSource = client.metadata
        self.ended: IngestdError | None = None
        """Why everything ended, once it has."""
        self._client = client
        self._settings = settings
        self._ledger = ledger
        self._tasks = tasks
        self._events = events
        self._intakes = intakes
        self._transactions = transactions
        self.transaction = None if transactions is None else transactions.members
        """The partitions of the open transaction. None if the producer is not transactional."""
        if transactions is not None:
            transactions.records = self
        alone = settings.numbered and transactions is None
        self._desk = IdentityDesk(identities, tasks, self.fatal) if alone else None
        self._topics: dict[str, TopicProducer] = {}
        self._brokers: dict[int, BrokerProducer] = {}
        self._stop_listening = self.metadata.listen(self._metadata_changed, self._used_topics)

    def topic(self, topic: str) -> TopicProducer:
        """The topic's producer. Raises `KafkaError` for a name that no topic can have, `TypeError` for no string."""
        producer = self._topics.get(topic)
        if producer is None:
            require_topic_name(topic)
            producer = self._topics[topic] = TopicProducer(
                topic, self._settings, self, self._desk, self._ledger, self._events
            )
            self._intakes[topic] = producer.intake
        return producer

    def broker(self, node: int) -> BrokerProducer:
        """The node's broker producer."""
        broker = self._brokers.get(node)
        if broker is None:
            broker = self._brokers[node] = BrokerProducer(
                node, self._client, self._settings, self._tasks, self._events, self.transaction
            )
        return broker

    def close_batches(self) -> None:
        """Send all open batches now, without waiting for the linger."""
        for topic in self._topics.values():
            topic.close_batches()

    async def flush(self, deadline: Deadline, doing: str) -> None:
        """Send all open batches now, and wait until everything accepted is done. Raises `DeadlineExceeded`."""
        self.close_batches()
        try:
            await self._ledger.drained(deadline, doing)
        except DeadlineExceeded as late:
            trouble = next((why for topic in self._topics.values() if (why := topic.trouble)), None)
            raise (late if trouble is None else DeadlineExceeded(f"{late}; {trouble}")) from None

    def give_up(self, error: IngestdError) -> None:
        """The transaction is aborted: fail with `error` what is not in flight, and try nothing again that is."""
        for topic in self._topics.values():
            topic.give_up(error)

    def fatal(self, error: IngestdError) -> None:
        """The producer cannot go on: accept nothing more, and end everything after the current callback."""
        if self.ended is None:
            if self._transactions is not None:
                error = self._transactions.ended(error)
            self.ended = error
            self._ledger.shut()
            asyncio.get_running_loop().call_soon(self.end, error)

    def end(self, error: IngestdError) -> None:
        """Abort every connection, then fail what is left with `error`. Safe to call twice."""
        if self.ended is None:
            self.ended = error
        self._stop_listening()
        for broker in self._brokers.values():
            broker.abort(error)
        for topic in self._topics.values():
            topic.end(error)
        self._ledger.wake_all()

    def _used_topics(self) -> list[str]:
        """The topics that got records since the last call. Those that wait for metadata ask for it themselves."""
        used = [name for name, topic in self._topics.items() if topic.used]
        for name in used:
            self._topics[name].used = False
        return used

    def _metadata_changed(self, snapshot: ClusterMetadata) -> None:
        topics = snapshot.topics
        # A callback of a partition that ends may send to a new topic.
        for name, producer in list(self._topics.items()):
            producer.metadata_changed(topics.get(name))
