"""Parsing: a column of text to typed columns, as expressions of Spark; and why a row can not be typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import IllegalArgumentException, PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ingestd.errors import ConfigurationError
from ingestd.spark.pipelines.dead_letters import LETTER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from ingestd.daemon.pipelines import ParseStep
    from ingestd.spark.pipelines.dead_letters import DeadLetters

__all__ = ["Typed", "parse", "typed"]

_TEXT: Final = "__ingestd_text"
_CLOSED: Final = "__ingestd_closed"
_ALONE: Final = "__ingestd_alone"
_PAIR: Final = "__ingestd_pair"
_END: Final = "__ingestd_end"
_MATCHES: Final = "__ingestd_matches"
_GROUP: Final = "__ingestd_group"
_VALUE: Final = "__ingestd_value"
_REASON: Final = "__ingestd_reason"
_CORRUPT: Final = StructField(_REASON, StringType())
"""Where Spark puts a text that it can not parse."""
_STAYS: Final = "spark_partition_id() >= 0"
"""True. Spark may not move, or do twice, what is not deterministic. It would parse rows again to look which failed."""
_NUMBER: Final = r"^\s*[+-]?\d+\s*$"
"""What Spark takes for a year, also beyond 9999."""
_SHOWN: Final = 100
"""Characters of a value that are shown."""
_REMEDY: Final = '; to go on without such rows, set dead_letters = "TOPIC"'
"""What to do about a row that can not be typed."""
_PLACE: Final = ("topic", "partition", "offset")
"""The columns that say where a row comes from."""


def parse(rows: DataFrame, step: ParseStep, name: str, letters: DeadLetters | None = None) -> DataFrame:
    """The rows with the columns of the step.

    A row that can not be typed ends the query; with `letters` it goes there, and `name` says which step it was. Raises
    `ConfigurationError`.
    """
    found = typed(rows, step)
    if letters is not None:
        letter = sql.when(found.failed, letters.letter(rows, found.reason, step.column, name))
        return letters.divert(_result(found.rows, rows, found.columns, letter.alias(LETTER)))
    failure = sql.concat(sql.lit(f"column {step.column} "), _place(rows), sql.lit(": "), found.reason, sql.lit(_REMEDY))
    return _result(found.rows.where(~found.failed | sql.raise_error(failure).isNotNull()), rows, found.columns)


def _result(checked: DataFrame, rows: DataFrame, columns: Mapping[str, Column], *more: Column) -> DataFrame:
    replaced = {name.lower() for name in columns}
    kept = [_quoted(name) for name in rows.columns if name.lower() not in replaced]
    return checked.select(*kept, *(column.alias(name) for name, column in columns.items()), *more)


@dataclass(frozen=True, slots=True)
class Typed:
    """What a step makes of rows."""

    rows: DataFrame
    """The rows, and columns for the use of the others."""
    columns: Mapping[str, Column]
    """The columns of the step."""
    failed: Column
    """Whether a row can not be typed. It is not null."""
    reason: Column
    """Why it can not. It costs more than the others, and is for rows that have failed alone."""


def typed(rows: DataFrame, step: ParseStep) -> Typed:
    """What a step makes of rows. Raises `ConfigurationError`."""
    schema = _schema(step)
    given = {field.name: field.dataType for field in rows.schema.fields}
    if step.column not in given:
        raise ConfigurationError(f"there is no column {step.column}; expected one of {', '.join(given)}")
    if not isinstance(given[step.column], (StringType, BinaryType)):
        raise ConfigurationError(f"column {step.column} is {given[step.column].simpleString()}; expected text or bytes")
    text = sql.col(_quoted(step.column))
    if isinstance(given[step.column], BinaryType):
        text = sql.try_validate_utf8(text.cast("string"))
    if step.timestamp_format is not None:
        _check_timestamp_format(rows, step.timestamp_format)
    found = _BY_FORMAT[step.format](rows.withColumn(_TEXT, text), schema, step)
    no_text = sql.col(_TEXT).isNull()
    failed, reason = (
        no_text | found.failed,
        sql.when(no_text, "it is null, or no UTF-8").when(found.failed, found.reason),
    )
    for field in schema.fields:
        if not field.nullable:
            is_null = found.columns[field.name].isNull()
            what = f"{field.name} is null; expected {field.dataType.simpleString()}"
            failed, reason = failed | is_null, reason.when(is_null, what)
    return Typed(found.rows, found.columns, failed, reason)


def _schema(step: ParseStep) -> StructType:
    schema = StructType.fromDDL(step.columns)
    assert isinstance(schema, StructType), "columns with names"
    return schema


def _by_json(rows: DataFrame, schema: StructType, step: ParseStep) -> Typed:
    """Spark reads no further than the end of the first value, and makes nulls of a text without one.

    Nothing can stand behind an object if the text has one closing brace, at its end. Of any other text an array is
    made, with one value more. It has two values if the text is one.
    """
    options = _options(step)
    fields = [StructField(field.name, _with_texts(field.dataType)) for field in schema]
    but_last = sql.expr(f"substring(CAST({_TEXT} AS BINARY), 1, octet_length({_TEXT}) - 1)")
    closed = sql.col(_TEXT).endswith("}") & ~sql.contains(but_last, sql.lit(b"}"))
    rows = rows.withColumn(_CLOSED, closed)
    closed = sql.col(_CLOSED)
    alone, pair = _from_json(fields, options), _from_json_pair([*fields, _CORRUPT], options)
    alone = sql.when(closed & sql.expr(_STAYS), alone)
    rows = rows.select("*", alone.alias(_ALONE), sql.when(~closed, pair).alias(_PAIR))
    alone, values = sql.col(_ALONE), sql.col(f"{_PAIR}.values")
    first = sql.get(values, sql.lit(0))
    wrong_alone = alone.isNull() | alone[_REASON].isNotNull()
    wrong_pair = sql.col(f"{_PAIR}.{_REASON}").isNotNull() | ~sql.size(values).eqNullSafe(2) | first.isNull()
    columns = {each.name: sql.when(closed, alone[each.name]).otherwise(first[each.name]) for each in fields}
    failed = sql.when(closed, wrong_alone).otherwise(wrong_pair)
    for number, field in enumerate(schema.fields):
        if _has_times(field.dataType):
            value = columns[field.name]
            rows = rows.withColumn(_nth(_VALUE, number), _with_times(value, field.dataType, step.timestamp_format))
            columns[field.name] = sql.col(_nth(_VALUE, number))
            failed = failed | _has_no_time(value, columns[field.name], field.dataType)
    texts = sql.filter(
        sql.array(_from_json_pair(_as_texts(schema), options)["values"]), lambda each: sql.size(each) == 2
    )
    text = sql.get(sql.get(texts, sql.lit(0)), sql.lit(0))
    # A function, so that a row is parsed once, and not for each column.
    found = sql.transform(
        sql.array(_from_json(fields, options)),
        lambda row: sql.struct(
            *(_with_times(row[each.name], each.dataType, step.timestamp_format).alias(each.name) for each in schema)
        ),
    )
    return Typed(rows, columns, failed, _untyped(schema, step, options, text, found[0]))


def _with_texts(kind: DataType) -> DataType:
    """A type with texts in place of times and dates.

    Spark's parser of JSON takes a number for seconds since 1970, and digits for a year or for days.
    """
    if isinstance(kind, ArrayType):
        return ArrayType(_with_texts(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _with_texts(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _with_texts(each.dataType), each.nullable) for each in kind])
    return StringType() if isinstance(kind, (TimestampType, DateType)) else kind


def _has_times(kind: DataType) -> bool:
    return _with_texts(kind).simpleString() != kind.simpleString()


def _with_times(value: Column, kind: DataType, timestamp_format: str | None) -> Column:
    """A value of `_with_texts(kind)` as one of `kind`. A text that is no time becomes null."""

    def inner(value: Column, kind: DataType) -> Column:
        return _with_times(value, kind, timestamp_format)

    if isinstance(kind, TimestampType) and timestamp_format is not None:
        return sql.try_to_timestamp(value, sql.lit(timestamp_format))
    if isinstance(kind, (TimestampType, DateType)):
        return sql.when(~value.rlike(_NUMBER), value.try_cast(kind))
    if not _has_times(kind):
        return value
    if isinstance(kind, ArrayType):
        return sql.transform(value, lambda each: inner(each, kind.elementType))
    if isinstance(kind, MapType):
        return sql.transform_values(value, lambda _, each: inner(each, kind.valueType))
    assert isinstance(kind, StructType), "no other type has a type in it"
    parts = (inner(value[each.name], each.dataType).alias(each.name) for each in kind)
    return sql.when(value.isNotNull(), sql.struct(*parts))


def _has_no_time(value: Column, times: Column, kind: DataType) -> Column:
    """Whether a text of `value` became no time in `times`, which `_with_times` made of it. It is not null."""
    found = sql.lit(False)  # noqa: FBT003 - a literal of SQL
    if isinstance(kind, (TimestampType, DateType)):
        return value.isNotNull() & times.isNull()
    if not _has_times(kind):
        return found
    if isinstance(kind, MapType):
        value, times, kind = sql.map_values(value), sql.map_values(times), ArrayType(kind.valueType)
    if isinstance(kind, ArrayType):
        element = kind.elementType
        each = sql.zip_with(value, times, lambda one, time: _has_no_time(one, time, element))
        return sql.coalesce(sql.array_contains(each, True), found)  # noqa: FBT003 - a literal of SQL
    assert isinstance(kind, StructType), "no other type has a type in it"
    for field in kind:
        found = found | _has_no_time(value[field.name], times[field.name], field.dataType)
    return found


def _from_json(fields: Sequence[StructField], options: dict[str, str]) -> Column:
    return sql.from_json(_TEXT, StructType([*fields, _CORRUPT]), options)


def _from_json_pair(fields: Sequence[StructField], options: dict[str, str]) -> Column:
    """An array `values`, of the text's value and an empty object."""
    text = sql.concat(sql.lit('{"values": ['), sql.col(_TEXT), sql.lit(", {}]}"))
    wanted = [StructField("values", ArrayType(StructType(list(fields)))), _CORRUPT]
    return sql.from_json(text, StructType(wanted), options)


