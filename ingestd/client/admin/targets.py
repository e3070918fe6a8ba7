"""Targets: which broker gets a request: the controller, a coordinator, a partition's leader, a named node, or any.

A target finds the broker of each item of a call. It says which errors are tried again, and what to do before that.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ingestd.client.answers import why_no_leader
from ingestd.errors import ConnectionLost, DeadlineExceeded, ErrorCode, IngestdError, KafkaError, is_retriable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import TypeAlias

    from ingestd.client.broker import Broker
    from ingestd.client.client import Client
    from ingestd.client.coordinators import CoordinatorKind
    from ingestd.retry import Deadline

__all__ = ["PURPOSE", "Requests", "Target", "ToAny", "ToController", "ToCoordinators", "ToLeaders", "ToNodes"]

PURPOSE: Final = "administration"
"""Connections of its own: brokers answer the requests of one connection in turn, and creating topics takes time."""

Key = TypeVar("Key")

Requests: TypeAlias = "tuple[list[tuple[Broker, list[Key]]], dict[Key, IngestdError]]"
"""The requests to make, each a broker and its items; and the items that have no broker, each with the reason."""


class Target(Protocol[Key]):
    """Which brokers are asked about the items of a call."""

    async def find_brokers(self, keys: Sequence[Key], deadline: Deadline) -> Requests[Key]:
        """Find the broker of each item."""
        ...

    def again(self, error: IngestdError, attempt: int) -> bool:
        """Whether an item is asked for again after this error. `attempt`: 0 for the first."""
        ...

    async def moved(self, keys: Collection[Key], deadline: Deadline) -> None:
        """Before another attempt: find out again which brokers these items belong to."""
        ...


_NO_VERDICT: Final = frozenset(
    {ErrorCode.not_controller, ErrorCode.throttling_quota_exceeded, ErrorCode.request_timed_out}
)
"""Answers of the controller, or of a broker for it, if it has not decided, or did not say so in time.

Its other errors are final.
"""
_CONTROLLERS_TRIED: Final = 4
"""How often metadata is asked for, one after the other, while the controller that it names is silent."""


def _lost(error: IngestdError) -> bool:
    return isinstance(error, (ConnectionLost, DeadlineExceeded))


class ToController:
    """Every item to the controller, as metadata names it. With KRaft any broker passes the request on."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def find_brokers(self, keys: Sequence[Any], deadline: Deadline) -> Requests[Any]:
        """See `Target`."""
        return [(await self._client.controller(deadline.remaining, purpose=PURPOSE), list(keys))], {}

    def again(self, error: IngestdError, attempt: int) -> bool:
        """See `Target`."""
        del attempt
        return _lost(error) or (isinstance(error, KafkaError) and error.code in _NO_VERDICT)

    async def moved(self, keys: Collection[Any], deadline: Deadline) -> None:
        """See `Target`. With KRaft each answer names some node that is up. One that is not silent is preferred."""
        del keys
        for _ in range(_CONTROLLERS_TRIED):
            await self._client.metadata.refresh((), deadline.remaining)
            if not (await self._client.controller(deadline.remaining, purpose=PURPOSE)).silent:
                break


