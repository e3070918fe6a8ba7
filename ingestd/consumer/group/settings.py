"""Group settings: one frozen value, with units and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from ingestd.checks import check_kinds, take_names
from ingestd.consumer.settings import ConsumerSettings
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from ingestd.consumer.group.assignor import Assignor

__all__ = ["GroupProtocol", "GroupSettings", "NoOffset"]


class GroupProtocol(Enum):
    """How members agree with their coordinator; Kafka's `group.protocol`."""

    classic = "classic"
    """JoinGroup and SyncGroup: the leader among the members assigns."""
    consumer = "consumer"
    """KIP-848: the coordinator assigns (Kafka 4.0 and later)."""


class NoOffset(Enum):
    """Where a partition without a committed offset is read from; Kafka's `auto.offset.reset`.

    It also applies if the committed offset is not in the log any more. With `earliest` and `latest` reading also goes
    on after a log was cut, or a topic was created again: from the first offset that differs. With `error`,
    `GroupSettings.consumer` decides that.
    """

    earliest = "earliest"
    latest = "latest"
    error = "error"
    """`ConsumerGroup.consume` raises `KafkaError` OFFSET_OUT_OF_RANGE."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a member takes part in its group. Times are in seconds."""

    protocol: GroupProtocol | Literal["classic", "consumer"] = GroupProtocol.classic
    """How members agree with their coordinator: "consumer" is KIP-848's, of Kafka 4.0 and later."""
    assignors: Sequence[str | Assignor] = ("range", "cooperative-sticky")
    """The member's assignors, best first. All members of a group need one in common. As in Java, one that supports only
    the eager protocol makes the member use that. With KIP-848 `remote_assignor` is used instead."""
    remote_assignor: str | None = None
    """With KIP-848 the coordinator assigns partitions: by this assignor of its own, "uniform" or "range". None: by its
    default."""
    session_timeout: float = 45.0
    """After so long without a heartbeat the coordinator takes a member for dead. With KIP-848 the broker decides that.
    Then it is how long a new static member waits for a dead predecessor of its name."""
    heartbeat_interval: float = 3.0
    """KIP-848: the broker decides."""
    rebalance_timeout: float = 60.0
    """For members to end their claims and to join again when the group rebalances."""
    max_poll_interval: float = 300.0
    """If a handler takes longer for one record or batch, the member leaves the group."""
    group_instance_id: str | None = None
    """The name of a static member (KIP-345). It may be away for the session timeout without a rebalance."""
    rack: str | None = None
    """This member's rack. Rack-aware assignors prefer partitions with a replica in it."""
    auto_commit_interval: float | None = 5.0
    """Marked offsets are committed so often, when partitions are revoked, and on close. None: only by `commit`."""
    no_offset: NoOffset | Literal["earliest", "latest", "error"] = NoOffset.latest
    """Where a partition without a committed offset is read from; Kafka's `auto.offset.reset`."""
    pattern_interval: float = 60.0
    """How often to look for new topics that a pattern matches."""
    request_timeout: float = 10.0
    """For the answer to one request to the coordinator. A join waits for the other members as well."""
    commit_timeout: float = 30.0
    """For a commit, and for fetching committed offsets, retries included."""
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    """How partitions are fetched."""

    def __post_init__(self) -> None:
        if isinstance(self.assignors, str):
            raise ConfigurationError(f"assignors: {self.assignors!r}; expected several, as in ({self.assignors!r},)")
        take_names(self)
        check_kinds(
            self,
            {
                "assignors": Sequence,
                "remote_assignor": str,
                "group_instance_id": str,
                "rack": str,
                "auto_commit_interval": float,
                "consumer": ConsumerSettings,
            },
            or_none=("auto_commit_interval",),
        )
        if self.group_instance_id == "":
            raise ConfigurationError("group_instance_id: empty; expected a name, or None")
        for name in (
            "session_timeout",
            "heartbeat_interval",
            "rebalance_timeout",
            "max_poll_interval",
            "pattern_interval",
            "request_timeout",
            "commit_timeout",
        ):
            if not 0 < getattr(self, name) <= 86_400:
                raise ConfigurationError(f"group: {name} is {getattr(self, name)}; expected up to 86400 seconds")
        if self.heartbeat_interval >= self.session_timeout:
            raise ConfigurationError(
                f"group: heartbeat_interval is {self.heartbeat_interval}; expected less than session_timeout, "
                f"which is {self.session_timeout}"
            )
        if self.auto_commit_interval is not None and not 0 < self.auto_commit_interval <= 86_400:
            raise ConfigurationError(
                f"group: auto_commit_interval is {self.auto_commit_interval}; expected up to 86400 seconds, or none"
            )
        if not self.assignors:
            raise ConfigurationError("group: assignors is empty; expected at least one")
