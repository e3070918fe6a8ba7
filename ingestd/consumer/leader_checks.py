"""Leader checks: questions to leaders about positions in their logs. What comes up together goes into one request."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ingestd.errors import ErrorCode, IngestdError, KafkaError, UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ingestd.client.client import Client
    from ingestd.client.metadata import PartitionMetadata, TopicPartition
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.position import Position
    from ingestd.tasks import TaskOwner
    from ingestd.wire.requests import Build

__all__ = ["LeaderCheck", "LeaderChecks"]

_REQUEST_TIMEOUT: Final = 10.0
"""Seconds; a leader that hangs is then asked again, or its successor."""


class LeaderCheck:
    """A position that a partition's leader is asked about."""

    __slots__ = ("consumer", "leader", "position")

    def __init__(self, consumer: PartitionConsumer, leader: PartitionMetadata) -> None:
        self.consumer = consumer
        self.leader = leader
        self.position: Position = consumer.fetch_position

    @property
    def outdated(self) -> bool:
        """Whether the reader went elsewhere meanwhile, so that the answer says nothing of where it is now."""
        return not self.consumer.live or self.consumer.fetch_position != self.position


Check = TypeVar("Check", bound=LeaderCheck)


class LeaderChecks(ABC, Generic[Check]):
    """Asks each leader about all partitions that came to it together. A subclass has the question, and reads answers.

    Each check ends in one call of `done`, with None or with the error that left it without an answer, unless another
    one about its partition has taken its place. A leader that knows no such question leaves the check as it was made.
    """

    def __init__(self, client: Client, tasks: TaskOwner, *, done: Callable[[Check, IngestdError | None], None]) -> None:
        self._client = client
        self._tasks = tasks
        self._done = done
        self._waiting: dict[int, list[Check]] = {}
        self._under_way: dict[TopicPartition, Check] = {}

    @abstractmethod
    def _question(self, checks: Mapping[TopicPartition, Check]) -> Build:
        """The request that asks about all of them."""

    @abstractmethod
    def _parts(self, answer: Any) -> Iterator[tuple[TopicPartition, Any]]:
        """Each partition's part of an answer; its `error_code` says whether `_read` can take it."""

    @abstractmethod
    def _read(self, check: Check, part: Any) -> None:
        """Note in the check what its part says."""

    @abstractmethod
    def _subject(self, check: Check) -> str:
        """What is asked, for errors."""

    def _begin(self, check: Check) -> None:
        """Have a check's leader asked."""
        self._under_way[check.consumer.key] = check
        leader = check.leader.leader
        waiting = self._waiting.setdefault(leader, [])
        waiting.append(check)
        if len(waiting) == 1:
            self._tasks.start(self._ask_leader(leader), f"broker {leader} is asked about its logs")

    async def _ask_leader(self, node_id: int) -> None:
        await asyncio.sleep(0)
        checks = {check.consumer.key: check for check in self._waiting.pop(node_id)}
        errors: dict[TopicPartition, IngestdError] = {}
        try:
            errors = await self._answers(node_id, checks)
        except UnsupportedVersion:
            pass  # it does not say
        except IngestdError as error:
            errors = dict.fromkeys(checks, error)
        for key, check in checks.items():
            if self._under_way.get(key) is check:
                del self._under_way[key]
                self._done(check, errors.get(key))

    async def _answers(
        self, node_id: int, checks: Mapping[TopicPartition, Check]
    ) -> dict[TopicPartition, IngestdError]:
        """Fill in what the leader says of each; the errors of those of which it says nothing."""
        answer = await self._client.broker(node_id).request(self._question(checks), _REQUEST_TIMEOUT)
        errors: dict[TopicPartition, IngestdError] = {
            key: KafkaError(ErrorCode.unknown_server_error, f"{key}: broker {node_id} left it out of its answer")
            for key in checks
        }
        for key, part in self._parts(answer):
            check = checks.get(key)
            if check is None:
                continue
            if part.error_code is ErrorCode.none:
                self._read(check, part)
                del errors[key]
            else:
                errors[key] = KafkaError(part.error_code, f"{key}, {self._subject(check)}")
        return errors
