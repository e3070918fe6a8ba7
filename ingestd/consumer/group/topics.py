"""Subscribed topics: the topics that a member's names, or its pattern, mean now, and changes of them."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from ingestd.errors import ErrorCode, IngestdError
from ingestd.retry import Deadline
from ingestd.wire import requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.client.client import Client
    from ingestd.consumer.group.membership import Topics
    from ingestd.tasks import TaskOwner

__all__ = ["SubscribedTopics"]

_REQUEST_TIMEOUT: Final = 10.0
"""Seconds for one broker to list every topic."""


class SubscribedTopics:
    """The topics of one member. With a pattern, all topics of the cluster are checked periodically."""

    def __init__(
        self,
        client: Client,
        wanted: Topics,
        *,
        interval: float,
        changed: Callable[[], None],
        retried: Callable[[str, IngestdError], None],
    ) -> None:
        """`changed` is called when `names` has changed; `retried` when a check failed and is repeated."""
        self._client = client
        self._pattern = wanted if isinstance(wanted, re.Pattern) else None
        self._names = frozenset() if isinstance(wanted, re.Pattern) else frozenset(wanted)
        self._interval = interval
        self._changed = changed
        self._retried = retried
        self._watch: asyncio.Task[None] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The topics now. With a pattern: at the last check."""
        return self._names

    def same(self, wanted: Topics) -> bool:
        """Whether this is the same subscription."""
        if isinstance(wanted, re.Pattern) or self._pattern is not None:
            return self._pattern == wanted
        return self._names == frozenset(wanted)

    async def look(self, timeout: float) -> None:
        """Check the cluster's topics now, if there is a pattern. To be called before a join.

        Raises `DeadlineExceeded`, `ConnectionLost`, `KafkaError`.
        """
        if self._pattern is None:
            return
        deadline = Deadline.after(timeout)
        broker = await self._client.any()
        answer = await broker.request(requests.metadata(None), min(_REQUEST_TIMEOUT, deadline.remaining))
        matches = self._pattern.fullmatch
        self._names = frozenset(
            topic.name
            for topic in answer.topics
            if topic.error_code in (ErrorCode.none, ErrorCode.leader_not_available)
            and not topic.is_internal
            and matches(topic.name)
        )

    def start(self, tasks: TaskOwner) -> None:
        """Watch the pattern's topics, if there is one, as a task of `tasks`."""
        if self._pattern is not None:
            self._watch = tasks.start(self._look_again_and_again(), f"topics that match {self._pattern.pattern}")

    def stop(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.cancel()

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            before = self._names
            try:
                await self.look(_REQUEST_TIMEOUT)
            except IngestdError as error:
                self._retried("list topics", error)
                continue
            if self._names != before:
                self._changed()
