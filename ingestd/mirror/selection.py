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

    def takes(self, topic: str) -> bool:
        """Whether the mirror takes a topic of the source.

        With `{source}.` before the names, a topic that begins with the target's name came from there, by the mirror in
        the other direction. It is not sent back.
        """
        if topic == REGISTRY_TOPIC or (self.template.startswith("{source}.") and topic.startswith(f"{self.target}.")):
            return False
        return _matches(self.include, topic) and not _matches(self.exclude, topic)

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
