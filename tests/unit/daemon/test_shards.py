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


def test_what_is_acknowledged_of_a_route_that_was_dropped_counts():
    shards = Shards(1)
    shards.place("r", found("a"))
    (dropped,) = shards.drop_route("r")
    assert shards.moved(Moved("r", "a", dropped.generation, 7, {})).found.position == 7
    assert shards.moved(Moved("r", "a", dropped.generation - 1, 9, {})) is None
    assert len(shards) == 0


def test_sources_of_one_group_have_one_owner():
    shards = Shards(3)
    first = shards.place("r", Found("a1", 0, {}, group="a"))
    for number in range(5):
        shards.place("r", found(str(number)))
    assert shards.place("r", Found("a2", 0, {}, group="a")).slot == first.slot
    # Another route's group of that name is another group.
    others = [shards.place(f"s{number}", Found("a1", 0, {}, group="a")).slot for number in range(3)]
    assert set(others) != {first.slot}


def test_a_group_is_forgotten_with_its_last_source():
    shards = Shards(2)
    first = shards.place("r", Found("a1", 0, {}, group="a"))
    second = shards.place("r", Found("a2", 0, {}, group="a"))
    shards.end("r", "a1", first.generation)
    assert shards.place("r", Found("a3", 0, {}, group="a")).slot == first.slot
    shards.end("r", "a2", second.generation)
    shards.drop_route("r")
    shards.place("r", found("b"))
    assert shards.place("r", Found("a4", 0, {}, group="a")).slot != shards.get("r", "b").slot
    assert shards._groups.keys() == {("r", "a")}


def test_a_concluded_source_stays_so_whatever_becomes_of_its_owner():
    shards = Shards(1)
    first = shards.place("r", found("a"))
    assert shards.conclude("r", "a").found.last
    assert shards.conclude("r", "a") is None
    assert shards.conclude("r", "nobody") is None
    (renewed,) = shards.renew(0)
    assert renewed.assignment.found.last
    moved = shards.moved(Moved("r", "a", renewed.generation, 5, {}))
    assert (moved.found.position, moved.found.last) == (5, True)
    assert first.generation != renewed.generation
