"""Interceptors: see and change records before they are partitioned, and see what became of them (KIP-42)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ingestd.errors import IngestdError
from ingestd.producer.delivery import Delivery, deliver
from ingestd.producer.message import OutgoingMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingestd.producer.delivery import Delivered

__all__ = ["Interceptor", "Interceptors"]

_log = logging.getLogger(__name__)

_UNKNOWN_PARTITION = -1


class Interceptor:
    """To be derived from. Called on the event loop for each record given to `send`, in the order of the settings.

    If a method raises, that is logged and counted, and the record goes on as it was. Ready batches (`send_batch`) are
    not seen.
    """

    def on_send(self, message: OutgoingMessage) -> OutgoingMessage:
        """The record to send instead, or `message` itself; its topic may be another. Must not block."""
        return message

    def on_acknowledgement(self, message: OutgoingMessage, delivery: Delivery) -> None:
        """How a record ended; the record is as the last `on_send` left it. Called before its `done`. Must not block.

        Once for each record that `on_send` saw; one that `send` refused afterwards comes with that error.
        """


class Interceptors:
    """A producer's interceptors, in order.

    Invariants
        Each one sees the record as the one before it left it. One that raises is skipped.
        Every record seen has exactly one `on_acknowledgement` from each, whatever `send` and the brokers say.
    """

    def __init__(self, interceptors: Sequence[Interceptor], untold: Callable[[str, int, IngestdError], None]) -> None:
        """`untold` is called for failed records that have no `done`: topic, how many, error."""
        self.failures = 0
        """How often one raised."""
        self._interceptors = tuple(interceptors)
        silent = Interceptor.on_acknowledgement
        self._untold = untold
        self._listeners = tuple(each for each in interceptors if type(each).on_acknowledgement is not silent)

    def send(
        self,
        message: OutgoingMessage,
        done: Delivered | None,
        accept: Callable[[OutgoingMessage, Delivered | None], None],
    ) -> None:
        """Call `accept` with the record that the interceptors make of `message`. Raises what `accept` raises."""
        for each in self._interceptors:
            try:
                message = _changed(each, message)
            except Exception:  # noqa: BLE001 - whatever foreign code raises, the record goes on
                self._failed(each, "on_send", message.topic)
        if not self._listeners:
            accept(message, done)
            return

        def ended(delivery: Delivery) -> None:
            self._tell(message, delivery)
            if done is not None:
                deliver(done, delivery)
            elif delivery.error is not None:
                self._untold(delivery.topic, 1, delivery.error)

        try:
            accept(message, ended)
        except Exception as error:
            reason = error if isinstance(error, IngestdError) else IngestdError(str(error))
            partition = _UNKNOWN_PARTITION if message.partition is None else message.partition
            self._tell(message, Delivery(message.topic, partition, 1, error=reason))
            raise

    def _tell(self, message: OutgoingMessage, delivery: Delivery) -> None:
        for each in self._listeners:
            try:
                each.on_acknowledgement(message, delivery)
            except Exception:  # noqa: BLE001 - the record's end must come
                self._failed(each, "on_acknowledgement", message.topic)

    def _failed(self, interceptor: Interceptor, method: str, topic: str) -> None:
        self.failures += 1
        # A broken interceptor fails for every record. So its traceback is logged at powers of two only.
        if self.failures & (self.failures - 1) == 0:
            name = type(interceptor).__qualname__
            _log.exception("%s.%s raised for a record of %s; %d failures so far", name, method, topic, self.failures)


def _changed(interceptor: Interceptor, message: OutgoingMessage) -> OutgoingMessage:
    changed = interceptor.on_send(message)
    if not isinstance(changed, OutgoingMessage):
        raise TypeError(f"on_send gave {type(changed).__name__}; expected an OutgoingMessage")
    return changed
