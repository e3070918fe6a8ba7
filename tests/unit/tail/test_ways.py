"""Ways: what is remembered of links."""

from __future__ import annotations

from ingestd.tail.ways import Ways


def test_of_a_link_that_is_gone_nothing_is_remembered() -> None:
    """Not even where it led, if that never was there."""
    ways = Ways()
    ways.follow("/d/a.log", ("/d/a.log", "/pods/a/0.log"))
    ways.follow("/d/b.log", ("/d/b.log", "/pods/a/1.log"))
    ways.note_away({"/pods/a": "/pods"})
    ways.follow("/d/a.log", ())
    assert ways.away() == ["/pods/a"]
    ways.follow("/d/b.log", ())
    ways.note_away({"/pods/a": "/pods"})  # what a look says that began before
    assert not ways.away()
    assert not ways.paths
