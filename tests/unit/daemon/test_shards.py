"""Shards: one owner a source, and only its present generation counts."""

from ingestd.daemon.control import Moved
from ingestd.daemon.shards import Shards
from ingestd.daemon.source import Found


def found(name: str, position: int = 0) -> Found:
    return Found(name, position, {"path": f"/{name}"})


def test_sources_are_spread_over_slots():
    shards = Shards(3)
    slots = [shards.place("r", found(str(number))).slot for number in range(9)]
    assert sorted(slots) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_source_is_placed_once():
    shards = Shards(2)
    assert shards.place("r", found("a")) is not None
    assert shards.place("r", found("a")) is None
    assert shards.place("other", found("a")) is not None


def test_what_an_older_generation_reports_is_dropped():
    shards = Shards(1)
    old = shards.place("r", found("a"))
    assert shards.moved(Moved("r", "a", old.generation, 10, {"path": "/b"})).found == Found("a", 10, {"path": "/b"})
    (new,) = shards.renew(0)
    assert new.found.position == 10
    assert shards.moved(Moved("r", "a", old.generation, 99, {})) is None
    assert shards.end("r", "a", old.generation) is None
    assert shards.moved(Moved("r", "a", new.generation, 20, {})).stored.position == 20
    assert shards.end("r", "a", new.generation) is not None
    assert len(shards) == 0


def test_an_ended_source_makes_room_in_its_slot():
    shards = Shards(2)
    first = shards.place("r", found("a"))
    shards.place("r", found("b"))
    shards.end("r", "a", first.generation)
    assert shards.place("r", found("c")).slot == first.slot


def test_a_dropped_route_leaves_the_others():
    shards = Shards(1)
    shards.place("r", found("a"))
    shards.place("s", found("a"))
    assert [shard.route for shard in shards.drop_route("r")] == ["r"]
    assert [shard.route for shard in shards] == ["s"]
