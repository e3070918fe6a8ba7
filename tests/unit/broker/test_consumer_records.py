"""Records of groups of KIP-848: written and read again, as Kafka's older releases wrote them too."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from ingestd.broker.coordinator.consumer_records import (
    ConsumerGroupKey,
    CurrentKey,
    MatchedTopicsKey,
    MemberKey,
    TargetKey,
    TargetMemberKey,
)
from ingestd.broker.coordinator.records import encode_record, read_record
from ingestd.broker.groups.consumer_values import (
    ClassicSide,
    GroupEpoch,
    Held,
    MatchedTopics,
    MemberState,
    Profile,
    TargetEpoch,
)
from ingestd.errors import ProtocolError

if TYPE_CHECKING:
    from ingestd.broker.coordinator.consumer_records import ConsumerRecord

TOPIC, OTHER = sorted((uuid.uuid4(), uuid.uuid4()))
CLASSIC = ClassicSide(10.0, (("range", b"r"), ("cooperative-sticky", b"")))
RECORDS: list[ConsumerRecord] = [
    (ConsumerGroupKey("g"), GroupEpoch(7, -(1 << 63))),
    (MemberKey("g", "m"), Profile()),
    (
        MemberKey("g", "m"),
        Profile("i", "rack", "client", "/::1", frozenset({"a", "b"}), "a.*", 300.0, "range", CLASSIC),
    ),
    (TargetKey("g"), TargetEpoch(7, 1_700_000_000_000)),
    (TargetMemberKey("g", "m"), frozenset({(TOPIC, 0), (TOPIC, 5), (OTHER, 1)})),
    (
        CurrentKey("g", "m"),
        Held(7, 6, MemberState.unrevoked_partitions, {(TOPIC, 0): 3, (TOPIC, 1): 7}, {(OTHER, 2): 1}),
    ),
    (MatchedTopicsKey("g", "a.*"), MatchedTopics(frozenset({"a", "ab"}), 12, 1_700_000_000_000)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record[0]).__name__)
def test_a_record_is_read_as_it_was_written_and_so_is_its_end(record: ConsumerRecord) -> None:
    key, value = encode_record(record)
    assert read_record(key, value) == record
    assert read_record(*encode_record((record[0], None))) == (record[0], None)


def test_what_kafka_wrote_before_4_3_had_no_assignment_epochs() -> None:
    key, value = encode_record((CurrentKey("g", "m"), Held(7, 6, MemberState.stable, {}, {})))
    assert value is not None
    # One topic with the partitions 3 and 4, no tagged fields.
    assigned = b"\x02" + TOPIC.bytes + b"\x03\0\0\0\3\0\0\0\4" + b"\0"
    older = value[:11] + assigned + b"\1\0"
    assert read_record(key, older) == (
        CurrentKey("g", "m"),
        Held(7, 6, MemberState.stable, {(TOPIC, 3): 7, (TOPIC, 4): 7}, {}),
    )


def test_the_partitions_of_a_groups_topics_which_kafka_removed_are_passed_over() -> None:
    assert read_record(b"\0\4\0\1g", None) is None


def test_a_state_or_a_version_that_nobody_knows_is_refused() -> None:
    key, value = encode_record((CurrentKey("g", "m"), Held(7, 6, MemberState.stable, {}, {})))
    assert value is not None
    with pytest.raises(ProtocolError, match="state 9"):
        read_record(key, value[:10] + b"\x09" + value[11:])
    with pytest.raises(ProtocolError, match="kind 8 in version 1: expected 0"):
        read_record(key, b"\0\1" + value[2:])
