"""Settings of pipelines: `[pipelines.NAME]` and the tables in it. Frozen values; nothing here knows Spark."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

from ingestd.checks import Checks
from ingestd.daemon.fields import Address, ClusterName, Expected, Interval, Topic
from ingestd.wire.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "FILES_SECONDS",
    "DeduplicateStep",
    "JoinStep",
    "ParseStep",
    "PipelineSettings",
    "PipelineSink",
    "PipelineSource",
    "PipelineStep",
    "WindowStep",
    "is_start",
    "same_directory",
]

_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SECONDS: Final = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_DURATION: Final = re.compile(rf"(\d+) ({'|'.join(_SECONDS)})s?")
_PASSWORD: Final = re.compile(r"//[^/?;@]*:[^/?;]*@|[?;&]password=|thin:[^/@]+/[^@]+@", re.IGNORECASE)
"""A password in a URL: before a host, as one of its settings, or as Oracle writes it."""
_JAVAS_OWN: Final = re.compile(r"\\Q|&&|\[[^\]]*\[|\(\?[a-z]*x")
"""Parts of a regular expression that Java reads otherwise than Python: quotes, classes in classes, comments."""
_INNER: Final = re.compile(r"`(?:[^`]|``)*`|'[^']*'|\"[^\"]*\"|\([^()]*\)|<[^<>]*>")
"""What may have a comma within a column: names, comments, and types that have others in them."""


def is_start(text: str) -> bool:
    """Whether it is `earliest`, `latest`, or a time with its zone."""
    try:
        return text in ("earliest", "latest") or datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def is_anchored(path: str) -> bool:
    """Whether it is the same place wherever Spark is started: `/a`, `hdfs://host/a`, `s3a://bucket/a`."""
    return re.match("([A-Za-z][A-Za-z0-9+.-]*:)?/", path) is not None


def same_directory(path: str) -> str:
    """One text for all the ways in which Hadoop takes a directory's name: `/a`, `/a/`, `file:/a`, `file:///a`."""
    return os.path.normpath(re.sub("^file:/+", "/", path))


def _seconds(duration: str) -> float:
    found = _DURATION.fullmatch(duration)
    assert found is not None, "it is one"
    return int(found[1]) * _SECONDS[found[2]]


def _column_count(columns: str) -> int:
    """How many columns a text of Spark has."""
    before = ""
    while before != columns:
        before, columns = columns, _INNER.sub("_", columns)
    return columns.count(",") + 1


def _group_count(pattern: str) -> int | None:
    """How many groups a regular expression of Java has. None: only Java knows. Raises `ValueError`, which says why."""
    if _JAVAS_OWN.search(re.sub(r"\\[^Q]", "_", pattern)):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later Python will read as Java does
            return re.compile(pattern).groups
    except re.error as error:
        if "parenthesis" in error.msg or "subpattern" in error.msg:
            raise ValueError(f"a regular expression ({error})") from None
        return None


def _are_sparks(names: Mapping[str, str]) -> bool:
    return all(name.startswith("spark.") for name in names)


_WORDS: Final = {"topic": "topic", "jdbc": "table"}
"""What a sink writes to, by its format."""
FILES_SECONDS: Final = 60.0
"""Seconds that a micro-batch waits by default, where rows become files."""

