"""Topic names: the names of the topic ids that a KIP-848 coordinator sends. Each id is asked for once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.errors import ErrorCode, raise_for_code
from ingestd.wire import requests

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from ingestd.client.client import Client

__all__ = ["TopicNames"]


class TopicNames:
    """Names by topic id. An id belongs to one topic for ever. A topic that is created again has another id."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._names: dict[UUID, str] = {}

    def __getitem__(self, topic_id: UUID) -> str:
        return self._names[topic_id]

    def missing(self, topic_ids: Collection[UUID]) -> set[UUID]:
        """Those whose name is not known."""
        return set(topic_ids) - self._names.keys()

    async def find(self, topic_ids: Collection[UUID], timeout: float) -> None:
        """Ask a broker for those not known yet (it may not know them either), and forget all others.

        A member that lives for years sees many topics come and go. Raises `ConnectionLost`, `DeadlineExceeded`,
        `KafkaError`, `UnsupportedVersion`, `Closed`.
        """
        self._names = {topic_id: self._names[topic_id] for topic_id in topic_ids if topic_id in self._names}
        missing = self.missing(topic_ids)
        if not missing:
            return
        broker = await self._client.any()
        answer = await broker.request(requests.metadata((), topic_ids=sorted(missing)), timeout)
        raise_for_code(getattr(answer, "error_code", ErrorCode.none), "Metadata")
        for topic in answer.topics:
            if topic.error_code is not ErrorCode.unknown_topic_id and topic.name and topic.topic_id is not None:
                self._names[topic.topic_id] = topic.name
