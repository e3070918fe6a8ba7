"""MirrorRoute: one `[mirrors.NAME]` table, checked. Which topics are copied from where to where, and from when on."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - types of fields are looked up when a configuration is read
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from ingestd.checks import Checks
from ingestd.client.metadata import TOPIC_NAME
from ingestd.daemon.fields import ClusterName, Delivery, Expected, Interval, Pattern, RecordPattern
from ingestd.daemon.source import Claim, Words
from ingestd.mirror.losses import REFUSED, RETENTION
from ingestd.mirror.selection import NAMING, Selection

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingestd.daemon.configuration import ClusterSettings
    from ingestd.daemon.runner import Runner, Workplace
    from ingestd.daemon.source import Finder, StoredPosition, Surroundings
    from ingestd.mirror.filtering import RecordFilter

__all__ = ["MirrorRoute"]

_STARTS: Final = ("earliest", "latest", "mirrormaker2")


def _as_time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.astimezone(UTC)


def _is_start(text: str) -> bool:
    return text in _STARTS or _as_time(text) is not None


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
    keys: tuple[RecordPattern, ...] = ()
    """Regular expressions. Only records are copied whose key one of them matches as a whole. With this or one of the
    next three, every batch is decompressed, Python looks at each record, and a batch of which records are left out is
    made anew: up to ten times the CPU."""
    exclude_keys: tuple[RecordPattern, ...] = ()
    """Regular expressions of keys. Records that have one of them are not copied."""
    headers: Mapping[str, RecordPattern] = field(default_factory=dict)
    """Regular expressions by names of headers, as in `{region = "eu|us"}`. Only records are copied that have each of
    these headers with a value that matches as a whole."""
    exclude_headers: Mapping[str, RecordPattern] = field(default_factory=dict)
    """Regular expressions by names of headers. Records that have one of these headers, with a value that matches, are
    not copied."""
    naming: str = "prefix"
    """What a topic is called on the target: `prefix`: the source cluster's name and a dot before it, as MirrorMaker 2
    does; `identity`: the same; or a template as in `"copy-of-{topic}"`, with `{topic}` and `{source}`. Where source and
    target are one cluster (have one cluster id), `identity` is refused, and what has the name of a copy is not copied
    again."""
    start: Annotated[
        str,
        Expected(
            '"earliest", "latest", "mirrormaker2", or a time with its zone, as in "2026-01-31T08:00:00Z"', _is_start
        ),
    ] = "earliest"
    """Where to begin in topics that are there when the mirror runs for the first time: `earliest`, `latest`, a time as
    in `2026-01-31T08:00:00Z`, or `mirrormaker2`: where MirrorMaker 2 stopped that called the source as it is called
    here. Topics and partitions that come later, or that MirrorMaker 2 does not know, are read from their beginning, or
    from that time."""
    create_topics: bool = True
    """Whether topics that are missing on the target are created there, with as many partitions as at the source and
    its configuration; and whether partitions are added, and the configuration is changed, when the source's are."""
    exclude_configs: tuple[Pattern, ...] = ()
    """Regular expressions of keys of topics' configurations that are not copied, as in `["retention.*"]`; with `[".*"]`
    none is. Timestamp types and their bounds, `min.insync.replicas`, unclean elections and throttles never are."""
    replication_factor: Annotated[
        int, Expected("-1, or 1 to 32767", lambda number: number == -1 or 1 <= number <= 32767)
    ] = -1
    """Replicas of topics that the mirror creates; -1: as many as the target's brokers give by themselves."""
    group: Annotated[str, Expected("a group's name, not an empty one", bool)] | None = None
    """The group on the target whose offsets are this mirror's positions. By default `ingestd-mirror-NAME`."""
    groups: tuple[Pattern, ...] = ()
    """Regular expressions of consumer groups at the source, as in `["billing", "web-.*"]`. Their committed offsets are
    translated, record by record, and committed on the target for as long as the group has no members there, never
    backwards. Empty: none is. Of records that the mirror did not copy, or copied before this was set, no offset is
    known: a group that is still there is not translated until it is past them."""
    sync_groups_interval: Interval = 10.0
    """Seconds between two looks at the offsets of `groups`. What a group commits at the source is on the target
    about so much later. Each look asks every broker of the source for its groups."""
    send_back: bool = False
    """Whether records that a mirror brought to the source from the target are copied back to it. That is for a target
    which has lost them. If both directions do it, records go round for ever."""
    refresh_interval: Interval = 5.0
    """Seconds between two looks at the source's topics and partitions."""
    bandwidth: Annotated[int, Expected("bytes a second, more than 0", lambda rate: rate > 0)] | None = None
    """Most bytes of record batches that this host sends in a second; by default there is no limit. Workers share
    it as they need it."""
    delivery: Delivery = "at-least-once"
    """Every record arrives, after a crash perhaps twice. (`exactly-once` is to come.)"""
    on_undeliverable: Literal["stop", "skip"] = "stop"
    """What the mirror does when the target refuses a record for good (one that is too large, has no key where the topic
    is compacted, or a time that the topic does not take): `stop`, and say so; or `skip` it, and say that it is lost."""

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
        expected = "one of letters, digits, '.', '_' and '-', of which the name of a topic is made, or no `groups`"
        holds = not self.groups or TOPIC_NAME.fullmatch(self.offsets_topic) is not None
        checks.require("group", expected, holds=holds, beside=["groups"])
        checks.finish()

    def unfit(self, clusters: Mapping[str, ClusterSettings]) -> Iterator[tuple[str, str]]:
        """See `ingestd.daemon.source.Route.unfit`."""
        source, target = clusters.get(self.source), clusters.get(self.target)
        one = source is not None and target is not None and set(source.bootstrap) & set(target.bootstrap)
        if one and self.template == NAMING["identity"]:
            yield "naming", "expected another one than identity, since source and target have brokers in common"

    @property
    def claims(self) -> tuple[Claim, ...]:
        """See `ingestd.daemon.source.Route.claims`: in one group, positions of two would overwrite each other."""
        group = Claim("group", (self.target, self.positions_group), f'"{self.positions_group}"')
        return (group, *self._topic_claims())

    def _topic_claims(self) -> Iterator[Claim]:
        """Two with one pattern would copy each topic twice, unless they leave out other topics, or other records."""
        left_out = {
            "exclude": frozenset(self.exclude),
            "keys": frozenset(self.keys),
            "exclude_keys": frozenset(self.exclude_keys),
            "headers": frozenset(self.headers.items()),
            "exclude_headers": frozenset(self.exclude_headers.items()),
        }
        for pattern in self.topics:
            name = f'"{pattern}" of {self.source} for {self.target} under the same names'
            thing = pattern, self.way, *left_out.values()
            yield Claim("topics", thing, name, ("source", "target", "naming", *left_out))

    @property
    def way(self) -> tuple[str, str, str]:
        """Mirrors with one way give a topic the same name on the same target."""
        return self.source, self.target, self.template

    @classmethod
    def warnings(cls, routes: Sequence[Self]) -> Iterator[str]:
        """See `ingestd.daemon.source.Route.warnings`.

        Mirrors that would copy each other's records for ever; and those that copy a topic twice, where one names it.
        """
        for one, other in combinations(routes, 2):
            named = (topic for topic in dict.fromkeys(one.topics + other.topics) if TOPIC_NAME.fullmatch(topic))
            for topic in named:
                if one.way == other.way and one.selection.takes(topic) and other.selection.takes(topic):
                    yield (
                        f"mirrors.{other.name}.topics: {topic} is taken here and in [mirrors.{one.name}], under one "
                        f"name on {one.target}: records that both copy are there twice"
                    )
        same_names = [route for route in routes if route.template == NAMING["identity"] and route.send_back]
        for one, other in combinations(same_names, 2):
            if (one.source, one.target) == (other.target, other.source):
                yield (
                    f"mirrors.{one.name}.send_back: here and in [mirrors.{other.name}], which copies back: "
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
    def offsets_topic(self) -> str:
        """The topic on the target that keeps which offset there a record of the source has."""
        return f"{self.positions_group}.offsets.internal"

    @property
    def selection(self) -> Selection:
        """The topics that it takes, and their names on the target."""
        one_cluster = self.source == self.target
        return Selection(self.source, self.target, self.topics, self.exclude, self.template, one_cluster)

    @property
    def record_filter(self) -> RecordFilter | None:
        """Which records are copied; None: all."""
        if not (self.keys or self.exclude_keys or self.headers or self.exclude_headers):
            return None
        from ingestd.mirror.filtering import RecordFilter  # noqa: PLC0415 - few mirrors need it

        return RecordFilter(self.keys, self.exclude_keys, self.headers, self.exclude_headers)

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
        """See `ingestd.daemon.source.Route.loss_reasons`.

        The source removed records before they were copied; or the target refused one for good, and it was skipped.
        """
        return (RETENTION, REFUSED)

    def finder(self, stored: Sequence[StoredPosition], surroundings: Surroundings) -> Finder:  # noqa: ARG002 - positions are at the target
        """See `ingestd.daemon.source.Route.finder`."""
        from ingestd.mirror.finder import MirrorFinder  # noqa: PLC0415 - they know each other; a worker needs no finder

        return MirrorFinder(self, surroundings)

    def import_runner(self) -> None:
        """See `ingestd.daemon.source.Route.import_runner`."""
        from ingestd.mirror import runner  # noqa: F401, PLC0415 - its imports are the finder's too, for the most part

    def runner(self, workplace: Workplace) -> Runner:
        """See `ingestd.daemon.source.Route.runner`."""
        from ingestd.mirror.runner import MirrorRunner  # noqa: PLC0415 - only a worker needs it

        return MirrorRunner(self, workplace)
