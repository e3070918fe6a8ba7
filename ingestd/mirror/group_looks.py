"""GroupLooks: has the groups' offsets translated again and again, and where records went forgotten that are gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingestd.client.admin import ClusterAdmin
from ingestd.consumer.settings import Edge
from ingestd.errors import IngestdError
from ingestd.logs import get_logger
from ingestd.mirror.groups import GroupSync
from ingestd.mirror.starts import find_offsets
from ingestd.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestd.client.metadata import TopicPartition
    from ingestd.daemon.source import Sources, Surroundings
    from ingestd.daemon.status import GroupStatus
    from ingestd.mirror.route import MirrorRoute
    from ingestd.mirror.translations import Translations

__all__ = ["GroupLooks"]

FIRST_PAUSE: Final = 0.5
"""Seconds between the first two looks: at the first one often nothing is copied yet. Each pause is twice the last one,
up to the interval."""

PRUNE_INTERVAL: Final = 60.0
"""Seconds between two looks at what the source has removed, so that where it went need not be known."""


class GroupLooks:
    """One for each mirror that translates groups, in the supervisor."""

    def __init__(
        self,
        route: MirrorRoute,
        surroundings: Surroundings,
        translations: Translations,
        taken: Mapping[TopicPartition, TopicPartition],
    ) -> None:
        """`taken` has this host's partitions at the source, by those on the target. It changes."""
        self._route = route
        self._surroundings = surroundings
        self._translations = translations
        self._taken = taken
        self._groups = GroupSync(route)
        self._log = get_logger("ingestd.supervisor").bind(route=route.name)

    async def run(self, sources: Sources) -> None:
        """Look until cancelled, and say what was found."""
        failing, pruned = "", Deadline.after(0)
        pause = FIRST_PAUSE
        while True:
            try:
                if pruned.expired:
                    await self._prune()
                    pruned = Deadline.after(PRUNE_INTERVAL)
                sources.show_groups(await self._sync())
                failing = ""
            except IngestdError as error:
                if str(error) != failing:
                    failing = str(error)
                    self._log.warning("groups can not be translated now", error=failing, then="tried again")
            pause = min(pause, self._route.sync_groups_interval)
            await asyncio.sleep(pause)
            pause *= 2

    async def at_end(self, deadline: Deadline) -> str | None:
        """What a run with an end does last. Returns why it is not done, or None."""
        try:
            await deadline.wait_for(self._prune(), "looking for the starts of logs")
            await deadline.wait_for(self._sync(), "translating groups")
        except IngestdError as error:
            return f"groups were not translated: {error}"
        return "; ".join(self._groups.failures) or None

    async def _sync(self) -> list[GroupStatus]:
        source, target = (self._surroundings.client(name) for name in (self._route.source, self._route.target))
        pairs = {one: to for to, one in self._taken.items()}
        if not pairs:
            return []
        return await self._groups.sync(ClusterAdmin(source), ClusterAdmin(target), pairs, self._translations)

    async def _prune(self) -> None:
        """Forget where records went that are no longer at the source."""
        several = self._translations.several()
        starts = await find_offsets(
            self._surroundings.client(self._route.source), dict.fromkeys(several, Edge.earliest)
        )
        for one, start in starts.items():
            self._translations.prune(several[one], start)
