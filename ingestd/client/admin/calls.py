"""Administrative calls: each item goes to its broker, again if that has changed, all in one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ingestd.checks import require_client
from ingestd.errors import ConnectionLost, DeadlineExceeded, ErrorCode, IngestdError, KafkaError, ProtocolError
from ingestd.tasks import end_task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence

    from ingestd.client.admin.targets import Target
    from ingestd.client.broker import Broker
    from ingestd.client.client import Client
    from ingestd.retry import Deadline
    from ingestd.wire.requests import Build

__all__ = ["Administration", "Outcomes", "error_of"]

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")

_SHORTEST_ATTEMPT: Final = 5.0
_PATIENCE: Final = 3.0
"""Seconds without an answer. Then metadata is refreshed, to see if the node is still in the cluster."""


@dataclass(frozen=True, slots=True)
class Outcomes(Generic[Key, Found]):
    """The outcome of each item: what was found, or an error.

    `unsure` are items of which an earlier attempt had no answer. It may have taken effect. Then the answer to a later
    attempt is about this call's own change.
    """

    found: dict[Key, Found | IngestdError]
    unsure: frozenset[Key]

    def error(self, key: Key, *, done: Collection[ErrorCode] = ()) -> IngestdError | None:
        """The item's error. One in `done` does not count if an earlier attempt of this call may have caused it."""
        found = self.found[key]
        if not isinstance(found, IngestdError):
            return None
        own_doing = isinstance(found, KafkaError) and found.code in done and key in self.unsure
        return None if own_doing else found


class Administration:
    """Base class of all parts of the administration: a client, and the loop that asks until there is an answer.

    Invariants
        Each item has its own outcome. One that fails does not stop the others.
        An item is asked for again, by its target's rules, until the deadline. Its last error is its outcome.
        If no broker answered for any item, the error is raised: `ConnectionLost`, `DeadlineExceeded`,
        `UnsupportedVersion`.
        A node that does not answer is given up as soon as metadata says that it left the cluster.
    """

    def __init__(self, client: Client) -> None:
        """Asks for nothing yet. Raises `ConfigurationError` if it is not a client."""
        require_client(client)
        self._client = client

    async def _items(
        self,
        keys: Iterable[Key],
        target: Target[Key],
        build: Callable[[Sequence[Key]], Build],
        read: Callable[[Any, Sequence[Key]], Mapping[Key, Found | IngestdError]],
        deadline: Deadline,
    ) -> Outcomes[Key, Found]:
        """Ask for items. `read` raises `KafkaError` for what the answer says of all its items."""
        asked = list(dict.fromkeys(keys))
        if not asked:
            return Outcomes({}, frozenset())
        left = asked
        found: dict[Key, Found | IngestdError] = {}
        unsure: set[Key] = set()
        backoff = self._client.settings.retry_backoff()
        async for attempt in backoff.attempts_until(deadline):
            try:
                if attempt:
                    await target.moved(left, deadline)
                requests, without_broker = await target.find_brokers(left, deadline)
            except IngestdError as error:
                if not attempt and not target.again(error, attempt):
                    raise
                _note(found, dict.fromkeys(left, error), deadline)
                if not target.again(error, attempt):
                    break
                continue
            _note(found, without_broker, deadline)
            answers = await asyncio.gather(
                *(self._ask(broker, items, build, read, deadline) for broker, items in requests)
            )
            for answer, sent in answers:
                _note(found, answer, deadline)
                if sent:
                    unsure.update(key for key, outcome in answer.items() if _is_open(outcome))
            left = [key for key in left if isinstance(now := found[key], IngestdError) and target.again(now, attempt)]
            if not left:
                break
        _raise_if_nobody_answered(found.values())
        return Outcomes({key: found[key] for key in asked}, frozenset(unsure))

    async def _one(
        self, target: Target[None], build: Callable[[], Build], read: Callable[[Any], Found], deadline: Deadline
    ) -> Found:
        """Ask one question. Raises `KafkaError` and what `_items` raises."""

        def read_one(answer: Any, _: Sequence[None]) -> Mapping[None, Found | IngestdError]:
            return {None: read(answer)}

        outcomes: Outcomes[None, Found] = await self._items([None], target, lambda _: build(), read_one, deadline)
        found = outcomes.found[None]
        if isinstance(found, IngestdError):
            raise found
        return found

    async def _nodes(self, deadline: Deadline) -> list[int]:
        """The ids of all nodes, as the cluster has them now."""
        return sorted((await self._client.metadata.refresh((), deadline.remaining)).nodes)

    async def _ask(
        self,
        broker: Broker,
        keys: Sequence[Key],
        build: Callable[[Sequence[Key]], Build],
        read: Callable[[Any, Sequence[Key]], Mapping[Key, Found | IngestdError]],
        deadline: Deadline,
    ) -> tuple[dict[Key, Found | IngestdError], bool]:
        """What one broker says about some items, and whether the request may have reached it."""
        settings = self._client.settings
        sent = False
        try:
            connection = await broker.connection(min(settings.connect_timeout, deadline.remaining))
            request = build(keys)(connection.versions)
            sent = True
            answer = await self._watched(connection.request(request, timeout=self._share(deadline)), broker)
            answered = _understood(answer, keys, read)
        except IngestdError as error:
            return dict.fromkeys(keys, error), sent
        left_out = KafkaError(ErrorCode.unknown_server_error, "the broker left it out of its answer")
        return {key: answered.get(key, left_out) for key in keys}, sent

    def _share(self, deadline: Deadline) -> float:
        """Seconds for one attempt: half of what is left, so that another broker can be asked if this one is stuck.

        It may be stuck because it passes requests on to a frozen controller. It notices that half a minute later.
        """
        share = max(deadline.remaining / 2, min(deadline.remaining, _SHORTEST_ATTEMPT))
        return min(self._client.settings.request_timeout, share)

    def _milliseconds(self, deadline: Deadline) -> int:
        """What a broker may take: a little less than the attempt, so that its answer comes in time."""
        return max(1, int(self._share(deadline) * 900))

    async def _watched(self, request: Coroutine[Any, Any, Found], broker: Broker) -> Found:
        """The answer to a request. While there is none, metadata is refreshed, to see if the node is still there."""
        asking = asyncio.ensure_future(request)
        try:
            while not (await asyncio.wait([asking], timeout=_PATIENCE))[0]:
                self._client.metadata.wanted((), f"{broker!r} does not answer")
            return asking.result()
        finally:
            await end_task(asking)


