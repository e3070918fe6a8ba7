"""Steps of pipelines: what each makes of the rows of a topic, and what `check` and `plan` say of them beforehand."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import functions

from ingestd.daemon.pipelines import (
    DeduplicateStep,
    JoinStep,
    ParseStep,
    PipelineSettings,
    PipelineSink,
    PipelineSource,
    PipelineStep,
    WindowStep,
)
from ingestd.spark.pipelines.batch import run
from ingestd.spark.pipelines.checking import check, plan
from ingestd.spark.pipelines.failures import PipelineFailed
from ingestd.spark.pipelines.parsing import parse, typed
from ingestd.spark.pipelines.streaming import run_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from conftest import Servers
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("unchanged")]

NOWHERE = {"local": {"kafka.bootstrap.servers": "127.0.0.1:9"}}
UTC = dt.UTC
CSV = ParseStep("csv", "a STRING, b STRING")
ACCESS = ParseStep(
    "regex",
    "host STRING NOT NULL, time TIMESTAMP NOT NULL, status INT, bytes BIGINT",
    pattern=r'(\S+) \S+ \S+ \[([^\]]+)\] "[^"]*" (\d+) (\S+)',
    null_text="-",
    timestamp_format="dd/MMM/yyyy:HH:mm:ss Z",
)


@pytest.fixture
def sent(here: Servers) -> Callable[[Sequence[bytes | None]], str]:
    """Values to a new topic with one partition."""

    def send(values: Sequence[bytes | None]) -> str:
        name = here.create_topic()
        sender = Producer({"bootstrap.servers": here.servers, "log_level": 2})
        for value in values:
            sender.produce(name, value)
        assert sender.flush(60) == 0
        return name

    return send


def settings(topic: str, path: Path, *steps: PipelineStep, sql: str | None = None) -> PipelineSettings:
    return PipelineSettings("p", PipelineSource("local", (topic,)), PipelineSink(path=str(path / "out")), steps, sql)


@pytest.fixture
def written(spark: SparkSession, here: Servers, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """The rows that steps make of a topic. `check` says the same columns first, without any broker."""

    def rows(topic: str, *steps: PipelineStep, sql: str | None = None) -> list[dict[str, Any]]:
        pipeline = settings(topic, tmp_path, *steps, sql=sql)
        columns = check(pipeline, NOWHERE, modules=tmp_path, session=spark).columns
        run(pipeline, here.clusters, modules=tmp_path, session=spark)
        table = pq.read_table(tmp_path / "out")
        assert table.column_names == [name for name, _ in columns]
        return table.to_pylist()

    return rows


def test_access_logs_become_typed_columns_and_windows(sent, written, tmp_path: Path) -> None:
    lines = [
        b'a - - [01/Jan/2026:10:00:01 +0000] "GET /x HTTP/1.1" 200 10',
        b'b - - [01/Jan/2026:11:00:59 +0100] "GET /y HTTP/1.1" 404 -',
        b'c - - [01/Jan/2026:10:01:00 +0000] "GET /z HTTP/1.1" 200 5',
        b'c - - [01/Jan/2026:10:01:00 +0000] "GET /z HTTP/1.1" 200 5',
    ]
    (tmp_path / "hosts.csv").write_text("host,site\na,east\nb,east\n")
    hosts = JoinStep(str(tmp_path / "hosts.csv"), ("host",), "csv", "host STRING, site STRING", "left")
    minutes = WindowStep("time", "1 minute", {"hits": "count(*)", "bytes": "sum(bytes)"}, by=("site",))
    rows = written(
        sent(lines),
        PipelineStep(parse=ACCESS),
        PipelineStep(deduplicate=DeduplicateStep(("host", "time"), "time")),
        PipelineStep(join=hosts),
        PipelineStep(window=minutes),
        sql="SELECT window_start AS minute, site, hits, bytes FROM source",
    )
    assert sorted(rows, key=lambda row: row["minute"]) == [
        {"minute": dt.datetime(2026, 1, 1, 10, 0, tzinfo=UTC), "site": "east", "hits": 2, "bytes": 10},
        {"minute": dt.datetime(2026, 1, 1, 10, 1, tzinfo=UTC), "site": None, "hits": 1, "bytes": 5},
    ]


@pytest.mark.parametrize(
    ("step", "value", "row"),
    [
        (ParseStep("json", "n BIGINT, t TIMESTAMP"), b'{"n": 7, "x": 1}', {"n": 7, "t": None}),
        (ParseStep("json", "`a``b c.d` BIGINT NOT NULL"), b'{"a`b c.d": 7}', {"a`b c.d": 7}),
        (ParseStep("csv", "n BIGINT, s STRING", delimiter=";"), b"7;a b", {"n": 7, "s": "a b"}),
        (ParseStep("csv", "`a``b` BIGINT"), b"7", {"a`b": 7}),
        (ParseStep("regex", "n BIGINT, s STRING", pattern=r"n=(\d*)(?: s=(.*))?"), b"n=", {"n": None, "s": None}),
    ],
)
def test_text_becomes_typed_columns(sent, written, step: ParseStep, value: bytes, row: dict[str, Any]) -> None:
    topic = sent([value])
    (found,) = written(topic, PipelineStep(parse=step))
    assert found.items() >= row.items()
    assert (found["topic"], found["value"]) == (topic, value)


def test_times_of_json_are_what_they_say(spark: SparkSession) -> None:
    step = ParseStep(
        "json", "t TIMESTAMP, s STRUCT<t: TIMESTAMP, n: INT>, a ARRAY<TIMESTAMP>, m MAP<STRING, TIMESTAMP>"
    )
    time = '"2026-11-01T01:00:00.123456+01:00"'
    for end in ("}", "} "):
        text = f'{{"t": {time}, "s": {{"t": {time}, "n": 7}}, "a": [{time}, null], "m": {{"x": {time}}}{end}'
        found = typed(spark.createDataFrame([(text,)], "value STRING"), step)
        shown = found.rows.select(*(column.alias(name) for name, column in found.columns.items())).selectExpr(
            "to_json(struct(*))"
        )
        was = '"2026-11-01T00:00:00.123456Z"'
        assert shown.first()[0].replace("123Z", "123456Z") == (
            f'{{"t":{was},"s":{{"t":{was},"n":7}},"a":[{was},null],"m":{{"x":{was}}}}}'
        )


def as_csv(*rows: Sequence[str], **form: Any) -> list[bytes]:
    """Rows as Python writes them, each with the end of its line."""
    lines = []
    for row in rows:
        text = io.StringIO(newline="")
        csv.writer(text, **form).writerow(row)
        lines.append(text.getvalue().encode())
    return lines


def test_csv_is_read_as_other_programs_write_it(spark: SparkSession) -> None:
    """Spark's own default takes a backslash for what stands before a quote."""
    texts = (
        'say "hello"',
        '"',
        '""',
        "a\\",
        "\\",
        '\\"',
        "a,b",
        'a",b',
        "a\nb",
        "a\r\nb",
        "a\rb",
        " a ",
        "ü",
        "'",
        '", "',
    )
    given = [(first, second) for first in texts for second in texts]
    for form in ({}, {"quoting": csv.QUOTE_ALL}, {"lineterminator": "\n"}, {"lineterminator": ""}):
        found = typed(spark.createDataFrame([(line,) for line in as_csv(*given, **form)], "value BINARY"), CSV)
        rows = found.rows.select(found.failed, *found.columns.values()).collect()
        assert [tuple(row) for row in rows] == [(False, *row) for row in given]


