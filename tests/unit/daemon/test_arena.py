"""Arena: pages are in one run at a time, and come back."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.daemon.arena import NOT_STARTED, PAGE_BYTES, Arena, ArenaView, Run, pages_for


@pytest.fixture
def arena():
    descriptor = Arena.create(16 * PAGE_BYTES)
    arena = Arena(descriptor)
    yield arena
    arena.close()
    os.close(descriptor)


@given(
    st.lists(st.tuples(st.sampled_from(["allocate", "trim", "release"]), st.integers(1, 6 * PAGE_BYTES)), max_size=60)
)
def test_no_page_is_in_two_runs_and_all_come_back(steps):
    descriptor = Arena.create(16 * PAGE_BYTES)
    arena = Arena(descriptor)
    runs: list[Run] = []
    for step, size in steps:
        if step == "allocate":
            run = arena.allocate(size)
            if run is not None:
                assert run.size >= size
                runs.append(run)
        elif runs and step == "trim":
            runs.append(arena.trim(runs.pop(0), size))
        elif runs:
            arena.release(runs.pop(size % len(runs)))
        pages = [page for run in runs for page in range(run.page, run.page + run.pages)]
        assert len(pages) == len(set(pages)) == arena.used_pages
        assert 0 not in pages
        assert all(page < arena.pages for page in pages)
    for run in runs:
        arena.release(run)
    assert arena.used_pages == 0
    whole = arena.allocate(arena.usable_pages * PAGE_BYTES)
    assert whole == Run(1, 15)
    arena.close()
    os.close(descriptor)


def test_a_full_arena_gives_none_and_says_when_pages_are_free_again(arena):
    news = []
    arena.freed = lambda: news.append(arena.used_pages)
    run = arena.allocate(15 * PAGE_BYTES)
    assert arena.allocate(1) is None
    assert news == []
    arena.put_back(run)
    assert news == []
    arena.release(arena.allocate(15 * PAGE_BYTES))
    assert news == [0]
    assert arena.allocate(1) == Run(1, 1)


def test_giving_a_page_back_twice_is_a_defect_that_shows(arena):
    run = arena.allocate(1)
    arena.release(run)
    with pytest.raises(AssertionError, match="not all handed out"):
        arena.release(run)


def test_a_peer_sees_the_bytes_the_load_and_what_was_sent_of_the_owner():
    descriptor = Arena.create(4 * PAGE_BYTES)
    owner, peer = Arena(descriptor), ArenaView(descriptor)
    run = owner.allocate(10)
    owner.view(run.page, 10)[:] = b"0123456789"
    assert peer.load == NOT_STARTED
    owner.publish_load(7)
    assert bytes(peer.view(run.page, 10)) == b"0123456789"
    assert peer.load == 7
    last = PAGE_BYTES // 8 - 2
    owner.publish_sent(0, 1 << 40)
    owner.publish_sent(last, 3)
    assert [peer.sent(route) for route in (0, 1, last)] == [1 << 40, 0, 3]
    assert (peer.load, bytes(peer.view(run.page, 10))) == (7, b"0123456789")
    with pytest.raises(ValueError, match="room for 8191 routes"):
        owner.publish_sent(last + 1, 1)
    owner.close()
    peer.close()
    os.close(descriptor)


@pytest.mark.parametrize(("page", "length"), [(0, 1), (-1, 1), (16, 1), (15, PAGE_BYTES + 1)])
def test_a_view_outside_the_arena_is_refused(arena, page, length):
    with pytest.raises(ValueError, match="outside an arena of 16 pages"):
        arena.view(page, length)


def test_pages_for_rounds_up():
    assert [pages_for(size) for size in (0, 1, PAGE_BYTES, PAGE_BYTES + 1)] == [1, 1, 1, 2]
