"""Origins: what came to a mirror's source by mirrors, and the producers that a mirror writes with.

A mirror has producer ids of its own. Each is registered on the target before the first batch under it is sent there
(`registry.py`). So whoever reads that cluster knows by the producer id of a batch that a mirror wrote it, and where it
came from. All this is in the worker. It asks the supervisor, once for each producer id.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ingestd.consumer.fetched import FetchedBatch
    from ingestd.daemon.worker_cluster import WorkerCluster
    from ingestd.producer.identity import ProducerIdentity
    from ingestd.producer.producer import AsyncProducer

__all__ = ["Fate", "IdentityWanted", "Origin", "OriginsWanted", "OwnProducers", "SourceProducers", "by_fate"]

MOST_KNOWN: Final = 100_000
"""Producer ids that no mirror has which a worker remembers. Then it forgets them, and asks again."""


class Fate(Enum):
    """What becomes of what a mirror has brought to the source."""

    PASSES = "passes"
    """It was not on the target."""
    CAME_BACK = "came back"
    """It came from the target. It is not copied."""
    UNCLEAR = "unclear"
    """Some of it may have been on the target, and some not."""


class Origin(NamedTuple):
    """Of what was written under one producer id of a mirror. through: the clusters that it may have been on before."""

    fate: Fate
    through: frozenset[str]
    said: str
    """The mirror that wrote it, and its way, for people."""


class OriginsWanted(NamedTuple):
    """The question who writes at the source with these ids. The answer has the `Origin` of those of mirrors."""

    producer_ids: frozenset[int]


class IdentityWanted(NamedTuple):
    """The question for a producer id on the target. It is registered when the answer, a `ProducerIdentity`, comes.

    through: the clusters that what is written may have been on, before it was at the source.
    """

    previous: ProducerIdentity | None
    through: frozenset[str]


class SourceProducers:
    """What a worker knows of the producer ids in a mirror's source."""

    def __init__(self, ask: Callable[[Any], Awaitable[Any]]) -> None:
        """`ask` answers `OriginsWanted`."""
        self._ask = ask
        self._mirrors: dict[int, Origin] = {}
        self._others = {-1}
        """Ids that no mirror has, and the one of batches without a producer id."""
        self._wanted: set[int] = set()
        self._asking = asyncio.Lock()

    def unknown(self, batches: Sequence[FetchedBatch]) -> set[int]:
        """The producer ids of these batches that must be asked for."""
        return {batch.header.producer_id for batch in batches} - self._others - self._mirrors.keys()

    async def learn(self, producer_ids: AbstractSet[int]) -> None:
        """Ask for these, together with what others ask for meanwhile. Raises `IngestdError`."""
        while missing := producer_ids - self._others - self._mirrors.keys():
            self._wanted |= missing
            async with self._asking:
                wanted, self._wanted = frozenset(self._wanted - self._others - self._mirrors.keys()), set()
                if wanted:
                    found: Mapping[int, Origin] = await self._ask(OriginsWanted(wanted))
                    if len(self._others) > MOST_KNOWN:
                        self._others = {-1}
                    self._mirrors.update(found)
                    self._others |= wanted - found.keys()

    def of(self, batches: Sequence[FetchedBatch]) -> dict[int, Origin]:
        """The origins of those of these batches that mirrors wrote, by producer id. Nearly always empty."""
        if not self._mirrors:
            return {}
        met = {batch.header.producer_id for batch in batches} & self._mirrors.keys()
        return {producer_id: self._mirrors[producer_id] for producer_id in met}


def by_fate(
    batches: Sequence[FetchedBatch], origins: Mapping[int, Origin]
) -> Iterator[tuple[Fate, Sequence[FetchedBatch]]]:
    """Batches in runs of one fate, in their order. `origins`: of those that mirrors wrote, by producer id."""
    if not origins:
        return iter([(Fate.PASSES, batches)])

    def fate(batch: FetchedBatch) -> Fate:
        origin = origins.get(batch.header.producer_id)
        return Fate.PASSES if origin is None else origin.fate

    return ((one, list(run)) for one, run in groupby(batches, fate))


class OwnProducers:
    """A mirror's producers in one worker: one for each set of clusters that what it writes may have been on."""

    def __init__(self, target: WorkerCluster, ask: Callable[[Any], Awaitable[Any]]) -> None:
        """`ask` answers `IdentityWanted`."""
        self._target = target
        self._ask = ask
        self._made: dict[frozenset[str], AsyncProducer] = {}

    def of(self, through: frozenset[str]) -> AsyncProducer:
        """The producer for what may have been on these clusters before it was at the source."""
        if through not in self._made:
            self._made[through] = self._target.own_producer(_Registered(self._ask, through))
        return self._made[through]


class _Registered:
    """See `IdentitySource`."""

    def __init__(self, ask: Callable[[Any], Awaitable[Any]], through: frozenset[str]) -> None:
        self._ask = ask
        self._through = through

    async def acquire(self, previous: ProducerIdentity | None) -> ProducerIdentity:
        """See `IdentitySource`."""
        identity: ProducerIdentity = await self._ask(IdentityWanted(previous, self._through))
        return identity