def test_csv_with_backslashes_before_quotes(spark: SparkSession) -> None:
    lines = as_csv(('say "hello"', "a\\"), quoting=csv.QUOTE_ALL, doublequote=False, escapechar="\\")
    found = typed(spark.createDataFrame([(line,) for line in lines], "value BINARY"), replace(CSV, escape="\\"))
    (row,) = found.rows.select(*found.columns.values()).collect()
    assert tuple(row) == ('say "hello"', "a\\")


LINE = 'a - - [01/Jan/2026:10:00:01 +0000] "" 200 1'


@pytest.mark.parametrize(
    ("step", "reasons"),
    [
        (
            ParseStep("json", "n BIGINT, m BIGINT NOT NULL"),
            {
                b'{"n": 1, "m": 2}': None,
                b'{"n": "x", "m": 2}': "n = x; expected bigint",
                b'{"n": 1, "m": {"a": [true, "x"]}}': 'm = {"a":[true,"x"]}; expected bigint',
                b'{"n": "x", "m": "y"}': "n = x; expected bigint",
                b'{"n": "' + b"x" * 1_000 + b'", "m": 2}': f"n = {'x' * 100}…; expected bigint",
                b'{"n": "x", "m": 2': "expected json with n BIGINT, m BIGINT NOT NULL",
                b'{"n": "x", "m": 2} 7': "expected json with n BIGINT, m BIGINT NOT NULL",
                b'{"n": "x", "m": 2}, 7': "expected json with n BIGINT, m BIGINT NOT NULL",
                b'{"n": "x", "m": 2}, {}': "expected json with n BIGINT, m BIGINT NOT NULL",
                b"no json": "expected json with n BIGINT, m BIGINT NOT NULL",
                b'{"n": 1}': "m is null; expected bigint",
                b'{"n": 1, "m": null}': "m is null; expected bigint",
                b"null": "expected json with n BIGINT, m BIGINT NOT NULL",
                None: "it is null, or no UTF-8",
                b"\xff": "it is null, or no UTF-8",
            },
        ),
        (
            ParseStep("json", "n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>"),
            {
                b"{}": None,
                b' {"n": 1, "a": [1, null], "s": {"m": 2}}\n': None,
                b'{"a": [1, "x"]}': 'a = [1,"x"]; expected array<bigint>',
                b'{"s": {"m": "x"}}': 's = {"m":"x"}; expected struct<m:bigint>',
                b"": "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
                b" ": "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
                b" null}": "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
                b'null {"n": 1}': "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
                b'{"n": 1} "}': "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
                b'{"n": 1, "t": "}"}': None,
                b"[]": "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
                b'[{"n": 1}]': "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
                b'{"n": 1} and more': "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
                b'{"n": 1}{"n": 2}': "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
                b'{"n": 1}, {"n": 2}': "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
                b'{"n": 1}]': "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
                b'{"n": 1}}': "expected json with n BIGINT, a ARRAY<BIGINT>, s STRUCT<m: BIGINT>",
            },
        ),
        (
            ParseStep("csv", "n BIGINT"),
            {
                b"": None,
                b"1": None,
                b"1\n": None,
                b"1\r\n": None,
                b"1\n2": "n = 1\n2; expected bigint",
                b"1\n\n": "n = 1\n; expected bigint",
            },
        ),
        (
            ParseStep("csv", "n BIGINT, s STRING"),
            {
                b"": "expected csv with n BIGINT, s STRING",
                b"1,a": None,
                b",a": None,
                b'1,"a,b"': None,
                b"1": "expected csv with n BIGINT, s STRING",
                b"1,a,b": "expected csv with n BIGINT, s STRING",
                b"1,a\n2,b": "expected csv with n BIGINT, s STRING",
                b'1,"a': "expected csv with n BIGINT, s STRING",
                b'1,"a\nb"\r\n': None,
                b"x,a": "n = x; expected bigint",
                b"x" * 1_000 + b",a": f"n = {'x' * 100}…; expected bigint",
            },
        ),
        (
            ParseStep("json", "`a``b c.d` TIMESTAMP, s STRUCT<a: INT, b: ARRAY<INT>>", timestamp_format="dd/MM/yyyy"),
            {
                b'{"a`b c.d": "01/02/2026", "s": {"a": 1, "b": [1]}}': None,
                b'{"a`b c.d": "2026-02-01", "s": null}': "a`b c.d = 2026-02-01; expected timestamp as dd/MM/yyyy",
                b'{"s": {"a": 1, "b": [1, "x"]}}': 's = {"a":1,"b":[1,"x"]}; expected struct<a:int,b:array<int>>',
            },
        ),
        (
            # Spark takes a number for seconds, so that milliseconds were a time in the year 58803, and digits for days.
            ParseStep("json", "t TIMESTAMP, d DATE"),
            {
                b'{"t": "2026-11-01T00:05:00Z", "d": "2026-11-01"}': None,
                b'{"t": "2026-11-01T00:05:00.123456+01:00"} ': None,
                b'{"t": null, "d": null, "x": {}}': None,
                b'{"t": 1793491500000}': "t = 1793491500000; expected timestamp",
                b'{"t": 1793491500, "x": {}}': "t = 1793491500; expected timestamp",
                b'{"t": -12345}': "t = -12345; expected timestamp",
                b'{"t": 1.5}': "t = 1.5; expected timestamp",
                b'{"t": ""}': "t = ; expected timestamp",
                b'{"t": "1793491500"}': "t = 1793491500; expected timestamp",
                b'{"d": 20758}': "d = 20758; expected date",
                b'{"d": "20261101"}': "d = 20261101; expected date",
                b'{"d": "20758"}': "d = 20758; expected date",
            },
        ),
        (
            ParseStep("json", "s STRUCT<t: TIMESTAMP>, a ARRAY<STRUCT<t: TIMESTAMP>>, m MAP<STRING, TIMESTAMP>"),
            {
                b'{"s": {"t": "2026-11-01"}, "a": [{"t": "2026-11-01"}, null], "m": {"x": "2026-11-01"}}': None,
                b'{"s": null, "a": [], "m": {"x": null}}': None,
                b'{"s": {"t": 1793491500}}': 's = {"t":1793491500}; expected struct<t:timestamp>',
                b'{"a": [{"t": 1793491500}]}': 'a = [{"t":1793491500}]; expected array<struct<t:timestamp>>',
                b'{"m": {"x": 1793491500}}': 'm = {"x":1793491500}; expected map<string,timestamp>',
            },
        ),
        (
            ParseStep("json", "t TIMESTAMP", timestamp_format="yyyyMMddHHmmss"),
            {
                b'{"t": "20261101000500"}': None,
                b'{"t": 1793491500000}': "t = 1793491500000; expected timestamp as yyyyMMddHHmmss",
            },
        ),
        (
            ParseStep("csv", "d DATE NOT NULL, n INT, x DOUBLE", null_text="-"),
            {
                b"2026-01-01,-,1.5": None,
                b"2026-01-32,-,1.5": "d = 2026-01-32; expected date",
                b"2026-01-01,1,": None,
                b"2026-01-01,1,many": "x = many; expected double",
                b"-,1,1": "d is null; expected date",
                b"2026-01-01,1": "expected csv with d DATE NOT NULL, n INT, x DOUBLE",
                b"2026-01-01,1,1,many": "expected csv with d DATE NOT NULL, n INT, x DOUBLE",
                b"2026-01-01,many,1,1": "expected csv with d DATE NOT NULL, n INT, x DOUBLE",
            },
        ),
        (
            ACCESS,
            {
                LINE.encode(): None,
                LINE.replace("200 1", "200 -").encode(): None,
                b"what?": "it does not match the pattern",
                f"{LINE}x y".encode(): "it does not match the pattern",
                LINE.replace("01/Jan", "32/Jan").encode(): (
                    f"time = 32/Jan/2026:10:00:01 +0000; expected timestamp as {ACCESS.timestamp_format}"
                ),
                LINE.replace("200 1", "200 many").encode(): "bytes = many; expected bigint",
                LINE.replace("200 1", f"200 {'9' * 1_000}").encode(): f"bytes = {'9' * 100}…; expected bigint",
                LINE.replace("200 1", "99999999999 1").encode(): "status = 99999999999; expected int",
            },
        ),
    ],
)
def test_why_a_row_can_not_be_typed(
    spark: SparkSession, step: ParseStep, reasons: dict[bytes | None, str | None]
) -> None:
    rows = spark.createDataFrame([(value,) for value in reasons], "value BINARY")
    found = typed(rows, step)
    said = found.rows.select(functions.when(found.failed, found.reason)).collect()
    assert [reason for (reason,) in said] == list(reasons.values())


