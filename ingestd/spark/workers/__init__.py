"""Workers of the daemon as tasks of Spark, for `ingestd run --engine spark`. Start in `engine.py`."""
