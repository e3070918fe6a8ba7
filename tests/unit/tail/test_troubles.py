"""Troubles: told once, and over when they are."""

from __future__ import annotations

from unittest.mock import Mock

from ingestd.tail.troubles import Troubles

MISSING = {"/log/app.log": "no such file"}


def troubles() -> tuple[Troubles, Mock]:
    made = Troubles(("/log/app.log", "/log/*.txt"))
    made.sources = sources = Mock()
    return made, sources


def test_what_the_first_pass_does_not_find_is_told_at_once() -> None:
    made, sources = troubles()
    made.listed(MISSING, ())
    sources.unmatched.assert_called_once_with("/log/app.log", "no such file")
    made.listed(MISSING, ())
    sources.unmatched.assert_called_once()
    made.listed({}, MISSING.keys())
    made.listed({}, ())
    sources.trouble_over.assert_called_once_with("/log/app.log")


def test_a_log_that_is_not_there_while_it_is_rotated_is_no_trouble() -> None:
    """Each pass that met one between its rename and its successor warned of it."""
    made, sources = troubles()
    made.listed({}, MISSING.keys())
    for _ in range(3):
        made.listed(MISSING, ())
        assert made.suspected
        made.listed({}, MISSING.keys())
        assert not made.suspected
    sources.unmatched.assert_not_called()
    made.listed(MISSING, ())
    made.listed(MISSING, ())
    sources.unmatched.assert_called_once_with("/log/app.log", "no such file")
    assert not made.suspected


def test_an_entry_without_a_match_is_no_file_that_is_not_taken() -> None:
    # `file not taken` had a glob as its file.
    made, sources = troubles()
    made.listed({"/log/*.txt": "no file matches it yet", "/log/closed": "can not be read"}, ())
    sources.unmatched.assert_called_once_with("/log/*.txt", "no file matches it yet")
    sources.trouble.assert_called_once_with("/log/closed", "can not be read")
    made.tell("/log/app.log", "holds NUL bytes")
    sources.trouble.assert_called_with("/log/app.log", "holds NUL bytes")
