"""Patterns: regular expressions of clients, as RE2 reads them: no client stalls the broker."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ingestd.errors import ErrorCode, KafkaError
from ingestd.patterns import WrongPattern, text_matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

__all__ = ["check_pattern", "matching"]


def check_pattern(pattern: str) -> None:
    """Raise `KafkaError` (INVALID_REGULAR_EXPRESSION) for what is no pattern of RE2's."""
    _compiled(pattern)


def matching(patterns: Iterable[str], names: Collection[str]) -> dict[str, frozenset[str]]:
    """By pattern, the names that it matches as a whole. Raises `KafkaError` (INVALID_REGULAR_EXPRESSION)."""
    return {pattern: frozenset(filter(_compiled(pattern), names)) for pattern in patterns}


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Callable[[str], bool]:
    try:
        return text_matcher([pattern])
    except WrongPattern as error:
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"`{pattern}` is not a valid regular expression: {error}.",
        ) from None
