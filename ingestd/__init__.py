"""ingestd: a multiprocess, high-throughput ingestion daemon for Apache Kafka."""

import contextlib
import importlib

from ingestd.imports import without

__version__ = "0.1.0"

# kio imports hypothesis, for its own tests, wherever that is installed: 0.1 CPU seconds and 13 MB for every process of
# ours in a development environment, and thus in every benchmark.
with without("hypothesis"), contextlib.suppress(ImportError):
    importlib.import_module("kio.static._phantom")