def _by_csv(rows: DataFrame, schema: StructType, step: ParseStep) -> Typed:
    """Spark reads no further than the end of the first row, and makes nulls of an empty text.

    So one value more is added, which is found at its place if the text is one row.
    """
    options = _options(step) | {"sep": step.delimiter, "nullValue": step.null_text, "escape": step.escape}
    options["multiLine"] = "true"  # keeps the ends of lines within a value as they are
    ends = sql.col(_TEXT).endswith("\n") | sql.col(_TEXT).endswith("\r")
    row = sql.when(ends, sql.regexp_replace(_TEXT, r"\r?\n\z|\r\z", "")).otherwise(sql.col(_TEXT))
    row = sql.concat(row, sql.lit(f"{step.delimiter}{_END}"))

    def parsed(fields: Sequence[StructField]) -> Column:
        wanted = [*fields, StructField(_END, StringType()), _CORRUPT]
        ddl = ", ".join(f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in wanted)
        return sql.from_csv(row, ddl, options)

    fields = _nullable(schema)
    rows = rows.withColumn(_ALONE, sql.when(sql.expr(_STAYS), parsed(fields)))
    alone = sql.col(_ALONE)
    columns = {field.name: alone[field.name] for field in fields}
    failed = alone[_REASON].isNotNull() | ~alone[_END].eqNullSafe(_END)
    texts = parsed(_as_texts(schema))
    return Typed(rows, columns, failed, _untyped(schema, step, options, texts, alone, lambda row: row[_END] == _END))


