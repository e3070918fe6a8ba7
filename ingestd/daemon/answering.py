"""Answering: what a worker asked for, or why it gets nothing, as a message to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestd.daemon.control import Answered, Refused
from ingestd.errors import ErrorCode, IngestdError, KafkaError, UnsupportedVersion, is_retriable

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["answered"]


async def answered(ticket: int, answer: Awaitable[Any]) -> Answered | Refused:
    """The message for a worker that asked under `ticket`, once there is an answer or an error."""
    try:
        return Answered(ticket, await answer)
    except (IngestdError, OSError) as error:
        return Refused(ticket, str(error), _final_code(error))


def _final_code(error: Exception) -> ErrorCode | None:
    """The code of an error that stays if it is tried again; None for any other."""
    if isinstance(error, UnsupportedVersion):
        return ErrorCode.unsupported_version
    return error.code if isinstance(error, KafkaError) and not is_retriable(error) else None
