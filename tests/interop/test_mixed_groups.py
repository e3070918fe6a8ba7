"""Groups of our members and other clients': whoever leads, joins and leaves end in a whole, disjoint assignment."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from harness.group_members import (
    AioMember,
    JavaMember,
    LibrdkafkaMember,
    Member,
    OurMember,
    Place,
    PlainMember,
    settled,
)
from harness.java_programs import JavaProgram, java_program

from ingestd.client.client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from harness.cluster import KafkaCluster

TOPICS = (7, 4)
MOST_MEMBERS = 4

CLIENTS = {
    "range": ("java", "librdkafka", "kafka-python", "aiokafka"),
    "roundrobin": ("java", "librdkafka", "kafka-python", "aiokafka"),
    "sticky": ("java", "kafka-python", "aiokafka"),
    "cooperative-sticky": ("java", "librdkafka", "kafka-python"),
    "consumer": ("java", "librdkafka"),
}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    """`tests/interop/java/Members.java`: one JVM for all members."""
    with java_program("Members", tmp_path_factory.mktemp("java")) as running:
        yield running


@pytest.fixture
async def client(kafka: KafkaCluster) -> AsyncIterator[Client]:
    async with Client(kafka.bootstrap) as opened:
        yield opened


@pytest.fixture
def place(kafka: KafkaCluster) -> Callable[[str], Place]:
    """`place("range")`: a group of its own that reads two topics of its own."""

    def make(assignor: str) -> Place:
        topics = {kafka.create_topic(partitions=partitions): partitions for partitions in TOPICS}
        return Place(kafka.servers, f"mixed {assignor} {next(iter(topics))}", topics, assignor)

    return make


def member(kind: str, place: Place, client: Client, java: JavaProgram) -> Member:
    """A member by one of the clients."""
    if kind == "java":
        return JavaMember(place, java)
    if kind == "ours":
        return OurMember(place, client)
    return {"librdkafka": LibrdkafkaMember, "kafka-python": PlainMember, "aiokafka": AioMember}[kind](place)


@pytest.mark.parametrize(
    ("assignor", "other"), [(name, other) for name in CLIENTS if name != "consumer" for other in CLIENTS[name]]
)
async def test_the_lead_passes_from_us_to_them_and_back_and_each_time_all_is_shared(
    place: Callable[[str], Place], client: Client, java: JavaProgram, assignor: str, other: str
) -> None:
    group = place(assignor)
    OurMember.led = OurMember.followed = 0
    first = member("ours", group, client, java)
    theirs = member(other, group, client, java)
    second = member("ours", group, client, java)
    await first.join()
    await settled(group, [first])
    await theirs.join()
    await settled(group, [first, theirs])
    await first.leave()  # it led: it was the first
    await settled(group, [theirs])
    await second.join()
    await settled(group, [theirs, second])
    assert OurMember.led >= 2
    followed = OurMember.followed
    await theirs.leave()  # it led: there was nobody else
    await settled(group, [second])
    await second.leave()
    assert OurMember.followed > followed
    assert OurMember.led > 2


@pytest.mark.parametrize("assignor", CLIENTS)
async def test_joins_and_leaves_at_random_end_in_a_whole_and_disjoint_assignment(
    place: Callable[[str], Place], client: Client, java: JavaProgram, assignor: str
) -> None:
    rng = random.Random(f"{assignor} 1")
    group = place(assignor)
    members: list[Member] = []
    kinds = ["ours", "ours", *CLIENTS[assignor]]
    for _ in range(8):
        if members and (len(members) == MOST_MEMBERS or rng.random() < 0.4):
            await members.pop(rng.randrange(len(members))).leave()
        else:
            members.append(member(rng.choice(kinds), group, client, java))
            await members[-1].join()
        if members:
            await settled(group, members, most_apart=1 if "sticky" in assignor else None)
    for left in members:
        await left.leave()


async def test_a_group_moves_to_the_new_protocol_and_back_member_by_member(
    place: Callable[[str], Place], client: Client, java: JavaProgram
) -> None:
    # KIP-848: the coordinator converts the group when the first member of the new protocol joins, and back when the
    # last one leaves.
    classic = place("cooperative-sticky")
    upgraded = replace(classic, assignor="consumer")
    old = [member("ours", classic, client, java), member("java", classic, client, java)]
    new = [member("ours", upgraded, client, java), member("java", upgraded, client, java)]
    for one in old:
        await one.join()
    await settled(classic, old)
    await new[0].join()
    await settled(classic, [*old, new[0]])
    await old[0].leave()
    await settled(classic, [old[1], new[0]])
    await new[1].join()
    await old[1].leave()
    await settled(classic, new)
    back = member("ours", classic, client, java)
    await back.join()
    await settled(classic, [*new, back])
    for one in new:
        await one.leave()
    await settled(classic, [back])
    await back.leave()