def _options(step: ParseStep) -> dict[str, str]:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _REASON}
    return options if step.timestamp_format is None else options | {"timestampFormat": step.timestamp_format}


def _nullable(schema: StructType) -> list[StructField]:
    return [StructField(field.name, field.dataType) for field in schema]


def _as_texts(schema: StructType) -> list[StructField]:
    return [StructField(field.name, StringType()) for field in schema]


def _untyped(
    schema: StructType,
    step: ParseStep,
    options: dict[str, str],
    texts: Column,
    typed: Column,
    whole: Callable[[Column], Column] | None = None,
) -> Column:
    """Which column can not be typed, if it is one. `texts`, `typed`: structs of the columns; the first may be null.

    `whole`: whether `texts` has each value at its place. Otherwise no column is named.
    """
    otherwise = sql.lit(f"expected {step.format} with {step.columns}")

    def reason(row: Column) -> Column:
        found = sql.coalesce(*(untyped(row["texts"][field.name], row["typed"], field) for field in schema), otherwise)
        return found if whole is None else sql.when(whole(row["texts"]), found).otherwise(otherwise)

    def untyped(text: Column, typed: Column, field: StructField) -> Column:
        wrong = typed[field.name].isNull()
        if isinstance(field.dataType, (ArrayType, MapType, StructType)):
            # Parsed alone, because what can be typed of it is there.
            parsed = _from_json([StructField(field.name, _with_texts(field.dataType))], options)
            times = _with_times(parsed[field.name], field.dataType, step.timestamp_format)
            wrong = parsed[_REASON].isNotNull() | _has_no_time(parsed[field.name], times, field.dataType)
        return sql.when(text.isNotNull() & wrong, _wrong_value(field, text, step))

    # A function, so that a row is parsed once, and not for each column.
    return sql.transform(sql.array(sql.struct(texts.alias("texts"), typed.alias("typed"))), reason)[0]