class ToAny:
    """Every item to any broker."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def find_brokers(self, keys: Sequence[Any], deadline: Deadline) -> Requests[Any]:
        """See `Target`."""
        del deadline
        return [(await self._client.any(purpose=PURPOSE), list(keys))], {}

    def again(self, error: IngestdError, attempt: int) -> bool:
        """See `Target`."""
        return _lost(error) or (_passes(error, attempt) and is_retriable(error))

    async def moved(self, keys: Collection[Any], deadline: Deadline) -> None:
        """See `Target`."""
        del keys
        await self._client.metadata.refresh((), deadline.remaining)


class ToNodes:
    """Each item to the node that `node_of` names. None: to any broker."""

    def __init__(self, client: Client, node_of: Callable[[Any], int | None]) -> None:
        self._client = client
        self._node_of = node_of

    async def find_brokers(self, keys: Sequence[Key], deadline: Deadline) -> Requests[Key]:
        """See `Target`."""
        by_node: dict[int | None, list[Key]] = {}
        for key in keys:
            by_node.setdefault(self._node_of(key), []).append(key)
        if by_node.keys() - {None} - self._client.metadata.snapshot.nodes.keys():
            await self._client.metadata.refresh((), deadline.remaining)
        requests: list[tuple[Broker, list[Key]]] = []
        without_broker: dict[Key, IngestdError] = {}
        for node, items in by_node.items():
            try:
                broker = await self._client.any(purpose=PURPOSE) if node is None else self._client.broker(node, PURPOSE)
            except KafkaError as error:
                without_broker |= dict.fromkeys(items, error)
            else:
                requests.append((broker, items))
        return requests, without_broker

    def again(self, error: IngestdError, attempt: int) -> bool:
        """See `Target`. A node that metadata does not name any more is not waited for."""
        if isinstance(error, KafkaError) and error.code is ErrorCode.broker_not_available:
            return False
        return _lost(error) or (_passes(error, attempt) and is_retriable(error))

    async def moved(self, keys: Collection[Any], deadline: Deadline) -> None:
        """See `Target`."""
        del keys
        await self._client.metadata.refresh((), deadline.remaining)


class ToCoordinators:
    """Each item to the coordinator of its `key_of`, a group or a transactional id. Lookups share a request.

    `apart`: each item gets a request of its own.
    """

    def __init__(
        self, client: Client, kind: CoordinatorKind, key_of: Callable[[Any], str] = str, *, apart: bool = False
    ) -> None:
        self._client = client
        self._kind = kind
        self._key_of = key_of
        self._apart = apart

    async def find_brokers(self, keys: Sequence[Key], deadline: Deadline) -> Requests[Key]:
        """See `Target`."""
        names = list(dict.fromkeys(map(self._key_of, keys)))
        found = await self._client.coordinators(names, self._kind, deadline.remaining, purpose=PURPOSE, attempts=1)
        by_broker: dict[Broker, list[Key]] = {}
        without_broker: dict[Key, IngestdError] = {}
        for key in keys:
            coordinator = found[self._key_of(key)]
            if isinstance(coordinator, IngestdError):
                without_broker[key] = coordinator
            else:
                by_broker.setdefault(coordinator, []).append(key)
        if self._apart:
            return [(broker, [key]) for broker, items in by_broker.items() for key in items], without_broker
        return list(by_broker.items()), without_broker

    def again(self, error: IngestdError, attempt: int) -> bool:
        """See `Target`. NOT_COORDINATOR and the like, and errors that pass on the same coordinator."""
        return _lost(error) or (_passes(error, attempt) and is_retriable(error))

    async def moved(self, keys: Collection[Key], deadline: Deadline) -> None:
        """See `Target`."""
        for key in keys:
            self._client.forget_coordinator(self._key_of(key), self._kind)
        await self._client.metadata.refresh((), deadline.remaining)


class ToLeaders:
    """Each item to the leader of the partition that `partition_of` names.

    Two items of one partition go in two requests. Brokers refuse a request that names a partition twice.
    """

    def __init__(self, client: Client, partition_of: Callable[[Any], tuple[str, int]] = tuple) -> None:
        self._client = client
        self._partition_of = partition_of

    async def find_brokers(self, keys: Sequence[Key], deadline: Deadline) -> Requests[Key]:
        """See `Target`."""
        snapshot = self._client.metadata.snapshot
        unknown = {self._partition_of(key)[0] for key in keys if snapshot.leader(*self._partition_of(key)) is None}
        if unknown:
            snapshot = await self._client.metadata.refresh(unknown, deadline.remaining)
        times: Counter[tuple[str, int]] = Counter()
        requests: dict[tuple[Broker, int], list[Key]] = {}
        without_broker: dict[Key, IngestdError] = {}
        for key in keys:
            topic, partition = self._partition_of(key)
            node = snapshot.leader(topic, partition)
            if node is None:
                without_broker[key] = KafkaError(why_no_leader(snapshot, topic, partition), f"{topic}-{partition}")
                continue
            leader = self._client.broker(node.id, PURPOSE)
            requests.setdefault((leader, times[topic, partition]), []).append(key)
            times[topic, partition] += 1
        return [(leader, items) for (leader, _), items in requests.items()], without_broker

    def again(self, error: IngestdError, attempt: int) -> bool:
        """See `Target`."""
        return _lost(error) or (_passes(error, attempt, once=True) and is_retriable(error))

    async def moved(self, keys: Collection[Any], deadline: Deadline) -> None:
        """See `Target`."""
        await self._client.metadata.refresh({self._partition_of(key)[0] for key in keys}, deadline.remaining)


def _passes(error: IngestdError, attempt: int, *, once: bool = False) -> bool:
    """Whether waiting may help. For an unknown topic it does not, but `once`: a leader may learn of it late."""
    if isinstance(error, KafkaError) and error.code is ErrorCode.unknown_topic_or_partition:
        return once and attempt == 0
    return True
