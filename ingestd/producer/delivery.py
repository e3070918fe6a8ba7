"""What becomes of a record or a batch: the one value that every accepted record ends in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.errors import IngestdError

__all__ = ["Delivered", "Delivery", "deliver"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The end of one batch: an offset, or the error that ended it.

    `base_offset` is that of the batch's first record (-1 where the broker does not say: acks=0, or a batch of which
    only an acknowledgement of what followed it tells that it is in the log). `log_append_time_ms` is -1 unless the topic stamps records itself.
    """

    topic: str
    partition: int
    records: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    error: IngestdError | None = None


Delivered: TypeAlias = "Callable[[Delivery], None]"
"""Called exactly once for every batch accepted, on the event loop; must not raise and must not block."""


def deliver(done: Delivered, delivery: Delivery) -> None:
    """Call `done`. One that raises all the same is reported to the loop's exception handler and hurts nobody else."""
    try:
        done(delivery)
    except Exception as error:  # noqa: BLE001 - whatever the caller's code raises, the other batches' ends must come
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{delivery.topic}[{delivery.partition}]: a delivery callback raised", "exception": error}
        )
