"""Patterns: regular expressions of clients, as RE2 reads them. It takes linear time, so no client stalls the broker."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ingestd.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["check_pattern", "matching"]


def check_pattern(pattern: str) -> None:
    """Raise `KafkaError` (INVALID_REGULAR_EXPRESSION) for what is no pattern of RE2's."""
    _compiled(pattern)


def matching(patterns: Iterable[str], names: Collection[str]) -> dict[str, frozenset[str]]:
    """By pattern, the names that it matches as a whole. Raises `KafkaError` (INVALID_REGULAR_EXPRESSION)."""
    return {pattern: frozenset(filter(_compiled(pattern).fullmatch, names)) for pattern in patterns}


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    # Few brokers are asked for this.
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"`{pattern}` is not a valid regular expression: {why}.",
        ) from error
