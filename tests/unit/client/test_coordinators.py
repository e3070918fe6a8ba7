"""Coordinators: asked for together, remembered, forgotten; by brokers of every age."""

from __future__ import annotations

from typing import Any

import pytest

from ingestd.client import coordinators
from ingestd.client.client import Client, CoordinatorKind
from ingestd.errors import DeadlineExceeded, ErrorCode, IngestdError, KafkaError
from ingestd.wire.apis import Api

GROUP = CoordinatorKind.group


async def test_many_coordinators_are_found_by_one_request_and_remembered(cluster: Any, settings: Any) -> None:
    cluster.coordinator_of = {"a": 1, "b": 2, "c": 1}
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh((), 5)
        found = await client.coordinators(["a", "b", "c"], GROUP, 5)
        assert {key: broker.node.id for key, broker in found.items()} == {"a": 1, "b": 2, "c": 1}
        assert found["a"] is found["c"]
        await client.coordinators(["b", "a"], GROUP, 5)
        assert [request.coordinator_keys for request in cluster.asked_of("FindCoordinator")] == [("a", "b", "c")]


async def test_a_forgotten_coordinator_is_looked_up_and_the_others_are_not(cluster: Any, settings: Any) -> None:
    cluster.coordinator_of = {"a": 1, "b": 2}
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh((), 5)
        await client.coordinators(["a", "b"], GROUP, 5)
        cluster.coordinator_of["a"] = 3
        client.forget_coordinator("a", GROUP)
        found = await client.coordinators(["a", "b"], GROUP, 5)
        assert {key: broker.node.id for key, broker in found.items()} == {"a": 3, "b": 2}
        assert cluster.asked_of("FindCoordinator")[-1].coordinator_keys == ("a",)


async def test_an_older_broker_is_asked_for_one_after_the_other(cluster: Any, settings: Any) -> None:
    cluster.ranges[Api.find_coordinator] = (0, 3)
    cluster.coordinator_of = {"a": 1, "b": 2}
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh((), 5)
        found = await client.coordinators(["a", "b"], GROUP, 5)
        assert {key: broker.node.id for key, broker in found.items()} == {"a": 1, "b": 2}
        assert sorted(request.key for request in cluster.asked_of("FindCoordinator")) == ["a", "b"]


async def test_a_key_that_is_refused_keeps_nothing_from_the_others(cluster: Any, settings: Any) -> None:
    cluster.coordinator_of = {"a": 1, "secret": ErrorCode.group_authorization_failed}
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh((), 5)
        found = await client.coordinators(["secret", "a"], GROUP, 5)
        assert found["a"].node.id == 1
        assert isinstance(found["secret"], KafkaError)
        assert found["secret"].code is ErrorCode.group_authorization_failed
        with pytest.raises(KafkaError, match="secret"):
            await client.coordinator("secret", GROUP, 5)


async def test_one_that_is_not_there_yet_is_asked_for_until_the_deadline(cluster: Any, settings: Any) -> None:
    cluster.coordinator_of = {"a": ErrorCode.coordinator_not_available}
    async with Client(["one:1"], settings()) as client:
        with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
            await client.coordinator("a", GROUP, 0.05)
        assert len(cluster.asked_of("FindCoordinator")) > 2


async def test_a_silent_broker_is_left_for_the_next(cluster: Any, settings: Any) -> None:
    cluster.coordinator_of = {"a": 3}
    async with Client(["one:1"], settings(metadata_request_timeout=0.1)) as client:
        await client.metadata.refresh((), 5)
        cluster.hanging = {"one:1"}
        assert (await client.coordinator("a", GROUP, 5)).node.id == 3


async def test_with_nobody_there_it_ends_at_the_deadline(cluster: Any, settings: Any) -> None:
    cluster.down = {"one:1"}
    async with Client(["one:1"], settings()) as client:
        with pytest.raises((DeadlineExceeded, IngestdError), match="refused"):
            await client.coordinator("a", GROUP, 0.05)


async def test_each_purpose_has_a_connection_of_its_own(cluster: Any, settings: Any) -> None:
    cluster.coordinator_of = {"a": 1, "b": 1}
    async with Client(["one:1"], settings()) as client:
        joining = await client.coordinator("a", GROUP, 5, purpose="group a")
        other = await client.coordinator("b", GROUP, 5, purpose="group b")
        assert joining.node == other.node
        assert joining is not other


async def test_of_very_many_the_ones_found_first_are_forgotten(
    cluster: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "_MOST_KNOWN", 2)
    cluster.coordinator_of = dict.fromkeys("abc", 1)
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh((), 5)
        for key in "abc":
            await client.coordinator(key, GROUP, 5)
        assert list(client.status().coordinators) == ["group b", "group c"]
