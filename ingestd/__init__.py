"""ingestd: a multiprocess, high-throughput ingestion daemon for Apache Kafka."""

import contextlib
import importlib
import sys

__version__ = "0.1.0"

if "hypothesis" not in sys.modules:
    # kio imports hypothesis, for its own tests, wherever that is installed: 0.1 CPU seconds and 13 MB for every process
    # of ours in a development environment, and thus in every benchmark. None there makes its attempt an ImportError.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    with contextlib.suppress(ImportError):
        importlib.import_module("kio.static._phantom")
    del sys.modules["hypothesis"]
