"""Troubles: told once, and over when they are."""

from __future__ import annotations

from unittest.mock import Mock

from ingestd.tail.troubles import Troubles

MISSING = {"/log/app.log": "no such file"}


def troubles() -> Troubles:
    made = Troubles()
    made.sources = Mock()
    return made


def test_what_the_first_pass_does_not_find_is_told_at_once() -> None:
    made = troubles()
    made.listed(MISSING, ())
    made.sources.trouble.assert_called_once_with("/log/app.log", "no such file")  # type: ignore[attr-defined]
    made.listed(MISSING, ())
    made.sources.trouble.assert_called_once()  # type: ignore[attr-defined]
    made.listed({}, MISSING.keys())
    made.listed({}, ())
    made.sources.trouble_over.assert_called_once_with("/log/app.log")  # type: ignore[attr-defined]


def test_a_log_that_is_not_there_while_it_is_rotated_is_no_trouble() -> None:
    """Each pass that met one between its rename and its successor warned of it."""
    made = troubles()
    made.listed({}, MISSING.keys())
    for _ in range(3):
        made.listed(MISSING, ())
        assert made.suspected
        made.listed({}, MISSING.keys())
        assert not made.suspected
    made.sources.trouble.assert_not_called()  # type: ignore[attr-defined]
    made.listed(MISSING, ())
    made.listed(MISSING, ())
    made.sources.trouble.assert_called_once_with("/log/app.log", "no such file")  # type: ignore[attr-defined]
    assert not made.suspected
