"""Balance: how many partitions of which kind each member holds: even first, then near, then with least movement.

KIP-54's two promises, for any subscriptions. *Even*: no partition can be passed on, from member to member, so that one
with at least two more than another loses one and that other gains one; where all subscribe to the same, numbers differ
by at most one. *Sticky*: of the even outcomes one is sought that takes few partitions from whoever has them. In
between stands the rack (KIP-881): no other outcome as even has more partitions held by members near a replica.

Both are sought first among what nobody held, then with everything. So when members gave up what an outcome took from
them, sharing that anew moves nothing else: with it alone, the same evenness and nearness can be had.

Partitions of one topic with replicas in the same racks are alike and only counted here. Members are numbered; a set of
members is an integer with their bits set, which makes the search for somebody to pass a partition to one operation.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["Balance", "Kind"]

Members: TypeAlias = int
"""A set of members: bit n stands for member n."""

_Roads: TypeAlias = tuple[Members, Members, Members]
"""To whom a member could give something: so that one less is held from afar, as many, one more."""


@dataclass(frozen=True, slots=True)
class Kind:
    """So many partitions that are alike, who may hold them, and who is near them."""

    partitions: int
    subscribers: Members
    near: Members
    """Those of `subscribers` who are near a replica; all of them where nobody is or where it does not matter."""


def _members_of(members: Members) -> Iterator[int]:
    """The members of a set, in order."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest


