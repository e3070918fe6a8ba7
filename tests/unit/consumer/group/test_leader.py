"""What a leader does with what members say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from ingestd.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata, TopicPartition
from ingestd.consumer.group.assignor import Subscription
from ingestd.consumer.group.assignors import ASSIGNORS
from ingestd.consumer.group.assignors.consumer_protocol import decode_assignment, encode_subscription
from ingestd.consumer.group.leader import SharedTopics, lead
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


def cluster(replicas: dict[str, list[tuple[int, ...]]], nodes: tuple[int, ...] = (1, 2)) -> ClusterMetadata:
    return ClusterMetadata(
        nodes={node: Node(node, "host", 9092, f"rack-{node}") for node in nodes},
        topics={
            name: TopicMetadata(
                name, None, tuple(PartitionMetadata(n, held[0], 0, held, held) for n, held in enumerate(partitions))
            )
            for name, partitions in replicas.items()
        },
    )


def test_topics_that_grow_appear_or_vanish_are_a_reason_to_share_anew() -> None:
    shared = SharedTopics(cluster({"a": [(1,)], "b": [(1,)]}), ["a", "b", "c"])
    assert shared.missing == ["c"]
    assert shared.change(cluster({"a": [(2,)], "b": [(1,)]})) is None
    assert shared.change(cluster({"a": [(2,), (1,)], "b": [(1,)]})) == "topic a has 2 partitions"
    assert shared.change(cluster({"a": [(2,), (1,)], "b": [(1,)], "c": [(1,)]})) == "topic c has 1 partition"
    assert shared.change(cluster({"a": [(2,), (1,)], "c": [(1,)]})) == "topic b has 0 partitions"
    assert shared.missing == ["b"]


def test_replicas_in_other_racks_are_a_reason_where_members_have_racks_and_nodes_that_are_down_are_none() -> None:
    shared = SharedTopics(cluster({"a": [(1,), (2,)]}), ["a"], racked=True)
    assert shared.change(cluster({"a": [(1,), (2,)]}, nodes=(2,))) is None
    assert shared.change(cluster({"a": [(1,), (2,)]})) is None
    assert shared.change(cluster({"a": [(1,), (1,)]})) == "replicas of topic a are in other racks"
    assert shared.change(cluster({"a": [(1,), (1,)]})) is None
