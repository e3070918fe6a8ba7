"""What an error code means for whoever meets it."""

from __future__ import annotations

import pickle

import pytest

from ingestd.errors import (
    BufferFull,
    Closed,
    ConnectionLost,
    CorruptBatch,
    DeadlineExceeded,
    ErrorCode,
    IngestdError,
    KafkaError,
    ProtocolError,
    UnsupportedVersion,
    is_retriable,
    raise_for_code,
)


def test_a_kafka_error_says_its_name_its_number_and_what_it_is_about() -> None:
    assert str(KafkaError(ErrorCode.not_leader_or_follower, "t-3")) == "NOT_LEADER_OR_FOLLOWER (6): t-3"
    assert str(KafkaError(ErrorCode.unknown_server_error)) == "UNKNOWN_SERVER_ERROR (-1)"


@pytest.mark.parametrize("error", [KafkaError(ErrorCode.fenced_leader_epoch, "t-0"), ConnectionLost("reset")])
def test_errors_travel_between_processes(error: IngestdError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))


@pytest.mark.parametrize("code", ErrorCode)
def test_what_needs_fresh_metadata_may_succeed_later_and_what_is_fatal_never_does(code: ErrorCode) -> None:
    error = KafkaError(code)
    if error.refresh_metadata:
        assert error.retriable
    assert not (error.fatal and error.retriable)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_controller,
        ErrorCode.kafka_storage_error,
    ],
)
def test_a_moved_role_is_retriable_after_a_refresh(code: ErrorCode) -> None:
    assert KafkaError(code).refresh_metadata
    assert is_retriable(KafkaError(code))


@pytest.mark.parametrize(
    "code", [ErrorCode.message_too_large, ErrorCode.topic_authorization_failed, ErrorCode.invalid_record]
)
def test_a_refusal_is_neither_retriable_nor_fatal(code: ErrorCode) -> None:
    error = KafkaError(code)
    assert (error.retriable, error.fatal, error.refresh_metadata) == (False, False, False)


def test_lost_connections_and_missed_deadlines_are_retriable_and_other_errors_are_not() -> None:
    assert is_retriable(ConnectionLost())
    assert is_retriable(DeadlineExceeded())
    for error in (Closed(), BufferFull(), ProtocolError(), CorruptBatch(), UnsupportedVersion(), ValueError()):
        assert not is_retriable(error)


def test_errors_are_what_the_standard_library_would_raise_too() -> None:
    assert issubclass(DeadlineExceeded, TimeoutError)
    assert issubclass(ConnectionLost, ConnectionError)


def test_no_error_raises_nothing() -> None:
    raise_for_code(ErrorCode.none, "fine")
    with pytest.raises(KafkaError, match="group"):
        raise_for_code(ErrorCode.group_id_not_found, "group")
