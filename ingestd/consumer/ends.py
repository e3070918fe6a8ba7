"""Ends: whether what a leader had nothing of is gone, or only not at hand (KIP-405). Asked by ListOffsets.

A read up to an end meets no batch at that end where compaction took them all, so empty answers must stand for it. But a
leader also answers with nothing, no error and the same watermarks where it reads from remote storage and that takes too
long (`remote.fetch.max.wait.ms`, KIP-1018), is throttled (KIP-956), or, before Kafka 4.2, serves another such partition
of the same request. What it has on its own disks comes at once. So its first local offset tells the two apart: from
there on, nothing means that there is nothing; below it, it means nothing, however often it is said. But from Kafka 4.2
on, one that reads another partition of the request from remote storage leaves out a batch that is above the limits: so
the last word is an answer to a fetch of nothing else.

What cannot be known: whether remote storage still has records of an offset, other than by reading them. A read whose
rest lies there goes on until they come; if none is left (a topic that was compacted before its log went to remote
storage), it is the reader who must give up, as `BlockingConsumer` does after its `patience`. And whether a broker that
does not tell its first local offset (ListOffsets before version 8, or -1 for an answer) has everything at hand. Apache
Kafka before 3.5 has; of others that speak its protocol nothing but patience tells: more empty answers, over more than a
second, each of which may be held back longer than the one before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingestd.client.metadata import TopicPartition
from ingestd.errors import ErrorCode, IngestdError, KafkaError, UnsupportedVersion
from ingestd.wire.requests import OffsetAt, list_offsets
from ingestd.wire.requests.offsets import EARLIEST_LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.client.client import Client
    from ingestd.client.metadata import PartitionMetadata
    from ingestd.consumer.partition_consumer import PartitionConsumer
    from ingestd.consumer.position import Position
    from ingestd.tasks import TaskOwner

__all__ = ["EndCheck", "EndChecks"]

_REQUEST_TIMEOUT: Final = 10.0
"""Seconds; a leader that hangs is then asked again, or its successor."""


class EndCheck:
    """A position at which a leader has nothing, although its log goes on.

    `by_itself`: whether it was asked for nothing else. `at_hand`: whether all that it has from there on is on its
    disks; None where it does not say.
    """

    __slots__ = ("at_hand", "by_itself", "consumer", "leader", "position")

    def __init__(self, consumer: PartitionConsumer, leader: PartitionMetadata, *, by_itself: bool) -> None:
        self.consumer = consumer
        self.by_itself = by_itself
        self.leader = leader
        self.position: Position = consumer.place
        self.at_hand: bool | None = None

    @property
    def outdated(self) -> bool:
        """Whether the reader went elsewhere meanwhile, so that the answer says nothing of where it is now."""
        return not self.consumer.live or self.consumer.place != self.position


class EndChecks:
    """Asks each leader about all partitions that came to an end together, and calls `done` for each.

    `done` gets the check and None, or the error that left it without an answer.
    """

    def __init__(
        self, client: Client, tasks: TaskOwner, *, done: Callable[[EndCheck, IngestdError | None], None]
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._done = done
        self._waiting: dict[int, list[EndCheck]] = {}

    def ask(self, consumer: PartitionConsumer, leader: PartitionMetadata, *, by_itself: bool) -> None:
        """Ask the leader that had nothing of it what it has at hand."""
        waiting = self._waiting.setdefault(leader.leader, [])
        waiting.append(EndCheck(consumer, leader, by_itself=by_itself))
        if len(waiting) == 1:
            self._tasks.start(self._ask_leader(leader.leader), f"what broker {leader.leader} has at hand")

    async def _ask_leader(self, node_id: int) -> None:
        await asyncio.sleep(0)  # partitions that end together go into one request
        # Of two that ask about one partition the earlier has ended.
        checks = {check.consumer.key: check for check in self._waiting.pop(node_id)}
        errors: dict[TopicPartition, IngestdError] = {}
        try:
            errors = await self._answers(node_id, checks)
        except UnsupportedVersion:
            pass  # it does not say
        except IngestdError as error:
            errors = dict.fromkeys(checks, error)
        for key, check in checks.items():
            self._done(check, errors.get(key))

    async def _answers(
        self, node_id: int, checks: dict[TopicPartition, EndCheck]
    ) -> dict[TopicPartition, IngestdError]:
        """Fill in what the leader says of each; the errors of those of which it says nothing."""
        asked = [OffsetAt(*key, EARLIEST_LOCAL, check.leader.leader_epoch) for key, check in checks.items()]
        answer = await self._client.broker(node_id).request(list_offsets(asked), _REQUEST_TIMEOUT)
        errors: dict[TopicPartition, IngestdError] = {
            key: KafkaError(ErrorCode.unknown_server_error, f"{key}: broker {node_id} left it out of its answer")
            for key in checks
        }
        for topic in answer.topics:
            for part in topic.partitions:
                key = TopicPartition(topic.name, part.partition_index)
                check = checks.get(key)
                if check is None:
                    continue
                if part.error_code is ErrorCode.none:
                    check.at_hand = None if part.offset < 0 else part.offset <= check.position.offset
                    del errors[key]
                else:
                    errors[key] = KafkaError(part.error_code, f"{key}, its first local offset")
        return errors
