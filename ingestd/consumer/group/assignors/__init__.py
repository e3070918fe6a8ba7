"""Assignors: Kafka's four, as in Java's clients, and the user's own (`assignor.Assignor`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.consumer.group.assignor import RebalanceProtocol
from ingestd.consumer.group.assignors.cooperative_sticky import CooperativeStickyAssignor
from ingestd.consumer.group.assignors.range import RangeAssignor
from ingestd.consumer.group.assignors.round_robin import RoundRobinAssignor
from ingestd.consumer.group.assignors.sticky import StickyAssignor
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ingestd.consumer.group.assignor import Assignor

__all__ = [
    "ASSIGNORS",
    "CooperativeStickyAssignor",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "agreed_rebalance_protocol",
    "make_assignors",
]

ASSIGNORS: Final[Mapping[str, Callable[[], Assignor]]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
"""Kafka's assignors by the names that members agree on."""


def make_assignors(chosen: Sequence[str | Assignor]) -> tuple[Assignor, ...]:
    """One member's assignors: a new object for each name, the user's own objects as they are, best first.

    Raises `ConfigurationError` for a name that is not known, and for two of the same name.
    """
    assignors: dict[str, Assignor] = {}
    for choice in chosen:
        if isinstance(choice, str) and choice not in ASSIGNORS:
            raise ConfigurationError(f"group: assignors has {choice!r}; expected one of {', '.join(ASSIGNORS)}")
        assignor = ASSIGNORS[choice]() if isinstance(choice, str) else choice
        if assignor.name in assignors:
            raise ConfigurationError(f"group: assignors has two named {assignor.name!r}; members choose by name")
        assignors[assignor.name] = assignor
    return tuple(assignors.values())


def agreed_rebalance_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """The highest that all of a member's assignors support, as Java chooses it (KIP-429).

    Raises `ConfigurationError` if they have none in common.
    """
    common = frozenset(RebalanceProtocol).intersection(*(assignor.rebalance_protocols for assignor in assignors))
    if not common:
        names = ", ".join(assignor.name for assignor in assignors)
        raise ConfigurationError(f"group: assignors {names} have no rebalance protocol in common")
    return max(common)
