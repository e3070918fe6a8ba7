"""Producer identity (KIP-98): the producer id and epoch by which brokers know a producer, and where they come from."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ingestd.errors import IngestdError, UnsupportedVersion, is_retriable, raise_for_code
from ingestd.retry import Backoff
from ingestd.wire import requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.client.client import Client
    from ingestd.tasks import TaskOwner

__all__ = ["NO_SEQUENCE", "FetchedIdentities", "IdentityDesk", "IdentitySource", "ProducerIdentity", "next_sequence"]

NO_SEQUENCE: Final = -1
"""Stands for the sequence, the producer id and the epoch if a batch has none."""

_LAST_EPOCH: Final = 0x7FFF
_SEQUENCE_MASK: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer id and its epoch. Brokers refuse an epoch older than the newest they saw, partition by partition."""

    producer_id: int
    epoch: int


def next_sequence(sequence: int, records: int) -> int:
    """The sequence after a batch of `records` that began at `sequence`; 2^31 - 1 is followed by 0."""
    return (sequence + records) & _SEQUENCE_MASK


class IdentitySource(Protocol):
    """Where identities come from: the cluster, or a supervisor that asks the cluster for its workers."""

    async def acquire(self, previous: ProducerIdentity | None) -> ProducerIdentity:
        """An identity that was never used. With `previous`, brokers fence what is still under way under that one.

        Several partitions may ask with the same `previous` and may be given the same identity: sequences and epochs
        are kept per partition. Raises `IngestdError`; one that is retriable is asked again.
        """
        ...


class FetchedIdentities:
    """Identities from InitProducerId, answered by any broker."""

    def __init__(self, client: Client, timeout: float = 30.0) -> None:
        self._client = client
        self._timeout = timeout

    async def acquire(self, previous: ProducerIdentity | None) -> ProducerIdentity:
        """The next epoch of `previous`, or a new producer id. Without a transactional id clients increment epochs."""
        if previous is not None and previous.epoch < _LAST_EPOCH:
            return ProducerIdentity(previous.producer_id, previous.epoch + 1)
        broker = await self._client.any()
        try:
            answer = await broker.request(requests.init_producer_id(), self._timeout)
        except UnsupportedVersion as error:
            raise UnsupportedVersion(
                f"{error}; idempotence needs Kafka 0.11 (idempotent=False does without)"
            ) from error
        raise_for_code(answer.error_code, "InitProducerId")
        return ProducerIdentity(int(answer.producer_id), int(answer.producer_epoch))


class IdentityDesk:
    """Asks the source on behalf of partitions that cannot wait, again and again until it answers.

    Invariants
        All partitions that ask for a first identity share one request.
        Each question is answered once, or `failed` is told, or the owner of the tasks is closing.
    """

    def __init__(self, source: IdentitySource, tasks: TaskOwner, failed: Callable[[IngestdError], None]) -> None:
        self._source = source
        self._tasks = tasks
        self._failed = failed
        self._first: ProducerIdentity | None = None
        self.trouble: IngestdError | None = None
        """The error of the last request, while it is repeated."""
        self._waiting: dict[ProducerIdentity | None, list[Callable[[ProducerIdentity], None]]] = {}

    @property
    def first(self) -> ProducerIdentity | None:
        """The identity that partitions start with, once it is known."""
        return self._first

    def ask(self, previous: ProducerIdentity | None, then: Callable[[ProducerIdentity], None]) -> None:
        """Have `then` called with an identity that follows `previous`. It is never called before this returns."""
        waiting = self._waiting.get(previous)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[previous] = [then]
        self._tasks.start(self._acquire(previous), "producer identity")

    async def _acquire(self, previous: ProducerIdentity | None) -> None:
        backoff = Backoff()
        while True:
            try:
                identity = await self._source.acquire(previous)
                break
            except Exception as error:  # noqa: BLE001 - whatever a source raises, who waits is told
                self.trouble = error if isinstance(error, IngestdError) else IngestdError(repr(error))
                if not is_retriable(error):
                    self._failed(self.trouble)
                    return
                await asyncio.sleep(backoff.next_delay())
        self.trouble = None
        if previous is None:
            self._first = identity
        for then in self._waiting.pop(previous):
            then(identity)
