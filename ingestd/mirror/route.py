"""MirrorRoute: one `[mirrors.NAME]` table, checked. Which topics are copied from where to where, and from when on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from ingestd.checks import Checks
from ingestd.daemon.fields import ClusterName, Delivery, Expected, Interval, Pattern
from ingestd.daemon.source import Claim, Words
from ingestd.mirror.selection import NAMING, TOPIC_NAME, Selection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ingestd.daemon.configuration import ClusterSettings
    from ingestd.daemon.runner import Runner, Workplace
    from ingestd.daemon.source import Finder, StoredPosition, Surroundings

__all__ = ["MirrorRoute"]

_EDGES: Final = ("earliest", "latest")


def _as_time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.astimezone(UTC)


def _is_start(text: str) -> bool:
    return text in _EDGES or _as_time(text) is not None


@dataclass(frozen=True, slots=True)
class MirrorRoute:
    """`[mirrors.NAME]`: topics of one cluster into another, partition by partition, offset by offset in order.

    Record batches are passed on as they are: not decompressed, not decoded. Only committed records are copied.
    """

    name: str
    """The NAME of the table."""
    source: ClusterName
    """The cluster that is read, a [clusters.NAME]."""
    target: ClusterName
    """The cluster that is written, a [clusters.NAME]."""
    topics: Annotated[tuple[Pattern, ...], Expected("at least one regular expression", bool)]
    """Regular expressions. A topic is taken if one of them matches its whole name, as in `["orders", "audit-.*"]`.
    Topics that match later are taken when they appear. Kafka's own topics never are."""
    exclude: tuple[Pattern, ...] = (r"__.*", r".*[.-]internal", r".*\.checkpoints", "heartbeats", r".*\.heartbeats")
    """Regular expressions of topics to leave alone, although `topics` match them."""
    naming: str = "prefix"
    """What a topic is called on the target: `prefix`: the source cluster's name and a dot before it, as MirrorMaker 2
    does; `identity`: the same; or a template as in `"copy-of-{topic}"`, with `{topic}` and `{source}`."""
    start: Annotated[
        str, Expected('"earliest", "latest", or a time with its zone, as in "2026-01-31T08:00:00Z"', _is_start)
    ] = "earliest"
    """Where to begin in topics that are there when the mirror runs for the first time: `earliest`, `latest`, or a time
    as in `2026-01-31T08:00:00Z`. Later topics and partitions are read from their beginning."""
    create_topics: bool = True
    """Whether topics that are missing on the target are created there, with as many partitions as at the source and
    its configuration; and whether partitions are added when the source's topic gets more."""
    replication_factor: Annotated[
        int, Expected("-1, or 1 to 32767", lambda number: number == -1 or 1 <= number <= 32767)
    ] = -1
    """Replicas of topics that the mirror creates; -1: as many as the target's brokers give by themselves."""
    group: Annotated[str, Expected("a group's name, not an empty one", bool)] | None = None
    """The group on the target whose offsets are this mirror's positions. By default `ingestd-mirror-NAME`."""
    refresh_interval: Interval = 5.0
    """Seconds between two looks at the source's topics and partitions."""
    delivery: Delivery = "at-least-once"
    """Every record arrives, after a crash perhaps twice. (`exactly-once` is to come.)"""
    on_undeliverable: Literal["stop"] = "stop"
    """What the mirror does when the target refuses a record for good: `stop`, and say so."""

    def __post_init__(self) -> None:
        """Check what goes together. Raises `WrongSetting`, which names the key and what was expected."""
        checks = Checks()
        template = self.template
        wanted = '"prefix", "identity", or a template with {topic} in it, as in "copy-of-{topic}"'
        checks.require("naming", wanted, holds="{topic}" in template)
        rest = template.replace("{topic}", "").replace("{source}", "")
        expected = f"letters, digits, '.', '_' and '-' beside {{topic}} and {{source}}, not {rest!r}"
        checks.require("naming", expected, holds=not rest or TOPIC_NAME.fullmatch(f"a{rest}") is not None)
        same = self.source == self.target and template == NAMING["identity"]
        expected = "another one than identity, since source and target are one cluster"
        checks.require("naming", expected, holds=not same, beside=["source", "target"])
        checks.finish()

    def unfit(self, clusters: Mapping[str, ClusterSettings]) -> Iterator[tuple[str, str]]:
        """See `ingestd.daemon.source.Route.unfit`."""
        source, target = clusters.get(self.source), clusters.get(self.target)
        if target is not None and target.embedded:
            yield (
                "target",
                "expected a Kafka: an embedded broker has no groups yet, and a mirror keeps its positions in one",
            )
        one = source is not None and target is not None and set(source.bootstrap) & set(target.bootstrap)
        if one and self.template == NAMING["identity"]:
            yield "naming", "expected another one than identity, since source and target have brokers in common"

    @property
    def claims(self) -> tuple[Claim, ...]:
        """See `ingestd.daemon.source.Route.claims`: in one group, positions of two would overwrite each other."""
        return (Claim("group", (self.target, self.positions_group), f'"{self.positions_group}"'),)

    @classmethod
    def warnings(cls, routes: Sequence[Self]) -> Iterator[str]:
        """See `ingestd.daemon.source.Route.warnings`: mirrors that would copy each other's records for ever."""
        same_names = [route for route in routes if route.template == NAMING["identity"]]
        for one, other in combinations(same_names, 2):
            if (one.source, one.target) == (other.target, other.source):
                yield (
                    f"mirrors.{one.name}.naming: with identity here and in [mirrors.{other.name}], which copies back, "
                    "records of topics that both take go round for ever"
                )

    @property
    def template(self) -> str:
        """`naming` as a template."""
        return NAMING.get(self.naming, self.naming)

    @property
    def start_time(self) -> datetime | None:
        """`start`, where it is a time with a zone."""
        return _as_time(self.start)

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
        """See `ingestd.daemon.source.Route.loss_reasons`: the source removed records before they were copied."""
        return ("retention",)

    def finder(self, stored: Sequence[StoredPosition] | None, surroundings: Surroundings) -> Finder:  # noqa: ARG002 - positions are at the target
        """See `ingestd.daemon.source.Route.finder`."""
        from ingestd.mirror.finder import MirrorFinder  # noqa: PLC0415 - they know each other; a worker needs no finder

        return MirrorFinder(self, surroundings)

    def runner(self, workplace: Workplace) -> Runner:
        """See `ingestd.daemon.source.Route.runner`."""
        from ingestd.mirror.runner import MirrorRunner  # noqa: PLC0415 - only a worker needs it

        return MirrorRunner(self, workplace)