class Balance:
    """Who holds how many of which kind, while that is made even.

    Invariants
        `load[member]` is the sum of `held[member]`'s counts; `held` has no zero counts.
        For each member and kind, held = owned - lacking + new, with lacking or new zero.
        Nothing but `_place` changes how many partitions of a kind are held in all.
    """

    def __init__(self, kinds: Sequence[Kind], owned: Sequence[Mapping[int, int]]) -> None:
        """Begin with what each member owns: counts by the kind's position in `kinds`, all held by a subscriber."""
        self.kinds = kinds
        self.held: list[dict[int, int]] = [dict(counts) for counts in owned]
        self.load = [sum(counts.values()) for counts in owned]
        self._new: list[dict[int, int]] = [{} for _ in owned]
        self._lacking: list[dict[int, int]] = [{} for _ in owned]
        self._at_load: dict[int, Members] = {}
        for member, load in enumerate(self.load):
            self._at_load[load] = self._at_load.get(load, 0) | 1 << member

    def settle(self) -> None:
        """Place what nobody holds, make it even, bring it near. Settling that again, or a part of it, moves nothing."""
        self._place()
        everybody = [kind.subscribers for kind in self.kinds]
        near = [kind.near for kind in self.kinds]
        if near != everybody:
            self._even_out(near, self._new)
        for givable in (self._new, self.held):
            self._even_out(everybody, givable)
            if near != everybody:
                self._bring_near(givable)

    # Single steps

    def _give(self, member: int, kind: int) -> None:
        _subtract(self.held[member], kind)
        if kind in self._new[member]:
            _subtract(self._new[member], kind)
        else:
            lacking = self._lacking[member]
            lacking[kind] = lacking.get(kind, 0) + 1
        self._change_load(member, -1)

    def _take(self, member: int, kind: int) -> None:
        held = self.held[member]
        held[kind] = held.get(kind, 0) + 1
        if kind in self._lacking[member]:
            _subtract(self._lacking[member], kind)
        else:
            new = self._new[member]
            new[kind] = new.get(kind, 0) + 1
        self._change_load(member, 1)

    def _change_load(self, member: int, by: int) -> None:
        load = self.load[member]
        bit = 1 << member
        left = self._at_load[load] ^ bit
        if left:
            self._at_load[load] = left
        else:
            del self._at_load[load]
        self.load[member] = load + by
        self._at_load[load + by] = self._at_load.get(load + by, 0) | bit

    def _least_loaded(self, among: Members, at_most: int) -> int | None:
        for load in sorted(self._at_load):
            if load > at_most:
                return None
            found = among & self._at_load[load]
            if found:
                return (found & -found).bit_length() - 1
        return None

    # What nobody holds

    def _place(self) -> None:
        """Each to the least loaded of those near it; first the kinds that have the fewest members to go to."""
        free = [kind.partitions for kind in self.kinds]
        for counts in self.held:
            for kind, count in counts.items():
                free[kind] -= count
        order = sorted(
            (number for number, left in enumerate(free) if left),
            key=lambda number: (self.kinds[number].near.bit_count(), self.kinds[number].near),
        )
        candidates: Members = 0
        waiting: list[tuple[int, int]] = []
        for number in order:
            if self.kinds[number].near != candidates:
                candidates = self.kinds[number].near
                waiting = [(self.load[member], member) for member in _members_of(candidates)]
                heapq.heapify(waiting)
            for _ in range(free[number]):
                load, member = waiting[0]
                heapq.heapreplace(waiting, (load + 1, member))
                self._take(member, number)

    # Evenness

    def _even_out(self, allowed: Sequence[Members], givable: Sequence[Mapping[int, int]]) -> None:
        """Pass partitions on until no chain of members helps.

        Each member gives of its kinds in `givable` (of `_new`: nobody loses what it owned); a kind only goes to whom
        `allowed` has for it.
        """
        # Who could get something from each member. May name too many: that is found out when it is tried, and mended.
        reach = [_union(allowed, kinds) & ~(1 << member) for member, kinds in enumerate(givable)]
        helped = True
        while helped:
            helped = False
            left: Members = sum(1 << member for member, others in enumerate(reach) if others)
            while left:
                most = max(load for load, members in self._at_load.items() if members & left)
                if most < min(self._at_load) + 2:
                    break
                givers = self._at_load[most] & left
                chain = self._chain(givers, most - 2, reach)
                if chain is None:
                    left &= ~givers
                elif self._pass_on(chain, allowed, givable, reach):
                    helped = True

    def _chain(self, givers: Members, at_most: int, reach: Sequence[Members]) -> list[int] | None:
        """The shortest chain from a giver to a member with `at_most` partitions, there to the one with the fewest."""
        came_from: dict[int, int] = {}
        frontier = list(_members_of(givers))
        seen = givers
        while frontier:
            reached: Members = 0
            for member in frontier:
                reached |= reach[member]
            taker = self._least_loaded(reached & ~seen, at_most)
            if taker is not None:
                chain = [taker, next(member for member in frontier if reach[member] >> taker & 1)]
                while chain[-1] in came_from:
                    chain.append(came_from[chain[-1]])
                chain.reverse()
                return chain
            following: list[int] = []
            for member in frontier:
                for found in _members_of(reach[member] & ~seen):
                    came_from[found] = member
                    following.append(found)
                seen |= reach[member]
            frontier = following
        return None

    def _pass_on(
        self,
        chain: Sequence[int],
        allowed: Sequence[Members],
        givable: Sequence[Mapping[int, int]],
        reach: list[Members],
    ) -> bool:
        """Move one partition along each link. False: `reach` named a link that is none, and no longer does."""
        links = list(pairwise(chain))
        passed: list[int] = []
        for giver, taker in links:
            kind = self._kind_to_give(giver, taker, allowed, givable)
            if kind is None:
                reach[giver] &= ~(1 << taker)
                return False
            passed.append(kind)
        for (giver, taker), kind in zip(links, passed, strict=True):
            self._give(giver, kind)
            self._take(taker, kind)
            reach[taker] |= allowed[kind] & ~(1 << taker)
        return True

    def _kind_to_give(
        self, giver: int, taker: int, allowed: Sequence[Members], givable: Sequence[Mapping[int, int]]
    ) -> int | None:
        for kind in self._in_order(giver, taker, givable):
            if allowed[kind] >> taker & 1:
                return kind
        return None

    def _in_order(self, giver: int, taker: int, givable: Sequence[Mapping[int, int]]) -> Iterator[int]:
        """What to give: best what the taker owned before, then what the giver did not."""
        if self._lacking[taker]:
            yield from self._lacking[taker].keys() & givable[giver].keys()
        yield from self._new[giver]
        yield from givable[giver]

    # Nearness

    def _bring_near(self, givable: Sequence[Mapping[int, int]]) -> None:
        """Pass partitions on as long as fewer are held from afar by it and evenness stays.

        They go round in a ring of members; or along a chain, the last of whom has one partition less than the first.
        """
        roads: dict[int, _Roads] = {}
        helped = True
        while helped:  # What one brought near may have opened a way for another.
            helped = False
            for member in range(len(self.held)):
                helped |= self._bring_near_from(member, givable, roads)

    def _bring_near_from(self, start: int, givable: Sequence[Mapping[int, int]], roads: dict[int, _Roads]) -> bool:
        helped = False
        while ring := self._ring(start, givable, roads):
            helped = True
            passed = [(*link, self._kind_to_pass(*link, change, givable)) for link, change in ring.items()]
            for giver, taker, kind in passed:
                self._give(giver, kind)
                self._take(taker, kind)
                roads.pop(giver, None)
                roads.pop(taker, None)
        return helped

    def _ring(
        self, start: int, givable: Sequence[Mapping[int, int]], roads: dict[int, _Roads]
    ) -> dict[tuple[int, int], int]:
        """The links of a ring that brings something near, each with its change in how many are held from afar.

        A ring whose changes add up to less than 0 has a member from whom on every part of it does: looking from each
        member, and only as long as the sum is below 0, finds one if there is any (Bellman and Ford's way). So where
        none is found, no other way to share as evenly has more partitions near.
        """
        came_from: dict[int, tuple[int, int | None]] = {}
        within: defaultdict[int, Members] = defaultdict(int)  # Those reached with a sum of -n or less, by n.
        waiting: deque[tuple[Members, int, int, int | None]] = deque([(1 << start, 0, start, None)])
        while waiting:
            reached, sum_, giver, by = waiting.popleft()
            for member in _members_of(reached & ~within[1 - sum_]):
                if member in came_from and (links := _ring_back(member, giver, by, came_from)):
                    return links
                if member != start:
                    came_from[member] = giver, by
                for change, others in self._links(member, givable, roads):
                    total = sum_ + (change or 0)
                    if total >= 0:
                        continue
                    if others >> start & 1:
                        return _ring_back(start, member, change, came_from)
                    if found := others & ~within[-total]:
                        waiting.append((found, total, member, change))
                        for level in range(1, 1 - total):
                            within[level] |= found
        return {}

    def _links(
        self, member: int, givable: Sequence[Mapping[int, int]], roads: dict[int, _Roads]
    ) -> Iterator[tuple[int | None, Members]]:
        """Who could follow a member in a ring, by the change. None: a chain ends with it, and began with the other."""
        yield None, self._at_load.get(self.load[member] + 1, 0)
        if member not in roads:
            roads[member] = self._roads(member, givable[member])
        yield from zip((-1, 0, 1), roads[member], strict=True)

    def _roads(self, member: int, kinds: Iterable[int]) -> _Roads:
        nearer = level = farther = 0
        for number in kinds:
            kind = self.kinds[number]
            if kind.near >> member & 1:
                level |= kind.near
                farther |= kind.subscribers
            else:
                nearer |= kind.near
                level |= kind.subscribers
        others = ~(1 << member)
        return nearer & others, level & others, farther & others

    def _kind_to_pass(self, giver: int, taker: int, change: int, givable: Sequence[Mapping[int, int]]) -> int:
        for number in self._in_order(giver, taker, givable):
            kind = self.kinds[number]
            if kind.subscribers >> taker & 1 and (kind.near >> giver & 1) - (kind.near >> taker & 1) <= change:
                return number
        raise AssertionError(f"member {giver} has nothing for {taker}")


def _ring_back(
    other: int, member: int, by: int | None, came_from: Mapping[int, tuple[int, int | None]]
) -> dict[tuple[int, int], int]:
    """The links from `other` to `member`, and on to `other`; none where `member` was not reached over `other`."""
    links: dict[tuple[int, int], int] = {}
    giver, taker, change = member, other, by
    while True:
        if change is not None:
            links[giver, taker] = change
        if giver == other:
            return links
        if giver not in came_from:
            return {}
        taker = giver
        giver, change = came_from[giver]


def _subtract(counts: dict[int, int], kind: int) -> None:
    # What is left goes to the end, so that a member gives of its kinds in turn.
    left = counts.pop(kind) - 1
    if left:
        counts[kind] = left


def _union(allowed: Sequence[Members], kinds: Mapping[int, int]) -> Members:
    union = 0
    for kind in kinds:
        union |= allowed[kind]
    return union
