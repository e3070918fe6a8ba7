"""What one broker speaks: API version ranges and finalized features, from its ApiVersions answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ingestd.errors import UnsupportedVersion
from ingestd.wire.apis import Api, api_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EMBEDDED_FEATURE", "ApiVersions"]

EMBEDDED_FEATURE: Final = "ingestd.embedded"
"""The feature by which the embedded broker tells its clients which broker it is."""

_NOT_EMBEDDED: Final[Mapping[str, frozenset[Api]]] = {
    "transactions": frozenset(
        {
            Api.add_partitions_to_txn,
            Api.add_offsets_to_txn,
            Api.end_txn,
            Api.txn_offset_commit,
            Api.describe_producers,
            Api.describe_transactions,
            Api.list_transactions,
        }
    ),
}
"""What the embedded broker does not do yet, in words, and the APIs that it lacks for that."""


@dataclass(frozen=True, slots=True)
class ApiVersions:
    """The inclusive version range of every API the broker has, and the level of every finalized feature.

    embedded: whether it is ingestd's own broker.
    """

    ranges: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    embedded: bool = False

    def pick(self, api: int, lowest: int, highest: int) -> int:
        """The highest version that both sides speak. Raises `UnsupportedVersion`, naming the API and both ranges."""
        offered = self.ranges.get(api)
        if offered is None:
            raise UnsupportedVersion(f"{api_name(api)}: {self._why_not(api)}")
        version = min(highest, offered[1])
        if version < max(lowest, offered[0]):
            raise UnsupportedVersion(
                f"{api_name(api)}: this broker speaks versions {offered[0]} to {offered[1]}, "
                f"needed is one of {lowest} to {highest}"
            )
        return version

    def feature(self, name: str) -> int:
        """The finalized level of a feature (`transaction.version`, `group.version`); 0 if the cluster has none."""
        return self.features.get(name, 0)

    def _why_not(self, api: int) -> str:
        if not self.embedded:
            return "this broker does not have it"
        lacking = next((words for words, apis in _NOT_EMBEDDED.items() if api in apis), "such request")
        return f"the embedded broker has no {lacking} yet"
