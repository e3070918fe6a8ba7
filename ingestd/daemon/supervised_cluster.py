"""Supervised cluster: one cluster as the supervisor sees it: metadata, producer ids, an embedded broker's life."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ingestd.client.client import Client
from ingestd.client.refresh import is_refusal
from ingestd.client.settings import ClientSettings
from ingestd.daemon.answering import answered
from ingestd.daemon.control import MetadataPushed
from ingestd.daemon.embedded_broker import EmbeddedBroker
from ingestd.daemon.reach import Reach
from ingestd.errors import DeadlineExceeded, ErrorCode, IngestdError
from ingestd.logs import get_logger
from ingestd.producer.identity import FetchedIdentities, ProducerIdentity
from ingestd.retry import Backoff, Deadline
from ingestd.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ingestd.client.metadata import ClusterMetadata
    from ingestd.daemon.configuration import ClusterSettings, DaemonSettings
    from ingestd.daemon.control import Answered, IdentityWanted, LeaderHinted, Refused

__all__ = ["SupervisedCluster"]

REFRESH_TIMEOUT = 3.0
"""Seconds that a cluster has to answer when it is checked."""

LOOK_INTERVAL = 5.0
"""Seconds between an answer and the next check."""

_NOBODY = "no broker answered: "


class SupervisedCluster:
    """One cluster of the configuration.

    Invariants
        Only this object, in this process, asks the cluster for metadata and producer ids.
        Every snapshot that workers need goes to `push`, the newest last.
        The cluster is checked every few seconds, also if nothing is written to it.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        topics: Mapping[str, Sequence[str]],
        daemon: DaemonSettings,
        push: Callable[[MetadataPushed], None],
        reachable: Callable[[bool], None],
    ) -> None:
        """`topics` has, for each topic, the names of the tails that write to it.

        `push` gets the metadata that workers need. `reachable` gets the result of each check.
        """
        self.settings = settings
        self.client: Client | None = None
        self._topics = dict(topics)
        self._push = push
        self._reachable = reachable
        self._pushed: ClusterMetadata | None = None
        self._owed = 0
        """How many answers are pushed even if nothing in them is new, because workers wait for an answer."""
        self._log = get_logger("ingestd.supervisor").bind(cluster=settings.name)
        self._tasks = TaskOwner(lambda error: self._log.error("cluster task failed", exc_info=error))
        self._broker = EmbeddedBroker(settings, daemon, self._broker_restarted) if settings.embedded else None
        self._reach = Reach(settings.bootstrap, self._log, time.monotonic())
        self._missing = ""

    async def start(self) -> None:
        """Start the embedded broker, if the cluster has one. Then start to check the cluster."""
        bootstrap = list(self.settings.bootstrap)
        if self._broker is not None:
            await self._broker.start()
            bootstrap = [self._broker.address]
        self._reach = Reach(bootstrap, self._log, time.monotonic())
        settings = ClientSettings(
            self.settings.connection("ingestd-supervisor"),
            retry_authentication=True,
        )
        self.client = Client(bootstrap, settings)
        self.client.metadata.listen(self._changed)
        self._tasks.start(self._watch(self.client), "ask whether it answers")

    @property
    def opened(self) -> Client:
        """The client. Raises `IngestdError` before the cluster is started."""
        if self.client is None:
            raise IngestdError(f"cluster {self.settings.name} is not open yet")
        return self.client

    @property
    def metadata(self) -> ClusterMetadata | None:
        """The newest snapshot."""
        return None if self.client is None else self.client.metadata.snapshot

    @property
    def ready(self) -> bool:
        """Whether every topic that is written to is known."""
        return all(self.has(topic) for topic in self._topics)

    def has(self, topic: str) -> bool:
        """Whether a topic's partitions are known. Its tails can begin then."""
        snapshot = self.metadata
        return snapshot is not None and topic in snapshot.topics and bool(snapshot.topics[topic].partitions)

    @property
    def trouble(self) -> str | None:
        """Why the cluster can not be used now, for people; None if it can."""
        error = None if self.client is None else self.client.metadata.last_error
        if error is not None:
            return f"cluster {self.settings.name}: {_reasons(error)}"
        if self._reach.reason is not None:
            return f"cluster {self.settings.name}: {self._reach.reason}"
        return self._missing or None

    @property
    def silent_seconds(self) -> float:
        """Seconds since the cluster's last answer; 0 while it answers."""
        return self._reach.silent_for(time.monotonic())

    def _changed(self, metadata: ClusterMetadata) -> None:
        last = self._pushed
        if not self._owed and last is not None and (last.nodes, last.topics) == (metadata.nodes, metadata.topics):
            return
        self._owed = max(0, self._owed - 1)
        self._pushed = metadata
        self._push(MetadataPushed(self.settings.name, metadata))

    async def _watch(self, client: Client) -> None:
        """Ask for the topics while one of them is not known. Otherwise only check the brokers.

        A topic that is deleted becomes unknown when a worker, whose records are refused, wishes for its metadata.
        """
        backoff = Backoff(initial=0.1, maximum=LOOK_INTERVAL)
        while True:
            topics = [] if self.ready else sorted(self._topics)
            if await self._look(client, topics) and self.ready:
                backoff.reset()
                await asyncio.sleep(LOOK_INTERVAL)
            else:
                await asyncio.sleep(backoff.next_delay())

    async def _look(self, client: Client, topics: Collection[str]) -> bool:
        """Ask once. Returns whether there was an answer."""
        try:
            await client.metadata.refresh(topics, REFRESH_TIMEOUT, create=self.settings.create_topics)
        except (IngestdError, OSError) as error:
            known = client.metadata.last_error
            silent = f"no answer within {REFRESH_TIMEOUT:g} s" if isinstance(error, DeadlineExceeded) else str(error)
            tell = self._reach.refused if is_refusal(known or error) else self._reach.failed
            tell(silent if known is None else _reasons(known), time.monotonic())
            self._reachable(self._reach.reachable)
            return False
        self._reach.answered(time.monotonic())
        self._reachable(self._reach.reachable)
        if topics or self.ready:  # a topic that is unknown counts as missing once it was asked for here
            self._tell_missing()
        return True

    def _tell_missing(self) -> None:
        missing = self._missing_topics()
        if missing and missing != self._missing:
            self._log.error("topics can not be used", reason=missing)
        elif self._missing and not missing:
            self._log.info("topics can be used")
        self._missing = missing

    def _missing_topics(self) -> str:
        missing = [
            f"{_tails(tails)}: {self._problem(topic)}"
            for topic, tails in sorted(self._topics.items())
            if not self.has(topic)
        ]
        return f"cluster {self.settings.name}: {'; '.join(missing)}" if missing else ""

    def _problem(self, topic: str) -> str:
        snapshot = self.metadata
        known = None if snapshot is None else snapshot.topics.get(topic)
        if known is not None and known.error not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
            return f"topic {topic} can not be used: {known.error.name.upper()}"
        by_hand = f"create_topics is false: make it with `ingestd topics create -c CONFIG {topic}`"
        why = "the cluster did not make it" if self.settings.create_topics else by_hand
        return f"topic {topic} is missing, and {why}; delivery begins by itself once the topic is there"

    def wanted(self, topics: Collection[str], reason: str) -> None:
        """A worker misses metadata.

        Only a topic that a route names may be created by asking for it. A mirror finds its topics, and makes those of
        its target by itself: one that is deleted at its source stays deleted.
        """
        if self.client is None:
            return
        self._owed = 2  # another request may be under way, which answers before the one that this asks for
        named = [topic for topic in topics if topic in self._topics]
        found = [topic for topic in topics if topic not in self._topics]
        if named:
            self.client.metadata.wanted(named, reason, create=self.settings.create_topics)
        if found or not topics:
            self.client.metadata.wanted(found, reason)

    def hint(self, hinted: LeaderHinted) -> None:
        """A worker heard of a new leader."""
        if self.client is not None:
            self.client.metadata.hint(hinted.topic, hinted.partition, hinted.leader, hinted.leader_epoch)

    def identify(self, wanted: IdentityWanted, answer: Callable[[Answered | Refused], None]) -> None:
        """Get a worker a producer id."""
        self._tasks.start(self._identify(wanted, answer), f"producer id for ticket {wanted.ticket}")

    async def _identify(self, wanted: IdentityWanted, answer: Callable[[Answered | Refused], None]) -> None:
        answer(await answered(wanted.ticket, self._acquire(wanted.previous)))

    async def _acquire(self, previous: tuple[int, int] | None) -> ProducerIdentity:
        before = None if previous is None else ProducerIdentity(*previous)
        return await FetchedIdentities(self.opened).acquire(before)

    def _broker_restarted(self) -> None:
        self.wanted(self._topics, "the embedded broker was restarted")

    async def close(self, deadline: Deadline) -> None:
        """Close the client, then end the embedded broker."""
        await self._tasks.close()
        if self.client is not None:
            await self.client.close(timeout=min(deadline.remaining, 2.0))
        if self._broker is not None:
            await self._broker.close(deadline)


def _tails(names: Sequence[str]) -> str:
    return f"{'tail' if len(names) == 1 else 'tails'} {', '.join(names)}"


def _reasons(error: Exception) -> str:
    """The reason of each broker that did not answer, separated by `; `."""
    return str(error).removeprefix(_NOBODY) or type(error).__name__
