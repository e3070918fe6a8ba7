"""Spark: the PySpark data source and the pipelines that run on it."""
