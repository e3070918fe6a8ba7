"""Queries with Spark's own Kafka connector: a line of JSON on standard input asks for each, and one says it is done.

It runs under the PySpark that the connector is for, so it imports nothing of ingestd.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main() -> int:
    """The argument has the connector's jars, with commas between them."""
    builder = SparkSession.builder.master("local[2]").config("spark.jars", sys.argv[1])
    spark = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps({"ready": spark.version}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_copied(spark, json.loads(line))), flush=True)
    spark.stop()
    return 0


def _copied(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """Copy the records of one topic into another: those that are there, or, with a `checkpoint`, those that are new."""
    of_source = {"subscribe": asked["from"], "startingOffsets": "earliest", "includeHeaders": "true"}
    servers = {"kafka.bootstrap.servers": asked["servers"]}
    reader = spark.readStream if "checkpoint" in asked else spark.read
    options = of_source | servers | {"kafka.isolation.level": "read_committed"}
    rows = reader.format("kafka").options(**options).load().select("key", "value", "headers")
    into = servers | {"topic": asked["into"], "includeHeaders": "true"}
    if "checkpoint" not in asked:
        rows.write.format("kafka").options(**into).save()
        return {}
    writer = rows.writeStream.format("kafka").options(**into).option("checkpointLocation", asked["checkpoint"])
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return {"rows": sum(progress.numInputRows for progress in query.recentProgress)}


if __name__ == "__main__":
    sys.exit(main())
