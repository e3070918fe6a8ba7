"""Whatever order answers, errors, moves and pauses come in, each reader gets its records, each once, in order."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_cluster import Asked, Cluster, part, snapshot

from ingestd.consumer import broker_choice, broker_consumer, standing
from ingestd.errors import ConnectionLost, ErrorCode
from ingestd.retry import Backoff

if TYPE_CHECKING:
    from ingestd.consumer.consumer import Consumer
    from ingestd.consumer.partition_consumer import PartitionConsumer

PARTITIONS = 3
BATCHES = 6
PER_BATCH = 4
END = BATCHES * PER_BATCH

# "stale" comes late, from a broker that had what it serves before its partitions moved.
FATES = ("serve", "one batch", "torn", "empty", "throttled", "lost", "no session", "wrong epoch", "not leader", "hint")
ACTIONS = st.one_of(
    st.sampled_from((*FATES, "prefer", "hold", "answer late")),
    st.tuples(st.sampled_from(("pause", "resume", "move")), st.integers(0, PARTITIONS - 1)),
)


class Model:
    """Two brokers that hold the same logs, and keep fetch sessions as KIP-227 says."""

    def __init__(self, make_batch: Any) -> None:
        self.logs = [
            [
                (base, make_batch(base, [b"%d/%d" % (number, base + index) for index in range(PER_BATCH)]))
                for base in range(0, END, PER_BATCH)
            ]
            for number in range(PARTITIONS)
        ]
        self.leaders = [1, 2, 1]
        self.epoch = 1
        self.cluster = Cluster(self.leaders)
        self.sessions: dict[int, dict[int, int]] = {1: {}, 2: {}}
        self.next_session = 100
        self.ids: dict[int, int] = {}
        self.followed: set[tuple[int, int]] = set()

    def move(self, number: int) -> None:
        self.leaders[number] = 3 - self.leaders[number]
        self.epoch += 1
        self.cluster.metadata.push(snapshot(self.leaders, leader_epoch=self.epoch, version=self.epoch))

    def answer(self, asked: Asked, fate: str) -> None:
        node = asked.node_id
        session_id, epoch = asked.session
        if fate == "lost":
            asked.future.set_exception(ConnectionLost("on purpose"))
            return
        if fate == "no session" or (epoch > 0 and self.ids.get(node) != session_id):
            self.ids.pop(node, None)
            asked.answer(error=ErrorCode.fetch_session_id_not_found, session_id=0)
            return
        if fate == "wrong epoch":
            asked.answer(error=ErrorCode.invalid_fetch_session_epoch, session_id=0)
            return
        if epoch == 0:
            self.next_session += 1
            self.ids[node] = self.next_session
            self.sessions[node] = {}
        cached = self.sessions[node]
        for number in asked.forgotten:
            del cached[number]  # a KeyError here: something was forgotten that was never named
        cached.update(asked.offsets)
        if fate == "prefer" and not asked.request.rack_id:
            fate = "serve"
        parts = [self._part(node, number, offset, fate) for number, offset in cached.items()]
        asked.answer(
            *(one for one in parts if one is not None),
            session_id=self.ids[node],
            throttle_ms=1 if fate == "throttled" else 0,
        )

    def _part(self, node: int, number: int, offset: int, fate: str) -> Any:
        leader = self.leaders[number]
        if fate == "prefer" and leader == node:
            self.followed.add((3 - node, number))
            return part(number, preferred=3 - node, high_watermark=END)
        if (node, number) in self.followed and leader != node and fate in {"serve", "prefer"}:
            fate = "stale"  # a follower has it all
        if (leader != node and fate != "stale") or fate in {"not leader", "hint"}:
            named = {"leader": leader, "leader_epoch": self.epoch} if fate == "hint" else {}
            return part(number, error=ErrorCode.not_leader_or_follower, **named)
        if fate in {"empty", "throttled"}:
            # As of a broker whose high watermark lags: nothing is said to be there.
            return part(number, high_watermark=offset)
        found = [data for base, data in self.logs[number] if base + PER_BATCH > offset]
        data = b"".join(found[:1] if fate == "one batch" else found)
        if fate == "torn" and len(found) > 1:
            data = data[:-7]
        return part(number, data, high_watermark=END)


def check_what_is_wanted(consumer: Consumer) -> None:
    """What is kept up by changes is what a look at every partition gives."""
    for broker in consumer._choice._brokers.values():
        wanted = broker._wanted
        wanted.update()
        assert {key: fetch.offset for key, fetch in wanted.fetches.items()} == {
            key: one.position for key, one in wanted.partitions.items() if one.fetchable
        }


async def run(model: Model, actions: list[Any]) -> list[list[bytes | None]]:
    async def read(partition: PartitionConsumer) -> list[bytes | None]:
        return [record.value async for record in partition]

    async with model.cluster.consumer(rack="near", replica_lease=0.02) as consumer:
        partitions = [await consumer.consume_partition("t", number, 2, END) for number in range(PARTITIONS)]
        readings = asyncio.gather(*map(read, partitions))
        held: list[Asked] = []
        for action in actions:
            check_what_is_wanted(consumer)
            if isinstance(action, tuple):
                kind, number = action
                {"pause": partitions[number].pause, "resume": partitions[number].resume}.get(
                    kind, functools.partial(model.move, number)
                )()
                await asyncio.sleep(0)
            elif action == "answer late":
                if held:
                    model.answer(held.pop(0), "stale")
            elif (asked := await model.cluster.asked_within(0.01)) is not None:
                if action == "hold":
                    held.append(asked)
                else:
                    model.answer(asked, action)
        for partition in partitions:
            partition.resume()
        for asked in held:
            model.answer(asked, "stale")
        async with asyncio.timeout(20):
            while not readings.done():
                if (asked := await model.cluster.asked_within(0.02)) is not None:
                    model.answer(asked, "serve")
        return await readings


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backoff in milliseconds."""
    backoff = functools.partial(Backoff, initial=0.0005, maximum=0.002)
    monkeypatch.setattr(broker_consumer, "Backoff", backoff)
    monkeypatch.setattr(standing, "Backoff", backoff)
    monkeypatch.setattr(broker_choice, "_REPLICA_PENALTY", 0.01)


@pytest.mark.usefixtures("quick")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, max_size=25))
def test_every_record_is_read_once_and_in_order(make_batch: Any, actions: list[Any]) -> None:
    found = asyncio.run(run(Model(make_batch), actions))
    assert found == [[b"%d/%d" % (number, offset) for offset in range(2, END)] for number in range(PARTITIONS)]
