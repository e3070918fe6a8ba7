"""The librdkafka that confluent-kafka brings along, for what its Python side does not reach."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka
from confluent_kafka import cimpl  # noqa: F401 - loads it with what it needs

_DIRECTORY = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")

LIBRARY = ctypes.CDLL(str(next(_DIRECTORY.glob("librdkafka-*.so*"))))