Duration = Annotated[str, Expected('a time such as "5 minutes"', _DURATION.fullmatch)]
"""A span of time as Spark writes it."""
Columns = Annotated[str, Expected('columns with types, as in "host STRING, bytes BIGINT"', str.strip)]
SparkSettings = Annotated[Mapping[str, str], Expected("texts with names that begin with spark.", _are_sparks)]
Names = Annotated[tuple[str, ...], Expected("at least one column", bool)]


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """What a pipeline reads: topics, of which only committed records are read; or files, for a backfill."""

    cluster: ClusterName | None = None
    """The cluster of the topics, a [clusters.NAME]. For `files`: that of the sink's topic and of dead letters."""
    topics: Annotated[tuple[Topic, ...], Expected("at least one topic", bool)] = ()
    """The topics."""
    group: Annotated[str, Expected("a group's name, not an empty one", bool)] | None = None
    """A consumer group. Without a checkpoint, a run begins where the group has committed, and commits where it ended
    once its rows are written. So each run takes what is new. A stream begins where the group has committed, goes on
    from its checkpoint, and commits what it has written. Lag tools show what waits. A partition without a committed
    offset is read from `start`. The group must have no members. By default each run without a checkpoint takes
    everything."""
    start: Annotated[str, Expected('"earliest", "latest", or a time with its zone', is_start)] = "earliest"
    """Where to begin: `earliest`, `latest` (for streams) or a time as in `2026-01-31T08:00:00Z`. A stream that has a
    checkpoint goes on from there."""
    max_offsets: Annotated[int, Expected("1 or more", lambda count: count >= 1)] | None = None
    """Most offsets of a micro-batch, over all partitions; by default all that is there."""
    files: Annotated[tuple[str, ...], Expected("at least one path or glob", bool)] = ()
    """Files instead of topics: paths and globs as Hadoop has them, as in `["/var/log/app/*.log*"]`. A run takes every
    line of every file, in the columns value (bytes, without the newline) and file (its URI). Names that end in .gz,
    .bz2 or .zst are decompressed. The files must not change meanwhile, and executors must see them at the same paths.
    Without steps and `dead_letters`, a topic gets the lines of a file in order, and .xz and .lz4 are read too."""

    def __post_init__(self) -> None:
        checks = Checks()
        expected = "topics or files, and not both"
        checks.require("files" if self.topics else "topics", expected, holds=bool(self.topics) is not bool(self.files))
        checks.require("cluster", "the cluster of the topics", holds=not self.topics or self.cluster is not None)
        for name in ("group", "start", "max_offsets"):
            default = next(each.default for each in fields(self) if each.name == name)
            holds = not self.files or getattr(self, name) == default
            checks.require(name, "none, for files", holds=holds, beside=["files"])
        checks.finish()


