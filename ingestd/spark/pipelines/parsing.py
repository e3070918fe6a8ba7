"""Parsing: a column of text to typed columns, as expressions of Spark; and why a row can not be typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.errors import IllegalArgumentException
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType, TimestampType

from ingestd.errors import ConfigurationError
from ingestd.spark.pipelines.dead_letters import LETTER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ingestd.daemon.pipelines import ParseStep
    from ingestd.spark.pipelines.dead_letters import DeadLetters

__all__ = ["REASON", "parse", "typed"]

_TEXT: Final = "__ingestd_text"
_WHOLE: Final = "__ingestd_whole"
_PARSED: Final = "__ingestd_parsed"
REASON: Final = "__ingestd_reason"
"""The column that says why a row can not be typed."""
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
            reason = reason.when(_of_parsed(field.name).isNull(), f"{field.name} is null")
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
    nullable = StructType([StructField(field.name, field.dataType) for field in schema.fields])
    reason = sql.lit(f"expected {step.format} with {step.columns}")
    corrupt = sql.col(f"{_WHOLE}.{REASON}").isNotNull()
    if step.format == "csv":
        options |= {"sep": step.delimiter, "nullValue": step.null_text}
        wanted = StructType([*nullable.fields, StructField(REASON, StringType())])
        # An empty text is one value. Spark takes it for as many nulls as are wanted.
        empty = (sql.col(_TEXT) == "") & sql.lit(len(schema) > 1)
        return _from_csv(wanted, options), sql.col(_WHOLE), (corrupt | empty, reason)
    # Spark takes no text for nulls, and reads no further than the end of the first value. So an array is made, of the
    # text and one value more. It has two values if the text is one.
    text = sql.concat(sql.lit('{"values": ['), sql.col(_TEXT), sql.lit(", {}]}"))
    wanted = StructType([StructField("values", ArrayType(nullable)), StructField(REASON, StringType())])
    values = sql.col(f"{_WHOLE}.values")
    parsed = sql.get(values, sql.lit(0))
    return (
        sql.from_json(text, wanted, options),
        parsed,
        (corrupt | ~sql.size(values).eqNullSafe(2) | parsed.isNull(), reason),
    )


def _from_csv(wanted: StructType, options: dict[str, str]) -> Column:
    ddl = ", ".join(f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in wanted.fields)
    return sql.from_csv(_TEXT, ddl, options)


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
            sql.when(
                group.isNotNull() & value.isNull(),
                sql.concat(sql.lit(f"{field.name} = "), group, sql.lit(f"; expected {field.dataType.simpleString()}")),
            ),
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
