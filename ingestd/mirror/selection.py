"""Selection: which topics of the source a mirror takes, and what they are called on the target."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingestd.client.metadata import TOPIC_NAME
from ingestd.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ingestd.client.metadata import TopicMetadata

__all__ = ["NAMING", "REGISTRY_TOPIC", "Selection"]

REGISTRY_TOPIC: Final = "ingestd-mirrors.producers"
"""The topic of `registry.py`. It is about one cluster, and no mirror takes it."""

NAMING: Final = {"prefix": "{source}.{topic}", "identity": "{topic}"}
"""The names of common templates."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A mirror's patterns and template. Patterns are regular expressions that match a topic's whole name."""

    source: str
    """The source cluster's name."""
    target: str
    """The target cluster's name."""
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    template: str
    """With `{topic}`, and `{source}` if it likes."""
    one_cluster: bool = False
    """Whether source and target are one cluster. Then the mirror's copies are among the topics of the source."""

    def takes(self, topic: str) -> bool:
        """Whether the mirror takes a topic of the source."""
        return self._fits(topic) and not self._is_copy(topic)

    def copies(self, topics: Iterable[str]) -> list[str]:
        """Of one cluster's topics, those that fit the patterns and are not taken, because they have names of copies."""
        return [topic for topic in topics if self.one_cluster and self._fits(topic) and self._is_copy(topic)]

    def _fits(self, topic: str) -> bool:
        return topic != REGISTRY_TOPIC and _matches(self.include, topic) and not _matches(self.exclude, topic)

    def _is_copy(self, topic: str) -> bool:
        """Whether a topic of the source has the name of a copy: copied again, it would never end.

        With `{source}.` before the names, a topic that begins with the target's name came from there, by the mirror in
        the other direction. Within one cluster, a topic is a copy if it has the name that this mirror gives to another
        one that fits. Names alone count: the other one may be deleted by now.
        """
        if self.template.startswith("{source}.") and topic.startswith(f"{self.target}."):
            return True
        original = self._original(topic) if self.one_cluster else None
        return original is not None and self._fits(original)

    def _original(self, name: str) -> str | None:
        """The topic of the source that has this name on the target. None: the template makes no such name."""
        first, *others = map(re.escape, self.template.replace("{source}", self.source).split("{topic}"))
        found = re.fullmatch(f"{first}(?P<topic>.+){'(?P=topic)'.join(others)}", name)
        return None if found is None else found["topic"]

    def unmatched(self, topics: Collection[str]) -> list[str]:
        """The patterns that take none of these topics."""
        taken = [topic for topic in topics if self.takes(topic)]
        return [pattern for pattern in self.include if not any(_matches([pattern], topic) for topic in taken)]

    def renamed(self, topic: str) -> str:
        """What a topic is called on the target. Raises `ValueError` if Kafka takes no such name."""
        name = self.template.replace("{source}", self.source).replace("{topic}", topic)
        if not TOPIC_NAME.fullmatch(name):
            problem = f"it has {len(name)} characters" if len(name) > 249 else "it has other characters"
            raise ValueError(
                f"it would be called {name!r} on the target, and {problem}; expected at most 249 letters, digits, "
                "'.', '_' and '-'"
            )
        return name

    def wanted(self, topics: Mapping[str, TopicMetadata]) -> tuple[dict[str, TopicMetadata], dict[str, str]]:
        """The topics to copy, by their names on the target; and those that can not be, with why."""
        wanted: dict[str, TopicMetadata] = {}
        problems: dict[str, str] = {}
        for topic, known in topics.items():
            if not self.takes(topic):
                continue
            try:
                name = self.renamed(topic)
            except ValueError as error:
                problems[topic] = str(error)
                continue
            if known.error is not ErrorCode.none or not known.partitions:
                problems[topic] = f"the source says {known.error.name.upper()}"
            elif name in wanted:
                problems[topic] = f"it would be called {name} on the target, as {wanted[name].name} is"
            else:
                wanted[name] = known
        problems |= dict.fromkeys(
            self.unmatched(topics), "matches no topic of the source yet, or none that this account may see"
        )
        return wanted, problems


def _matches(patterns: Iterable[str], topic: str) -> bool:
    return any(re.fullmatch(pattern, topic) for pattern in patterns)
