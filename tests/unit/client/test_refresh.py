"""Metadata by own requests: who is asked, how often, and what failures and partial errors do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingestd.client.client import Client
from ingestd.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    ErrorCode,
    IngestdError,
    KafkaError,
    UnsupportedVersion,
)
from ingestd.wire.apis import Api


async def test_nothing_is_asked_before_something_is_wanted(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        await asyncio.sleep(0)
        assert client.metadata.snapshot.version == 0
    assert cluster.connects == []


async def test_a_seed_is_asked_first_and_a_live_node_from_then_on(cluster: Any, settings: Any) -> None:
    async with Client(["seed:9"], settings()) as client:
        await client.metadata.refresh(["t"], 5)
        await client.metadata.refresh(["t"], 5)
    first, second = (address for address, _ in cluster.metadata_requests())
    assert first == "seed:9"
    assert second in cluster.nodes.values()


async def test_a_broker_that_fails_is_deregistered_and_the_next_one_asked(cluster: Any, settings: Any) -> None:
    async with Client(["a:1", "b:2", "c:3"], settings(metadata_request_timeout=0.2)) as client:
        cluster.down = {"a:1"}
        cluster.hanging = {"b:2"}
        snapshot = await client.metadata.refresh(["t"], 5)
    assert set(snapshot.nodes) == {1, 2, 3}
    assert cluster.metadata_requests()[-1][0] == "c:3"


async def test_when_every_known_node_fails_the_seeds_are_asked_again(cluster: Any, settings: Any) -> None:
    async with Client(["seed:9"], settings()) as client:
        await client.metadata.refresh(["t"], 5)
        cluster.down = set(cluster.nodes.values())
        for connection in cluster.connections:
            connection.abort(Closed("killed"))
        cluster.nodes = {7: "seven:7"}
        snapshot = await client.metadata.refresh(["t"], 5)
        assert set(snapshot.nodes) == {7}
    assert set(cluster.connects) >= {"one:1", "two:2", "three:3"}


async def test_nodes_that_all_failed_once_are_asked_again_when_they_are_back(cluster: Any, settings: Any) -> None:
    async with Client(["seed:9"], settings()) as client:
        await client.metadata.refresh(["t"], 5)
        cluster.down = {*cluster.nodes.values(), "seed:9"}
        for connection in cluster.connections:
            connection.abort(Closed("killed"))
        with pytest.raises(DeadlineExceeded):
            await client.metadata.refresh(["t"], 0.05)
        cluster.down = {"seed:9"}
        await client.metadata.refresh(["t"], 5)


async def test_no_answer_at_all_ends_at_the_deadline_with_the_reasons(cluster: Any, settings: Any) -> None:
    cluster.down = {"a:1", "b:2"}
    async with Client(["a:1", "b:2"], settings()) as client:
        with pytest.raises(DeadlineExceeded, match=r"a:1: refused.*|b:2: refused"):
            await client.metadata.refresh(["t"], 0.05)
    assert len(cluster.connects) > 2


async def test_brokers_that_speak_no_version_of_metadata_that_we_do_are_an_error_at_once(
    cluster: Any, settings: Any
) -> None:
    cluster.ranges[Api.metadata] = (90, 99)
    cluster.down = {"b:2"}
    async with Client(["a:1", "b:2"], settings()) as client:
        with pytest.raises(UnsupportedVersion, match="metadata: this broker speaks versions 90 to 99"):
            await client.metadata.refresh(["t"], 5)
        connects = len(cluster.connects)
        assert connects == 2
        assert isinstance(client.metadata.failure, UnsupportedVersion)
        cluster.ranges[Api.metadata] = (0, 9)  # the cluster is upgraded
        await client.metadata.refresh(["t"], 5)
        assert client.metadata.failure is None


async def test_concurrent_refreshes_share_one_request(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        cluster.topics["u"] = {0: (1, 0)}
        await asyncio.gather(*(client.metadata.refresh([topic], 5) for topic in "tutututu"))
    assert cluster.metadata_requests() == [("one:1", ["t", "u"])]


async def test_who_asks_while_a_request_is_in_flight_gets_the_answer_of_the_next(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        cluster.gate = asyncio.Event()
        early = asyncio.create_task(client.metadata.refresh(["t"], 5))
        while not cluster.asked:
            await asyncio.sleep(0)
        late = [asyncio.create_task(client.metadata.refresh(["t"], 5)) for _ in range(10)]
        await asyncio.sleep(0)
        cluster.gate.set()
        await asyncio.gather(early, *late)
    assert len(cluster.metadata_requests()) == 2


async def test_a_storm_of_wishes_costs_one_request_an_interval(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings(metadata_minimum_interval=60.0)) as client:
        refreshed = asyncio.Event()
        client.metadata.listen(lambda _: refreshed.set())
        for _ in range(1000):
            client.metadata.wanted(["t"], "not leader")
            await asyncio.sleep(0)
        await refreshed.wait()
        assert len(cluster.metadata_requests()) == 1
        await client.metadata.refresh(["t"], 5)  # somebody who waits does not wait for the interval
        assert len(cluster.metadata_requests()) == 2


async def test_a_wish_survives_that_nobody_answers(cluster: Any, settings: Any) -> None:
    cluster.down = {"one:1"}
    async with Client(["one:1"], settings()) as client:
        refreshed = asyncio.Event()
        client.metadata.listen(lambda _: refreshed.set())
        client.metadata.wanted(["t"], "missing")
        while len(cluster.connects) < 3:
            await asyncio.sleep(0.001)
        cluster.down = set()
        await asyncio.wait_for(refreshed.wait(), 5)
        assert "t" in client.metadata.snapshot.topics


@pytest.mark.parametrize("wish", ["of a topic", "of everything"])
async def test_a_wish_survives_one_who_waits_beside_it_and_gives_up(cluster: Any, settings: Any, wish: str) -> None:
    # wanted(w) and refresh(t) share a round that fails; only t was asked for again, and that only until its deadline.
    cluster.topics["w"] = {0: (1, 5)}
    async with Client(["one:1"], settings(metadata_max_age=0.05 if wish == "of everything" else 0.0)) as client:
        await client.metadata.refresh(["t"] if wish == "of a topic" else ["t", "w"], 5)
        cluster.topics["w"] = {0: (2, 6)}
        cluster.down = set(cluster.nodes.values())
        for connection in cluster.connections:
            connection.abort(ConnectionLost("down"))
        if wish == "of a topic":
            client.metadata.wanted(["w"], "missing")
        with pytest.raises(DeadlineExceeded):
            await client.metadata.refresh(["t"], 0.3)
        attempts = len(cluster.connects) + 9
        async with asyncio.timeout(5):
            while len(cluster.connects) < attempts:
                await asyncio.sleep(0.001)
            cluster.down = set()
            while client.metadata.snapshot.leader("w", 0) != client.metadata.snapshot.nodes[2]:
                await asyncio.sleep(0.001)


async def test_a_name_that_can_not_be_sent_ends_no_other_refresh(cluster: Any, settings: Any) -> None:
    """It fails while its request is encoded, with an error that is not one of ours; others wait for the next round."""
    reported: list[Any] = []
    answer = cluster.answer

    async def refusing(address: str, request: Any) -> Any:
        for topic in request.topics:
            topic.name.encode()
        return await answer(address, request)

    cluster.answer = refusing
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    async with Client(["one:1"], settings(metadata_max_age=0.05, metadata_idle=0.2)) as client:
        cluster.connecting = asyncio.Event()
        bad = asyncio.ensure_future(client.metadata.refresh(["\udcff"], 5))
        while not cluster.connects:
            await asyncio.sleep(0)
        good = asyncio.ensure_future(client.metadata.refresh(["t"], 5))
        await asyncio.sleep(0)
        cluster.connecting.set()
        with pytest.raises(IngestdError, match="refreshing metadata failed: UnicodeEncodeError"):
            await bad
        assert "t" in (await good).topics
        asked = len(cluster.metadata_requests()) + 3
        async with asyncio.timeout(5):
            while len(cluster.metadata_requests()) < asked:  # periodically, once the name is forgotten
                await asyncio.sleep(0.01)
    assert all(isinstance(error, UnicodeEncodeError) for error in reported)


async def test_partial_errors_are_asked_again_and_still_update_what_is_known(cluster: Any, settings: Any) -> None:
    cluster.topics["u"] = {0: (2, 1)}
    cluster.errors["t"] = [ErrorCode.leader_not_available, ErrorCode.leader_not_available]
    async with Client(["one:1"], settings()) as client:
        seen: list[tuple[int, int]] = []
        client.metadata.listen(
            lambda now: seen.append((now.topics["u"].partitions[0].leader, now.topics["t"].partitions[0].leader))
        )
        snapshot = await client.metadata.refresh(["t", "u"], 5)
        assert snapshot.topics["t"].partitions[0].leader == 1
        assert seen == [(2, -1), (2, -1), (2, 1)]
    assert [topics for _, topics in cluster.metadata_requests()] == [["t", "u"], ["t"], ["t"]]


async def test_an_unknown_topic_is_asked_for_a_few_times_and_then_stands_as_unknown(
    cluster: Any, settings: Any
) -> None:
    async with Client(["one:1"], settings(metadata_attempts=3)) as client:
        snapshot = await client.metadata.refresh(["nix"], 5)
        assert snapshot.topics["nix"].error is ErrorCode.unknown_topic_or_partition
        assert len(cluster.metadata_requests()) == 3
        with pytest.raises(KafkaError, match="nix"):
            await client.partitions("nix", 5)


async def test_a_topic_unknown_all_along_does_not_hold_up_a_refresh_of_everything(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings(metadata_attempts=3)) as client:
        await client.metadata.refresh(["t", "nix"], 5)
        before = len(cluster.metadata_requests())
        cluster.errors["t"] = [ErrorCode.leader_not_available]
        snapshot = await client.metadata.refresh(None, 5)
        assert snapshot.topics["t"].partitions[0].leader == 1
        assert [topics for _, topics in cluster.metadata_requests()[before:]] == [["nix", "t"], ["t"]]


async def test_everything_asked_for_once_is_refreshed_periodically(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings(metadata_max_age=0.02)) as client:
        cluster.topics["u"] = {0: (1, 0)}
        await client.metadata.refresh(["t"], 5)
        await client.metadata.refresh(["u"], 5)
        cluster.topics["t"] = {0: (3, 9)}
        moved = asyncio.Event()
        client.metadata.listen(lambda now: moved.set() if now.topics["t"].partitions[0].leader == 3 else None)
        await asyncio.wait_for(moved.wait(), 5)
        assert cluster.metadata_requests()[-1][1] == ["t", "u"]


async def test_a_lagging_brokers_older_leader_does_not_undo_a_newer_one(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh(["t"], 5)
        client.metadata.hint("t", 0, 2, 6)
        assert client.metadata.snapshot.partition("t", 0).leader == 2
        snapshot = await client.metadata.refresh(["t"], 5)  # still says leader 1 in epoch 5
        assert (snapshot.partition("t", 0).leader, snapshot.partition("t", 0).leader_epoch) == (2, 6)
        cluster.topics["t"][0] = (3, 7)
        snapshot = await client.metadata.refresh(["t"], 5)
        assert snapshot.partition("t", 0).leader == 3


async def test_a_hint_counts_only_if_its_epoch_is_newer(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh(["t"], 5)
        before = client.metadata.snapshot
        client.metadata.hint("t", 0, 2, 5)
        client.metadata.hint("t", 0, -1, 9)
        client.metadata.hint("t", 99, 2, 9)
        assert client.metadata.snapshot is before
        assert len(cluster.metadata_requests()) == 1


async def test_a_hint_at_an_unknown_node_makes_a_refresh_wanted(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        await client.metadata.refresh(["t"], 5)
        cluster.nodes[4] = "four:4"
        cluster.topics["t"][0] = (4, 6)
        moved = asyncio.Event()
        client.metadata.listen(lambda _: moved.set())
        client.metadata.hint("t", 0, 4, 6)
        await asyncio.wait_for(moved.wait(), 5)
        assert client.metadata.snapshot.leader("t", 0).host == "four"


async def test_versions_of_the_snapshot_grow(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        versions = []
        client.metadata.listen(lambda now: versions.append(now.version))
        for _ in range(3):
            await client.metadata.refresh(["t"], 5)
        client.metadata.hint("t", 0, 2, 6)
        assert versions == sorted(set(versions))
        assert len(versions) == 4


async def test_a_listener_that_fails_keeps_no_news_from_the_others(cluster: Any, settings: Any) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with Client(["one:1"], settings()) as client:
        heard: list[int] = []

        def fail(_: Any) -> None:
            raise RuntimeError("listener")

        client.metadata.listen(fail)
        stop = client.metadata.listen(lambda now: heard.append(now.version))
        await client.metadata.refresh(["t"], 5)
        stop()
        await client.metadata.refresh(["t"], 5)
        assert heard == [1]
        assert len(reported) == 2


async def test_close_ends_a_refresh_that_nobody_answers_at_once(cluster: Any, settings: Any) -> None:
    cluster.hanging = {"one:1"}
    client = Client(["one:1"], settings(metadata_request_timeout=60.0))
    waiting = asyncio.create_task(client.metadata.refresh(["t"], 60))
    while not cluster.asked:
        await asyncio.sleep(0)
    behind = asyncio.create_task(client.metadata.refresh(["t"], 60))
    await asyncio.sleep(0)
    await client.close(1.0)
    for task in (waiting, behind):
        with pytest.raises(Closed):
            await task
    with pytest.raises(Closed):
        await client.metadata.refresh(["t"], 1)


async def test_the_last_attempts_error_is_known_until_one_is_answered(cluster: Any, settings: Any) -> None:
    async with Client(["seed:9"], settings()) as client:
        assert client.metadata.last_error is None
        cluster.down = {"seed:9"}
        with pytest.raises(DeadlineExceeded):
            await client.metadata.refresh((), 0.05)
        assert "seed:9" in str(client.metadata.last_error)
        cluster.down = set()
        await client.metadata.refresh((), 5)
        assert client.metadata.last_error is None


async def test_asking_for_the_brokers_alone_postpones_no_refresh_of_the_topics(cluster: Any, settings: Any) -> None:
    # Whoever asks again and again whether the cluster answers would never hear of partitions that were added.
    async with Client(["one:1"], settings(metadata_max_age=300.0)) as client:
        client.metadata.listen(lambda _: None)
        await client.metadata.refresh(["t"], 5)
        for _ in range(130):
            await asyncio.sleep(5)
            await client.metadata.refresh((), 5)
    asked = [topics for _, topics in cluster.metadata_requests() if topics]
    assert asked == [["t"]] * 3


async def test_only_what_may_be_created_is_asked_for_so_that_it_is(cluster: Any, settings: Any) -> None:
    """A request creates every topic in it that is missing: a consumer's goes by itself."""
    cluster.gate = asyncio.Event()
    async with Client(["one:1"], settings(metadata_attempts=1)) as client:
        first = asyncio.create_task(client.metadata.refresh([], 5))
        await asyncio.sleep(0.001)
        client.metadata.wanted(["produced"], "records wait", create=True)
        asking = asyncio.create_task(client.metadata.refresh(["consumed", "produced"], 5))
        await asyncio.sleep(0.001)
        cluster.gate.set()
        await asyncio.gather(first, asking)
    asked = [
        ([topic.name for topic in request.topics], request.allow_auto_topic_creation)
        for request in cluster.asked_of("Metadata")
    ]
    assert asked == [([], False), (["produced"], True), (["consumed"], False)]


async def test_a_wish_to_create_outlives_an_attempt_that_fails(cluster: Any, settings: Any) -> None:
    cluster.down = {"one:1"}
    async with Client(["one:1"], settings()) as client:
        client.metadata.wanted(["produced"], "records wait", create=True)
        await asyncio.sleep(0.1)
        cluster.down = set()
        await asyncio.sleep(0.1)
    requests = [request for request in cluster.asked_of("Metadata") if request.topics]
    assert requests[0].allow_auto_topic_creation
