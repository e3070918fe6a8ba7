"""Whom to ask what any broker can answer."""

from __future__ import annotations

from ingestd.client.brokers import CONTROL, Brokers
from ingestd.client.metadata import Node
from ingestd.client.settings import ClientSettings


async def test_a_seed_that_failed_is_passed_over_until_all_have() -> None:
    # A KIP-848 member asks for nothing that would make all nodes known: with its coordinator, which is the first seed
    # as well, dead, the other seeds must be asked.
    brokers = Brokers(["one:1", "two:2", "three:3"], ClientSettings())
    coordinator = brokers.any(CONTROL)
    brokers.register(Node(1, coordinator.node.host, coordinator.node.port))
    brokers.deregister(brokers.any(CONTROL), "refused")  # the node
    asked = []
    for _ in range(4):
        asked.append(brokers.any(CONTROL))
        brokers.deregister(asked[-1], "refused")
    assert len({broker.node.host for broker in asked[:3]}) == 3
    assert asked[3].node.id == 1  # all have failed: everybody gets another chance
    await brokers.close()