def _is_lost(outcome: object) -> bool:
    return isinstance(outcome, (ConnectionLost, DeadlineExceeded))


def _is_open(outcome: object) -> bool:
    """Whether a change with this outcome may have been made nevertheless, or may still be made."""
    return _is_lost(outcome) or (isinstance(outcome, KafkaError) and outcome.code is ErrorCode.request_timed_out)


def _note(found: dict[Key, Found | IngestdError], news: Mapping[Key, Found | IngestdError], deadline: Deadline) -> None:
    """Take the outcomes of an attempt. If the deadline ended it, an earlier error stays: that is the reason."""
    for key, outcome in news.items():
        if not (deadline.expired and _is_lost(outcome) and key in found):
            found[key] = outcome


def _understood(
    answer: Any,
    keys: Sequence[Key],
    read: Callable[[Any, Sequence[Key]], Mapping[Key, Found | IngestdError]],
) -> Mapping[Key, Found | IngestdError]:
    """Read an answer. One with the right layout may still have wrong content: no topic, an unknown number."""
    try:
        return read(answer, keys)
    except (LookupError, ValueError) as error:
        raise ProtocolError(f"{type(answer).__name__}: {error!r}") from error


def _raise_if_nobody_answered(outcomes: Collection[object]) -> None:
    errors = [outcome for outcome in outcomes if isinstance(outcome, IngestdError)]
    if errors and len(errors) == len(outcomes) and not any(isinstance(error, KafkaError) for error in errors):
        raise errors[0]


def error_of(code: ErrorCode, about: str, message: str | None = None) -> KafkaError | None:
    """The error that a code in an answer means; None for `none`. A message that is but the name is not said again."""
    if code is ErrorCode.none:
        return None
    return KafkaError(code, f"{about}: {message}" if message and message != about else about)
