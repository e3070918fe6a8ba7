"""Faults that a test asks for: chosen requests fail, are late, or lose their connection. None unless asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from ingestd.broker.request import Answer
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from ingestd.broker.api.handlers import Handler
    from ingestd.broker.node import Node
    from ingestd.broker.request import Handled, Request
    from ingestd.broker.session import Context

__all__ = ["FAILABLE", "Action", "Fault", "Faults"]

FAILABLE: Final = frozenset(
    {
        Api.produce, Api.fetch, Api.list_offsets, Api.offset_for_leader_epoch, Api.delete_records,
        Api.join_group, Api.sync_group, Api.heartbeat, Api.leave_group, Api.consumer_group_heartbeat,
        Api.offset_commit, Api.offset_fetch, Api.offset_delete, Api.describe_groups, Api.delete_groups,
        Api.consumer_group_describe, Api.init_producer_id, Api.add_partitions_to_txn, Api.end_txn,
        Api.add_offsets_to_txn, Api.txn_offset_commit, Api.write_txn_markers, Api.describe_transactions,
        Api.list_transactions, Api.describe_producers,
    }
)  # fmt: skip
"""What can be answered with an error: requests for a leader or a coordinator."""


class Action(Enum):
    """What a fault does to a request.

    `fail`: it is answered with an error, and nothing is done. `delay`: it is done later, and what is behind it on the
    connection waits. `cut`: the connection ends before it is done. `cut_answer`: it is done, then the connection ends
    without an answer.
    """

    fail = "fail"
    delay = "delay"
    cut = "cut"
    cut_answer = "cut_answer"


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of requests of `api` at a node (None: at each one). `seconds` is for `delay`, `error` for `fail`."""

    action: Action
    api: Api
    node: int | None = None
    seconds: float = 0.0
    error: ErrorCode = ErrorCode.none

    def handle(self, handler: Handler, context: Context, request: Request) -> Handled:
        """In place of the handler."""
        if self.action is Action.cut:
            return _NO_ANSWER
        if self.action is not Action.fail:
            return self._late(handler, context, request)
        context.session.failure = self.error
        try:
            return handler.handle(context, request)
        finally:
            context.session.failure = ErrorCode.none

    async def _late(self, handler: Handler, context: Context, request: Request) -> Answer:
        await context.broker.clock.sleep(self.seconds)
        handled = handler.handle(context, request)
        answer = handled if isinstance(handled, Answer) else await handled
        return _NO_ANSWER if self.action is Action.cut_answer else answer


_NO_ANSWER: Final = Answer(None, ErrorCode.network_exception, closes=True)


class Faults:
    """The faults that wait for their requests, and the nodes that take no connection."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self._refusing: set[int] = set()

    def add(self, fault: Fault, times: int) -> None:
        """Let this happen to the next so many requests that it is for."""
        self._waiting += [fault] * times

    def refuse(self, node_id: int) -> None:
        """Let a node take no connection."""
        self._refusing.add(node_id)

    def clear(self) -> None:
        """Let nothing happen any more."""
        self._waiting.clear()
        self._refusing.clear()

    @property
    def waiting(self) -> int:
        """How many requests are still to be hit."""
        return len(self._waiting)

    def refuses(self, node: Node) -> bool:
        """Whether a node takes no connection now."""
        return node.id in self._refusing

    def take(self, node: Node, request: Request) -> Fault | None:
        """What happens to a request. The fault is used up."""
        for number, fault in enumerate(self._waiting):
            if fault.api == request.api and fault.node in {None, node.id}:
                return self._waiting.pop(number)
        return None
