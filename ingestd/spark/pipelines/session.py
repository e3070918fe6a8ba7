"""Spark sessions of pipelines. A pipeline has a session of its own, so that it leaves no trace in its caller's."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from ingestd.errors import ConfigurationError, IngestdError
from ingestd.spark.pipelines.failures import reason_of
from ingestd.spark.source import register

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ingestd.daemon.pipelines import PipelineSettings

__all__ = [
    "ENDED",
    "LOG_LEVEL",
    "NO_ANSWER",
    "has_ended",
    "interpreter",
    "own_session",
    "start_session",
    "stop_session",
]

NO_ANSWER: Final = (OSError, Py4JNetworkError)
"""What a call of the JVM raises if that is gone."""
LOG_LEVEL: Final = "spark.log.level"
"""A pipeline that sets it gets all that Spark says."""
ENDED: Final = "Spark has ended; what it wrote to standard error says why"
_PARTITIONS: Final = "200"
"""Spark's default."""
_INTERPRETER: Final = "spark.pyspark.python"
_MASTER: Final = re.compile(r"local(\[[\d*, ]+\])?|local-cluster\[[\d, ]+\]|spark://.+:\d+|k8s://.+|yarn")
"""Of any other master Spark says a trace of Java."""
_PATIENCE: Final = 60.0
"""Seconds that an interpreter may take to start. It takes a part of one unless the machine is overloaded."""
_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    LOG_LEVEL: "ERROR",
}
_CTRL_C: Final = "KeyboardInterrupt while sending command."
"""What py4j logs, with a trace, before the exception goes on."""
_CONNECTIONS: Final = 3
"""To a JVM that answers, after Ctrl-C."""
_TRACES: Final = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.util.Utils",
)
"""Loggers that write the traces of a query that fails, each of them 30 lines and more. The error says it in one."""


@contextmanager
def own_session(pipeline: PipelineSettings, beside: SparkSession | None = None) -> Iterator[SparkSession]:
    """A session that knows the source, with views and settings of its own.

    beside: shares the context of this session, which is the active one again at the end. Without it, Spark is started
    on the pipeline's master, and stopped at the end.
    """
    if beside is None:
        started = start_session(f"ingestd pipeline {pipeline.name}", pipeline.master, pipeline.spark)
        if LOG_LEVEL not in pipeline.spark:
            _leave_out_traces(started)
        try:
            yield _prepared(started)
        except KeyboardInterrupt:
            if LOG_LEVEL not in pipeline.spark:
                _silence(started)  # a query is under way, and Spark is stopped beneath it
            raise
        except NO_ANSWER as error:
            if has_ended(started):
                raise IngestdError(ENDED) from error
            raise
        finally:
            stop_session(started)
        return
    before = SparkSession.getActiveSession() or beside
    try:
        own = beside.newSession()
        _activate(own)
        yield _prepared(own)
    finally:
        _activate(before)


def _leave_out_traces(spark: SparkSession) -> None:
    """On the driver alone. Executors on other hosts write theirs, in files of their own."""
    log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # noqa: SLF001 - Spark has no other way
    for name in _TRACES:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger("py4j.clientserver").disabled = True  # of a sink in Python
    logging.getLogger().addFilter(_is_no_ctrl_c)


def _silence(spark: SparkSession) -> None:
    """Have Spark say nothing more. py4j closes the connection that Ctrl-C interrupts, and at times the next one too."""
    for _ in range(_CONNECTIONS):
        with contextlib.suppress(*NO_ANSWER):
            spark.sparkContext.setLogLevel("OFF")
            return


def _is_no_ctrl_c(record: logging.LogRecord) -> bool:
    return record.msg != _CTRL_C


def _activate(spark: SparkSession) -> None:
    """Make it the active session of this thread: Spark looks there for data sources, whatever session is asked."""
    SparkSession._activeSession = spark  # noqa: SLF001 - Spark has no other way
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]  # noqa: SLF001


def _prepared(spark: SparkSession) -> SparkSession:
    if spark.conf.get("spark.sql.shuffle.partitions") == _PARTITIONS:
        # A stream opens a state store for each, in every micro-batch.
        spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    # What other programs, and Delta, expect of a time in a file.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    register(spark)
    return spark


def start_session(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    """A Spark of this process. Whoever starts it stops it, by `stop_session`. Raises `ConfigurationError`.

    settings: more settings of Spark.
    """
    if _MASTER.fullmatch(master) is None:
        expected = "local[N], local[*], spark://HOST:PORT, yarn or k8s://URL"
        raise ConfigurationError(f"Spark does not start with the master {master}; expected {expected}")
    # Spark would take whatever `python3` it finds, which need not have this package.
    os.environ["PYSPARK_PYTHON"] = interpreter(settings)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**_DEFAULTS, **settings}.items():
        builder = builder.config(key, value)
    before = signal.getsignal(signal.SIGINT)
    try:
        return builder.getOrCreate()
    except (ConnectionError, Py4JNetworkError) as error:
        raise ConfigurationError(f"Spark does not start with the master {master}: {ENDED}") from error
    except (PySparkException, Py4JError) as error:
        raise ConfigurationError(f"Spark does not start with the master {master}: {reason_of(error)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            # PySpark sets a handler that asks the JVM while it may be asked already, and fails.
            signal.signal(signal.SIGINT, before)


def stop_session(spark: SparkSession) -> None:
    """Stop a Spark that `start_session` started. Nothing happens if its JVM is gone: there is nothing to stop."""
    with contextlib.suppress(*NO_ANSWER):
        spark.stop()


def has_ended(spark: SparkSession) -> bool:
    """Whether Spark has ended by itself: its JVM is gone, or a cluster's master has ended the application."""
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())  # noqa: SLF001 - PySpark does not tell
    except NO_ANSWER:
        return True


def interpreter(settings: Mapping[str, str]) -> str:
    """The interpreter of the executors. Spark plans with it too, in this directory. Raises `ConfigurationError`."""
    python = settings.get(_INTERPRETER) or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if shutil.which(python) is None:
        raise ConfigurationError(
            f"{_INTERPRETER} (or PYSPARK_PYTHON) is {python}, which is no program here, in {Path.cwd()}; expected it "
            "where the driver runs too: unpack the environment there (OPERATIONS.md, Spark on a cluster)"
        )
    if python != sys.executable and (wrong := _why_no_interpreter(python)):
        raise ConfigurationError(
            f"{_INTERPRETER} (or PYSPARK_PYTHON) is {python}, which {wrong}; expected an interpreter with ingestd"
        )
    return python


def _why_no_interpreter(program: str) -> str | None:
    """Why the program is no interpreter; None: it is one. Of any other program Spark ends with an empty reason."""
    asked = [program, "-c", "print(6 * 7)"]
    try:
        answer = subprocess.run(  # noqa: S603 - what the user has Spark run
            asked, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_PATIENCE
        )
    except OSError as error:
        return f"can not be run ({error.strerror})"
    except subprocess.TimeoutExpired:
        return f"has printed nothing for {_PATIENCE:g} s"
    return None if answer.stdout.split() == [b"42"] else "is no Python"
