"""What brokers hear a moment after the controller has done it; a long one, where the machine stands still."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingestd.errors import ErrorCode, KafkaError
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from ingestd.client.client import Client

__all__ = ["partitions_of_new"]

_PATIENCE: Final = 30.0


async def partitions_of_new(client: Client, topic: str) -> list[int]:
    """The partitions of a topic that was just made. Raises `KafkaError` where nobody has heard of it in 30 s.

    A client gives an unknown topic up after a few attempts, as it should.
    """
    deadline = Deadline.after(_PATIENCE)
    while True:
        try:
            return await client.partitions(topic, deadline.remaining)
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition or deadline.expired:
                raise
        await asyncio.sleep(0.05)
