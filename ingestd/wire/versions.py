"""What one broker speaks: API version ranges and finalized features, from its ApiVersions answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingestd.errors import UnsupportedVersion
from ingestd.wire.apis import api_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ApiVersions"]


@dataclass(frozen=True, slots=True)
class ApiVersions:
    """The inclusive version range of each API that the broker has, and the level of each finalized feature."""

    ranges: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)

    def pick(self, api: int, lowest: int, highest: int) -> int:
        """The highest version that both sides speak. Raises `UnsupportedVersion`, naming the API and both ranges."""
        offered = self.ranges.get(api)
        if offered is None:
            raise UnsupportedVersion(f"{api_name(api)}: this broker does not have it")
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