def _wrong_value(field: StructField, text: Column, step: ParseStep) -> Column:
    expected = field.dataType.simpleString()
    if isinstance(field.dataType, TimestampType) and step.timestamp_format is not None:
        expected += f" as {step.timestamp_format}"
    start = sql.when(sql.length(text) > _SHOWN, sql.concat(sql.substring(text, 1, _SHOWN), sql.lit("…")))
    said = (
        sql.lit(f"{field.name} = "),
        sql.coalesce(start, text),
        sql.lit(f"; expected {expected}"),
    )
    return sql.concat(*said)


def _check_timestamp_format(rows: DataFrame, pattern: str) -> None:
    """Spark itself looks when it reads the first row."""
    jvm = rows.sparkSession._jvm  # noqa: SLF001 - Spark has no other way
    formatter = jvm.org.apache.spark.sql.catalyst.util.TimestampFormatter  # type: ignore[union-attr]
    try:
        formatter.apply(pattern, jvm.java.time.ZoneId.of("UTC"), True)  # type: ignore[union-attr]  # noqa: FBT003 - it parses
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigurationError(
            f"timestamp_format: Spark reads no times by {pattern}; expected a pattern such as dd/MMM/yyyy:HH:mm:ss Z"
        ) from error


def _check_groups(rows: DataFrame, schema: StructType, step: ParseStep) -> None:
    try:
        pattern = rows.sparkSession._jvm.java.util.regex.Pattern.compile(step.pattern)  # type: ignore[union-attr]  # noqa: SLF001 - Java's own
    except IllegalArgumentException as error:
        raise ConfigurationError(f"pattern: {str(error).splitlines()[0]}") from error
    groups = pattern.matcher("").groupCount()
    if groups != len(schema):
        raise ConfigurationError(f"the pattern has {groups} groups, and there are {len(schema)} columns")


def _by_pattern(rows: DataFrame, schema: StructType, step: ParseStep) -> Typed:
    _check_groups(rows, schema, step)
    pattern = f"^(?:{step.pattern})$"
    matches = sql.col(_TEXT).rlike(pattern) & sql.expr(_STAYS)
    groups = [_group(pattern, number, each, step.null_text) for number, each in enumerate(schema.fields, 1)]
    rows = rows.select("*", matches.alias(_MATCHES), *(each.alias(_nth(_GROUP, n)) for n, each in enumerate(groups)))
    values = [_value(sql.col(_nth(_GROUP, n)), each, step.timestamp_format) for n, each in enumerate(schema.fields)]
    rows = rows.select("*", *(each.alias(_nth(_VALUE, n)) for n, each in enumerate(values)))
    columns, failed, untyped = {}, ~sql.col(_MATCHES), sql.lit(None).cast("string")
    for number, field in enumerate(schema.fields):
        group, value = sql.col(_nth(_GROUP, number)), sql.col(_nth(_VALUE, number))
        columns[field.name], wrong = value, group.isNotNull() & value.isNull()
        failed, untyped = failed | wrong, sql.coalesce(untyped, sql.when(wrong, _wrong_value(field, group, step)))
    return Typed(rows, columns, failed, sql.when(sql.col(_MATCHES), untyped).otherwise("it does not match the pattern"))


def _nth(name: str, number: int) -> str:
    return f"{name}_{number}"


def _group(pattern: str, number: int, field: StructField, null_text: str) -> Column:
    """A group of the pattern. Null: it says so, or it is empty where text is not asked for."""
    text = sql.regexp_extract(_TEXT, pattern, number)
    group = sql.nullif(text, sql.lit(null_text))
    return group if isinstance(field.dataType, StringType) else sql.nullif(group, sql.lit(""))


def _value(group: Column, field: StructField, timestamp_format: str | None) -> Column:
    if isinstance(field.dataType, TimestampType) and timestamp_format is not None:
        return sql.try_to_timestamp(group, sql.lit(timestamp_format))
    return group.try_cast(field.dataType)


def _place(rows: DataFrame) -> Column:
    """Where a row comes from, as a text, by those of its columns that say it."""
    known = [name for name in _PLACE if name in rows.columns]
    if len(known) < len(_PLACE):
        return sql.lit("of a row")
    topic, partition, offset = (sql.coalesce(sql.col(name).cast("string"), sql.lit("?")) for name in known)
    said = ("at offset ", offset, " of partition ", partition, " of topic ", topic)
    return sql.concat(*(sql.lit(each) if isinstance(each, str) else each for each in said))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


_BY_FORMAT: Final[dict[str, Callable[[DataFrame, StructType, ParseStep], Typed]]] = {
    "json": _by_json,
    "csv": _by_csv,
    "regex": _by_pattern,
}
