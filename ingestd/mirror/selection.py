"""Selection: which topics of the source a mirror takes, and what they are called on the target."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["IDENTITY", "NAMING", "TOPIC_NAME", "Selection"]

NAMING: Final = {"prefix": "{source}.{topic}", "identity": "{topic}"}
"""The names of common templates."""

IDENTITY: Final = "{topic}"

TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""What Kafka takes for a topic's name."""


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
        if self.template.startswith("{source}.") and topic.startswith(f"{self.target}."):
            return False
        return _matches(self.include, topic) and not _matches(self.exclude, topic)

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


def _matches(patterns: Iterable[str], topic: str) -> bool:
    return any(re.fullmatch(pattern, topic) for pattern in patterns)
