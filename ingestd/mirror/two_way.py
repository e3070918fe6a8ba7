"""Two ways: groups on a topic that both sides write, with a mirror in each direction. There no offset is exact.

On the target, records that were written there lie between those that were copied. A group has read those of them that
the mirror of the other direction had copied to the source, before the group's offset. That mirror's positions are
offsets of a group at the source: everything before `target` on our target is before `source` at our source.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.client.group import OffsetAndMetadata
    from ingestd.client.metadata import TopicPartition

__all__ = ["Returned", "TwoWay"]

MOST_KEPT: Final = 64
"""Positions of one partition that are kept: for groups that have not read what came last. Old ones are thinned out."""


class Returned(NamedTuple):
    """What was written on our target before `target` was copied to our source by the other mirror, before `source`."""

    source: int
    target: int


class TwoWay:
    """The positions of mirrors in the other direction, by partition of our source, as they were seen in turn."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, list[Returned]] = {}

    def note(
        self, positions: Mapping[TopicPartition, OffsetAndMetadata], target_ids: Mapping[TopicPartition, str]
    ) -> None:
        """See the offsets of a group at the source, which may be such a mirror's.

        `target_ids` has the id of the topic on our target that each partition of our source is copied to. A position
        that names that id is one of a mirror that copies it back.
        """
        for one, at in positions.items():
            offset = _copied_back(at, target_ids.get(one, ""))
            if offset is None:
                continue
            seen = self._seen.setdefault(one, [])
            if seen and (at.offset < seen[-1].source or offset < seen[-1].target):
                seen.clear()  # it was set back
            if not seen or seen[-1] != (at.offset, offset):
                seen.append(Returned(at.offset, offset))
            if len(seen) > MOST_KEPT:
                del seen[: MOST_KEPT // 2 : 2]

    def concerns(self, one: TopicPartition) -> bool:
        """Whether both sides write this partition."""
        return one in self._seen

    def read(self, one: TopicPartition, offset: int) -> int | None:
        """Before which offset on the target a group at `offset` has read all that was written there.

        None: that is not known.
        """
        seen = self._seen[one]
        place = bisect_right(seen, offset, key=lambda returned: returned.source)
        return seen[place - 1].target if place else None


def _copied_back(at: OffsetAndMetadata, target_id: str) -> int | None:
    """The offset up to which our target was copied back, if this is the position of a mirror that does that."""
    if not target_id:
        return None
    try:
        said = orjson.loads(at.metadata)
        offset = said["offset"] if said["topic_id"] == target_id else None
    except (ValueError, TypeError, KeyError):
        return None
    return offset if isinstance(offset, int) else None
