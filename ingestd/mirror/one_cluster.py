"""One cluster: what a mirror takes where source and target turn out to be one cluster under two names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ingestd.mirror.positions import CanNotBegin
from ingestd.mirror.selection import NAMING

if TYPE_CHECKING:
    from ingestd.mirror.route import MirrorRoute
    from ingestd.mirror.selection import Selection

__all__ = ["selection_between"]


def selection_between(route: MirrorRoute, source_id: str, target_id: str) -> Selection:
    """The topics that a mirror takes and their names, between clusters that have these ids.

    One id means one cluster, whatever names and addresses it has in the configuration. Raises `CanNotBegin` where each
    topic would be copied into itself.
    """
    if source_id != target_id:
        return route.selection
    if route.template == NAMING["identity"]:
        raise CanNotBegin(
            f"source {route.source} and target {route.target} are one cluster, {source_id}: with naming = "
            f'"{route.naming}" each topic would be copied into itself; expected another target, or another naming, as '
            'in "copy-of-{topic}" (two clusters must have ids of their own)'
        )
    return replace(route.selection, one_cluster=True)
