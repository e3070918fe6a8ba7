"""Parsing: a column of text to typed columns, as expressions of Spark; and why a row can not be typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.errors import IllegalArgumentException
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ingestd.errors import ConfigurationError
from ingestd.spark.pipelines.dead_letters import LETTER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from ingestd.daemon.pipelines import ParseStep
    from ingestd.spark.pipelines.dead_letters import DeadLetters

__all__ = ["REASON", "parse", "typed"]

_TEXT: Final = "__ingestd_text"
_WHOLE: Final = "__ingestd_whole"
_PARSED: Final = "__ingestd_parsed"
REASON: Final = "__ingestd_reason"
"""The column that says why a row can not be typed."""
_SHOWN: Final = 100
"""Characters of a value that are shown."""
_PLACE: Final = ("topic", "partition", "offset")
"""The columns that say where a row comes from."""


def parse(rows: DataFrame, step: ParseStep, name: str, letters: DeadLetters | None = None) -> DataFrame:
    """The rows with the columns of the step.

    A row that can not be typed ends the query; with `letters` it goes there, and `name` says which step it was. Raises
    `ConfigurationError`.
    """
    if letters is not None:
        letter = letters.letter(rows, sql.col(REASON), step.column, name)
        return letters.divert(_result(typed(rows, step).withColumn(LETTER, letter), rows, step, LETTER))
    failure = sql.concat(sql.lit(f"column {step.column} of "), _place(rows), sql.lit(": "), sql.col(REASON))
    checked = typed(rows, step).where(sql.col(REASON).isNull() | sql.raise_error(failure).isNotNull())
    return _result(checked, rows, step)


def _result(checked: DataFrame, rows: DataFrame, step: ParseStep, *more: str) -> DataFrame:
    wanted = _schema(step).fieldNames()
    kept = [name for name in rows.columns if name.lower() not in {each.lower() for each in wanted}]
    return checked.select(*map(_quoted, kept), *(_of_parsed(name).alias(name) for name in wanted), *more)


def typed(rows: DataFrame, step: ParseStep) -> DataFrame:
    """The rows with what was parsed, as a struct, and `REASON` where that failed. Raises `ConfigurationError`."""
    schema = _schema(step)
    given = {field.name: field.dataType for field in rows.schema.fields}
    if step.column not in given:
        raise ConfigurationError(f"there is no column {step.column}; expected one of {', '.join(given)}")
    if not isinstance(given[step.column], (StringType, BinaryType)):
        raise ConfigurationError(f"column {step.column} is {given[step.column].simpleString()}; expected text or bytes")
    text = sql.col(_quoted(step.column))
    if isinstance(given[step.column], BinaryType):
        text = sql.try_validate_utf8(text.cast("string"))
    with_text = rows.withColumn(_TEXT, text)
    if step.format == "regex":
        _check_groups(rows, schema, step)
        parsed, malformed = _by_pattern(schema, step)
    else:
        whole, parsed, malformed = _by_format(schema, step)
        with_text = with_text.withColumn(_WHOLE, whole)
    with_parsed = with_text.withColumn(_PARSED, parsed)
    reason = sql.when(sql.col(_TEXT).isNull(), "it is null, or no UTF-8").when(*malformed)
    for field in schema.fields:
        if not field.nullable:
            what = f"{field.name} is null; expected {field.dataType.simpleString()}"
            reason = reason.when(_of_parsed(field.name).isNull(), what)
    return with_parsed.withColumn(REASON, reason)


def _schema(step: ParseStep) -> StructType:
    schema = StructType.fromDDL(step.columns)
    assert isinstance(schema, StructType), "columns with names"
    return schema


def _by_format(schema: StructType, step: ParseStep) -> tuple[Column, Column, tuple[Column, Column]]:
    """What Spark parses, as `_WHOLE`; the columns in it; and when, and how, to say that it could not."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": REASON}
    if step.timestamp_format is not None:
        options["timestampFormat"] = step.timestamp_format
    typed = [StructField(field.name, field.dataType) for field in schema]
    as_texts = [StructField(field.name, StringType()) for field in schema]
    corrupt = sql.col(f"{_WHOLE}.{REASON}").isNotNull()
    if step.format == "csv":
        options |= {"sep": step.delimiter, "nullValue": step.null_text}
        # An empty text is one value. Spark takes it for as many nulls as are wanted.
        empty = (sql.col(_TEXT) == "") & sql.lit(len(schema) > 1)
        reason = _untyped(schema, step, options, _from_csv(as_texts, options), sql.col(_WHOLE))
        return _from_csv(typed, options), sql.col(_WHOLE), (corrupt | empty, reason)
    values = sql.col(f"{_WHOLE}.values")
    parsed = sql.get(values, sql.lit(0))
    texts = sql.filter(sql.array(_from_json_pair(as_texts, options)["values"]), lambda each: sql.size(each) == 2)
    text = sql.get(sql.get(texts, sql.lit(0)), sql.lit(0))
    return (
        _from_json_pair(typed, options),
        parsed,
        (
            corrupt | ~sql.size(values).eqNullSafe(2) | parsed.isNull(),
            _untyped(schema, step, options, text, _from_json(typed, options)),
        ),
    )


