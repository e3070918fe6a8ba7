"""Offsets as people write them: `beginning`, `end`, a number, `-10` before the end, `@` and a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ingestd.consumer.settings import AtTime, Edge
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingestd.consumer.settings import Start

__all__ = ["BeforeEnd", "moment_ms", "parse_partitions", "parse_start"]

_EXPECTED = "expected `beginning`, `end`, an offset, -N for the last N, or @TIME (ISO 8601, or milliseconds since 1970)"

_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """So many records before the end of the log (as many as there are, where there are fewer)."""

    records: int


def parse_start(text: str) -> Start | BeforeEnd:
    """Where to start. Raises `ConfigurationError`, saying what was expected. A time without a zone is local time."""
    if text in ("beginning", "earliest"):
        return Edge.earliest
    if text in ("end", "latest"):
        return Edge.latest
    if text.startswith(("@", "s@")):  # kcat writes s@
        return AtTime(_milliseconds(text.partition("@")[2], text))
    try:
        number = int(text)
    except ValueError:
        raise ConfigurationError(f"offset {text!r}: {_EXPECTED}") from None
    if abs(number) > _LARGEST:
        raise ConfigurationError(f"offset {text!r}: {_EXPECTED}; none is above {_LARGEST}")
    return BeforeEnd(-number) if number < 0 else number


def _milliseconds(time: str, text: str) -> int:
    if time.isascii() and time.isdigit():
        return int(time)
    try:
        return moment_ms(time)
    except ValueError:
        raise ConfigurationError(f"offset {text!r}: {_EXPECTED}") from None


def moment_ms(text: str) -> int:
    """Milliseconds since 1970 from ISO 8601, local time if it names no zone. Raises `ValueError`."""
    return AtTime.of(datetime.fromisoformat(text).astimezone()).timestamp_ms


def parse_partitions(texts: Iterable[str]) -> list[int]:
    """Partitions from `3`, `0,2` and `4-7`, each once, in order. Raises `ConfigurationError`."""
    partitions: set[int] = set()
    for text in texts:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
                raise ConfigurationError(f"partitions {text!r}: expected numbers, as in 3 or 0,2 or 4-7")
            partitions.update(range(int(first), int(last or first) + 1))
    return sorted(partitions)
