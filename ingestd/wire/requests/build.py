"""What a request function returns, and what all of them need."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kio.static.protocol import RequestPayload

    from ingestd.wire.versions import ApiVersions

__all__ = ["Build", "by_topic", "grouped_by_topic", "made", "milliseconds"]

Build: TypeAlias = "Callable[[ApiVersions], RequestPayload]"
"""Makes the kio request for a broker's versions. Raises `UnsupportedVersion` if they can not express what is asked."""


class _OfTopic(Protocol):
    @property
    def topic(self) -> str: ...


Item = TypeVar("Item", bound=_OfTopic)


def milliseconds(timeout_ms: int) -> timedelta:
    """Give a number of milliseconds as kio wants it."""
    return timedelta(milliseconds=timeout_ms)


def made(request: Any) -> RequestPayload:
    """Give an entity of a dynamically imported kio class its static type."""
    return cast("RequestPayload", request)


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    """The numbers of partitions by topic, as most requests name them."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return {topic: tuple(numbers) for topic, numbers in found.items()}


def grouped_by_topic(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Items about partitions, by topic."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.topic, []).append(item)
    return found