@pytest.mark.parametrize(
    ("step", "function"),
    [
        (ParseStep("json", "n BIGINT"), "from_json"),
        (ParseStep("json", "t TIMESTAMP"), "from_json"),
        (ParseStep("csv", "n BIGINT"), "from_csv"),
        (ParseStep("regex", "n BIGINT", pattern=r"(\d+)"), "regexp_extract"),
    ],
)
def test_a_row_is_parsed_once(spark: SparkSession, step: ParseStep, function: str) -> None:
    """Spark moved the filter that ends the query below what it asks, and so did that several times for each row."""
    rows = parse(spark.range(1).selectExpr("CAST(id AS STRING) AS value"), step, "steps[0] (parse)")
    lines = rows._jdf.queryExecution().optimizedPlan().toString().splitlines()
    (place,) = (number for number, line in enumerate(lines) if "Filter" in line)
    assert sum(line.count(f"{function}(") for line in lines[:place]) == 0
    assert any(f"{function}(" in line for line in lines[place + 1 :])


def test_a_row_that_can_not_be_typed_ends_the_query_and_is_named(sent, written) -> None:
    topic = sent([b'{"n": 1}', b'{"n": "x"}'])
    with pytest.raises(PipelineFailed) as caught:
        written(topic, PipelineStep(parse=ParseStep("json", "n BIGINT")), sql="SELECT 1 AS one FROM source")
    remedy = 'to go on without such rows, set dead_letters = "TOPIC"'
    place = f"offset 1 of partition 0 of topic {topic}"
    assert str(caught.value) == f"pipeline p: column value at {place}: n = x; expected bigint; {remedy}"


