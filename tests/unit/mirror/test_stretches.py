"""Stretches against a plain dictionary of offsets: translated is the record itself, or the next one there is."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.mirror import stretches
from ingestd.mirror.stretches import Stretch, Stretches, decoded, encoded

steps = st.lists(
    st.tuples(st.integers(-12, 4), st.integers(-6, 4), st.integers(1, 6)),  # from the end: source, target; records
    max_size=40,
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(stretches, "CHUNK", 3)
    monkeypatch.setattr(stretches, "LEAST", 6)


class Model:
    """The offset on the target of every record. Of one that comes again, and all behind it, the last one counts."""

    def __init__(self):
        self.offsets, self.end = {}, None

    def add(self, source, target, records):
        self.offsets = {s: t for s, t in self.offsets.items() if s < source and t < target}
        self.offsets |= {source + number: target + number for number in range(records)}
        self.end = target + records

    def translate(self, offset):
        behind = [source for source in self.offsets if source >= offset]
        return self.offsets[min(behind)] if behind else self.end


def play(walk, *each):
    """Add what `walk` says to all of `each`. Returns the end at the source."""
    source = target = 100
    for ahead, on_target, records in walk:
        source, target = max(0, source + ahead), max(0, target + on_target)
        for one in each:
            one.add(source, target, records)
        source, target = source + records, target + records
    return source


def translations(made, end=500):
    return [made.translate(offset) for offset in range(end)]


class Log:
    """Stores changes as a compacted topic does."""

    def __init__(self):
        self.chunks = {}

    def write(self, changes):
        for number, data in changes:
            if data is None:
                self.chunks.pop(number, None)
            else:
                self.chunks[number] = data


@given(steps)
def test_every_offset_is_translated_to_its_record_or_the_next_one(walk):
    made, model = Stretches(), Model()
    end = play(walk, made, model)
    assert translations(made, end + 10) == [model.translate(offset) for offset in range(end + 10)]


@given(st.lists(steps, max_size=5), st.data())
def test_what_is_stored_is_found_again_by_the_next_host_and_the_one_after_it(walks, data):
    log, now, made, model = Log(), 0, Stretches(), Model()
    for walk in walks:
        end = play(walk, made, model)
        log.write(made.changes())
        now += data.draw(st.integers(0, 50))
        made = Stretches.restored(log.chunks, now)
        if walk:
            made.grow(model.end, end)  # as the position says
        assert translations(made) == [model.translate(offset) for offset in range(500)]
        assert len(log.chunks) <= 2 + 2 * len(made) / 3


@given(steps, steps, st.data())
def test_a_store_that_stops_half_way_skips_nothing(first, second, data):
    """What comes to be stored in the end is right; on the way there, no offset is behind where it was or will be."""
    log, made = Log(), Stretches()
    play(first, made)
    log.write(made.changes())
    before = translations(Stretches.restored(log.chunks, 0))
    play(second, made)
    changes = made.changes()
    log.write(changes[: data.draw(st.integers(0, len(changes)))])
    between = translations(Stretches.restored(log.chunks, 0))
    after = translations(made)
    for one, other, late in zip(before, between, after, strict=True):
        assert other is None or other <= max(x for x in (one, late) if x is not None)


@given(steps, steps)
def test_what_a_host_stores_after_it_lost_the_partition_does_not_count(theirs, late):
    log, theirs_made, model = Log(), Stretches(), Model()
    end = play(theirs, theirs_made, model)
    log.write(theirs_made.changes())
    ours = Stretches.restored(log.chunks, 1000)
    if not theirs:
        return
    ours.grow(model.end, end)
    source, target = end, model.end + 50
    for number in range(10):
        for one in (ours, model):
            one.add(source + 3 * number, target + 2 * number, 2)
    log.write(ours.changes())
    for number in range(len(late)):
        theirs_made.add(end + 2 * number, model.end + number, 1)
    log.write(theirs_made.changes())
    again = Stretches.restored(log.chunks, 2000)
    again.grow(model.end, end + 29)
    assert translations(again) == [model.translate(offset) for offset in range(500)]


@example([(0, 1, 1)] * 9, 0)  # one stretch in the older half: none of it could go, and it was tried for ever
@given(steps, st.integers(0, 20))
def test_thinned_out_offsets_are_not_behind_the_exact_ones_and_grow(walk, most):
    made, exact, log = Stretches(), Stretches(), Log()
    play(walk, made, exact)
    log.write(made.changes())
    made.thin(most)
    assert len(made) == len(list(made)) <= max(6, most)
    thinned, right = translations(made), translations(exact)
    assert all(one == other or one <= other for one, other in zip(thinned, right, strict=True) if other is not None)
    assert thinned == sorted(thinned, key=lambda offset: offset or 0)
    log.write(made.changes())
    assert [one.source for one in Stretches.restored(log.chunks, 0)] == [one.source for one in made]


@given(steps, st.integers(0, 300))
def test_the_first_offset_that_was_not_copied_is_found(walk, target):
    made, model = Stretches(), Model()
    play(walk, made, model)
    there = set(model.offsets.values())
    assert made.uncovered(target) == next(offset for offset in range(target, 1000) if offset not in there)


@given(steps, st.integers(0, 300))
def test_pruning_changes_nothing_from_the_start_of_the_log_on(walk, log_start):
    made, exact = Stretches(), Stretches()
    end = play(walk, made, exact)
    made.prune(log_start)
    assert len(made) == len(list(made))
    assert translations(made, end + 9)[log_start:] == translations(exact, end + 9)[log_start:]


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**31)), max_size=9))
def test_bytes_are_read_back(distances):
    made, source, target = [], 0, 0
    for ahead, on_target, records in distances:
        made.append(Stretch(source + ahead, target + on_target, records))
        source, target = source + ahead + records, target + on_target + records
    assert decoded(encoded(made)) == made


def test_half_a_stretch_is_refused():
    with pytest.raises(ValueError, match="not whole stretches"):
        decoded(encoded([Stretch(500, 300, 1)])[:-1])


def test_nothing_is_known_of_what_was_copied_before():
    made = Stretches(known_from=50)
    made.add(50, 30, 0)
    assert [made.translate(offset) for offset in (49, 50, 90)] == [None, 30, 30]
    made.add(50, 30, 10)
    made.prune(50)
    assert made.translate(49) == 30, "no group can be there"


def test_the_stretches_of_a_log_without_markers_are_stored_once():
    made = Stretches()
    for number in range(1000):
        made.add(10 * number, 10 * number + 7, 10)
        assert bool(made.changes()) is (number == 0)
    assert list(made) == [Stretch(0, 7, 10000)]
