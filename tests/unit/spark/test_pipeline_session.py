"""The session of a pipeline: the interpreter that runs its tasks."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from ingestd.daemon.pipelines import PipelineSettings, PipelineSink, PipelineSource
from ingestd.errors import ConfigurationError, IngestdError
from ingestd.spark.pipelines import session
from ingestd.spark.pipelines.session import interpreter

if TYPE_CHECKING:
    from pathlib import Path


PYTHON = "spark.pyspark.python"


def test_the_setting_comes_before_the_environment_and_that_before_this_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = tmp_path / "another"
    link.symlink_to(sys.executable)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert interpreter({}) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    assert interpreter({}) == "python3"
    assert interpreter({PYTHON: str(link)}) == str(link)


@pytest.mark.parametrize("python", ["./environment/bin/python", "python0.9"])
def test_one_that_is_not_where_the_driver_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=f"is {python}, which is no program here, in {tmp_path}; expected"):
        interpreter({PYTHON: python})


@pytest.mark.parametrize("python", ["cat", "true", "echo"])
def test_a_program_that_is_no_python_is_refused(monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    """Spark ended with an empty reason."""
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    with pytest.raises(ConfigurationError, match=rf"PYSPARK_PYTHON\) is {python}, which is no Python; expected an"):
        interpreter({})


def test_a_spark_that_dies_while_it_starts_is_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where spark.local.dir can not be written. It was said to be `[Errno 111] Connection refused`."""

    def refuse() -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    builder = SimpleNamespace(getOrCreate=refuse)
    builder.master = builder.appName = builder.config = lambda *_: builder
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder))
    with pytest.raises(ConfigurationError, match=r"does not start with the master local: Spark has ended; what it"):
        session.start_session("p", "local", {})


@pytest.mark.parametrize("master", ["nonsense", "local[x]", "spark://localhost"])
def test_a_master_that_spark_does_not_know_is_refused_before_it_starts(master: str) -> None:
    """Spark's log had a trace of Java."""
    with pytest.raises(ConfigurationError) as caught:
        session.start_session("p", master, {})
    expected = "local[N], local[*], spark://HOST:PORT, yarn or k8s://URL"
    assert str(caught.value) == f"Spark does not start with the master {master}; expected {expected}"


@pytest.mark.parametrize(("ended", "raised"), [(True, IngestdError), (False, ConnectionRefusedError)])
def test_a_spark_that_dies_amid_a_pipeline_is_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, ended: bool, raised: type[Exception]
) -> None:
    """It was said to be `[Errno 111] Connection refused`. Who else refuses a connection is not taken for Spark."""
    stopped = []

    def refuse() -> bool:
        raise ConnectionRefusedError(111, "Connection refused")

    context = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=refuse if ended else lambda: False))
    spark = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=context), stop=lambda: stopped.append(refuse))
    monkeypatch.setattr(session, "start_session", lambda *_: spark)
    monkeypatch.setattr(session, "_prepared", lambda started: started)
    asked = {"spark.log.level": "ERROR"}
    pipeline = PipelineSettings("p", PipelineSource(files=("/a",)), PipelineSink("console"), spark=asked)
    with pytest.raises(raised, match="Spark has ended" if ended else "refused"), session.own_session(pipeline):
        refuse()
    assert stopped
