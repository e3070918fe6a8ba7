"""Client: the connections and the metadata of one cluster, for many producers, consumers and admins."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ingestd.checks import require_settings
from ingestd.client.answers import is_unknown, why_no_leader
from ingestd.client.brokers import CONTROL, Brokers
from ingestd.client.coordinators import CoordinatorKind, Coordinators
from ingestd.client.metadata import NO_LEADER, require_topic_name
from ingestd.client.refresh import RefreshedMetadata
from ingestd.client.settings import ClientSettings
from ingestd.client.status import client_status
from ingestd.errors import Closed, DeadlineExceeded, ErrorCode, IngestdError, KafkaError, UsedAfterFork, WrongSetting
from ingestd.figures import in_count
from ingestd.retry import Deadline
from ingestd.tasks import tell_of_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from ingestd.client.broker import Broker
    from ingestd.client.metadata import ClusterMetadata, MetadataSource, PartitionMetadata, TopicMetadata
    from ingestd.client.status import ClientStatus

__all__ = ["Client", "CoordinatorKind"]


@runtime_checkable
class _Closable(Protocol):
    async def close(self) -> None: ...


class Client:
    """One cluster: its connections and its metadata, shared by producers, consumers, groups and administration.

    Example:
        settings = ClientSettings(ConnectionSettings(client_id="billing"))
        async with Client(["kafka-1:9092"], settings) as client:
            print(await client.partitions("orders", timeout=10))
            leader = await client.leader("orders", 0)
            print(leader.node.host, leader.node.port)

    Belongs to one event loop. TLS and accounts are part of the connection:
    `ConnectionSettings(tls=TlsSettings(ca_file=Path("ca.pem")), sasl=Scram("user", Secret(file=Path("password"))))`;
    `Plain` and `OAuthBearer` are the other mechanisms.

    Its methods answer from the metadata, and ask the cluster for what is missing. `timeout` is for all of that, in
    seconds; None: `ClientSettings.metadata_timeout`. They raise `KafkaError` for errors of the cluster,
    `DeadlineExceeded`, with the reason, if no broker answered, `AuthenticationFailed`, `UnsupportedVersion`, `Closed`,
    and `WrongLoop` on another event loop.

    Invariants
        Nothing is sent before something is asked for. Connections open when they are first used.
        Metadata that is there is used. Metadata that is missing is refreshed.
        `close` ends promptly, whatever state the brokers are in.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        settings: ClientSettings | None = None,
        *,
        metadata: MetadataSource | None = None,
    ) -> None:
        """Take bootstrap addresses, each "host:port". Raises `ConfigurationError`, naming the address that is wrong.

        With `metadata` the client makes no metadata requests, and needs no address.
        """
        if not bootstrap and metadata is None:
            raise WrongSetting("bootstrap", 'at least one address, as in ["kafka-1:9092"]')
        self.settings = require_settings(settings, ClientSettings)
        self._brokers = Brokers(bootstrap, self.settings)
        self._coordinators = Coordinators(self._brokers, self.settings)
        self.metadata: MetadataSource = metadata or RefreshedMetadata(self._brokers, self.settings)
        self._stop_listening = self.metadata.listen(self._metadata_changed, tuple)
        self._brokers.replace(self.metadata.snapshot)
        self._metadata_at: float | None = None
        self._sections: dict[str, Callable[[], Mapping[str, Any]]] = {}
        self._closed = False
        tell_of_fork(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Roles

    def broker(self, node_id: int, purpose: str = CONTROL) -> Broker:
        """The broker object of a node. There is one for each node and purpose, each with its own connection.

        Raises `KafkaError` (BROKER_NOT_AVAILABLE) for a node that metadata does not know, `Closed`.
        """
        return self._brokers.broker(node_id, purpose)

    def release(self, broker: Broker) -> None:
        """End a broker object, and its connection. Only for a purpose that nobody else uses."""
        self._brokers.release(broker)

    async def any(self, *, purpose: str = CONTROL) -> Broker:
        """A broker for what any broker can answer: a random seed until nodes are known, then a live node.

        Raises `KafkaError` (BROKER_NOT_AVAILABLE) if no node is known and there are no seeds.
        """
        return self._brokers.any(purpose)

    async def controller(self, timeout: float | None = None, *, purpose: str = CONTROL) -> Broker:
        """The controller, as metadata names it. Metadata is refreshed while it names none.

        With KRaft it is some broker that passes requests on to the controller. Raises `KafkaError` (NOT_CONTROLLER) if
        none is named in time.
        """
        deadline = self._deadline(timeout)
        snapshot = self.metadata.snapshot
        if snapshot.controller_id in snapshot.nodes:
            return self.broker(snapshot.controller_id, purpose)
        async for attempt in self.settings.retry_backoff().attempts_until(deadline):
            try:
                snapshot = await self.metadata.refresh((), deadline.remaining)
            except DeadlineExceeded:
                if not attempt:
                    raise
            if snapshot.controller_id in snapshot.nodes:
                return self.broker(snapshot.controller_id, purpose)
        raise KafkaError(ErrorCode.not_controller, "no controller is known")

    async def leader(
        self, topic: str, partition: int, timeout: float | None = None, *, purpose: str = CONTROL
    ) -> Broker:
        """The leader of a partition. Metadata is refreshed while there is none.

        Raises `KafkaError` if there is none in time (LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION, or the cluster's
        error for the topic), and `DeadlineExceeded` if no broker answered.
        """
        deadline = self._deadline(timeout)
        error = ErrorCode.leader_not_available
        async for attempt in self.settings.retry_backoff().attempts_until(deadline):
            try:
                await (self.metadata.refresh((topic,), deadline.remaining) if attempt else self._topic(topic, deadline))
            except DeadlineExceeded:
                if not attempt:
                    raise
                break  # there were answers, but without a leader
            snapshot = self.metadata.snapshot
            node = snapshot.leader(topic, partition)
            if node is not None:
                return self.broker(node.id, purpose)
            error = why_no_leader(snapshot, topic, partition)
            if not KafkaError(error).retriable or (attempt and error is ErrorCode.unknown_topic_or_partition):
                break  # an unknown topic has been asked for several times by now
        raise KafkaError(error, f"{topic}-{partition}")

    async def preferred_leader(
        self, topic: str, partition: int, timeout: float | None = None, *, purpose: str = CONTROL
    ) -> Broker:
        """The preferred leader of the partition: its first replica. Raises `KafkaError`."""
        replicas = await self.replicas(topic, partition, timeout)
        if not replicas:
            raise KafkaError(ErrorCode.replica_not_available, f"{topic}-{partition}")
        return self.broker(replicas[0], purpose)

    async def coordinator(
        self, key: str, kind: CoordinatorKind, timeout: float | None = None, *, purpose: str = "coordinator"
    ) -> Broker:
        """The coordinator of a group or transactional id. Looked up once, and remembered until `forget_coordinator`.

        It has its own connection, so that a join that waits for other members holds up nothing else. A caller that must
        not wait for other groups of the same coordinator gives its own `purpose`. Raises `KafkaError`,
        `ConnectionLost`, `DeadlineExceeded`.
        """
        found = (await self.coordinators([key], kind, timeout, purpose=purpose))[key]
        if isinstance(found, IngestdError):
            raise found
        return found

    async def coordinators(
        self,
        keys: Collection[str],
        kind: CoordinatorKind,
        timeout: float | None = None,
        *,
        purpose: str = "coordinator",
        attempts: int | None = None,
    ) -> dict[str, Broker | IngestdError]:
        """The coordinator of each key, or the error. Those not known yet are asked for in one request.

        If one is not found, it is asked for again, until the timeout. With `attempts` it is asked for so often at most,
        so that the others need not wait for it.
        """
        found: dict[str, Broker | IngestdError] = {}
        nodes = await self._coordinators.find(keys, kind, self._deadline(timeout), attempts=attempts)
        for key, node in nodes.items():
            if isinstance(node, IngestdError):
                found[key] = node
                continue
            if node.id not in self._brokers.known:
                self._brokers.register(node)
            found[key] = self.broker(node.id, purpose)
        return found

    def forget_coordinator(self, key: str, kind: CoordinatorKind) -> None:
        """Look the coordinator up again next time: after NOT_COORDINATOR, or after its connection was lost."""
        self._coordinators.forget(key, kind)

    # What metadata says

    async def partitions(self, topic: str, timeout: float | None = None) -> list[int]:
        """All partitions of a topic, in order. Raises `KafkaError` for an error of the topic."""
        return [partition.partition for partition in (await self._known(topic, timeout)).partitions]

    async def writable_partitions(self, topic: str, timeout: float | None = None) -> list[int]:
        """The partitions that have a leader, in order."""
        found = await self._known(topic, timeout)
        return [partition.partition for partition in found.partitions if partition.leader != NO_LEADER]

    async def replicas(self, topic: str, partition: int, timeout: float | None = None) -> list[int]:
        """Node ids of a partition's replicas, the preferred leader first."""
        return list((await self._partition(topic, partition, timeout)).replicas)

    async def in_sync_replicas(self, topic: str, partition: int, timeout: float | None = None) -> list[int]:
        """Node ids of a partition's replicas that are in sync."""
        return list((await self._partition(topic, partition, timeout)).in_sync_replicas)

    async def offline_replicas(self, topic: str, partition: int, timeout: float | None = None) -> list[int]:
        """Node ids of a partition's replicas that are offline."""
        return list((await self._partition(topic, partition, timeout)).offline_replicas)

    # For bug reports

    @property
    def trouble(self) -> str | None:
        """Why brokers are not reached, for people. None: nothing is known to be wrong. For any thread."""
        if (error := self.metadata.last_error) is not None:
            return str(error)
        lost = [broker.last_error for _, broker in self._brokers.all() if not broker.connected]
        return "; ".join(dict.fromkeys(str(error) for error in lost if error is not None)) or None

    def status(self) -> ClientStatus:
        """What this client knows and does now, in values that JSON can hold. No secrets."""
        age = None if self._metadata_at is None else time.monotonic() - self._metadata_at
        sections = {name: section() for name, section in self._sections.items()}
        return client_status(self._brokers.all(), self.metadata.snapshot, age, self._coordinators.known, sections)

    def add_status(self, name: str, section: Callable[[], Mapping[str, Any]]) -> Callable[[], None]:
        """Add a part to `status`, as producers do: `section()` under `name`. The returned function removes it.

        `section` is called on the event loop. It returns values that JSON can hold, and no secrets. A name that is in
        use gets a number appended.
        """
        free = name
        number = 1
        while free in self._sections:
            number += 1
            free = f"{name}-{number}"
        self._sections[free] = section

        def stop() -> None:
            self._sections.pop(free, None)

        return stop

    async def close(self, timeout: float = 5.0) -> None:
        """Close every connection and end every refresh. Safe to call twice. Raises `DeadlineExceeded`."""
        if self._closed:
            return
        self._closed = True
        self._stop_listening()
        self._sections.clear()  # their owners must not be kept alive
        deadline = Deadline.after(timeout)
        try:
            if isinstance(self.metadata, _Closable):
                await deadline.wait_for(self.metadata.close(), "closing the metadata source")
        finally:
            await deadline.wait_for(self._brokers.close(), "closing connections")

    # How it is done

    def _metadata_changed(self, snapshot: ClusterMetadata) -> None:
        self._metadata_at = time.monotonic()
        self._brokers.replace(snapshot)

    def forked(self) -> None:
        """See `Forkable`: in the child every call raises `UsedAfterFork`, but for `close`, which does nothing there."""
        self._brokers.refusal = UsedAfterFork("the client was made before this process was forked; make one here")
        self._closed = True

    def _deadline(self, timeout: float | None) -> Deadline:
        self._brokers.check_place()
        if self._closed:
            raise Closed("the client is closed")
        return Deadline.after(self.settings.metadata_timeout if timeout is None else timeout)

    async def _topic(self, topic: str, deadline: Deadline) -> TopicMetadata | None:
        known = self.metadata.snapshot.topics.get(topic)
        if known is None or not known.partitions:
            require_topic_name(topic)
            known = (await self.metadata.refresh((topic,), deadline.remaining)).topics.get(topic)
        return known

    async def _known(self, topic: str, timeout: float | None) -> TopicMetadata:
        found = await self._topic(topic, self._deadline(timeout))
        if found is None or is_unknown(found):
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {topic}")
        if not found.partitions:
            raise KafkaError(ErrorCode.leader_not_available if found.error is ErrorCode.none else found.error, topic)
        return found

    async def _partition(self, topic: str, partition: int, timeout: float | None) -> PartitionMetadata:
        deadline = self._deadline(timeout)
        found = await self._known(topic, deadline.remaining)
        if not 0 <= partition < len(found.partitions):
            found = (await self.metadata.refresh((topic,), deadline.remaining)).topics.get(topic, found)
        if not 0 <= partition < len(found.partitions):
            told = f"{topic}-{partition}: the topic has {in_count(len(found.partitions), 'partition')}"
            raise KafkaError(ErrorCode.unknown_topic_or_partition, told)
        return found.partitions[partition]
