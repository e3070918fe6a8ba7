"""Fetch sessions (KIP-227) as a client meets them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from embedded.batches import batch_of
from embedded.raw import RawClient, entity

from ingestd.broker.clock import Clock
from ingestd.broker.fetch_sessions import FetchSessions
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedded.process import BrokerProcess

VERSION = 13
NO_WAIT = timedelta(0)


@pytest.fixture
def client(embedded: BrokerProcess, new_topic: str) -> Iterator[RawClient]:
    with RawClient(embedded.port) as raw:
        raw.metadata(new_topic)
        yield raw


def ask(
    client: RawClient,
    topic: str,
    offsets: dict[int, int],
    session: tuple[int, int],
    forget: tuple[int, ...] = (),
    wait: timedelta = NO_WAIT,
) -> Any:
    """One fetch by topic id: `offsets` by partition, `session` as (id, epoch)."""
    topic_id = client.metadata(topic).topics[0].topic_id
    partitions = tuple(
        entity(Api.fetch, VERSION, "FetchPartition", partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
        for number, offset in offsets.items()
    )
    topics = (entity(Api.fetch, VERSION, "FetchTopic", topic_id=topic_id, partitions=partitions),)
    forgotten = (entity(Api.fetch, VERSION, "ForgottenTopic", topic_id=topic_id, partitions=forget),)
    return client.ask(
        entity(
            Api.fetch, VERSION, "FetchRequest", max_wait=wait, min_bytes=1, session_id=session[0],
            session_epoch=session[1], topics=topics if offsets else (),
            forgotten_topics_data=forgotten if forget else (),
        )
    )  # fmt: skip


def answered(response: Any) -> dict[int, int]:
    """Bytes of records by partition, for the partitions in the answer."""
    return {one.partition_index: len(one.records or b"") for topic in response.responses for one in topic.partitions}


def test_a_session_answers_only_what_is_new(client: RawClient, new_topic: str) -> None:
    batch = batch_of([b"x"])
    client.produce(new_topic, 0, batch)
    first = ask(client, new_topic, {0: 0, 1: 0}, (0, 0))
    session = first.session_id
    assert session != 0
    assert answered(first) == {0: len(batch), 1: 0}
    assert answered(ask(client, new_topic, {0: 1}, (session, 1))) == {}
    client.produce(new_topic, 1, batch)
    assert answered(ask(client, new_topic, {}, (session, 2))) == {1: len(batch)}
    assert answered(ask(client, new_topic, {1: 1}, (session, 3))) == {}


def test_a_session_waits_for_any_of_its_partitions(client: RawClient, embedded: BrokerProcess, new_topic: str) -> None:
    import threading

    session = ask(client, new_topic, {0: 0, 1: 0}, (0, 0)).session_id
    batch = batch_of([b"x"])

    def write() -> None:
        with RawClient(embedded.port) as other:
            other.produce(new_topic, 1, batch)

    writer = threading.Timer(0.2, write)
    writer.start()
    assert answered(ask(client, new_topic, {}, (session, 1), wait=timedelta(seconds=15))) == {1: len(batch)}
    writer.join()


def test_a_forgotten_partition_is_not_answered(client: RawClient, new_topic: str) -> None:
    session = ask(client, new_topic, {0: 0, 1: 0}, (0, 0)).session_id
    assert answered(ask(client, new_topic, {}, (session, 1), forget=(1,))) == {}
    client.produce(new_topic, 0, batch_of([b"x"]))
    client.produce(new_topic, 1, batch_of([b"x"]))
    assert set(answered(ask(client, new_topic, {}, (session, 2)))) == {0}


def test_an_error_is_answered_every_time(client: RawClient, new_topic: str) -> None:
    session = ask(client, new_topic, {0: 55, 1: 0}, (0, 0)).session_id
    for epoch in (1, 2):
        response = ask(client, new_topic, {}, (session, epoch))
        (partition,) = response.responses[0].partitions
        assert (partition.partition_index, partition.error_code) == (0, ErrorCode.offset_out_of_range)


def test_wrong_sessions_and_epochs_are_refused(client: RawClient, new_topic: str) -> None:
    assert ask(client, new_topic, {}, (123_456, 1)).error_code is ErrorCode.fetch_session_id_not_found
    session = ask(client, new_topic, {0: 0}, (0, 0)).session_id
    assert ask(client, new_topic, {}, (session, 2)).error_code is ErrorCode.invalid_fetch_session_epoch
    ended = ask(client, new_topic, {0: 0}, (session, -1))
    assert (ended.error_code, ended.session_id) == (ErrorCode.none, 0)
    assert ask(client, new_topic, {}, (session, 1)).error_code is ErrorCode.fetch_session_id_not_found


def test_clients_that_had_sessions_before_a_restart_get_each_their_own() -> None:
    """Each names the session that it had, to be closed, in any order: that must not be another's new one."""

    def asked(session_id: int, epoch: int) -> Any:
        return entity(
            Api.fetch, VERSION, "FetchRequest", max_wait=NO_WAIT, min_bytes=1, session_id=session_id,
            session_epoch=epoch, topics=(), forgotten_topics_data=(),
        )  # fmt: skip

    def begun(sessions: FetchSessions, closed: int) -> int:
        session = sessions.plan(asked(closed, 0), by_topic_id=True).session
        assert session is not None
        return session.id

    before = FetchSessions(10, Clock())
    had = [begun(before, 0) for _ in range(2)]
    restarted = FetchSessions(10, Clock())
    have = [begun(restarted, session) for session in reversed(had)]
    for session in have:
        assert restarted.plan(asked(session, 1), by_topic_id=True).session is not None
    assert len({*had, *have}) == 4


def test_there_are_never_more_sessions_than_allowed() -> None:
    sessions = FetchSessions(3, Clock())
    asked = entity(
        Api.fetch, VERSION, "FetchRequest", max_wait=NO_WAIT, min_bytes=1, session_id=0, session_epoch=0, topics=(),
        forgotten_topics_data=(),
    )  # fmt: skip
    made = [sessions.plan(asked, by_topic_id=True).session for _ in range(5)]
    assert len({session.id for session in made[:3] if session}) == 3
    assert made[3:] == [None, None]
    assert made[0] is not None
    made[0].used -= 1000
    assert sessions.plan(asked, by_topic_id=True).session is not None
    assert len(sessions) == 3
