"""ingestd: a multiprocess, high-throughput ingestion daemon for Apache Kafka, and the client that it is made of.

`from ingestd import Client, AsyncProducer, SyncProducer, Consumer, ConsumerGroup, ClusterAdmin`: whatever a user of the
client handles is imported from here: settings, values and errors too. Each name is imported when it is first asked for,
so that a process pays for what it uses. `__init__.pyi` lists them.
"""

import contextlib
import importlib
from pathlib import Path
from typing import Any, Final

from ingestd.imports import without

__version__ = "0.1.0"

_IMPORTS: Final = [line.split() for line in Path(__file__).with_name("__init__.pyi").read_text().splitlines()]
_HOME_OF: Final = {words[-1]: words[1] for words in _IMPORTS if words[:1] == ["from"]}

__all__ = [*_HOME_OF, "__version__"]  # noqa: PLE0604 - they are all strings


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ingestd' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})


# kio imports hypothesis, for its own tests, wherever that is installed: 0.1 CPU seconds and 13 MB for every process of
# ours in a development environment, and thus in every benchmark.
with without("hypothesis"), contextlib.suppress(ImportError):
    importlib.import_module("kio.static._phantom")