def test_a_function_of_a_module_beside_the_configuration_is_a_step(sent, written, tmp_path: Path) -> None:
    """The module's own functions run on executors, which do not have the file."""
    (tmp_path / "pipeline_functions.py").write_text(
        "from pyspark.sql import functions as sql\n"
        "def shouted(text):\n    return text.upper() + '!'\n"
        "def shout(rows):\n"
        "    return rows.select(sql.udf(shouted, useArrow=False)(rows.value.cast('string')).alias('said'))\n"
        "def wrong(rows):\n    return 7\n"
    )
    topic = sent([b"a", b"b"])
    rows = written(topic, PipelineStep(python="pipeline_functions:shout"))
    assert sorted(row["said"] for row in rows) == ["A!", "B!"]
    with pytest.raises(
        PipelineFailed, match=r"p: steps\[0\] \(python\): pipeline_functions:wrong returned int; expected"
    ):
        written(topic, PipelineStep(python="pipeline_functions:wrong"))
    with pytest.raises(
        PipelineFailed, match=r"p: steps\[0\] \(python\): pipeline_functions:none: .*no attribute 'none'"
    ):
        written(topic, PipelineStep(python="pipeline_functions:none"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def step(rows):\n    raise KeyError('seven')", r"KeyError: 'seven' \(.*failing_step\.py, line 2\)"),
        ("def step():\n    return 7", r"TypeError: step\(\) takes 0 positional arguments but 1 was given$"),
        ("1 / 0", r"ZeroDivisionError: division by zero \(.*failing_step\.py, line 1\)"),
        ("def step(:", r"SyntaxError: invalid syntax \(failing_step\.py, line 1\)"),
        ("step = 7", "is 7; expected a function"),
        ("def step(rows):\n    return rows.select(rows.nothing)", r"\[\w+\] Attribute `nothing` is not supported"),
    ],
)
def test_a_python_step_that_raises_is_named(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "failing_step.py").write_text(f"{text}\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "failing_step", raising=False)
    pipeline = PipelineSettings(
        "p",
        PipelineSource("local", ("t",)),
        PipelineSink(path="nowhere"),
        steps=(PipelineStep(python="failing_step:step"),),
    )
    with pytest.raises(PipelineFailed, match=rf"^pipeline p: steps\[0\] \(python\): (failing_step:step:? )?{reason}"):
        check(pipeline, NOWHERE, modules=tmp_path, session=spark)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (PipelineStep(sql="SELECT nothing FROM source"), r"steps\[0\] \(sql\): .*`nothing`"),
        (PipelineStep(sql="CREATE TABLE made (n INT)"), r"steps\[0\] \(sql\): it is a command, \w+; expected a query"),
        (
            PipelineStep(sql="WITH one AS (SELECT 1 AS n) INSERT INTO made SELECT n FROM one"),
            r"steps\[0\] \(sql\): it is a command, \w+; expected a query",
        ),
        (PipelineStep(sql="SET spark.sql.ansi.enabled = false"), r"steps\[0\] \(sql\): it is a command"),
        (PipelineStep(sql="SELECT nothing WHERE"), r"steps\[0\] \(sql\): .*"),
        (PipelineStep(parse=ParseStep("json", "n BIGNIT")), r"steps\[0\] \(parse\): .*BIGNIT"),
        (PipelineStep(parse=ParseStep("json", "n INT", "line")), r"steps\[0\] \(parse\): there is no column line"),
        (PipelineStep(parse=ParseStep("json", "n INT", "offset")), r"column offset is bigint; expected text or bytes"),
        (PipelineStep(parse=ParseStep("regex", "n INT", pattern=r"\p{Alpha}(")), r"pattern: Unclosed group"),
        (
            PipelineStep(parse=ParseStep("regex", "n INT", pattern=r"(\p{Alpha})(b)")),
            r"the pattern has 2 groups, and there",
        ),
        (
            PipelineStep(parse=ParseStep("json", "t TIMESTAMP", timestamp_format="YYYY-MM-dd")),
            r"p: steps\[0\] \(parse\): timestamp_format: Spark reads no times by YYYY-MM-dd; expected a pat",
        ),
        (
            PipelineStep(parse=ParseStep("csv", "t TIMESTAMP", timestamp_format="yyyy-MM-dd T")),
            r"p: steps\[0\] \(parse\): timestamp_format: Spark reads no times by yyyy-MM-dd T; expected",
        ),
        (
            PipelineStep(window=WindowStep("value", "1 minute", {"n": "count(*)"})),
            r"steps\[0\] \(window\): .*TIMESTAMP",
        ),
    ],
)
def test_a_wrong_step_is_named_before_anything_is_read(
    spark: SparkSession, tmp_path: Path, step: PipelineStep, reason: str
) -> None:
    with pytest.raises(PipelineFailed, match=reason) as caught:
        check(settings("t", tmp_path, step), NOWHERE, session=spark)
    assert "\n" not in str(caught.value)


