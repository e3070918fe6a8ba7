"""Figures as people read them."""

from __future__ import annotations

__all__ = ["in_bytes", "in_count", "in_rate"]

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def in_bytes(size: float) -> str:
    """`1.5 GB`: powers of ten, three digits or four."""
    unit = 0
    while abs(size) >= 999.5 and unit < len(_UNITS) - 1:
        size /= 1000
        unit += 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 or abs(size) >= 100 else f"{size:.1f} {_UNITS[unit]}"


def in_rate(size: float, seconds: float) -> str:
    """`120.3 MB/s`; nothing takes no time."""
    return f"{in_bytes(size / seconds)}/s" if seconds > 0 else "-"


def in_count(count: int, thing: str = "") -> str:
    """`2,540,000`, `1 file`, `2 files`, `2 micro-batches`."""
    if not thing:
        return f"{count:,}"
    many = "es" if thing.endswith("ch") else "s"
    return f"{count:,} {thing}{'' if count == 1 else many}"
