"""Spark: the PySpark data source and the pipelines that run on it."""

from ingestd.spark.source import IngestdDataSource, register

__all__ = ["IngestdDataSource", "register"]