MADE = PipelineStep(sql="SELECT 1 AS n, 'a' AS day, array(1) AS many FROM source")
TWICE = PipelineStep(sql="SELECT 1 AS n, 2 AS N FROM source")


@pytest.mark.parametrize(
    ("step", "sink", "reason"),
    [
        (
            MADE,
            {"partition_by": ("Day", "hour")},
            "sink.partition_by: there is no column hour; expected one of n, day, many",
        ),
        (MADE, {"partition_by": ("many",)}, "sink.partition_by: column many is array<int>; expected one value"),
        (MADE, {"partition_by": ("n", "day", "MANY")}, "sink.partition_by: column MANY is array<int>; expected one"),
        (
            PipelineStep(sql="SELECT 1 AS n FROM source"),
            {"partition_by": ("n",)},
            "sink.partition_by: it has all columns",
        ),
        (MADE, {"partition_by": ("day", "DAY")}, "sink.partition_by: column DAY is named twice; expected it once"),
        (TWICE, {}, "sink.format = parquet: the result has 2 columns n; expected one of that name"),
        (TWICE, {"format": "topic", "topic": "t"}, "sink.format = topic: the result has 2 columns n; expected one"),
        (
            TWICE,
            {"format": "jdbc", "url": "jdbc:derby:x", "table": "t"},
            "sink.format = jdbc: the result has 2 columns n",
        ),
    ],
)
def test_a_result_that_the_sink_can_not_take_is_named_before_anything_is_read(
    spark: SparkSession, tmp_path: Path, step: PipelineStep, sink: dict[str, Any], reason: str
) -> None:
    """Nobody listens where the source is. Parquet, Delta and JDBC said it in Spark's words, some with the first row."""
    into = sink if "format" in sink else {"path": str(tmp_path / "out"), **sink}
    once = PipelineSettings("p", PipelineSource("local", ("t",)), PipelineSink(**into), (step,))
    stream = replace(once, checkpoint=str(tmp_path / "checkpoint"))
    for work, pipeline in ((check, once), (run, once), (check, stream), (run_stream, stream)):
        with pytest.raises(PipelineFailed, match=f"^pipeline p: {re.escape(reason)}"):
            work(pipeline, NOWHERE, session=spark)


def test_the_plan_has_the_ranges_and_sparks_own_plan(spark: SparkSession, here: Servers, sent, tmp_path: Path) -> None:
    topic = sent([json.dumps({"n": n}).encode() for n in range(7)])
    planned = plan(
        settings(topic, tmp_path, PipelineStep(parse=ParseStep("json", "n INT"))), here.clusters, session=spark
    )
    assert [(each.topic, each.partition, each.start, each.end) for each in planned.ranges] == [(topic, 0, 0, 7)]
    assert "from_json" in planned.query
    assert not (tmp_path / "out").exists()
