"""Spark: the PySpark data source `ingestd`, and the pipelines that run on it.

    options.py    text to `ReadOptions`; refuses what it does not know
    planning.py   on the driver: offsets to `OffsetRange`s, one for each task
    source.py     in Spark's Python workers: `BatchReader.read`, a `SyncConsumer` for each range
    arrow.py      fetched batches to pyarrow record batches of 10,000 rows, on the columns' own buffers
    pipeline.py   `run`: a configured pipeline, once; committed records only

Arrow's types must be exactly those of `arrow_schema`: a test compares them with what Spark makes of the schema. A
record without headers has null headers, as with Spark's Kafka connector. The view `source` of a pipeline has headers.
"""

from ingestd.spark.source import IngestdDataSource, register

__all__ = ["IngestdDataSource", "register"]
