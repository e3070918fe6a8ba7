"""Coordinators: which node coordinates a group or a transactional id. Looked up by FindCoordinator, and remembered."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from ingestd.client.brokers import CONTROL
from ingestd.client.metadata import Node
from ingestd.errors import (
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    IngestdError,
    KafkaError,
    UnsupportedVersion,
    is_retriable,
)
from ingestd.wire import requests

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ingestd.client.brokers import Brokers
    from ingestd.client.settings import ClientSettings
    from ingestd.retry import Deadline

__all__ = ["CoordinatorKind", "Coordinators"]


_MOST_KNOWN: Final = 10_000
"""Most that are remembered. An administrator may ask for far more groups. The oldest is forgotten first."""


class CoordinatorKind(IntEnum):
    """What a coordinator coordinates. The values are the key types of FindCoordinator."""

    group = 0
    transaction = 1


class Coordinators:
    """Knows coordinators' nodes.

    Invariants
        A known coordinator is answered without a request, until `forget`.
        Keys that are asked for together go in one request if the broker can take that (version 4, KIP-699).
        A broker that does not answer is deregistered, and another one is asked.
    """

    def __init__(self, brokers: Brokers, settings: ClientSettings) -> None:
        self._brokers = brokers
        self._settings = settings
        self._known: dict[tuple[CoordinatorKind, str], Node] = {}

    @property
    def known(self) -> Mapping[tuple[CoordinatorKind, str], Node]:
        """Every coordinator that is remembered."""
        return self._known

    def forget(self, key: str, kind: CoordinatorKind) -> None:
        """Look it up again next time: after NOT_COORDINATOR, or after its connection was lost."""
        self._known.pop((kind, key), None)

    async def find(
        self, keys: Collection[str], kind: CoordinatorKind, deadline: Deadline, *, attempts: int | None = None
    ) -> dict[str, Node | IngestdError]:
        """The coordinator of each key, or the error. Asked for so many times at most; None: until the deadline."""
        found: dict[str, Node | IngestdError] = {
            key: self._known.get((kind, key)) or KafkaError(ErrorCode.coordinator_not_available, key) for key in keys
        }
        left = [key for key, node in found.items() if not isinstance(node, Node)]
        if not left:
            return found
        async for attempt in self._settings.retry_backoff().attempts_until(deadline):
            for key, outcome in (await self._ask(left, kind, deadline)).items():
                if isinstance(outcome, Node):
                    self._remember(kind, key, outcome)
                    found[key] = outcome
                elif not attempt or not deadline.expired:  # else an earlier error is the reason
                    found[key] = outcome
            left = [key for key in left if isinstance(error := found[key], IngestdError) and is_retriable(error)]
            if not left or attempt + 1 == attempts:
                break
        for key, error in found.items():
            if isinstance(error, (ConnectionLost, DeadlineExceeded)):
                found[key] = type(error)(f"coordinator of {kind.name} {key}: {error}")
        return found

    def _remember(self, kind: CoordinatorKind, key: str, node: Node) -> None:
        self._known[kind, key] = node
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    async def _ask(
        self, keys: Sequence[str], kind: CoordinatorKind, deadline: Deadline
    ) -> dict[str, Node | IngestdError]:
        broker = self._brokers.any(CONTROL)
        timeout = min(self._settings.metadata_request_timeout, deadline.remaining)
        try:
            answer = await broker.request(requests.find_coordinators(keys, kind), timeout)
        except UnsupportedVersion as error:
            if len(keys) == 1:
                return {keys[0]: error}
            answers = await asyncio.gather(*(self._ask([key], kind, deadline) for key in keys))
            return {key: outcome for one in answers for key, outcome in one.items()}
        except IngestdError as error:
            if isinstance(error, (ConnectionLost, DeadlineExceeded)):
                self._brokers.deregister(broker, str(error))
            return dict.fromkeys(keys, error)
        return _coordinators(answer, keys)


def _coordinators(answer: Any, keys: Sequence[str]) -> dict[str, Node | IngestdError]:
    if not hasattr(answer, "coordinators"):
        return {keys[0]: _coordinator(answer, keys[0])}
    found = {coordinator.key: _coordinator(coordinator, coordinator.key) for coordinator in answer.coordinators}
    missing = KafkaError(ErrorCode.coordinator_not_available, "the broker left it out of its answer")
    return {key: found.get(key, missing) for key in keys}


def _coordinator(found: Any, key: str) -> Node | IngestdError:
    if found.error_code is ErrorCode.none:
        return Node(found.node_id, found.host, found.port)
    message = getattr(found, "error_message", None)
    return KafkaError(found.error_code, f"{key}: {message}" if message else key)
