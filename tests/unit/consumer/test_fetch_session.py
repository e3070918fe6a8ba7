from uuid import UUID

from ingestd.consumer.fetch_session import FetchSession, PartitionFetch
from ingestd.consumer.settings import TopicPartition
from ingestd.errors import ErrorCode

TOPIC_ID = UUID(int=7)
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def at(offset: int, topic_id: UUID | None = TOPIC_ID) -> PartitionFetch:
    return PartitionFetch(topic_id, offset, 3, 1024)


def established(wanted: dict[TopicPartition, PartitionFetch]) -> FetchSession:
    session = FetchSession()
    session.next_fetch(wanted)
    session.answered(55)
    return session


def test_the_first_fetch_names_everything_and_asks_for_a_session() -> None:
    fetch = FetchSession().next_fetch({ZERO: at(5), ONE: at(6)})
    assert (fetch.session_id, fetch.session_epoch) == (0, 0)
    assert fetch.complete
    assert set(fetch.named) == {ZERO, ONE}


def test_a_later_fetch_names_only_what_changed() -> None:
    session = established({ZERO: at(5), ONE: at(6)})
    fetch = session.next_fetch({ZERO: at(5), ONE: at(9)})
    assert (fetch.session_id, fetch.session_epoch) == (55, 1)
    assert fetch.named == {ONE: at(9)}
    assert not fetch.forgotten


def test_a_partition_that_is_not_wanted_is_forgotten_and_named_again_when_it_is() -> None:
    session = established({ZERO: at(5), ONE: at(6)})
    assert session.next_fetch({ZERO: at(5)}).forgotten == {ONE: TOPIC_ID}
    session.answered(55)
    assert session.next_fetch({ZERO: at(5), ONE: at(6)}).named == {ONE: at(6)}


def test_a_topic_made_anew_is_forgotten_under_its_old_id_and_named_under_the_new() -> None:
    session = established({ZERO: at(5)})
    fetch = session.next_fetch({ZERO: at(0, UUID(int=8))})
    assert fetch.forgotten == {ZERO: TOPIC_ID}
    assert fetch.named == {ZERO: at(0, UUID(int=8))}


def test_epochs_count_up_and_wrap_to_one() -> None:
    session = established({})
    session._epoch = 2**31 - 1
    assert session.next_fetch({}).session_epoch == 2**31 - 1
    session.answered(55)
    assert session.next_fetch({}).session_epoch == 1


def test_a_broker_that_keeps_no_session_is_always_asked_completely() -> None:
    session = FetchSession()
    for _ in range(2):
        assert session.next_fetch({ZERO: at(5)}).complete
        session.answered(0)
    assert not session.established


def test_after_a_lost_answer_the_old_session_is_replaced() -> None:
    session = established({ZERO: at(5)})
    session.lost()
    fetch = session.next_fetch({ZERO: at(5)})
    assert (fetch.session_id, fetch.session_epoch) == (55, 0)
    assert set(fetch.named) == {ZERO}


def test_a_session_that_the_broker_does_not_know_is_not_named_again() -> None:
    session = established({ZERO: at(5)})
    session.refused(ErrorCode.fetch_session_id_not_found)
    fetch = session.next_fetch({ZERO: at(5)})
    assert (fetch.session_id, fetch.session_epoch) == (0, 0)


def test_a_wrong_epoch_replaces_the_session() -> None:
    session = established({ZERO: at(5)})
    session.refused(ErrorCode.invalid_fetch_session_epoch)
    fetch = session.next_fetch({ZERO: at(5)})
    assert (fetch.session_id, fetch.session_epoch) == (55, 0)


def test_the_final_fetch_closes_the_session() -> None:
    fetch = established({ZERO: at(5)}).final_fetch()
    assert (fetch.session_id, fetch.session_epoch) == (55, -1)
    assert not fetch.named


def test_only_what_may_have_changed_is_compared() -> None:
    session = established({ZERO: at(5), ONE: at(6)})
    fetch = session.next_fetch({ZERO: at(8), ONE: at(9)}, {ZERO})
    assert (fetch.named, fetch.forgotten) == ({ZERO: at(8)}, {})
    session.answered(55)
    fetch = session.next_fetch({ONE: at(9)}, {ZERO, ONE})
    assert (fetch.named, fetch.forgotten) == ({ONE: at(9)}, {ZERO: TOPIC_ID})
    session.lost()
    assert set(session.next_fetch({ONE: at(9), ZERO: at(1)}, set()).named) == {ZERO, ONE}
