"""Failures of pipelines: what Spark says, in one line that names the pipeline."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from ingestd.errors import IngestdError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PipelineFailed", "failing"]

_OUR_ERROR: Final = re.compile(r"^\s*ingestd\.[\w.]+: (?P<message>.+)$", re.MULTILINE)
"""The last line of a Python traceback that Spark brings along from its workers."""
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (?P<message>.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""What SQL's `raise_error` was given."""


class PipelineFailed(IngestdError):
    """Spark refused or gave up the pipeline's query; the message names the pipeline and the reason."""


@contextmanager
def failing(pipeline: str) -> Iterator[None]:
    """Whatever Spark or a cluster raises within becomes `PipelineFailed`."""
    try:
        yield
    except PipelineFailed:
        raise
    except (IngestdError, PySparkException, Py4JError) as error:
        raise PipelineFailed(f"pipeline {pipeline}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Our own error where Spark's holds one, else the first line of Spark's."""
    text = str(error).strip()
    found = _OUR_ERROR.findall(text) or _RAISED.findall(text)
    return found[-1].strip() if found else text.splitlines()[0] if text else type(error).__name__
