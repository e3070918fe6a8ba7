"""Whom to ask what any broker can answer."""

from __future__ import annotations

from typing import Any

import pytest

from ingestd.client.brokers import CONTROL, Brokers
from ingestd.client.metadata import Node
from ingestd.client.settings import ClientSettings
from ingestd.errors import DeadlineExceeded
from ingestd.wire import requests


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


async def test_a_node_that_was_silent_is_asked_after_the_others_until_it_answers(cluster: Any, settings: Any) -> None:
    brokers = Brokers(["one:1"], settings())
    for number, address in cluster.nodes.items():
        host, _, port = address.partition(":")
        brokers.register(Node(number, host, int(port)))
    question = requests.metadata(["t"], allow_auto_topic_creation=False)
    cluster.hanging = {"two:2"}
    with pytest.raises(DeadlineExceeded):
        await brokers.broker(2, "administration").request(question, timeout=1)
    for _ in range(20):
        assert [broker.node.id for broker in brokers.candidates()][2] == 2
    cluster.hanging.clear()
    await brokers.broker(2, "administration").request(question, timeout=1)
    await brokers.broker(2).connection(1)
    assert next(brokers.candidates()).node.id == 2  # the only one with a connection for it
    await brokers.close()
