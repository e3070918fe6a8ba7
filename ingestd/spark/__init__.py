"""Spark: the PySpark data source `ingestd`, and the pipelines that run on it.

    source.py         what Spark calls; the other files do the work
    executors.py      what is sent to executors says what their Python lacks
    given.py          options by their proper names; refuses what it does not know
    cluster.py        addresses, TLS and account of a cluster, from options named as those of Java's client
    read_options.py   text to `BatchOptions` and `StreamOptions`
    planner.py        on the driver: ends of logs and offsets of groups, asked of a cluster
    planning.py       on the driver: offsets to `OffsetRange`s, and these to tasks
    stream.py         on the driver: where a micro-batch begins and ends
    commits.py        on the driver: tells a group how far a stream is
    reading.py        in Spark's Python workers: a task's ranges to rows
    arrow.py          fetched batches to pyarrow record batches of 20,000 rows, on the columns' own buffers
    raw.py            fetched batches as rows, one for each, with their bytes
    write_options.py  text to `WriteOptions`
    writing.py        in Spark's Python workers: rows to record batches of partitions; rows.py has their columns
    passing.py        the same for rows that are record batches
    outflow.py        sends these batches; one for a task, kept for the next one (kept.py)
    transactions.py   the same, exactly once
    pipelines         configured pipelines, with a page of their own

Arrow's types must be exactly those of `arrow_schema`: a test compares them with what Spark makes of the schema. A
record without headers has null headers, as with Spark's Kafka connector.
"""

from ingestd.spark.source import IngestdDataSource, register

__all__ = ["IngestdDataSource", "register"]