@dataclass(frozen=True, slots=True)
class PipelineSink:
    """Where a pipeline writes."""

    format: Literal["parquet", "delta", "topic", "jdbc", "console"] = "parquet"
    """`parquet`: files; `delta`: a Delta table, for a stream (`pip install 'ingestd[spark,delta]'`); `topic`: records,
    from the columns value, key, headers, partition, timestamp, and topic unless that is given here; `jdbc`: a table of
    a database, at least once; `console`: some rows, for a look."""
    path: str | None = None
    """For `parquet` and `delta`: the directory. Hadoop's names are good."""
    mode: Literal["errorifexists", "append", "overwrite", "ignore"] = "errorifexists"
    """For `parquet` and `jdbc` without a checkpoint: what happens to the files, or the table, if there are some. It is
    Spark's save mode. A stream appends. A table that is not there is created. `overwrite` replaces files once all new
    ones are written; of a table it removes the rows before it reads, and a run that fails leaves none of them."""
    partition_by: tuple[str, ...] = ()
    """For `parquet` and `delta`: columns whose values become directories, as in `day=2026-01-31`."""
    file_bytes: Annotated[int, Expected("at least 1048576", lambda size: size >= 1_048_576)] = 128 * 1024 * 1024
    """For `parquet` and `delta` of a stream: the size of a file, in bytes. A micro-batch writes no more files to a
    directory than its bytes need."""
    cluster: ClusterName | None = None
    """For `topic`: the cluster to write to, a [clusters.NAME]; by default the source's."""
    topic: Topic | None = None
    """For `topic`: the topic of all rows. By default the column `topic` says it, which steps have to make then: without
    them it is the one that the row came from."""
    delivery: Literal["at-least-once", "exactly-once"] = "at-least-once"
    """For `topic` of a stream: `exactly-once` writes each row once, for readers of committed records. It is for one
    cluster, and for steps that keep each row in its task and its column `position`: SQL without grouping, sorting or
    joining, parsing, and functions of Python that do not either. Anything else is refused. The group of the source, if
    there is one, then has the markers of the query: nobody else may commit there."""
    url: str | None = None
    """For `jdbc`: the database, as in `jdbc:postgresql://db:5432/sales`, without a password."""
    table: str | None = None
    """For `jdbc`: the table. One that is there must have columns of the rows' names."""
    driver: str | None = None
    """For `jdbc`: the driver's class, as in `org.postgresql.Driver`. Needed with `jars`."""
    jars: tuple[str, ...] = ()
    """For `jdbc`: the driver's files, whose names have no blanks. Spark hands them to executors."""
    user: str | None = None
    """For `jdbc`: the account."""
    password: Secret | str | None = None
    """For `jdbc`: its password: a secret."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "password", Secret.of(self.password))
        checks = Checks()
        files, topic, jdbc = self.has_files, self.format == "topic", self.format == "jdbc"
        checks.require("path", f"a directory, for {self.format}", holds=not files or bool(self.path), beside=["format"])
        for name, fits in {
            "path": files,
            "mode": jdbc or self.format == "parquet",
            "partition_by": files,
            "file_bytes": files,
        }.items():
            self._check_unused(checks, name, fits=fits)
        for name in ("cluster", "topic", "delivery"):
            self._check_unused(checks, name, fits=topic)
        for name in ("url", "table", "driver", "jars", "user", "password"):
            self._check_unused(checks, name, fits=jdbc)
        for name in ("url", "table"):
            checks.require(name, "one, for jdbc", holds=not jdbc or bool(getattr(self, name)), beside=["format"])
        checks.require("url", "one that begins with jdbc:", holds=not self.url or self.url.startswith("jdbc:"))
        holds = not self.url or not _PASSWORD.search(self.url)
        checks.require("url", "one without a password, which plans and logs show; it is `password`", holds=holds)
        checks.require("driver", "the driver's class", holds=not self.jars or bool(self.driver), beside=["jars"])
        checks.finish()

    @property
    def has_files(self) -> bool:
        """Whether rows become files of a directory."""
        return self.format in ("parquet", "delta")

    @property
    def place(self) -> str:
        """Where rows go: a path, else in words."""
        named = {"topic": self.topic, "jdbc": self.table}.get(self.format)
        return self.path or (f"{_WORDS.get(self.format)} {named}" if named else self.format)

    def _check_unused(self, checks: Checks, name: str, *, fits: bool) -> None:
        default = next(each.default for each in fields(self) if each.name == name)
        holds = fits or getattr(self, name) == default
        checks.require(name, f"none, for {self.format}", holds=holds, beside=["format"])


@dataclass(frozen=True, slots=True)
class ParseStep:
    """Text to typed columns. They come beside the row's other columns, or in the place of those of the same names."""

    format: Literal["json", "regex", "csv"]
    """What the text is."""
    columns: Columns
    """The columns, in Spark's words: `"host STRING NOT NULL, bytes BIGINT"`. For `regex`, one for each group of the
    pattern, in order. A row can not be typed if its text has not the format, if a value has not the type, or if a
    `NOT NULL` column would be null. It goes to the pipeline's `dead_letters`, or ends the query. A DECIMAL with more
    digits behind the point than its type has is rounded."""
    column: str = "value"
    """The column that has the text. Bytes are taken for UTF-8."""
    pattern: str | None = None
    """For `regex`: a regular expression of Java. The text must match it as a whole."""
    delimiter: Annotated[str, Expected("one character", lambda text: len(text) == 1)] = ","
    """For `csv`: what is between values."""
    escape: Annotated[str, Expected("one character", lambda text: len(text) == 1)] = '"'
    """For `csv`: what stands before a quote that is part of a quoted value. By default another quote: `"6"" pipe"`.
    `'\\'` is for programs that write a backslash: `"6\\" pipe"`."""
    null_text: str = ""
    """For `regex` and `csv`: a value that means null, as `-` does in access logs."""
    timestamp_format: str | None = None
    """How columns of type TIMESTAMP are written, as in `dd/MMM/yyyy:HH:mm:ss Z`; ISO 8601 unless it is given. A number
    is no TIMESTAMP. For seconds or milliseconds since 1970 take a BIGINT, and `timestamp_seconds(t)` or
    `timestamp_millis(t)` in a step with SQL."""

    def __post_init__(self) -> None:
        checks = Checks()
        expected = "a pattern for the format regex, and for no other"
        checks.require("pattern", expected, holds=(self.pattern is not None) is (self.format == "regex"))
        for name, formats in {"delimiter": ("csv",), "escape": ("csv",), "null_text": ("csv", "regex")}.items():
            default = next(each.default for each in fields(self) if each.name == name)
            holds = self.format in formats or getattr(self, name) == default
            checks.require(name, f"none, for {self.format}", holds=holds, beside=["format"])
        if self.pattern is not None:
            self._check_groups(checks, self.pattern)
        holds = self.delimiter not in '"\r\n'
        checks.require("delimiter", "neither the quote nor the end of a line", holds=holds)
        holds = self.escape != self.delimiter
        checks.require("escape", "another one than the delimiter", holds=holds, beside=["delimiter"])
        checks.finish()

    def _check_groups(self, checks: Checks, pattern: str) -> None:
        columns = _column_count(self.columns)
        try:
            groups = _group_count(pattern)
        except ValueError as error:
            checks.require("pattern", str(error), holds=False)
            return
        expected = f"as many groups as columns, {columns}; it has {groups}"
        checks.require("pattern", expected, holds=groups in (None, columns), beside=["columns"])


