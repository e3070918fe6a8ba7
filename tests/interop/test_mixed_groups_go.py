"""Groups of our members and franz-go's: whoever leads, each join and leave ends in a whole, disjoint assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from harness.group_members import GoMember, OurMember, Place, settled

from ingestd.client.client import Client

if TYPE_CHECKING:
    from harness.cluster import KafkaCluster
    from harness.go_peers import GoPeer

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky", "consumer"])
async def test_members_come_and_go_and_each_time_all_is_shared(
    kafka: KafkaCluster, go_peers: dict[str, GoPeer], assignor: str
) -> None:
    topics = {kafka.create_topic(partitions=partitions): partitions for partitions in (7, 4)}
    place = Place(kafka.servers, f"mixed {assignor} {next(iter(topics))}", topics, assignor)
    OurMember.led = OurMember.followed = 0
    async with Client(kafka.bootstrap) as client:
        ours = [OurMember(place, client) for _ in range(3)]
        theirs = [GoMember(place, go_peers["franz"]) for _ in range(2)]
        await ours[0].join()
        await theirs[0].join()
        await settled(place, [ours[0], theirs[0]])
        await ours[1].join()
        await settled(place, [*ours[:2], theirs[0]])
        for left in ours[:2]:
            await left.leave()
        await settled(place, [theirs[0]])
        await ours[2].join()
        await settled(place, [theirs[0], ours[2]])
        await theirs[1].join()
        await settled(place, [*theirs, ours[2]])
        for gone in theirs:
            await gone.leave()
        await settled(place, [ours[2]])
        await ours[2].leave()
    if assignor != "consumer":
        assert OurMember.led
        assert OurMember.followed
