"""What a person reads of a pipeline that failed, of all that Spark says."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from ingestd.daemon.pipelines import PipelineSettings, PipelineSink, PipelineSource
from ingestd.spark.pipelines.failures import PipelineFailed, failing
from ingestd.spark.planning import NO_TOPIC, READS_THE_REST

PIPELINE = PipelineSettings("p", PipelineSource("main", ("a", "b")), PipelineSink("console"))
MAKE_IT = "make it with: ingestd topics create a -c FILE --cluster main"
MISSING, PAGE = "ModuleNotFoundError: No module named", "(OPERATIONS.md, Spark on a cluster)"
NO_PROGRAM = 'Job aborted: java.io.IOException: Cannot run program "its": error=2, No such file or directory'
NO_JAVA = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
NO_VIEW = "[TABLE_OR_VIEW_NOT_FOUND] The table or view `orders` cannot be found. Verify the spelling."
CALL = "py4j.protocol.Py4JJavaError: An error occurred while calling o1.parquet."
NO_ROOM = ": java.io.IOException: No space left on device\n\tat java.base/java.io.FileOutputStream.writeBytes"
FAILED = "[TASK_WRITE_FAILED] Task failed while writing rows to file:/out. SQLSTATE: 58030"
NOT_WRITTEN = f"""\
: org.apache.spark.SparkException: {FAILED}
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\tat org.apache.hadoop.fs.RawLocalFileSystem
\tSuppressed: org.apache.hadoop.fs.FSError: java.io.IOException: it is closed
\tCaused by: java.io.IOException: it is closed
Caused {NO_ROOM.replace(": ", "by: ", 1)}"""
NO_ANSWER = "Job aborted: org.apache.spark.SparkException: Python worker failed to connect back."
ONE_RUN = "expected one run at a time on a checkpoint"
TWO = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [CONCURRENT_STREAM_LOG_UPDATE] Concurrent"
IN_A_BATCH = """[STREAM_FAILED] Query terminated. Message: Traceback (most recent call last):
  File "parquet.py", line 50, in __call__
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "serializers.py", line 483, in loads
{error}

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("[SOME_CLASS] it can not be\nmore", "[SOME_CLASS] it can not be"),
        ("[STREAM_FAILED] exception: [USER_RAISED_EXCEPTION] no SQLSTATE: P0001 SQLSTATE: XXKST", "no"),
        (IN_A_BATCH.format(error="ValueError: seven"), "ValueError: seven"),
        (IN_A_BATCH.format(error="ingestd.spark.executors.NotInstalled: none there"), "none there"),
        (
            IN_A_BATCH.format(error=f"ingestd.spark.planning.DataLoss: they were deleted ({READS_THE_REST})"),
            "they were deleted (--from begins at records that are there; a stream needs a new --checkpoint for it)",
        ),
        (
            IN_A_BATCH.format(error=f"ingestd.errors.KafkaError: UNKNOWN_TOPIC_OR_PARTITION (3): {NO_TOPIC}a, b"),
            f"source.topics: there is no topic a or b on cluster main; {MAKE_IT}",
        ),
        (IN_A_BATCH.format(error=f"{MISSING} 'a'"), f"{MISSING} 'a', for ./its/python where Spark runs it {PAGE}"),
        (
            f"{NO_ANSWER}\n\tat java.lang",
            f"{NO_ANSWER} Spark waits ten seconds for a new Python process: the machine is overloaded; run it again",
        ),
        (
            IN_A_BATCH.format(error=f"{CALL}\n{NO_ROOM}"),
            "No space left on device",
        ),
        (
            IN_A_BATCH.format(error=f"{CALL}\n{NOT_WRITTEN}"),
            f"{FAILED} Cause: java.io.IOException: No space left on device",
        ),
        ("[A] It failed: no table\n\tat java\nCaused by: java.sql.SQLException: no table", "[A] It failed: no table"),
        (
            f"{TWO} Multiple streaming jobs detected for 16. Please make sure only one streaming job runs on a",
            f"another run of this query has written micro-batch 16 to the checkpoint; {ONE_RUN}",
        ),
        (
            '[PATH_ALREADY_EXISTS] Path file:/data/out already exists. Set mode as "overwrite" to overwrite the',
            "sink.path: file:/data/out already exists, perhaps of a run that was killed; expected none, or a sink.mode",
        ),
        (NO_VIEW, f"{NO_VIEW} A step finds the rows before it in the view source"),
        (NO_JAVA, f"{NO_JAVA} It may have said why above; expected Java 17 where JAVA_HOME says, or else on the PATH"),
        (f"{NO_PROGRAM}\n\tat java.lang", f"{NO_PROGRAM}, for ./its/python where Spark runs it {PAGE}"),
    ],
)
def test_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch, said: str, reason: str) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./its/python")
    with pytest.raises(PipelineFailed) as caught, failing(PIPELINE):
        raise PySparkException(said)
    assert str(caught.value) == f"pipeline p: {reason}"
