"""A group of KIP-848 by itself: its topics, its clients, its time, and its log that a test may cut."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ingestd.broker.groups.consumer_group import ConsumerGroup, ConsumerRules
from ingestd.broker.groups.consumer_state import ConsumerState
from ingestd.broker.groups.consumer_values import JOINING, HeartbeatAnswer, HeartbeatAsked
from ingestd.broker.groups.replayed import Replayed
from ingestd.broker.topics import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from ingestd.broker.coordinator.records import CoordinatorRecord
    from ingestd.broker.groups.consumer_group import Save
    from ingestd.broker.groups.consumer_values import TopicIdPartition

__all__ = ["REBALANCE", "SESSION", "Client", "Driven", "SomeTopics"]

SESSION, REBALANCE = 45.0, 30.0


class SomeTopics:
    """Topics that a test makes, grows and deletes."""

    def __init__(self, **partitions: int) -> None:
        self.version = 0
        self._by_name: dict[str, Topic] = {}
        for name, count in partitions.items():
            self.put(name, count)

    def put(self, name: str, partitions: int) -> None:
        known = self._by_name.get(name)
        self._by_name[name] = Topic(name, known.topic_id if known else uuid.uuid4(), partitions)
        self.version += 1

    def delete(self, name: str) -> None:
        del self._by_name[name]
        self.version += 1

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def named(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def identified(self, topic_id: UUID | None) -> Topic | None:
        return next((topic for topic in self if topic.topic_id == topic_id), None)

    def all_of(self, *names: str) -> frozenset[TopicIdPartition]:
        """All partitions of these topics, as far as there are such topics."""
        found = [topic for name in names if (topic := self.named(name)) is not None]
        return frozenset((topic.topic_id, number) for topic in found for number in range(topic.partitions))


@dataclass(eq=False)
class Client:
    """A member as its client is: what it has, and what it was told to have."""

    id: str
    topics: frozenset[str]
    instance_id: str | None = None
    pattern: str | None = None
    assignor: str | None = None
    epoch: int = JOINING
    has: frozenset[TopicIdPartition] = frozenset()
    told: frozenset[TopicIdPartition] = frozenset()

    def says(self) -> HeartbeatAsked:
        """Everything, as after an error."""
        return HeartbeatAsked(
            self.id,
            self.epoch,
            "client",
            "/127.0.0.1",
            self.instance_id,
            rebalance_timeout=REBALANCE,
            topics=self.topics if self.pattern is None else None,
            pattern=self.pattern,
            assignor=self.assignor,
            owned=self.has,
        )


@dataclass
class Driven:
    """The group, with what its log has, and the time."""

    topics: SomeTopics
    rules: ConsumerRules = field(default_factory=ConsumerRules)
    now: float = 1000.0
    log: list[CoordinatorRecord] = field(default_factory=list)
    fails: bool = False
    """Whether nothing can be written now."""

    def __post_init__(self) -> None:
        self.group = ConsumerGroup(ConsumerState("g", self.topics), self.rules)
        self._numbers = itertools.count(1)

    def member(self, *topics: str, **fields: Any) -> Client:
        """A client that has not joined yet."""
        return Client(f"member-{next(self._numbers)}", frozenset(topics), **fields)

    def do(self, saves: list[Save]) -> HeartbeatAnswer | None:
        """Write what is to be written. The answer, if there is one."""
        answer = None
        for save in saves:
            if save.records and self.fails:
                self.group.not_saved(save)
            else:
                self.log.extend(save.records)
                if isinstance(save.answer, HeartbeatAnswer):
                    answer = save.answer
        return answer

    def ask(self, asked: HeartbeatAsked) -> HeartbeatAnswer | None:
        """A heartbeat; None: it was not stored."""
        return self.do(self.group.heartbeat(asked, "ticket", self.now, int(self.now * 1000)))

    def beat(self, client: Client, *, revokes: bool = True, **fields: Any) -> HeartbeatAnswer:
        """A client's heartbeat. Then it begins with what is new, and gives up what it was told to if it `revokes`.

        What it gave up it says in its next heartbeat.
        """
        answer = self.ask(replace(client.says(), **fields))
        assert answer is not None
        if not answer.error:
            client.epoch = answer.epoch
            if answer.assigned is not None:
                client.told = answer.assigned
            client.has = client.told if revokes else client.has | client.told
        return answer

    def settle(self, *clients: Client) -> None:
        """Until nothing is different for anybody."""
        for _ in range(20):
            before = [(client.epoch, client.has) for client in clients]
            for client in clients:
                assert not self.beat(client).error
            if before == [(client.epoch, client.has) for client in clients]:
                return
        raise AssertionError("it does not settle")

    def move(self, seconds: float) -> None:
        """Let the time pass. The group hears of it at its deadlines alone."""
        end = self.now + seconds
        for _ in range(100):
            deadline = self.group.deadline
            if deadline is None or deadline > end:
                self.now = end
                return
            self.now = max(self.now, deadline)
            self.do(self.group.expire(self.now))
        raise AssertionError("a deadline that does not go on")

    def again(self) -> ConsumerGroup | None:
        """The group as the log has it."""
        replayed = Replayed()
        for record in self.log:
            replayed.take(record)
        state = replayed.consumer_state("g", self.topics)
        return None if state is None else ConsumerGroup.restored(state, self.rules, self.now)

    def restart(self) -> None:
        """The broker is killed and started again."""
        again = self.again()
        self.group = again or ConsumerGroup(ConsumerState("g", self.topics), self.rules)
