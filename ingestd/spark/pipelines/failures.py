"""Failures of pipelines: what Spark says, in one line that names the pipeline."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from ingestd.errors import IngestdError
from ingestd.spark.planning import NO_TOPIC, READS_THE_REST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.daemon.pipelines import PipelineSettings

__all__ = ["PipelineFailed", "failing", "reason_of"]

_OUR_ERROR: Final = re.compile(r"^\s*ingestd\.[\w.]+: (?P<message>.+)$", re.MULTILINE)
"""The last line of a Python traceback that Spark brings along from its workers."""
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (?P<message>.+?)(?: SQLSTATE: \w+)*$", re.MULTILINE)
"""What SQL's `raise_error` was given."""
_TRACEBACK: Final = "Traceback (most recent call last):"
_IN_PYTHON: Final = re.compile(r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception): .+)$", re.MULTILINE)
"""The last line of any Python traceback."""
_CALL: Final = re.compile(r"py4j\.protocol\.Py4JJavaError: ")
"""Such a line says which call of Java it was. The next one has Java's exception."""
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '[^']+'|.*Cannot run program .*")
"""What an interpreter of an executor lacks; or there is none of its name."""
_REMEDIES: Final = {
    "[JAVA_GATEWAY_EXITED]": "It may have said why above; expected Java 17 where JAVA_HOME says, or else on the PATH",
    "[TABLE_OR_VIEW_NOT_FOUND]": "A step finds the rows before it in the view source",
    "Cannot call methods on a stopped SparkContext": "It may have said why above",
    "streaming aggregations without watermark": "In a stream, a step window counts by time",
    "Python worker failed to connect back": (
        "Spark waits ten seconds for a new Python process: the machine is overloaded; run it again"
    ),
}
"""What Spark says, and what a user can do."""
_OTHER_RUN: Final = re.compile(r"\[CONCURRENT_STREAM_LOG_UPDATE\].*? detected for (?P<batch>\d+)")
"""Of two drivers on one checkpoint, one found a micro-batch in Spark's log that it was about to note there."""
_IS_THERE: Final = re.compile(r"\[PATH_ALREADY_EXISTS\] Path (?P<path>.+?) already exists\. .*")
"""Spark's advice is to overwrite what is there."""
_NO_TOPIC: Final = re.compile(rf"UNKNOWN_TOPIC_OR_PARTITION \(3\): {NO_TOPIC}(?P<names>.+)")
"""Topics of the source that do not exist."""
_JAVA: Final = re.compile(r"^: (?:[\w.$]+: )?(?P<message>.+)$", re.MULTILINE)
"""An exception of Java, without its class."""
_CAUSE: Final = re.compile(r"^Caused by: (?!py4j\.)(?P<error>(?:[\w.$]+: )*(?P<message>.+))$", re.MULTILINE)
"""What another exception of Java came from. The deepest one stands last."""
_BEGINS_ELSEWHERE: Final = "--from begins at records that are there; a stream needs a new --checkpoint for it"
"""What a pipeline has in place of an option of the data source."""


class PipelineFailed(IngestdError):
    """Spark refused or gave up the pipeline's query; the message names the pipeline and the reason."""


@contextmanager
def failing(pipeline: PipelineSettings) -> Iterator[None]:
    """Whatever Spark or a cluster raises within becomes `PipelineFailed`."""
    try:
        yield
    except PipelineFailed:
        raise
    except (IngestdError, PySparkException, Py4JError) as error:
        raise PipelineFailed(f"pipeline {pipeline.name}: {_of_source(pipeline, reason_of(error))}") from error


def _of_source(pipeline: PipelineSettings, reason: str) -> str:
    """What to do about a missing topic; other reasons as they are."""
    missing = _NO_TOPIC.fullmatch(reason)
    if missing is None:
        return reason
    names, cluster = missing["names"].split(", "), pipeline.source_cluster
    remedy = f"make it with: ingestd topics create {names[0]} -c FILE --cluster {cluster}"
    return f"source.topics: there is no topic {' or '.join(names)} on cluster {cluster}; {remedy}"


def reason_of(error: Exception) -> str:
    """Our own error where Spark's holds one, else the end of a Python traceback, else the first line of Spark's.

    The last one with the deepest cause, which says what failed: a disk, a database.
    """
    text = str(error).strip()
    found = _OUR_ERROR.findall(text) or _RAISED.findall(text)
    if found:
        return str(found[-1]).strip().replace(READS_THE_REST, _BEGINS_ELSEWHERE)
    if _TRACEBACK in text:
        found = _IN_PYTHON.findall(text)
        if found and not _CALL.match(found[-1]):
            return _with_remedy(str(found[-1]))
        found = _JAVA.findall(text)
    elif isinstance(error, Py4JJavaError):
        # The first line says which call it was, the second one has Java's exception.
        found = _JAVA.findall(text)
    reason = found[-1] if found else text.splitlines()[0] if text else type(error).__name__
    told = _with_remedy(reason)
    return told if told != reason else reason + _cause(error, reason)


def _cause(error: Exception, reason: str) -> str:
    """The deepest cause, unless the reason says it."""
    trace = str(error)
    trace = trace[trace.find(reason) :]
    if _TRACEBACK not in str(error):
        trace += f"\n{getattr(error, '_stackTrace', None)}"  # where PySpark keeps what its message leaves out
    causes = list(_CAUSE.finditer(trace))
    return "" if not causes or causes[-1]["message"] in reason else f" Cause: {causes[-1]['error']}"


def _with_remedy(reason: str) -> str:
    for said, remedy in _REMEDIES.items():
        if said in reason:
            return f"{reason} {remedy}"
    other = _OTHER_RUN.search(reason)
    if other is not None:
        written = f"another run of this query has written micro-batch {other['batch']} to the checkpoint"
        return f"{written}; expected one run at a time on a checkpoint"
    there = _IS_THERE.fullmatch(reason)
    if there is not None:
        found = f"sink.path: {there['path']} already exists, perhaps of a run that was killed"
        return f"{found}; expected none, or a sink.mode"
    if _MISSING.fullmatch(reason) is None:
        return reason
    return f"{reason}, for {os.environ.get('PYSPARK_PYTHON')} where Spark runs it (OPERATIONS.md, Spark on a cluster)"
