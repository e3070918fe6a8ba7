"""The source and the sink where Spark talks to its Python processes over Unix domain sockets, as it may be set to."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Servers

pytestmark = pytest.mark.timeout(300)

RECORDS = 3_000
COPY = """
import sys
from pyspark.sql import SparkSession
from ingestd.spark import register
servers, topic, target, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
register(spark)
cluster = {"kafka.bootstrap.servers": servers}
rows = spark.readStream.format("ingestd").options(**cluster, subscribe=topic, startingOffsets="earliest").load()
writer = rows.select("key", "value").writeStream.format("ingestd").options(**cluster, topic=target)
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
copied = spark.read.format("ingestd").options(**cluster, subscribe=target).load()
print("copied", *copied.selectExpr("count(*)", "count(DISTINCT value)").first())
spark.stop()
"""


def test_a_topic_is_copied_and_read_over_unix_domain_sockets(here: Servers, tmp_path: Path) -> None:
    topic, target = here.create_topic(partitions=2), here.create_topic(partitions=2)
    sender = Producer({"bootstrap.servers": here.servers, "log_level": 2})
    for number in range(RECORDS):
        sender.produce(topic, b"%d" % number, partition=number % 2)
    assert sender.flush(60) == 0
    run = subprocess.run(
        [sys.executable, "-c", COPY, here.servers, topic, target, str(tmp_path / "checkpoint")],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert f"copied {RECORDS} {RECORDS}\n" in run.stdout