def _from_json_pair(fields: Sequence[StructField], options: dict[str, str]) -> Column:
    """An array `values`, of the text's value and another one.

    Spark takes no text for nulls, and reads no further than the end of the first value. So an array is made, of the
    text and one value more. It has two values if the text is one.
    """
    text = sql.concat(sql.lit('{"values": ['), sql.col(_TEXT), sql.lit(", {}]}"))
    wanted = [StructField("values", ArrayType(StructType(list(fields))))]
    return sql.from_json(text, _with_reason(wanted), options)


def _from_json(fields: Sequence[StructField], options: dict[str, str]) -> Column:
    return sql.from_json(_TEXT, _with_reason(fields), options)


def _from_csv(fields: Sequence[StructField], options: dict[str, str]) -> Column:
    wanted = _with_reason(fields).fields
    ddl = ", ".join(f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in wanted)
    return sql.from_csv(_TEXT, ddl, options)


def _with_reason(fields: Sequence[StructField]) -> StructType:
    return StructType([*fields, StructField(REASON, StringType())])


def _untyped(schema: StructType, step: ParseStep, options: dict[str, str], texts: Column, typed: Column) -> Column:
    """Which column can not be typed, if it is one. `texts`, `typed`: structs of the columns; the first may be null."""
    otherwise = sql.lit(f"expected {step.format} with {step.columns}")

    def reason(row: Column) -> Column:
        return sql.coalesce(*(untyped(row["texts"][field.name], row["typed"], field) for field in schema), otherwise)

    def untyped(text: Column, typed: Column, field: StructField) -> Column:
        wrong = typed[field.name].isNull()
        if isinstance(field.dataType, (ArrayType, MapType, StructType)):
            # Parsed alone, because what can be typed of it is there.
            wrong = _from_json([StructField(field.name, field.dataType)], options)[REASON].isNotNull()
        return sql.when(text.isNotNull() & wrong, _wrong_value(field, text))

    # A function, so that a row is parsed once, and not for each column.
    return sql.transform(sql.array(sql.struct(texts.alias("texts"), typed.alias("typed"))), reason)[0]


def _wrong_value(field: StructField, text: Column) -> Column:
    start = sql.when(sql.length(text) > _SHOWN, sql.concat(sql.substring(text, 1, _SHOWN), sql.lit("…")))
    said = (
        sql.lit(f"{field.name} = "),
        sql.coalesce(start, text),
        sql.lit(f"; expected {field.dataType.simpleString()}"),
    )
    return sql.concat(*said)


def _check_groups(rows: DataFrame, schema: StructType, step: ParseStep) -> None:
    try:
        pattern = rows.sparkSession._jvm.java.util.regex.Pattern.compile(step.pattern)  # type: ignore[union-attr]  # noqa: SLF001 - Java's own
    except IllegalArgumentException as error:
        raise ConfigurationError(f"pattern: {str(error).splitlines()[0]}") from error
    groups = pattern.matcher("").groupCount()
    if groups != len(schema):
        raise ConfigurationError(f"the pattern has {groups} groups, and there are {len(schema)} columns")


def _by_pattern(schema: StructType, step: ParseStep) -> tuple[Column, tuple[Column, Column]]:
    pattern = f"^(?:{step.pattern})$"
    values: list[Column] = []
    untyped = sql.lit(None).cast("string")
    for number, field in enumerate(schema.fields, 1):
        group = _group(pattern, number, field, step.null_text)
        value = _value(group, field, step.timestamp_format)
        untyped = sql.coalesce(
            untyped,
            sql.when(group.isNotNull() & value.isNull(), _wrong_value(field, group)),
        )
        values.append(value.alias(field.name))
    matches = sql.col(_TEXT).rlike(pattern)
    reason = sql.when(~matches, "it does not match the pattern").otherwise(untyped)
    return sql.struct(*values), (reason.isNotNull(), reason)


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
        return sql.lit("a row")
    topic, partition, offset = (sql.coalesce(sql.col(name).cast("string"), sql.lit("?")) for name in known)
    return sql.concat(topic, sql.lit("-"), partition, sql.lit(" at offset "), offset)


def _of_parsed(name: str) -> Column:
    return sql.col(f"{_PARSED}.{_quoted(name)}")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
