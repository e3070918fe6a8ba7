"""Troubles: paths and globs of one tail of which people are told, until the trouble is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.tail.known import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ingestd.daemon.source import Sources

__all__ = ["Troubles"]


class Troubles:
    """What was told and is not over. Each trouble is told once, and again when its reason is another one."""

    def __init__(self, entries: Collection[str]) -> None:
        """`entries`: the paths and globs of the tail's configuration."""
        self._entries = frozenset(entries)
        self.sources: Sources
        """To whom it is told; to be set before there is anything to tell."""
        self._told: dict[str, str] = {}
        """Reasons by path or glob."""
        self._not_found: Collection[str] = ()
        """Globs that nothing matches, and directories that can not be read."""
        self._listed = False
        self.suspected: Collection[str] = ()
        """What only the last pass found, unless that was the first. It is told if the next one finds it, too: a log
        that is rotated just then is back in a moment."""

    def __contains__(self, thing: object) -> bool:
        return thing in self._told

    def tell(self, thing: str, reason: str) -> None:
        """There is trouble with a file or a directory."""
        self._tell(self.sources.trouble, thing, reason)

    def _tell(self, tell: Callable[[str, str], None], thing: str, reason: str) -> None:
        if self._told.get(thing) != reason:
            self._told[thing] = reason
            tell(printable(thing), printable(reason))

    def over(self, thing: str) -> None:
        """There is none any more. Safe for what was in no trouble."""
        if self._told.pop(thing, None) is not None:
            self.sources.trouble_over(printable(thing))

    def listed(self, found: Mapping[str, str], present: Collection[str]) -> None:
        """A pass found these, by glob or directory, and these paths. What is neither is over."""
        for thing in [thing for thing in self._told if thing not in found and thing not in present]:
            self.over(thing)
        new = {thing for thing in found if thing not in self._told and thing not in self.suspected}
        self.suspected = new if self._listed else ()
        self._listed = True
        self._not_found = ()
        self.found({thing: reason for thing, reason in found.items() if thing not in self.suspected})

    def found(self, found: Mapping[str, str]) -> None:
        """A look into some directories found these, too."""
        self._not_found = {*self._not_found, *found}
        for thing, reason in found.items():
            tell = self.sources.unmatched if thing in self._entries else self.sources.trouble
            self._tell(tell, thing, reason)

    @property
    def paths(self) -> set[str]:
        """Those of files: a look may show that it is over."""
        return self._told.keys() - self._not_found
