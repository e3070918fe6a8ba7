"""What a task leaves for the next one in its Python worker."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from ingestd.spark.kept import Kept

if TYPE_CHECKING:
    from collections.abc import Iterator


class Thing:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def unsettled() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_is_loaded_when_the_first_task_ends_is_never_looked_through_again() -> None:
    """Spark's worker collects all garbage after every task: half of the time of a task of 60,000 rows."""
    things = Kept[Thing]()
    with things.lent("a", Thing):
        assert not gc.get_freeze_count()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    loaded_later = [[number] for number in range(1000)]
    with things.lent("b", Thing):
        pass
    assert gc.get_freeze_count() <= frozen, "frozen once: what tasks make later is freed as ever"
    assert len(loaded_later) == 1000


def test_the_next_task_gets_the_same_thing() -> None:
    things = Kept[Thing]()
    with things.lent("a", Thing) as first:
        pass
    with things.lent("a", Thing) as second:
        pass
    assert second is first
    assert not first.closed


def test_another_key_closes_what_was_kept() -> None:
    things = Kept[Thing]()
    with things.lent("a", Thing) as first:
        pass
    with things.lent("b", Thing) as second:
        assert first.closed
    assert not second.closed


def test_what_a_task_did_not_end_well_with_is_closed_and_not_kept() -> None:
    things = Kept[Thing]()
    with pytest.raises(RuntimeError, match="the task"), things.lent("a", Thing) as first:
        raise RuntimeError("the task")
    assert first.closed
    with things.lent("a", Thing) as second:
        pass
    assert second is not first
