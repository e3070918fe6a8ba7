"""The verbs of `ingestd pipeline` say what a run did, and the files of a pipeline with their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ingestd.cli import pipeline
from ingestd.cli.main import main
from ingestd.spark.pipelines.batch import PipelineResult
from ingestd.spark.pipelines.checking import PipelineCheck, PipelinePlan
from ingestd.spark.pipelines.streaming import StreamResult
from ingestd.spark.pipelines.text_files import TextFile

if TYPE_CHECKING:
    from pathlib import Path

FILES = (TextFile("file:/var/log/app.log", 2_000), TextFile("file:/var/log/app.log.1.gz", 400))


@pytest.fixture
def configuration(tmp_path: Path) -> str:
    file = tmp_path / "ingestd.toml"
    file.write_text("[pipelines.p]\nsource = {files = ['/var/log/app.log*']}\nsink = {path = '/data'}\n")
    return str(file)


def test_check_says_how_many_files_and_bytes_there_are(
    configuration: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline, "check_configured", lambda *_: PipelineCheck((("value", "binary"),), FILES))
    assert main(["pipeline", "check", configuration, "p"]) == 0
    assert capsys.readouterr().out == "COLUMN  TYPE\nvalue   binary\n\nsource: 2 files, 2.4 kB\n"


def test_plan_says_each_file_and_its_bytes_after_sparks_plan_which_is_long(
    configuration: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline, "plan_configured", lambda *_: PipelinePlan((), FILES, "Scan text\n"))
    assert main(["pipeline", "plan", configuration, "p"]) == 0
    assert capsys.readouterr().out == (
        "Scan text\n\n"
        "FILE                        BYTES\n"
        "file:/var/log/app.log        2000\n"
        "file:/var/log/app.log.1.gz    400\n"
    )


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (StreamResult("p", 1, 1, 32.52), "p: 1 record read in 1 micro-batch, 32.5 s"),
        (StreamResult("p", 0, 0, 1.0), "p: 0 records read in 0 micro-batches, 1.0 s"),
        (StreamResult("p", 2, 1_888, 1.0, 145), "p: 1,888 records read in 2 micro-batches, 145 dead letters, 1.0 s"),
        (
            StreamResult("p", 1, 600, 1.0, 0, 10),
            "p: 600 records read in 1 micro-batch, at least 10 late rows dropped, 0 dead letters, 1.0 s",
        ),
        (PipelineResult("p", 1_743, "/o", 1.0, 1), "p: 1,743 rows written to /o and 1 dead letter in 1.0 s"),
        (PipelineResult("p", 2_000, "topic t", 1.0), "p: 2,000 rows written to topic t in 1.0 s"),
        (PipelineResult("p", None, "table t", 1.0), "p: to table t in 1.0 s"),
    ],
)
def test_run_says_in_one_line_what_it_did(
    configuration: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    result: PipelineResult | StreamResult,
    line: str,
) -> None:
    monkeypatch.setattr(pipeline, "run_configured", lambda *_: result)
    assert main(["pipeline", "run", configuration, "p"]) == 0
    assert capsys.readouterr().out == f"{line}\n"
