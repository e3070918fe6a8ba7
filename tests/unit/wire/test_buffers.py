"""Answer buffers: memory is used again when, and only when, nobody holds a view of it."""

from __future__ import annotations

import pytest

from ingestd.wire.buffers import SMALLEST_KEPT, AnswerBuffers

LIMIT = 1024 * 1024


@pytest.mark.parametrize("size", [4, SMALLEST_KEPT - 1, SMALLEST_KEPT, SMALLEST_KEPT + 1, LIMIT, LIMIT + 1])
def test_a_view_has_exactly_the_size_asked_for(size: int) -> None:
    view = AnswerBuffers(LIMIT).take(size)
    assert (len(view), view.readonly) == (size, False)


def test_memory_is_used_again_once_the_last_view_is_gone() -> None:
    buffers = AnswerBuffers(LIMIT)
    first = buffers.take(200_000)
    part = first[1000:2000]
    memory = id(first.obj)
    del first
    second = buffers.take(200_000)
    assert id(second.obj) != memory
    del part
    third = buffers.take(190_000)
    assert id(third.obj) == memory


def test_a_view_of_a_view_by_another_object_keeps_the_memory() -> None:
    buffers = AnswerBuffers(LIMIT)
    first = buffers.take(200_000)
    first[:4] = b"kept"
    other = memoryview(first).cast("I")
    del first
    buffers.take(200_000)[:4] = b"else"
    assert bytes(other.cast("B")[:4]) == b"kept"


def test_a_small_answer_does_not_keep_a_large_buffer_alive() -> None:
    buffers = AnswerBuffers(LIMIT)
    memory = id(buffers.take(LIMIT).obj)
    assert id(buffers.take(SMALLEST_KEPT).obj) != memory


def test_no_more_than_the_limit_is_kept() -> None:
    buffers = AnswerBuffers(LIMIT)
    views = [buffers.take(300_000) for _ in range(20)]
    assert sum(len(kept) for kept in buffers._kept) <= LIMIT
    assert len({id(view.obj) for view in views}) == 20
