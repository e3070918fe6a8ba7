"""The session of a pipeline: the interpreter that runs its tasks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from ingestd.errors import ConfigurationError
from ingestd.spark.pipelines.session import interpreter

if TYPE_CHECKING:
    from pathlib import Path


PYTHON = "spark.pyspark.python"


def test_the_setting_comes_before_the_environment_and_that_before_this_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert interpreter({}) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    assert interpreter({}) == "python3"
    assert interpreter({PYTHON: "python3.11"}) == "python3.11"


@pytest.mark.parametrize("python", ["./environment/bin/python", "python0.9"])
def test_one_that_is_not_where_the_driver_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=f"is {python}, which is no program here, in {tmp_path}; expected"):
        interpreter({PYTHON: python})
