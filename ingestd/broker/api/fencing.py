"""Fencing: that a producer was replaced, in the words that each version of a request has for it."""

from __future__ import annotations

from ingestd.errors import ErrorCode

__all__ = ["in_words_of"]


def in_words_of(version: int, error: ErrorCode, *, fenced_since: int) -> ErrorCode:
    """The error as a request of this version knows it: before `fenced_since`, INVALID_PRODUCER_EPOCH stood for it."""
    if error is ErrorCode.producer_fenced and version < fenced_since:
        return ErrorCode.invalid_producer_epoch
    return error