@dataclass(frozen=True, slots=True)
class WindowStep:
    """Rows to one row for each window of time. Its columns: `window_start`, `window_end`, those of `by`, aggregates."""

    time: str
    """The column, a TIMESTAMP, that says when a row happened."""
    size: Duration
    """How long a window is."""
    aggregates: Annotated[Mapping[str, str], Expected("at least one", bool)]
    """SQL expressions by names of columns, as in `{hits = "count(*)", bytes = "sum(bytes)"}`."""
    by: tuple[str, ...] = ()
    """More columns to group by."""
    slide: Duration | None = None
    """After which time the next window begins, `size` at most; by default they follow each other."""
    late: Duration = "10 minutes"
    """How late a row may be. A stream writes a window when it has seen a row that is so much later than the window's
    end, and drops rows of windows that are written. Those are counted: `late_rows` in the log, the line at the end, and
    a metric. All that one task of a micro-batch drops of one window count as one. One row whose time is far in the
    future makes all that follow late. Of several steps that name one time column, the first says it."""

    def __post_init__(self) -> None:
        checks = Checks()
        holds = self.slide is None or 0 < _seconds(self.slide) <= _seconds(self.size)
        checks.require(
            "slide", f"{self.size} at most, the size: else rows are in no window", holds=holds, beside=["size"]
        )
        checks.finish()


@dataclass(frozen=True, slots=True)
class DeduplicateStep:
    """Of rows that are equal in some columns, one stays. A stream remembers rows for `late`."""

    columns: Names
    """The columns that make rows equal."""
    time: str
    """The column, a TIMESTAMP, that says when a row happened."""
    late: Duration = "10 minutes"
    """How far apart equal rows may be, by `time`, and how late a row may be."""


