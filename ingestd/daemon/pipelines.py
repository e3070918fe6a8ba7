"""Settings of pipelines: `[pipelines.NAME]` and the tables in it. Frozen values; nothing here knows Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - types of fields are looked up when a file is read
from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal

from ingestd.checks import Checks
from ingestd.daemon.fields import ClusterName, Expected

__all__ = [
    "DeduplicateStep",
    "JoinStep",
    "ParseStep",
    "PipelineSettings",
    "PipelineSink",
    "PipelineSource",
    "PipelineStep",
    "WindowStep",
]

_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_DURATION: Final = re.compile(r"\d+ (millisecond|second|minute|hour|day|week)s?")

Duration = Annotated[str, Expected('a time such as "5 minutes"', _DURATION.fullmatch)]
"""A span of time as Spark writes it."""
Columns = Annotated[str, Expected('columns with types, as in "host STRING, bytes BIGINT"', str.strip)]
Names = Annotated[tuple[str, ...], Expected("at least one column", bool)]


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """What a pipeline reads."""

    cluster: ClusterName
    topics: Annotated[tuple[str, ...], Expected("at least one topic", bool)]
    group: Annotated[str, Expected("a group's name, not an empty one", bool)] | None = None
    """A consumer group. A run begins where the group has committed, and commits where it ended once its rows are
    written. So each run takes what is new, and lag tools show what waits. A partition without a committed offset is
    read from its beginning. The group must have no members. By default each run takes everything."""


@dataclass(frozen=True, slots=True)
class PipelineSink:
    """Where a pipeline writes. `mode` is Spark's save mode: what happens to data that is already there."""

    path: str
    format: Literal["parquet"] = "parquet"
    mode: Literal["errorifexists", "append", "overwrite", "ignore"] = "errorifexists"


@dataclass(frozen=True, slots=True)
class ParseStep:
    """Text to typed columns. They come beside the row's other columns, or in the place of those of the same names."""

    format: Literal["json", "regex", "csv"]
    """What the text is."""
    columns: Columns
    """The columns, in Spark's words: `"host STRING NOT NULL, bytes BIGINT"`. For `regex`, one for each group of the
    pattern, in order. A row can not be typed if its text has not the format, if a value has not the type, or if a
    `NOT NULL` column would be null. It ends the query, with topic, partition and offset as far as they are among the
    row's columns."""
    column: str = "value"
    """The column that has the text. Bytes are taken for UTF-8."""
    pattern: str | None = None
    """For `regex`: a regular expression of Java. The text must match it as a whole."""
    delimiter: Annotated[str, Expected("one character", lambda text: len(text) == 1)] = ","
    """For `csv`: what is between values."""
    null_text: str = ""
    """For `regex` and `csv`: a value that means null, as `-` does in access logs."""
    timestamp_format: str | None = None
    """How columns of type TIMESTAMP are written, as in `dd/MMM/yyyy:HH:mm:ss Z`; ISO 8601 unless it is given."""

    def __post_init__(self) -> None:
        checks = Checks()
        expected = "a pattern for the format regex, and for no other"
        checks.require("pattern", expected, holds=(self.pattern is not None) is (self.format == "regex"))
        checks.finish()


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
    """After which time the next window begins; by default they follow each other."""
    late: Duration = "10 minutes"
    """How late a row may be. A stream writes a window when it has seen a row that is so much later than the window's
    end, and drops rows of windows that are written. Of several steps that name one time column, the first says it."""


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


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """`[pipelines.NAME]`: topics, through steps and SQL, to files; run on Spark."""

    name: str
    source: PipelineSource
    sink: PipelineSink
    steps: tuple[PipelineStep, ...] = ()
    """Transformations, in order: `[[pipelines.NAME.steps]]`. The rows of topics have the columns of Spark's Kafka
    connector: key, value, topic, partition, offset, timestamp, timestampType, headers."""
    sql: str | None = None
    """The last step, if it is SQL."""
    master: str = "local[*]"
    """Spark's master URL."""

    @property
    def all_steps(self) -> tuple[PipelineStep, ...]:
        """`steps`, with `sql` as the last one."""
        return self.steps if self.sql is None else (*self.steps, PipelineStep(sql=self.sql))
