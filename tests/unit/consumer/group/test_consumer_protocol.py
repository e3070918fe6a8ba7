"""The bytes that members of a group exchange: by the layout of Kafka's message definitions, and hostile ones."""

from __future__ import annotations

import contextlib
import random

import pytest
from counted import lines_run

from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.assignor import Assignment, Subscription
from ingestd.consumer.group.assignors.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ingestd.errors import ProtocolError

OWNED = (TopicPartition("a", 0), TopicPartition("a", 5), TopicPartition("b", 1))
FULL = Subscription(("a", "b"), OWNED, generation=7, rack="r1", user_data=b"u")

TOPICS = "00000002 0001 61 0001 62"
USER_DATA = "00000001 75"
PARTITIONS = "00000002 0001 61 00000002 00000000 00000005 0001 62 00000001 00000001"


@pytest.mark.parametrize(
    ("version", "layout", "read"),
    [
        (0, f"0000 {TOPICS} {USER_DATA}", Subscription(("a", "b"), user_data=b"u")),
        (1, f"0001 {TOPICS} {USER_DATA} {PARTITIONS}", Subscription(("a", "b"), OWNED, user_data=b"u")),
        (
            2,
            f"0002 {TOPICS} {USER_DATA} {PARTITIONS} 00000007",
            Subscription(("a", "b"), OWNED, generation=7, user_data=b"u"),
        ),
        (3, f"0003 {TOPICS} {USER_DATA} {PARTITIONS} 00000007 0002 7231", FULL),
    ],
)
def test_a_subscription_of_every_version_has_the_fields_that_it_knows(
    version: int, layout: str, read: Subscription
) -> None:
    assert encode_subscription(FULL, version) == bytes.fromhex(layout)
    assert decode_subscription(bytes.fromhex(layout)) == read


def test_what_a_newer_writer_put_behind_the_known_fields_is_ignored() -> None:
    newer = b"\x00\x09" + encode_subscription(FULL)[2:] + b"news"
    assert decode_subscription(newer) == FULL
    assert decode_assignment(b"\x00\x09" + encode_assignment(Assignment(OWNED))[2:] + b"news") == Assignment(OWNED)


def test_the_instance_that_the_coordinator_names_is_the_subscriptions() -> None:
    assert decode_subscription(encode_subscription(FULL), "static").group_instance_id == "static"


def test_no_rack_and_no_user_data_are_none() -> None:
    plain = Subscription(("a",))
    assert decode_subscription(encode_subscription(plain)) == plain


def test_an_assignment_has_topics_with_partitions_and_user_data() -> None:
    layout = bytes.fromhex(f"0003 {PARTITIONS} {USER_DATA}")
    assert encode_assignment(Assignment(OWNED, b"u")) == layout
    assert decode_assignment(layout) == Assignment(OWNED, b"u")
    assert decode_assignment(b"") == Assignment(())


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        "00",
        "ffff 00000000 ffffffff",
        "0000 7fffffff",
        "0000 00000001 7fff 61",
        "0001 00000000 ffffffff 7fffffff 0001",
        "0001 00000000 ffffffff 00000001 0001 61 7fffffff 00000000",
        "0001 00000000 ffffffff 00000001 0001 61 00000001 ffffffff",
        "0000 00000001 0001 ff ffffffff",
    ],
)
def test_hostile_bytes_are_a_protocol_error(hostile: str) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(bytes.fromhex(hostile))


def test_bytes_changed_or_cut_anywhere_give_a_value_or_a_protocol_error() -> None:
    rng = random.Random(2)
    subscription, assignment = encode_subscription(FULL), encode_assignment(Assignment(OWNED, b"u"))
    for _ in range(2_000):
        for whole, decode in ((subscription, decode_subscription), (assignment, decode_assignment)):
            changed = bytearray(whole[: rng.randint(0, len(whole))])
            for _ in range(min(len(changed), rng.randint(0, 3))):
                changed[rng.randrange(len(changed))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
            with contextlib.suppress(ProtocolError):
                decode(bytes(changed))  # type: ignore[operator]


@pytest.mark.parametrize(("topics", "partitions"), [(1, 10_000), (100, 100), (10_000, 1)])
def test_the_work_to_write_and_read_ten_thousand_partitions_is_bounded(topics: int, partitions: int) -> None:
    owned = tuple(TopicPartition(f"topic-{topic}", number) for topic in range(topics) for number in range(partitions))
    lines, decoded = lines_run(lambda: decode_assignment(encode_assignment(Assignment(owned))))
    assert decoded.partitions == owned
    assert lines < 2_000_000  # 0.1 to 0.8 million, 0.1 CPU seconds at most, when this was written
