"""The embedded broker's assignors beside those of Kafka's broker, on groups at random that change."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING

import pytest
from harness.java_programs import JavaProgram, java_program

from ingestd.broker.groups.assignors import ASSIGNORS
from ingestd.broker.groups.assignors.subscriber import Subscriber

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from ingestd.broker.groups.consumer_values import TopicIdPartition

    Shares = Mapping[str, frozenset[TopicIdPartition]]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    """`tests/interop/java/ServerAssignors.java`: one JVM for all cases."""
    with java_program("ServerAssignors", tmp_path_factory.mktemp("java")) as running:
        yield running


class Group:
    """Topics and members, which change at random."""

    def __init__(self, rng: random.Random, *, alike: bool) -> None:
        self._rng = rng
        self._alike = alike
        self.topics = {uuid.UUID(int=number): rng.randint(1, 9) for number in range(1, rng.randint(2, 5))}
        self.members: dict[str, tuple[str | None, frozenset[UUID]]] = {}
        for _ in range(rng.randint(1, 6)):
            self._join()

    def _join(self) -> None:
        name = "".join(self._rng.choices("aZ9-_😀\ufffd", k=5)) + str(self._rng.random())
        instance = f"i{name}" if self._rng.random() < 0.3 else None
        some = [topic for topic in self.topics if self._rng.random() < 0.7]
        self.members[name] = (instance, frozenset(self.topics if self._alike else some))

    def change(self) -> None:
        """Something is different now."""
        match self._rng.randrange(3):
            case 0:
                self._join()
            case 1 if len(self.members) > 1:
                del self.members[self._rng.choice(list(self.members))]
            case _:
                self.topics[self._rng.choice(list(self.topics))] += self._rng.randint(1, 4)

    def ours(self, name: str, had: Shares) -> Shares:
        members = {
            member: Subscriber(topics, had.get(member, frozenset()), instance)
            for member, (instance, topics) in self.members.items()
        }
        return ASSIGNORS[name](members, self.topics)

    def javas(self, oracle: JavaProgram, name: str, had: Shares) -> Shares:
        case = {
            "assignor": name,
            "topics": {str(topic.int): count for topic, count in self.topics.items()},
            "members": {
                member: {
                    "instance": instance,
                    "topics": [topic.int for topic in topics],
                    "had": [[topic.int, number] for topic, number in had.get(member, ())],
                }
                for member, (instance, topics) in self.members.items()
            },
        }
        outcome = oracle.ask(case)
        return {
            member: frozenset((uuid.UUID(int=topic), number) for topic, number in outcome.get(member, ()))
            for member in self.members
        }

    def check_whole(self, shares: Shares) -> None:
        """Every partition that anybody reads has one owner, who reads it."""
        assert shares.keys() == self.members.keys()
        read = {topic for _instance, topics in self.members.values() for topic in topics}
        owned = [partition for share in shares.values() for partition in share]
        assert sorted(owned) == sorted((topic, number) for topic in read for number in range(self.topics[topic]))
        for member, share in shares.items():
            assert {topic for topic, _number in share} <= self.members[member][1]


def sizes(shares: Shares) -> list[int]:
    return sorted((len(share) for share in shares.values()), reverse=True)


def moved(had: Shares, has: Shares) -> int:
    """Partitions that somebody lost who is still there."""
    return sum(len(had[member] - has[member]) for member in has if member in had)


def test_range_is_the_one_that_kafkas_broker_makes(oracle: JavaProgram) -> None:
    rng = random.Random(848)
    for number in range(1_500):
        group = Group(rng, alike=number % 3 == 0)
        ours = group.ours("range", {})
        group.check_whole(ours)
        assert ours == group.javas(oracle, "range", {})


@pytest.mark.parametrize("alike", [True, False])
def test_uniform_is_as_even_as_kafkas_brokers_and_moves_no_more(oracle: JavaProgram, *, alike: bool) -> None:
    rng = random.Random(f"uniform {alike}")
    ours_moved = javas_moved = 0
    for _ in range(400):
        group = Group(rng, alike=alike)
        had: Shares = {}
        for _change in range(4):
            ours = group.ours("uniform", had)
            javas = group.javas(oracle, "uniform", had)
            group.check_whole(ours)
            group.check_whole(javas)
            assert sizes(ours) <= sizes(javas)
            if alike:
                assert max(sizes(ours)) - min(sizes(ours)) <= 1
            if sizes(ours) == sizes(javas):
                ours_moved += moved(had, ours)
                javas_moved += moved(had, javas)
            assert group.ours("uniform", ours) == ours, "a settled group stays as it is"
            had = ours
            group.change()
    assert ours_moved <= javas_moved
