"""MirrorRoute: one `[mirrors.NAME]` table, checked. Which topics are copied from where to where, and from when on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from ingestd.checks import Checks
from ingestd.daemon.source import Words
from ingestd.mirror.selection import NAMING, TOPIC_NAME, Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.daemon.runner import Runner, Workplace
    from ingestd.daemon.source import Finder, StoredPosition, Surroundings

__all__ = ["MirrorRoute"]

_EDGES: Final = ("earliest", "latest")


@dataclass(frozen=True, slots=True)
class MirrorRoute:
    """`[mirrors.NAME]`: topics of one cluster into another, partition by partition, offset by offset in order.

    Record batches are passed on as they are: not decompressed, not decoded. Only committed records are copied.
    """

    name: str
    """The NAME of the table."""
    source: str
    """The cluster that is read, a [clusters.NAME]."""
    target: str
    """The cluster that is written, a [clusters.NAME]."""
    topics: tuple[str, ...]
    """Regular expressions. A topic is taken if one of them matches its whole name, as in `["orders", "audit-.*"]`.
    Topics that match later are taken when they appear. Kafka's own topics never are."""
    exclude: tuple[str, ...] = (r"__.*", r".*[.-]internal", r".*\.checkpoints", "heartbeats", r".*\.heartbeats")
    """Regular expressions of topics to leave alone, although `topics` match them."""
    naming: str = "prefix"
    """What a topic is called on the target: `prefix`: the source cluster's name and a dot before it, as MirrorMaker 2
    does; `identity`: the same; or a template as in `"copy-of-{topic}"`, with `{topic}` and `{source}`."""
    start: str = "earliest"
    """Where to begin in topics that are there when the mirror runs for the first time: `earliest`, `latest`, or a time
    as in `2026-01-31T08:00:00Z`. Later topics and partitions are read from their beginning."""
    create_topics: bool = True
    """Whether topics that are missing on the target are created there, with as many partitions as at the source and
    its configuration; and whether partitions are added when the source's topic gets more."""
    replication_factor: int = -1
    """Replicas of topics that the mirror creates; -1: as many as the target's brokers give by themselves."""
    group: str | None = None
    """The group on the target whose offsets are this mirror's positions. By default `ingestd-mirror-NAME`."""
    refresh_interval: float = 5.0
    """Seconds between two looks at the source's topics and partitions."""
    delivery: Literal["at-least-once"] = "at-least-once"
    """Every record arrives, after a crash perhaps twice. (`exactly-once` is to come.)"""
    on_undeliverable: Literal["stop"] = "stop"
    """What the mirror does when the target refuses a record for good: `stop`, and say so."""

    def __post_init__(self) -> None:
        """Check what types do not say. Raises `WrongSetting`, which names the key and what was expected."""
        checks = Checks()
        checks.require("topics", "at least one regular expression", holds=bool(self.topics))
        for key in ("topics", "exclude"):
            for pattern in getattr(self, key):
                problem = _problem(pattern)
                checks.require(key, f"regular expressions, not {pattern!r}: {problem}", holds=problem is None)
        template = self.template
        wanted = '"prefix", "identity", or a template with {topic} in it, as in "copy-of-{topic}"'
        checks.require("naming", wanted, holds="{topic}" in template)
        rest = template.replace("{topic}", "").replace("{source}", "")
        expected = f"letters, digits, '.', '_' and '-' beside {{topic}} and {{source}}, not {rest!r}"
        checks.require("naming", expected, holds=not rest or TOPIC_NAME.fullmatch(f"a{rest}") is not None)
        same = self.source == self.target and template == NAMING["identity"]
        checks.require("naming", "another one than identity, since source and target are one cluster", holds=not same)
        known = self.start in _EDGES or self.start_time is not None
        expected = '"earliest", "latest", or a time with its zone, as in "2026-01-31T08:00:00Z"'
        checks.require("start", expected, holds=known)
        valid = self.replication_factor == -1 or 1 <= self.replication_factor <= 32767
        checks.require("replication_factor", "-1, or 1 to 32767", holds=valid)
        checks.require("group", "a group's name, not an empty one", holds=self.group != "")
        between = 0 < self.refresh_interval <= 86400
        checks.require("refresh_interval", "seconds, more than 0, at most 86400", holds=between)
        checks.finish()

    @property
    def template(self) -> str:
        """`naming` as a template."""
        return NAMING.get(self.naming, self.naming)

    @property
    def start_time(self) -> datetime | None:
        """`start`, where it is a time with a zone."""
        try:
            moment = datetime.fromisoformat(self.start)
        except ValueError:
            return None
        return None if moment.tzinfo is None else moment.astimezone(UTC)

    @property
    def positions_group(self) -> str:
        """The group whose offsets are the mirror's positions."""
        return f"ingestd-mirror-{self.name}" if self.group is None else self.group

    @property
    def selection(self) -> Selection:
        """The topics that it takes, and their names on the target."""
        return Selection(self.source, self.target, self.topics, self.exclude, self.template)

    @property
    def cluster(self) -> str:
        """See `ingestd.daemon.source.Route.cluster`."""
        return self.target

    @property
    def clusters(self) -> tuple[str, ...]:
        """See `ingestd.daemon.source.Route.clusters`."""
        return (self.source, self.target) if self.source != self.target else (self.target,)

    @property
    def fixed_topics(self) -> tuple[str, ...]:
        """See `ingestd.daemon.source.Route.fixed_topics`: none, all are found."""
        return ()

    @property
    def writes_to(self) -> str:
        """See `ingestd.daemon.source.Route.writes_to`."""
        return self.template.replace("{source}", self.source)

    @property
    def words(self) -> Words:
        """See `ingestd.daemon.source.Route.words`."""
        return Words("partition", "record", "topic")

    @property
    def loss_reasons(self) -> tuple[str, ...]:
        """See `ingestd.daemon.source.Route.loss_reasons`."""
        return ()

    def finder(self, stored: Sequence[StoredPosition] | None, surroundings: Surroundings) -> Finder:  # noqa: ARG002 - positions are at the target
        """See `ingestd.daemon.source.Route.finder`."""
        from ingestd.mirror.finder import MirrorFinder  # noqa: PLC0415 - they know each other; a worker needs no finder

        return MirrorFinder(self, surroundings)

    def runner(self, workplace: Workplace) -> Runner:
        """See `ingestd.daemon.source.Route.runner`."""
        from ingestd.mirror.runner import MirrorRunner  # noqa: PLC0415 - only a worker needs it

        return MirrorRunner(self, workplace)


def _problem(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error)
    return None
