"""The balance against what trying everything finds, and its promise to who gave something up: nothing else moves."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.consumer.group.assignors.balance import Balance, Kind

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping, Sequence
    from typing import TypeAlias

    Counts: TypeAlias = Sequence[Mapping[int, int]]

RANDOM = st.randoms(use_true_random=False)


def bits(members: int) -> list[int]:
    return [member for member in range(members.bit_length()) if members >> member & 1]


def some(rng: random.Random, members: int) -> int:
    """Some of a set of members, at least one."""
    return sum(1 << member for member in rng.sample(bits(members), rng.randint(1, members.bit_count())))


def kinds_at_random(rng: random.Random, members: int, kinds: int, partitions: int) -> list[Kind]:
    made = []
    for _ in range(rng.randint(1, kinds)):
        subscribers = some(rng, (1 << members) - 1)
        made.append(Kind(rng.randint(1, partitions), subscribers, some(rng, subscribers)))
    return made


def owned_at_random(rng: random.Random, kinds: Sequence[Kind], members: int) -> Counts:
    owned: list[Counter[int]] = [Counter() for _ in range(members)]
    for number, kind in enumerate(kinds):
        for _ in range(rng.randint(0, kind.partitions)):
            owned[rng.choice(bits(kind.subscribers))][number] += 1
    return owned


def settled(kinds: Sequence[Kind], owned: Counts) -> Counts:
    balance = Balance(kinds, owned)
    balance.settle()
    return balance.held


def cost(kinds: Sequence[Kind], held: Counts) -> tuple[int, int]:
    """How uneven it is, and how much is held from afar."""
    uneven = sum(sum(counts.values()) ** 2 for counts in held)
    far = sum(
        count
        for member, counts in enumerate(held)
        for kind, count in counts.items()
        if not kinds[kind].near >> member & 1
    )
    return uneven, far


def all_ways(kinds: Sequence[Kind], members: int) -> Iterator[Counts]:
    """Each way to share the partitions among those who subscribe to them."""
    each = [itertools.combinations_with_replacement(bits(kind.subscribers), kind.partitions) for kind in kinds]
    for holders in itertools.product(*each):
        held: list[Counter[int]] = [Counter() for _ in range(members)]
        for kind, who in enumerate(holders):
            for member in who:
                held[member][kind] += 1
        yield held


@given(rng=RANDOM)
@settings(max_examples=100, deadline=None)
def test_no_way_to_share_is_more_even_and_none_as_even_is_nearer(rng: random.Random) -> None:
    members = rng.randint(1, 4)
    kinds = kinds_at_random(rng, members, kinds=3, partitions=3)
    held = settled(kinds, owned_at_random(rng, kinds, members))
    for number, kind in enumerate(kinds):
        holders = [member for member, counts in enumerate(held) if number in counts]
        assert sum(held[member][number] for member in holders) == kind.partitions
        assert all(kind.subscribers >> member & 1 for member in holders)
    assert cost(kinds, held) == min(cost(kinds, way) for way in all_ways(kinds, members))


@given(rng=RANDOM)
@settings(max_examples=200, deadline=None)
def test_when_some_of_it_was_given_up_only_that_is_shared_anew(rng: random.Random) -> None:
    # A cooperative group's second rebalance: who had to, gave up; nobody gives up anything else.
    members = rng.randint(2, 9)
    kinds = kinds_at_random(rng, members, kinds=9, partitions=9)
    held = settled(kinds, owned_at_random(rng, kinds, members))
    kept = [{kind: rng.randint(1, count) for kind, count in counts.items() if rng.random() < 0.7} for counts in held]
    again = settled(kinds, kept)
    for counts, then in zip(kept, again, strict=True):
        assert all(then.get(kind, 0) >= count for kind, count in counts.items())
    assert cost(kinds, again) == cost(kinds, held)
