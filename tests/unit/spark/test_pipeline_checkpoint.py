"""What a checkpoint says before Spark has started."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from ingestd.daemon.pipelines import PipelineSettings, PipelineSink, PipelineSource
from ingestd.spark.pipelines import session
from ingestd.spark.pipelines.failures import PipelineFailed
from ingestd.spark.pipelines.streaming import run_stream


class SparkStartedError(Exception):
    """The test has no Spark."""


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> NoReturn:
        raise SparkStartedError

    monkeypatch.setattr(session, "start_session", start)


def replay(checkpoint: str) -> None:
    source, sink = PipelineSource("local", ("t",)), PipelineSink(path="/data")
    run_stream(PipelineSettings("p", source, sink, checkpoint=checkpoint), {"local": {}}, start="earliest")


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_a_replay_on_a_checkpoint_of_this_machine_is_refused_before_spark_starts(tmp_path: Path, form: str) -> None:
    checkpoint = form.format(tmp_path)
    Path(tmp_path, "offsets").mkdir()
    Path(tmp_path, "offsets", "0").touch()
    with pytest.raises(PipelineFailed) as caught:
        replay(checkpoint)
    assert str(caught.value) == (
        f"pipeline p: checkpoint {checkpoint}: a stream has begun there and goes on where it was; "
        "expected a new one to begin at earliest"
    )


@pytest.mark.parametrize("form", ["{}", "{}/not-there", "hdfs://node{}"])
def test_for_what_may_be_new_spark_is_asked(tmp_path: Path, form: str) -> None:
    Path(tmp_path, "offsets").mkdir()
    Path(tmp_path, "offsets", ".0.crc").touch()
    with pytest.raises(SparkStartedError):
        replay(form.format(tmp_path))
