"""Registry: what becomes of a batch that a mirror wrote, by where it has been; readings that are shared."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.client.metadata import ClusterMetadata
from ingestd.errors import ErrorCode, IngestdError, KafkaError
from ingestd.mirror.origins import Fate
from ingestd.mirror.registry import ProducerRegistry, Registered, origin

WAYS = [("east", "west"), ("west", "east"), ("west", "north"), ("north", "west"), ("north", "south"), ("south", "east")]


@pytest.mark.parametrize(
    ("registered", "fate", "through"),
    [
        (Registered("m", "west", frozenset()), Fate.CAME_BACK, {"west"}),
        (Registered("m", "west", frozenset({"north"})), Fate.CAME_BACK, {"west", "north"}),
        (Registered("m", "north", frozenset()), Fate.PASSES, {"north"}),
        (Registered("m", "north", frozenset({"west"})), Fate.UNCLEAR, {"north", "west"}),
        (Registered("m", "east", frozenset({"north"})), Fate.PASSES, {"north"}),
    ],
)
def test_what_becomes_of_a_batch_that_was_registered_at_the_source(registered, fate, through):
    found = origin(registered, "east", "west", send_back=False)
    assert (found.fate, found.through) == (fate, through)
    assert origin(registered, "east", "west", send_back=True).fate is Fate.PASSES


def test_within_one_cluster_nothing_comes_back():
    assert origin(Registered("m", "east", frozenset()), "east", "east", send_back=False) == (
        Fate.PASSES,
        frozenset(),
        "mirror m, from cluster east",
    )


@given(st.sets(st.sampled_from(WAYS)), st.lists(st.sampled_from(WAYS), max_size=12))
def test_whatever_mirrors_there_are_a_record_comes_to_no_cluster_twice(ways, steps):
    """A record of `east` goes on by every mirror that passes it on, in any order of their runs."""
    written = {("east", None)}
    for _ in range(6):
        for source, target in sorted(ways) + [step for step in steps if step in ways]:
            for cluster, registered in tuple(written):
                if cluster != source:
                    continue
                found = None if registered is None else origin(registered, source, target, send_back=False)
                if found is None or found.fate is Fate.PASSES:
                    through = frozenset() if found is None else found.through
                    written.add((target, Registered("m", source, through)))
    for cluster, registered in written:
        if registered is not None:
            assert cluster not in registered.through | {registered.source}


class Slow(ProducerRegistry):
    """Reads as long as the test likes."""

    def __init__(self):
        super().__init__(None)
        self.readings, self.may_end, self.failing = 0, asyncio.Event(), False

    async def _read(self):
        self.readings += 1
        await self.may_end.wait()
        if self.failing:
            raise IngestdError("no broker")
        self._found[7] = Registered("m", "west", frozenset())


async def test_those_that_ask_while_it_is_read_share_one_further_reading():
    registry = Slow()
    asking = [asyncio.create_task(registry.find({7}))]
    await asyncio.sleep(0)
    asking += [asyncio.create_task(registry.find({8})) for _ in range(20)]
    await asyncio.sleep(0)
    registry.may_end.set()
    found = await asyncio.gather(*asking)
    assert registry.readings == 2
    assert found[0].keys() == {7}
    assert found[1] == {}


async def test_a_reading_that_failed_counts_for_nobody():
    registry = Slow()
    registry.failing = True
    registry.may_end.set()
    with pytest.raises(IngestdError):
        await registry.find({8})
    registry.failing = False
    await registry.find({8})
    assert registry.readings == 2


@pytest.mark.parametrize("value", [b"", None, b"{}", b'{"mirror": "m", "source": "s", "through": 1}'])
def test_a_record_that_no_mirror_wrote_is_named(value):
    with pytest.raises(IngestdError, match="expected a producer id, and JSON"):
        ProducerRegistry(None)._take(b"7", value)


class Cluster:
    """A client whose brokers say this of the topic."""

    def __init__(self, error):
        self.error, self.asked = error, 0
        self.metadata = SimpleNamespace(snapshot=ClusterMetadata())

    async def any(self):
        return self

    async def request(self, build, timeout):
        self.asked += 1
        return SimpleNamespace(topics=(SimpleNamespace(error_code=self.error),))


async def test_where_there_is_no_registry_nobody_is_a_mirror_and_one_question_tells():
    cluster = Cluster(ErrorCode.unknown_topic_or_partition)
    assert await ProducerRegistry(cluster).find({7, 8}) == {}
    assert cluster.asked == 1


async def test_a_registry_that_may_not_be_read_is_not_a_missing_one():
    # Everything would go round.
    with pytest.raises(KafkaError, match=r"ingestd-mirrors\.producers, which has the producer ids of mirrors"):
        await ProducerRegistry(Cluster(ErrorCode.topic_authorization_failed)).find({7})


async def test_a_registry_that_must_not_be_created_is_asked_for():
    with pytest.raises(IngestdError, match="and create_topics is false: expected it with one"):
        await ProducerRegistry(Cluster(ErrorCode.unknown_topic_or_partition)).prepare(-1, create=False)
