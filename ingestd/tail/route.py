"""TailRoute: one `[tails.NAME]` table, checked. What is read, how it is cut into lines, where it goes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from ingestd.checks import Checks
from ingestd.daemon.arena import largest_batch
from ingestd.daemon.fields import ClusterName, Delivery, Expected, Interval, RecordPattern, Rule, Topic
from ingestd.daemon.source import PER_RECORD, Claim, Lane, Words
from ingestd.errors import UnsupportedCodec, WrongSetting
from ingestd.patterns import BytesPattern
from ingestd.records.codecs import Codec, Compression
from ingestd.records.lines import GATHERED
from ingestd.tail.facts import LOSS_REASONS
from ingestd.tail.globs import Globs, is_closed
from ingestd.tail.known import stored_path
from ingestd.tail.partition import partition_of_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ingestd.daemon.configuration import ClusterSettings
    from ingestd.daemon.fields import RestOfFile
    from ingestd.daemon.runner import Runner, Workplace
    from ingestd.daemon.source import Encoder, Finder, Found, Opener, StoredPosition, Surroundings

__all__ = ["TailRoute"]

LEAST_BATCH_BYTES: Final = 64 * 1024
MOST_BATCH_BYTES: Final = 64 * 1024 * 1024
LEAST_LINE_BYTES: Final = 256

_AGE: Final = re.compile(r"(?=.*[1-9])(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NAMED_GROUP: Final = "key"
_NAMED: Final = re.compile(rf"\(\?P?<{_NAMED_GROUP}>")
"""How the group begins: RE2 takes a second one of the same name, and forgets it."""


def _is_glob(text: str) -> bool:
    is_clear = not text.endswith("/") and ".." not in PurePosixPath(text).parts
    return text.startswith("/") and is_clear and is_closed(text)


def _is_start(text: str) -> bool:
    return text in {"beginning", "end"} or _AGE.fullmatch(text) is not None


def _has_key(text: str) -> bool:
    pattern = BytesPattern(text)
    return pattern.groups == 1 or (_NAMED_GROUP in pattern.names and len(_NAMED.findall(text)) == 1)


def _finds_no_room(size: int, rest: RestOfFile) -> str | None:
    arena_bytes = rest.arena_bytes
    if arena_bytes is None or size <= largest_batch(arena_bytes):
        return None
    return f"expected at most {largest_batch(arena_bytes)} bytes with an arena_bytes of {arena_bytes} in [daemon]"


_FILES: Final = (
    'an absolute path of files, without "..", a [ without its ] or a "/" at its end, as in "/var/log/app/*.log"'
)
_Glob = Annotated[str, Expected(_FILES, _is_glob)]
_Exclude = Annotated[str, Expected("a glob with a ] for each [", is_closed)]


@dataclass(frozen=True, slots=True)
class TailRoute:
    """`[tails.NAME]`: files, line by line, into a topic.

    A file that several globs match, or several links lead to, is taken once; a file that two tails match, by the
    first of them.
    """

    name: str
    """The NAME of the table."""
    paths: Annotated[tuple[_Glob, ...], Expected("at least one absolute glob", bool)]
    """Absolute globs of the files to follow; `*`, `?` and `[0-9]` within one name (`[[]` is a `[`), `**` for any number
    of directories (within a name, as in `x**.log`, it is `*`). As in a shell, a wildcard that a file's name begins with
    stands for no dot: `*` leaves `.app.log.swp` alone."""
    cluster: ClusterName
    """The target cluster, a [clusters.NAME]."""
    topic: Topic
    """The target topic."""
    exclude: tuple[_Exclude, ...] = ("*.zip", "*.swp", "*.tmp")
    """Globs of files to leave alone: without a slash they are matched with the name, else with a file's whole path. So
    "/var/log/pods/kube-system_*/**" leaves out directories. What is set replaces the default. What a log that is
    followed is renamed to is read to its end, excluded or not. A log that was followed before, and is left out since,
    is not read on; how far it was read is kept."""
    rotated: tuple[_Glob, ...] = ()
    """Absolute globs of files that logs are moved to when they are rotated, as in `/var/log/old/*`. Moves that the
    daemon sees are followed anyway; these are looked through for what was moved while it was down. Only rotations
    of followed logs are read: files that were known, whatever they are called now; and files that were also made while
    the daemon was down, if they have the log's name, with a number, a date, `old`, `bak`, `prev` or `~` added."""
    compressed: Literal["skip", "read"] = "skip"
    """Whether files that `paths` match and whose names end in .gz, .bz2, .xz, .zst or .lz4 are read. What was
    compressed after a part of it was read is read on in any case. A compressed file that changes after it was read is
    read on, or anew if it was rewritten. What `start` leaves out is read whole if it changes."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    """How record batches are compressed."""
    compression_level: int | None = None
    """The codec's level; by default the one that moves most bytes a second for what it saves."""
    linger: Annotated[float, Expected("0 to 60 seconds", lambda seconds: 0 <= seconds <= 60)] = 0.05
    """Seconds that a line may wait for company before a batch is made; a full batch never waits."""
    batch_bytes: Annotated[
        int,
        Expected(
            f"{LEAST_BATCH_BYTES} to {MOST_BATCH_BYTES} bytes",
            lambda size: LEAST_BATCH_BYTES <= size <= MOST_BATCH_BYTES,
        ),
        Rule(_finds_no_room),
    ] = 14 * 64 * 1024
    """Most bytes of a record batch as it is sent. With an eighth more for what Kafka adds to each line, it must stay
    below the topic's `max.message.bytes`; the default does, below Kafka's default. Of lines that compress to half,
    twice that is gathered where `arena_bytes` of [daemon] leaves room; it must have room for two, and 128 KiB."""
    start: Annotated[str, Expected('"beginning", "end", or an age as in "24h" (s, m, h or d)', _is_start)] = "beginning"
    """Where to begin in files that are there when this tail runs for the first time: `beginning`, `end`, or an age as
    in `24h` (s, m, h, d): at the beginning of files modified since, at the end of older ones. Compressed files are read
    whole, or left out where others would begin at their end. Files that come later,
    and old ones that a path matches which is added later, are always read from their beginning. The first time is over
    once the log says `sources found`: if a run ended before, this counts for the files that it had not found."""
    max_line_bytes: Annotated[
        int, Expected(f"{LEAST_LINE_BYTES} bytes to less than batch_bytes", lambda size: size >= LEAST_LINE_BYTES)
    ] = 13 * 64 * 1024
    """The longest line, in bytes without its newline; below `batch_bytes`."""
    long_lines: Literal["truncate", "split"] = "truncate"
    """What becomes of a longer line: `truncate`: cut off, `...[truncated]` at its end; `split`: several records."""
    partition: Literal["sticky", "file", "round-robin", "key"] = "sticky"
    """The partition of a line: `sticky`: one for each batch, in turn; `file`: by the path that the file was found
    under, the same for ever; `round-robin`: line by line; `key`: by the key, as Java's default partitioner does."""
    key_pattern: (
        Annotated[
            RecordPattern,
            Expected("a regular expression with one group, or a group named `key`: (?P<key>...)", _has_key),
        ]
        | None
    ) = None
    """A regular expression of RE2 whose only group, or group named `key`, is the record's key. No match, no key. RE2
    has neither look-around nor back references, so no line keeps it busy. `\\w` and `\\d` are ASCII; a dot is a byte.
    A `.*` that it begins with doubles its cost and changes nothing but which of several matches counts."""
    key_from: Literal["path", "line"] = "line"
    """What `key_pattern` is searched in: the path that the file was found under, or each line."""
    delivery: Delivery = "at-least-once"
    """Every line arrives, after a crash perhaps twice. (`exactly-once` is to come.)"""
    on_undeliverable: Annotated[str, Expected('"stop" (dead-letter is not built yet)', {"stop"}.__contains__)] = "stop"
    """What the tail does when the cluster refuses a record for good: `stop`, and say so. (`dead-letter` is to come.)"""
    binary: Literal["refuse", "accept"] = "refuse"
    """Whether files with NUL bytes or of compressed formats are refused, and named, or taken as any other."""
    leave_after: Interval = 10.0
    """Seconds without news after which a file that was deleted, or in whose place a new one came, counts as complete.
    Its last line is sent then, also without a newline. A run with `--once` does so for every file. A running daemon
    does not for a file that stands where it was: it waits for the newline, however long that takes."""
    rescan_interval: Interval = 10.0
    """Seconds between two complete looks for new files; most are found at once, by watching their directories."""
    poll_interval: Interval = 5.0
    """Seconds between two looks at all files for what no watch told: on network file systems, none does."""

    def __post_init__(self) -> None:
        """Check what goes together. Raises `WrongSetting`, which names the key and what was expected."""
        checks = Checks()
        expected = f"{LEAST_LINE_BYTES} bytes to less than batch_bytes ({self.batch_bytes})"
        holds = self.max_line_bytes < self.batch_bytes
        checks.require("max_line_bytes", expected, holds=holds, beside=["batch_bytes"])
        self._check_keys(checks)
        with checks.noting(beside=["compression"]):
            self._check_compression()
        checks.finish()

    def _check_keys(self, checks: Checks) -> None:
        if self.key_pattern is None:
            wanting = {'partition = "key"': self.partition == "key", 'key_from = "path"': self.key_from == "path"}
            named = next((setting for setting, needs_one in wanting.items() if needs_one), None)
            expected = f"a regular expression, since {named} needs one"
            checks.require("key_pattern", expected, holds=named is None, beside=["partition", "key_from"])
            return
        by_path = self.partition == "round-robin" and self.key_from == "path"
        checks.require(
            "partition",
            'sticky, file or key with key_from = "path", since all lines of a file have one key',
            holds=not by_path,
            beside=["key_from"],
        )

    def _check_compression(self) -> None:
        try:
            Compression.parse(self.compression, self.compression_level)
        except UnsupportedCodec as error:
            raise WrongSetting("compression_level", str(error).rpartition("expected ")[2]) from None

    def unfit(self, clusters: Mapping[str, ClusterSettings]) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """See `ingestd.daemon.source.Route.unfit`: any cluster will do."""
        yield from ()

    @property
    def claims(self) -> tuple[Claim, ...]:
        """See `ingestd.daemon.source.Route.claims`: its files, by the globs that find them."""
        return tuple(Claim("paths", (path, frozenset(self.exclude)), f'"{path}"') for path in self.paths)

    @classmethod
    def warnings(cls, routes: Sequence[Self]) -> Iterator[str]:
        """See `ingestd.daemon.source.Route.warnings`."""
        from ingestd.tail.check import warnings  # noqa: PLC0415 - only `ingestd check` looks at files for it

        return warnings(routes)

    @property
    def start_age(self) -> float | None:
        """`start` in seconds, where it is an age."""
        found = _AGE.fullmatch(self.start)
        return None if found is None else float(found[1]) * _SECONDS[found[2]]

    @property
    def cuts_lines(self) -> bool:
        """See `ingestd.daemon.source.LineRoute.cuts_lines`."""
        return self.long_lines == "truncate"

    @property
    def slab_bytes(self) -> int:
        """See `ingestd.daemon.source.Route.slab_bytes`."""
        return self.batch_bytes if self.compression == Codec.none.name else GATHERED * self.batch_bytes

    @property
    def key_group(self) -> int:
        """The number of the group of `key_pattern` that is the key."""
        assert self.key_pattern is not None
        return BytesPattern(self.key_pattern).names.get(_NAMED_GROUP, 1)

    @property
    def globs(self) -> Globs:
        """The files that this tail takes."""
        return Globs(self.paths, self.exclude)

    @property
    def rotated_globs(self) -> Globs:
        """Where rotated files are moved to. No exclude counts there: a log's content may lie in what is excluded."""
        return Globs(self.rotated, ())

    @property
    def clusters(self) -> tuple[str, ...]:
        """See `ingestd.daemon.source.Route.clusters`."""
        return (self.cluster,)

    @property
    def fixed_topics(self) -> tuple[str, ...]:
        """See `ingestd.daemon.source.Route.fixed_topics`."""
        return (self.topic,)

    @property
    def writes_to(self) -> str:
        """See `ingestd.daemon.source.Route.writes_to`."""
        return self.topic

    @property
    def words(self) -> Words:
        """See `ingestd.daemon.source.Route.words`."""
        return Words("file", "line", "file", "paths")

    @property
    def loss_reasons(self) -> tuple[str, ...]:
        """See `ingestd.daemon.source.Route.loss_reasons`."""
        return LOSS_REASONS

    def finder(self, stored: Sequence[StoredPosition], surroundings: Surroundings) -> Finder:
        """See `ingestd.daemon.source.Route.finder`."""
        from ingestd.tail.finder import TailFinder  # noqa: PLC0415 - they know each other; a worker needs no finder

        once, since, first_run = surroundings.once, surroundings.since, surroundings.first_run
        return TailFinder(self, stored, once=once, since=since, first_run=first_run, others=surroundings.others)

    def import_runner(self) -> None:
        """See `ingestd.daemon.source.Route.import_runner`."""
        from ingestd.daemon import line_runner  # noqa: F401, PLC0415 - only a worker needs it
        from ingestd.tail import encode, reader  # noqa: F401, PLC0415

    def runner(self, workplace: Workplace) -> Runner:
        """See `ingestd.daemon.source.Route.runner`."""
        from ingestd.daemon.line_runner import LineRunner  # noqa: PLC0415 - only a worker needs it

        return LineRunner.at(self, workplace)

    def opener(self, ready: Callable[[str], None], changed: Callable[[str], None]) -> Opener:
        """See `ingestd.daemon.source.Route.opener`."""
        from ingestd.tail.reader import TailReader  # noqa: PLC0415 - they know each other

        return TailReader(self, ready, changed)

    def encoder(self) -> Encoder:
        """See `ingestd.daemon.source.Route.encoder`."""
        from ingestd.tail.encode import TailEncoder  # noqa: PLC0415 - they know each other

        return TailEncoder(self)

    def lane(self, found: Found, partitions: int) -> Lane:
        """The lane of a file: its key, if the path has one, and its partition, if it keeps one."""
        origin = stored_path(str(found.detail.get("log", found.detail.get("origin", found.source))))
        by_line = self.key_pattern is not None and self.key_from == "line"
        if self.partition == "round-robin" or (by_line and self.partition == "key"):
            return Lane(PER_RECORD)
        key = None if by_line else self._key_of(origin)
        if self.partition == "file":
            return Lane(partition_of_key(origin.encode(errors="surrogateescape"), max(1, partitions)), key)
        if self.partition == "key" and key is not None:
            return Lane(partition_of_key(key, max(1, partitions)), key)
        return Lane(None, key)

    def _key_of(self, path: str) -> bytes | None:
        if self.key_pattern is None:
            return None
        name = path.encode(errors="surrogateescape")
        start, end = BytesPattern(self.key_pattern).search(name, 0, len(name))[self.key_group]
        return None if start < 0 else name[start:end]
