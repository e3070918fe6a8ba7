"""Coordinator: finds the broker that coordinates a group, and says what to do after each of its errors."""

from __future__ import annotations

import itertools
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ingestd.client.client import CoordinatorKind
from ingestd.errors import ErrorCode, IngestdError, KafkaError, is_retriable
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.client.broker import Broker
    from ingestd.client.client import Client
    from ingestd.wire.requests import Build

__all__ = ["COMMIT", "FETCH", "HEARTBEAT", "JOIN", "LEAVE", "SYNC", "Action", "GroupCoordinator"]


class Action(Enum):
    """What to do about an error."""

    retry = "retry"
    """The same request again, after a backoff."""
    find_coordinator = "find coordinator"
    """The same, after the coordinator was looked up again."""
    rejoin = "rejoin"
    """The group rebalances: take part."""
    take_member_id = "take member id"
    """Join again with the id that the answer gives (KIP-394)."""
    new_generation = "new generation"
    """Our generation has ended without us. Join again. What we had is lost."""
    new_member = "new member"
    """We are no member any more. Join again as a new one. What we had is lost."""
    fail = "fail"
    """Trying again does not mend it."""


_numbers = itertools.count(1)

Actions: TypeAlias = "Mapping[ErrorCode, Action]"

_FINDING: Final[Actions] = {
    ErrorCode.coordinator_load_in_progress: Action.retry,
    ErrorCode.coordinator_not_available: Action.find_coordinator,
    ErrorCode.not_coordinator: Action.find_coordinator,
}
_MEMBERSHIP: Final[Actions] = {
    ErrorCode.rebalance_in_progress: Action.rejoin,
    ErrorCode.illegal_generation: Action.new_generation,
    ErrorCode.unknown_member_id: Action.new_member,
}
JOIN: Final[Actions] = {
    **_FINDING,
    ErrorCode.rebalance_in_progress: Action.retry,
    ErrorCode.member_id_required: Action.take_member_id,
    ErrorCode.unknown_member_id: Action.new_member,
    ErrorCode.illegal_generation: Action.new_generation,
}
SYNC: Final[Actions] = {**_FINDING, **_MEMBERSHIP}
HEARTBEAT: Final[Actions] = {**_FINDING, **_MEMBERSHIP}
LEAVE: Final[Actions] = _FINDING
COMMIT: Final[Actions] = {
    **_FINDING,
    **_MEMBERSHIP,
    ErrorCode.request_timed_out: Action.find_coordinator,
    ErrorCode.unknown_topic_or_partition: Action.retry,
    ErrorCode.stale_member_epoch: Action.new_generation,
}
FETCH: Final[Actions] = {
    **_FINDING,
    ErrorCode.unstable_offset_commit: Action.retry,
    ErrorCode.unknown_topic_or_partition: Action.fail,
}


class GroupCoordinator:
    """Sends requests about one group to its coordinator. Shared by all that a membership does.

    If a coordinator answers late, hangs up, or says that it is not the one, the next request looks it up again.
    """

    def __init__(self, client: Client, group_id: str, request_timeout: float) -> None:
        self.group_id = group_id
        self._client = client
        self._request_timeout = request_timeout
        # Two members of one group may share a client: the join of one must not wait behind the other's.
        self._held_purpose = f"member {next(_numbers)} of {group_id}"
        self._held: Broker | None = None

    async def request(self, build: Build, timeout: float) -> Any:
        """Find the coordinator if it is not known, and return its answer (a kio entity), all within `timeout` seconds.

        Raises `KafkaError` if there is none, or if we may not ask, `ConnectionLost`, `DeadlineExceeded`, `Closed`,
        `UnsupportedVersion`.
        """
        deadline = Deadline.after(timeout)
        broker = await self._client.coordinator(self.group_id, CoordinatorKind.group, deadline.remaining)
        try:
            return await broker.request(build, deadline.remaining)
        except IngestdError:
            self.forget()
            raise

    async def request_held(self, build: Build, wait: float) -> Any:
        """The same for a request that the coordinator may hold back for `wait` seconds, until other members come.

        It has a connection of its own. A broker reads nothing after a request that it holds back: no heartbeat, no
        commit, no LeaveGroup. Cancelling it drops the answer.
        """
        deadline = Deadline.after(self._request_timeout)
        broker = await self._client.coordinator(
            self.group_id, CoordinatorKind.group, deadline.remaining, purpose=self._held_purpose
        )
        if broker is not self._held:
            self.release()
            self._held = broker
        try:
            return await broker.request(build, deadline.remaining + wait)
        except IngestdError:
            self.forget()
            raise

    def release(self) -> None:
        """End the connection for requests that are held back. The next such request opens another one."""
        if self._held is not None:
            self._client.release(self._held)
            self._held = None

    def forget(self) -> None:
        """Have the coordinator looked up for the next request."""
        self._client.forget_coordinator(self.group_id, CoordinatorKind.group)

    def action(self, table: Actions, error: IngestdError) -> Action:
        """What to do after `error`; `table` belongs to the request. Forgets the coordinator if that is necessary."""
        if not isinstance(error, KafkaError):
            return Action.find_coordinator if is_retriable(error) else Action.fail
        action = table.get(error.code, Action.retry if error.retriable else Action.fail)
        if action is Action.find_coordinator:
            self.forget()
        return action
