"""One Spark session for all tests: a JVM takes seconds to start."""

from __future__ import annotations

import os
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from harness.jars import start_spark_sooner
from pyspark.sql import SparkSession

from ingestd.spark import register

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def _quick_starts() -> None:
    """Of JVMs that run Spark, in this process and in programs that tests start."""
    start_spark_sooner()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores that knows the source."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("ingestd tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))  # else in this directory
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")  # what goes wrong here is meant to, and is in the exceptions
    register(session)
    yield session
    session.stop()


@dataclass(frozen=True)
class Servers:
    """A cluster of either kind, and how topics are made on it."""

    servers: str

    @property
    def clusters(self) -> dict[str, dict[str, str]]:
        """It as the cluster `local` of a pipeline."""
        return {"local": {"kafka.bootstrap.servers": self.servers}}

    def create_topic(self, partitions: int = 1, **configs: str) -> str:
        """A new topic; `_` in config names stands for `.`."""
        name = f"spark-{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 2})
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(timeout=60)
        return name


@pytest.fixture(params=["kafka", "embedded"])
def either(request: pytest.FixtureRequest) -> Servers:
    """Real Kafka, then the embedded broker."""
    return Servers(request.getfixturevalue(request.param).servers)


@pytest.fixture
def here(request: pytest.FixtureRequest) -> Servers:
    """The embedded broker alone, for what does not depend on the kind of cluster."""
    return Servers(request.getfixturevalue("embedded").servers)


@pytest.fixture
def unchanged(spark: SparkSession) -> Iterator[None]:
    """A pipeline leaves the session of its caller as it was."""
    before = spark.conf.getAll, [table.name for table in spark.catalog.listTables()]
    yield
    assert (spark.conf.getAll, [table.name for table in spark.catalog.listTables()]) == before
    assert SparkSession.getActiveSession() is spark
    active = spark._jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().get()
    assert active.equals(spark._jsparkSession)
