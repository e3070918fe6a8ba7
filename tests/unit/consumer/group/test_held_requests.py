"""Requests that a coordinator holds back, on connections of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from next_generation_coordinator import FAST, Coordinator, Silence

from ingestd.client import broker as broker_module
from ingestd.client.client import Client
from ingestd.consumer.group.coordinator import GroupCoordinator
from ingestd.wire.requests.next_generation_groups import consumer_group_heartbeat

if TYPE_CHECKING:
    import pytest


async def test_a_member_that_waits_for_others_holds_up_no_other_member_on_the_same_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Two members of one group on one client: a broker reads the second's join only behind its answer to the first,
    # which it holds back until the second has joined.
    scripted = Coordinator()
    monkeypatch.setattr(broker_module.Connection, "open", scripted.open)
    async with Client(["one:1"], FAST) as client:
        first, second = (GroupCoordinator(client, "g", 5.0) for _ in range(2))
        scripted.script.append(Silence)
        held = asyncio.create_task(first.request_held(consumer_group_heartbeat("g", member_id="1", member_epoch=0), 60))
        await scripted.heartbeats(1)
        before = set(scripted.connections)
        await second.request_held(consumer_group_heartbeat("g", member_id="2", member_epoch=0), 60)
        (new,) = set(scripted.connections) - before
        await second.request_held(consumer_group_heartbeat("g", member_id="2", member_epoch=0), 60)
        assert set(scripted.connections) == before | {new}
        second.release()
        await asyncio.sleep(0)
        assert new.closed
        assert not held.done()
        held.cancel()
