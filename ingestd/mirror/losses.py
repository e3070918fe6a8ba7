"""Losses: why a mirror may lose a record. The reasons are labels of metrics, and stand in the log."""

from __future__ import annotations

from typing import Final

__all__ = ["REFUSED", "RETENTION"]

RETENTION: Final = "retention"
"""The source removed it before it was copied."""

REFUSED: Final = "refused"
"""The target refuses it for good, and it was skipped."""
