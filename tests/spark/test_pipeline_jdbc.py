"""JDBC as a sink, with the Derby that PySpark brings: tables are created or appended, at least once."""

from __future__ import annotations

import subprocess
import uuid
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from ingestd.daemon.pipelines import PipelineSettings, PipelineSink, PipelineSource
from ingestd.spark.pipelines.batch import run
from ingestd.spark.pipelines.checking import check
from ingestd.spark.pipelines.failures import PipelineFailed
from ingestd.spark.pipelines.streaming import run_stream

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Servers
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("unchanged")]

DRIVER = """
package test;
import java.sql.*;
import java.util.Properties;
/** A driver of a user: Derby by another URL, for one account. */
public class OurDriver implements Driver {
    static { try { DriverManager.registerDriver(new OurDriver()); } catch (SQLException e) { throw new Error(e); } }
    public boolean acceptsURL(String url) { return url.startsWith("jdbc:ours:"); }
    public Connection connect(String url, Properties info) throws SQLException {
        if (!acceptsURL(url)) return null;
        if (!"kafka".equals(info.getProperty("user")) || !"sesame".equals(info.getProperty("password")))
            throw new SQLException("wrong account");
        return DriverManager.getConnection(url.replace("jdbc:ours:", "jdbc:derby:"));
    }
    public DriverPropertyInfo[] getPropertyInfo(String url, Properties info) { return new DriverPropertyInfo[0]; }
    public int getMajorVersion() { return 1; }
    public int getMinorVersion() { return 0; }
    public boolean jdbcCompliant() { return false; }
    public java.util.logging.Logger getParentLogger() { return null; }
}
"""


@pytest.fixture
def url(spark: SparkSession) -> str:
    """A database in the JVM's memory."""
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")
    return f"jdbc:derby:memory:{uuid.uuid4().hex};create=true"


def send(here: Servers, topic: str, numbers: range) -> None:
    sender = Producer({"bootstrap.servers": here.servers, "log_level": 2})
    for number in numbers:
        sender.produce(topic, b"%d" % number)
    assert sender.flush(60) == 0


def settings(topic: str, sink: PipelineSink, checkpoint: Path | None = None, name: str = "number") -> PipelineSettings:
    sql = f"SELECT CAST(CAST(value AS STRING) AS BIGINT) AS {name} FROM source"
    source = PipelineSource("local", (topic,))
    return PipelineSettings("p", source, sink, sql=sql, checkpoint=None if checkpoint is None else str(checkpoint))


def numbers(spark: SparkSession, url: str) -> list[int]:
    rows = spark.read.format("jdbc").options(url=url, dbtable="numbers").load().collect()
    return sorted(row[0] for row in rows)


def test_a_run_creates_the_table_and_its_mode_says_what_happens_to_one_that_is_there(
    spark: SparkSession, here: Servers, url: str
) -> None:
    topic = here.create_topic()
    send(here, topic, range(10))
    result = run(settings(topic, PipelineSink("jdbc", url=url, table="numbers")), here.clusters, session=spark)
    assert (result.rows, result.path) == (10, "table numbers")
    assert numbers(spark, url) == list(range(10))
    with pytest.raises(PipelineFailed, match=r"pipeline p: .*already exists"):
        run(settings(topic, PipelineSink("jdbc", url=url, table="numbers")), here.clusters, session=spark)
    appending = PipelineSink("jdbc", url=url, table="numbers", mode="append")
    run(settings(topic, appending), here.clusters, session=spark)
    assert numbers(spark, url) == sorted([*range(10), *range(10)])
    with pytest.raises(PipelineFailed, match=r"pipeline p: .*other"):
        run(settings(topic, appending, name="other"), here.clusters, session=spark)


def test_a_stream_creates_the_table_and_appends(spark: SparkSession, here: Servers, url: str, tmp_path: Path) -> None:
    topic = here.create_topic()
    sink = PipelineSink("jdbc", url=url, table="numbers")
    for last in (10, 25):
        send(here, topic, range(0 if last == 10 else 10, last))
        run_stream(settings(topic, sink, tmp_path), here.clusters, once=True, session=spark)
        assert numbers(spark, url) == list(range(last))


def test_the_users_driver_comes_from_his_jar_with_his_account(
    spark: SparkSession, here: Servers, url: str, tmp_path: Path
) -> None:
    (tmp_path / "OurDriver.java").write_text(DRIVER)
    subprocess.run(["javac", "--release", "17", "-d", tmp_path, tmp_path / "OurDriver.java"], check=True)
    with zipfile.ZipFile(tmp_path / "ours.jar", "w") as jar:
        jar.write(tmp_path / "test" / "OurDriver.class", "test/OurDriver.class")
    topic, checkpoint = here.create_topic(), tmp_path / "checkpoint"
    send(here, topic, range(5))
    ours = {
        "url": url.replace("jdbc:derby:", "jdbc:ours:"),
        "table": "numbers",
        "driver": "test.OurDriver",
        "jars": (str(tmp_path / "ours.jar"),),
        "user": "kafka",
    }
    wrong = PipelineSink("jdbc", **ours, password="open")
    with pytest.raises(PipelineFailed, match="wrong account"):
        run(settings(topic, wrong), here.clusters, session=spark)
    right = settings(topic, PipelineSink("jdbc", **ours, password="sesame"), checkpoint)
    run_stream(right, here.clusters, once=True, session=spark)
    assert numbers(spark, url) == list(range(5))


NOWHERE = "sink.driver: there is no JDBC driver for jdbc:nothing:x; expected its class here, and its files as sink.jars"
NO_CLASS = "sink.driver: there is no class no.Driver; expected that of a JDBC driver, with its files as sink.jars"


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ({}, NOWHERE),
        ({"driver": "no.Driver"}, NO_CLASS),
        (
            {"driver": "no.Driver", "jars": ("/nowhere/driver.jar",)},
            "sink.jars: /nowhere/driver.jar: there is no such file",
        ),
    ],
)
def test_without_a_driver_nothing_begins(spark: SparkSession, here: Servers, driver: dict[str, Any], said: str) -> None:
    pipeline = settings(here.create_topic(), PipelineSink("jdbc", url="jdbc:nothing:x", table="t", **driver))
    for work in (check, run):
        with pytest.raises(PipelineFailed) as caught:
            work(pipeline, here.clusters, session=spark)
        assert str(caught.value) == f"pipeline p: {said}"
