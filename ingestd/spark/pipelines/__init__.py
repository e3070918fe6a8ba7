"""Pipelines: `[pipelines.NAME]` of a configuration, run on Spark. The room's README has the files."""