@dataclass(frozen=True, slots=True)
class JoinStep:
    """Columns of a static table, beside the rows that have its keys."""

    path: str
    """Where the table's files are."""
    on: Names
    """The columns that are equal. Both sides have them."""
    format: Literal["csv", "json", "parquet"] = "parquet"
    """What the files are. CSV has a header."""
    columns: Columns | None = None
    """The table's columns with types. Needed for csv and json."""
    how: Literal["inner", "left"] = "inner"
    """What happens to a row without a match: `inner` drops it, `left` keeps it, with nulls."""

    def __post_init__(self) -> None:
        checks = Checks()
        holds = self.format == "parquet" or self.columns is not None
        checks.require("columns", "the columns of the table, which csv and json do not say", holds=holds)
        checks.finish()


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One transformation of the rows. It has one of these keys. Steps are done in the order in which they stand."""

    sql: str | None = None
    """A query over the view `source`: the rows of the step before."""
    python: Annotated[str, Expected('"MODULE:FUNCTION"', _FUNCTION.fullmatch)] | None = None
    """A function of Python from a DataFrame to a DataFrame. The module is looked for beside the configuration too."""
    parse: ParseStep | None = None
    """Text to typed columns."""
    window: WindowStep | None = None
    """Rows to aggregates by windows of time."""
    deduplicate: DeduplicateStep | None = None
    """Leaves out rows that came before."""
    join: JoinStep | None = None
    """Columns of a static table."""

    def __post_init__(self) -> None:
        given = [each.name for each in fields(self) if getattr(self, each.name) is not None]
        names = [each.name for each in fields(self)]
        checks = Checks()
        checks.require((given or names)[0], f"one of {', '.join(names)} in each step", holds=len(given) == 1)
        checks.finish()

    @property
    def kind(self) -> str:
        """The key that it has."""
        return next(each.name for each in fields(self) if getattr(self, each.name) is not None)


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """`[pipelines.NAME]`: topics or files, through steps and SQL, to files, a topic or a table; run on Spark."""

    name: str
    source: PipelineSource
    sink: PipelineSink
    steps: tuple[PipelineStep, ...] = ()
    """Transformations, in order: `[[pipelines.NAME.steps]]`. The rows of topics have the columns of Spark's Kafka
    connector: key, value, topic, partition, offset, timestamp, timestampType, headers."""
    sql: str | None = None
    """The last step, if it is SQL."""
    dead_letters: Topic | None = None
    """A topic on `source.cluster` for rows that a parse step can not type, and for rows that the sink's topic would
    refuse: they are too large (as they are, not compressed), have no key although it is compacted, or name a partition
    that it has not. Each comes with its key, its headers and headers that begin with `ingestd.`: reason, pipeline,
    step, and topic, partition and offset if the row still says them. A run that is repeated sends them again. Without
    it, such a row ends the query."""
    checkpoint: Annotated[str, Expected("an absolute path or a URI", is_anchored)] | None = None
    """A directory, for this pipeline alone, in which a stream keeps where it is. With it the pipeline is a stream. It
    goes on after a restart. Without it, a run takes what is there now, and ends. `ingestd.json` in it says which
    pipeline and sink it is of: a run refuses another one's."""
    trigger: Interval | Literal["available-now"] | None = None
    """For a stream: seconds from one micro-batch to the next; or `available-now`: it ends when it has taken what is
    there. By default a micro-batch begins as soon as there is something; for files see `max_trigger_delay`."""
    max_trigger_delay: Interval | None = None
    """For a stream into files: seconds that a micro-batch waits at most, from the one before, until there is about
    `sink.file_bytes` to write. How much that is, is learned from what was written. By default 60; beside a `trigger`
    none: each trigger writes."""
    http: Address | None = None
    """For a stream: the address of its metrics for Prometheus, as in `127.0.0.1:9465`; by default there is none."""
    master: str = "local[*]"
    """Spark's master URL."""
    spark: SparkSettings = field(default_factory=dict)
    """Settings of Spark, as in `{ "spark.executor.memory" = "4g" }`. See OPERATIONS.md for those of a cluster. The
    codec of parquet files is `spark.sql.parquet.compression.codec`: `zstd`, say; by default `snappy`."""

    @property
    def is_stream(self) -> bool:
        """Whether it goes on from a checkpoint."""
        return self.checkpoint is not None

    def warnings(self) -> Iterator[str]:
        """What is allowed and probably not meant, each beginning with its key."""
        delay = self.delay
        key, seconds = ("trigger", self.trigger) if delay is None else ("max_trigger_delay", delay)
        if isinstance(seconds, (int, float)) and seconds < FILES_SECONDS and self.sink.has_files:
            yield f"{key}: with {seconds:g} s the sink gets many small files; {FILES_SECONDS:g} s or more has fewer"

    def unfit(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Keys that do not fit to others, each with what is expected."""
        source, sink, stream = self.source, self.sink, self.is_stream
        if sink.mode == "ignore" and source.group is not None:
            problem = "expected another one beside source.group: with ignore nobody knows whether rows were written"
            yield ("sink", "mode"), problem
        yield from self._unfit_topics()
        if stream and source.files:
            yield ("checkpoint",), "expected none beside source.files: each run takes them all. A tail follows files"
        if self.max_trigger_delay is not None and not sink.has_files:
            yield ("max_trigger_delay",), "expected none: it is for parquet and delta"
        if self.max_trigger_delay is not None and self.trigger == "available-now":
            yield ("max_trigger_delay",), "expected none beside available-now, which waits for nothing"
        if stream:
            if sink.mode != "errorifexists":
                yield ("sink", "mode"), "expected none beside a checkpoint: a stream adds files"
            return
        for key, given in {
            ("sink", "format"): sink.format == "delta",
            ("trigger",): self.trigger is not None,
            ("max_trigger_delay",): self.max_trigger_delay is not None,
            ("http",): self.http is not None,
            ("sink", "delivery"): sink.delivery != "at-least-once",
            ("source", "max_offsets"): source.max_offsets is not None,
            ("source", "start"): source.start == "latest",
        }.items():
            if given:
                yield key, "expected a checkpoint beside it: it is for streams"

    def _unfit_topics(self) -> Iterator[tuple[tuple[str, ...], str]]:
        source, sink = self.source, self.sink
        if sink.delivery == "exactly-once" and sink.cluster not in (None, source.cluster):
            yield ("sink", "cluster"), "expected the source's cluster, for exactly-once"
        if source.cluster is None and (self.dead_letters or (sink.format == "topic" and sink.cluster is None)):
            yield ("source", "cluster"), "expected the cluster of the topic that is written"
        if self._comes_back():
            yield ("sink", "topic"), "expected one, or steps that make the column topic: rows would come back"
        if sink.topic in source.topics and self.sink_cluster == self.source_cluster:
            yield ("sink", "topic"), "expected a topic that the pipeline does not read: rows would come back"
        if self.dead_letters in source.topics:
            problem = "expected a topic that the pipeline does not read: its letters would come back"
            yield ("dead_letters",), problem

    def _comes_back(self) -> bool:
        """Whether each row goes to the topic that it came from."""
        if self.sink.format != "topic" or not self.source.topics or self.sink.topic is not None:
            return False
        return self.sink_cluster == self.source_cluster and all(step.deduplicate for step in self.all_steps.values())

    @property
    def delay(self) -> float | None:
        """Seconds that a micro-batch waits for a file's worth of bytes; None: it does not wait."""
        if self.max_trigger_delay is not None or not self.sink.has_files or self.trigger is not None:
            return self.max_trigger_delay
        return FILES_SECONDS

    @property
    def source_cluster(self) -> str:
        """The cluster of the topics, and of dead letters."""
        assert self.source.cluster is not None, "`unfit` asks for it"
        return self.source.cluster

    @property
    def sink_cluster(self) -> str:
        """The cluster of the sink's topic."""
        return self.sink.cluster or self.source_cluster

    @property
    def all_steps(self) -> Mapping[str, PipelineStep]:
        """`steps`, with `sql` as the last one; each by its key, with its kind, as in `steps[0] (parse)`."""
        found = {f"steps[{number}] ({step.kind})": step for number, step in enumerate(self.steps)}
        return found if self.sql is None else {**found, "sql": PipelineStep(sql=self.sql)}
