"""Supervised cluster: what it makes of answers and of their absence, and what it tells the workers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import structlog

from ingestd.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from ingestd.daemon import supervised_cluster
from ingestd.daemon.configuration import ClusterSettings, DaemonSettings
from ingestd.daemon.supervised_cluster import SupervisedCluster
from ingestd.errors import AuthenticationFailed, ConnectionLost, DeadlineExceeded, ErrorCode

REFUSED = ConnectionLost("no broker answered: kafka-1:9092: Connection refused")


class Metadata:
    """Refreshes as a test says: `error` is raised, `last_error` is what the newest attempt failed with."""

    def __init__(self) -> None:
        self.snapshot = ClusterMetadata()
        self.error = None
        self.last_error = None
        self.asked = []
        self.wishes = []
        self.creating = []

    async def refresh(self, topics, timeout, *, create=False):
        self.asked.append(list(topics))
        self.creating.append(create)
        if self.error is not None:
            raise self.error

    def wanted(self, topics, reason, *, create=False):
        self.wishes.append(topics)
        self.creating.append(create)


@pytest.fixture
def metadata():
    return Metadata()


@pytest.fixture
def heard():
    return SimpleNamespace(pushed=[], reachable=[], events=[])


@pytest.fixture
def session(metadata, heard):
    settings = ClusterSettings("main", bootstrap=("kafka-1:9092",))
    with structlog.testing.capture_logs() as heard.events:
        made = SupervisedCluster(
            settings, {"t": ["a", "b"]}, DaemonSettings(), heard.pushed.append, heard.reachable.append
        )
        made.client = SimpleNamespace(metadata=metadata)
        yield made


async def looks(metadata, topics):
    """Wait until the cluster was asked twice more for these topics: what the first answer led to is done then."""
    metadata.asked.clear()
    async with asyncio.timeout(10):
        while metadata.asked.count(topics) < 2:
            await asyncio.sleep(0.001)


async def test_why_a_cluster_does_not_answer_is_known_from_the_first_attempt_on(session, metadata, heard):
    metadata.error, metadata.last_error = DeadlineExceeded("refreshing metadata"), REFUSED
    assert not await session._look(session.client, ["t"])
    assert session.trouble == "cluster main: kafka-1:9092: Connection refused"
    session._reach._answered_at -= 10
    assert not await session._look(session.client, ["t"])
    assert heard.reachable == [False, False]
    assert [(event["event"], event["reason"]) for event in heard.events] == [
        ("cluster does not answer", "kafka-1:9092: Connection refused")
    ]
    assert session.silent_seconds >= 10


async def test_brokers_that_are_silent_without_an_error_are_said_too(session, metadata, heard):
    metadata.error = DeadlineExceeded("refreshing metadata")
    session._reach._answered_at -= 10
    assert not await session._look(session.client, [])
    assert heard.events[0]["reason"] == "no answer within 3 s"
    assert session.trouble == "cluster main: no answer within 3 s"


async def test_a_cluster_that_refuses_the_password_did_answer_and_is_an_error(session, metadata, heard):
    # It was the warning "cluster does not answer".
    metadata.error = DeadlineExceeded("refreshing metadata")
    metadata.last_error = ConnectionLost("no broker answered: kafka-1:9092: PLAIN: Authentication failed")
    metadata.last_error.__cause__ = AuthenticationFailed("kafka-1:9092: PLAIN: Authentication failed")
    session._reach._answered_at -= 10
    assert not await session._look(session.client, ["t"])
    (said,) = heard.events
    assert (said["event"], said["log_level"]) == ("authentication with the cluster failed", "error")
    assert said["reason"] == "kafka-1:9092: PLAIN: Authentication failed"
    assert heard.reachable == [False]
    metadata.error = metadata.last_error = None
    assert await session._look(session.client, [])
    assert [event["event"] for event in heard.events[1:]] == ["cluster answers again"]


async def test_a_cluster_that_lacks_a_topic_answers_and_can_not_be_used(session, metadata, heard):
    metadata.snapshot = ClusterMetadata(topics={"t": TopicMetadata("t", None, ())}, version=1)
    for _ in range(3):
        assert await session._look(session.client, ["t"])
    assert heard.reachable == [True] * 3
    assert session.trouble == (
        "cluster main: tails a, b: topic t is missing, and the cluster did not make it; "
        "delivery begins by itself once the topic is there"
    )
    assert [event["event"] for event in heard.events] == ["topics can not be used"]
    partition = PartitionMetadata(0, 1, 0, (1,), (1,))
    metadata.snapshot = ClusterMetadata(topics={"t": TopicMetadata("t", None, (partition,))}, version=2)
    for _ in range(2):
        assert await session._look(session.client, ["t"])
    assert session.trouble is None
    assert [event["event"] for event in heard.events[1:]] == ["topics can be used"]


async def test_a_topic_that_is_deleted_while_its_tail_runs_is_said_and_so_is_its_return(
    session, metadata, heard, monkeypatch
):
    # Nothing was logged, and /readyz named the cluster alone: topics were asked for until they were known once.
    monkeypatch.setattr(supervised_cluster, "LOOK_INTERVAL", 0.001)
    metadata.snapshot = there = ClusterMetadata(
        topics={"t": TopicMetadata("t", None, (PartitionMetadata(0, 1, 0, (1,), (1,)),))}, version=1
    )
    watching = asyncio.ensure_future(session._watch(session.client))
    await looks(metadata, [])
    deleted = TopicMetadata("t", None, (), error=ErrorCode.unknown_topic_or_partition)
    metadata.snapshot = ClusterMetadata(topics={"t": deleted}, version=2)
    await looks(metadata, ["t"])
    assert not session.ready
    assert "tails a, b: topic t is missing" in session.trouble
    metadata.snapshot = there  # a worker wished for it, and its wish was answered before the next look
    await looks(metadata, [])
    watching.cancel()
    assert session.trouble is None
    assert [event["event"] for event in heard.events] == ["topics can not be used", "topics can be used"]


async def test_a_topic_that_an_answer_lacks_is_asked_for_before_it_is_called_missing(session, metadata, heard):
    # A broker that has just started does not know every topic yet, and a missing one may be created by asking.
    metadata.snapshot = ClusterMetadata(topics={"t": TopicMetadata("t", None, ())}, version=1)
    await session._look(session.client, [])
    assert not heard.events
    assert session.trouble is None


async def test_a_topic_that_is_refused_is_not_called_missing(session, metadata):
    refused = TopicMetadata("t", None, (), error=ErrorCode.topic_authorization_failed)
    metadata.snapshot = ClusterMetadata(topics={"t": refused}, version=1)
    await session._look(session.client, ["t"])
    assert session.trouble == "cluster main: tails a, b: topic t can not be used: TOPIC_AUTHORIZATION_FAILED"


@pytest.mark.parametrize("create", [True, False])
async def test_topics_are_created_where_the_cluster_is_set_up_so(session, metadata, create):
    object.__setattr__(session.settings, "create_topics", create)
    await session._look(session.client, ["t"])
    session.wanted(["t"], "its leader is not known")
    assert metadata.creating == [create, create]


def test_a_topic_that_a_mirror_has_found_is_not_created_by_asking_for_it(session, metadata):
    session.wanted(["t", "found"], "its leader is not known")
    assert list(zip(metadata.wishes, metadata.creating, strict=True)) == [(["t"], True), (["found"], False)]
    session.wanted([], "the nodes are not known")
    assert metadata.wishes[2:] == [[]]


def test_workers_get_what_changed_and_the_answer_to_what_they_wished_for(session, metadata, heard):
    nodes = {1: Node(1, "kafka-1", 9092)}
    first = ClusterMetadata(nodes=nodes, version=1)
    session._changed(first)
    session._changed(ClusterMetadata(nodes=nodes, version=2))
    assert len(heard.pushed) == 1  # a look that brought nothing new
    # A look is under way when a worker wishes for a topic: its answer comes first, and may be older than the wish.
    session.wanted(["t"], "its leader is not known")
    assert metadata.wishes == [["t"]]
    for version in (3, 4, 5):
        session._changed(ClusterMetadata(nodes=nodes, version=version))
    assert [push.metadata.version for push in heard.pushed] == [1, 3, 4]
    session._changed(ClusterMetadata(nodes={1: Node(1, "kafka-2", 9092)}, version=6))
    assert heard.pushed[-1].metadata.version == 6
