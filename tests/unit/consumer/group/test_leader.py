"""What a leader does with what members say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from ingestd.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata, TopicPartition
from ingestd.consumer.group.assignor import Subscription
from ingestd.consumer.group.assignors import ASSIGNORS
from ingestd.consumer.group.assignors.consumer_protocol import decode_assignment, encode_subscription
from ingestd.consumer.group.leader import lead
from ingestd.wire.requests.groups import JoinedMember

if TYPE_CHECKING:
    import pytest

    from ingestd.client.client import Client


async def test_a_member_whose_subscription_is_not_readable_gets_nothing_and_the_others_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = TopicMetadata("t", None, tuple(PartitionMetadata(number, 1, 0, (1,), (1,)) for number in range(3)))
    client = cast("Client", SimpleNamespace(metadata=SimpleNamespace(snapshot=ClusterMetadata(topics={"t": topic}))))
    members = [
        JoinedMember("good", None, encode_subscription(Subscription(("t",)))),
        JoinedMember("hostile", None, b"\x00\x00\x7f\xff\xff\xff"),
        JoinedMember("empty", None, b""),
    ]
    for name, assignor in ASSIGNORS.items():
        led = await lead(client, assignor(), members, 1, skip_assignment=False)
        shares = {member: set(decode_assignment(share).partitions) for member, share in led.assignments.items()}
        everything = {TopicPartition("t", number) for number in range(3)}
        assert shares == {"good": everything, "hostile": set(), "empty": set()}, name
    assert "member hostile gets no partitions" in caplog.text
