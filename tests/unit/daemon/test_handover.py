"""Handover: owners hear of sources after these are stored, in messages of bounded size, and of each once."""

import asyncio

import pytest

from ingestd.daemon import handover as handover_module
from ingestd.daemon.control import Assign, Conclude, Moved, Revoke
from ingestd.daemon.handover import ASSIGNMENTS, Handover
from ingestd.daemon.shards import Shards
from ingestd.daemon.source import Found, StoredPosition


class FakeCheckpoint:
    """Notes what is to be stored; tries when told to."""

    def __init__(self):
        self.said, self.waiting = [], []

    def remember(self, route, stored):
        self.said.append(("store", route, stored.source, stored.position))

    def forget(self, route, source):
        self.said.append(("forget", route, source))

    def then(self, call):
        self.waiting.append(call)

    def attempt(self):
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


class Bench:
    """A handover with everything around it in our hands."""

    def __init__(self, slots=1):
        self.checkpoint, self.shards, self.told = FakeCheckpoint(), Shards(slots), []
        self.handover = Handover(self.shards, self.checkpoint, lambda slot, message: self.told.append((slot, message)))

    def appear(self, *names, stored=False, **details):
        for name in names:
            self.handover.appeared("r", Found(name, 0, {}, **details), stored=stored)

    @property
    def assigned(self):
        return [
            [assignment.found.source for assignment in message.assignments]
            for _, message in self.told
            if isinstance(message, Assign)
        ]


@pytest.fixture
async def made():
    return Bench()


async def test_an_owner_hears_of_a_source_after_it_is_stored(made):
    made.appear("a", "b")
    assert made.checkpoint.said == [("store", "r", "a", 0), ("store", "r", "b", 0)]
    assert made.told == []
    waiting = asyncio.create_task(made.handover.done())
    await asyncio.sleep(0)
    assert not waiting.done()
    made.checkpoint.attempt()
    assert made.assigned == [["a", "b"]]
    await asyncio.wait_for(waiting, 5)


async def test_what_is_stored_as_it_is_is_not_stored_again(made):
    made.appear("a", stored=True)
    made.checkpoint.attempt()
    assert made.checkpoint.said == []
    assert made.assigned == [["a"]]


async def test_many_sources_are_told_of_in_bounded_messages_and_turns(made, monkeypatch):
    monkeypatch.setattr(handover_module, "TOLD_AT_ONCE", 2 * ASSIGNMENTS)
    names = [str(number) for number in range(5 * ASSIGNMENTS + 1)]
    made.appear(*names)
    made.checkpoint.attempt()
    assert [len(part) for part in made.assigned] == [ASSIGNMENTS] * 2
    await asyncio.wait_for(made.handover.done(), 30)
    assert [len(part) for part in made.assigned] == [*[ASSIGNMENTS] * 5, 1]
    assert [name for part in made.assigned for name in part] == names


async def test_a_source_that_appears_while_others_are_told_of_waits_for_its_own_write(made, monkeypatch):
    monkeypatch.setattr(handover_module, "TOLD_AT_ONCE", 1)
    made.appear("a", "b", "c")
    made.checkpoint.attempt()
    made.appear("late")
    for _ in range(5):
        await asyncio.sleep(0)
    assert made.assigned == [["a"], ["b"], ["c"]]
    made.checkpoint.attempt()
    await asyncio.wait_for(made.handover.done(), 30)
    assert made.assigned == [["a"], ["b"], ["c"], ["late"]]


async def test_a_source_that_is_concluded_before_its_owner_knows_it_is_assigned_as_concluded(made):
    made.appear("a")
    made.handover.conclude("r", "a")
    made.checkpoint.attempt()
    ((_, message),) = made.told
    assert message.assignments[0].found.last


async def test_a_source_that_is_concluded_later_is_concluded_once_by_its_owner():
    made = Bench(slots=2)
    made.appear("a1", "a2", group="a")
    made.appear("b")
    made.checkpoint.attempt()
    made.told.clear()
    for name in ("a1", "b", "a2", "a1", "nobody"):
        made.handover.conclude("r", name)
    made.handover.store("r", StoredPosition("done", 9, {}))
    assert made.told == []
    made.checkpoint.attempt()
    assert made.told == [(0, Conclude("r", ["a1", "a2"])), (1, Conclude("r", ["b"]))]


async def test_one_that_ended_meanwhile_is_not_concluded(made):
    made.appear("a")
    made.checkpoint.attempt()
    made.told.clear()
    made.handover.conclude("r", "a")
    made.shards.end("r", "a", made.shards.get("r", "a").generation)
    made.checkpoint.attempt()
    assert made.told == []


async def test_a_new_worker_is_told_of_each_of_its_sources_once(made):
    made.appear("a")
    made.checkpoint.attempt()
    made.told.clear()
    made.appear("b")  # waits for its write when the worker starts
    made.handover.conclude("r", "a")
    made.shards.renew(0)
    made.handover.worker_started(0)
    made.checkpoint.attempt()
    await asyncio.wait_for(made.handover.done(), 30)
    (assign,) = [message for _, message in made.told if isinstance(message, Assign)]
    told = {assignment.found.source: assignment for assignment in assign.assignments}
    assert told.keys() == {"a", "b"}
    assert told["a"].found.last
    assert told["a"].generation == made.shards.get("r", "a").generation


@pytest.mark.parametrize("at_once", [1, 10])
async def test_a_new_worker_is_told_of_its_sources_in_the_order_of_ranks(made, monkeypatch, at_once):
    # A source waits for those of lower rank that its worker has already.
    monkeypatch.setattr(handover_module, "TOLD_AT_ONCE", at_once)
    made.appear("a")
    made.checkpoint.attempt()
    made.appear("b", "c")
    if at_once == 1:
        made.checkpoint.attempt()  # b is told, and c waits for its turn
    made.appear("d")
    made.appear("rest", rank=-1)  # in place of one that was there before all of them
    made.told.clear()
    made.shards.renew(0)
    made.handover.worker_started(0)
    made.checkpoint.attempt()
    await asyncio.wait_for(made.handover.done(), 5)
    assert [source for message in made.assigned for source in message] == ["rest", "a", "b", "c", "d"]


async def test_nothing_of_a_dropped_route_is_stored_or_told(made):
    made.appear("a")
    made.checkpoint.attempt()
    made.appear("b")
    made.checkpoint.said.clear()
    made.told.clear()
    made.handover.drop_route("r")
    assert made.told == [(0, Revoke("r", ["a", "b"]))]
    made.appear("c")
    made.handover.conclude("r", "a")
    made.handover.store("r", StoredPosition("d", 1, {}))
    made.handover.forget("r", "a")
    made.checkpoint.attempt()
    assert made.checkpoint.said == []
    assert len(made.told) == 1
    await asyncio.wait_for(made.handover.done(), 30)


async def test_a_source_is_known_as_its_owner_last_reported_it(made):
    made.appear("a")
    made.shards.moved(Moved("r", "a", 1, 5, {"path": "/a.1"}))
    assert made.handover.latest("r", "a") == Found("a", 5, {"path": "/a.1"})
    assert made.handover.latest("r", "nobody") is None


async def test_what_is_stored_and_forgotten_goes_to_the_checkpoint(made):
    made.handover.store("r", StoredPosition("done", 9, {}))
    made.handover.forget("r", "old")
    assert made.checkpoint.said == [("store", "r", "done", 9), ("forget", "r", "old")]
