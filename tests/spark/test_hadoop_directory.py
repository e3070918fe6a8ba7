"""Files of a sink's directory, through Hadoop."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from ingestd.spark.pipelines.files import Directory

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_a_file_is_moved_once_and_why_it_can_not_be_is_told_from_a_file_that_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = Directory(spark, str(tmp_path))
    (tmp_path / "staged").write_text("rows")
    directory.move("staged", "day=1/part")
    directory.move("staged", "day=1/part")
    assert (tmp_path / "day=1" / "part").read_text() == "rows"
    with pytest.raises(FileNotFoundError, match="staged is gone"):
        directory.move("staged", "elsewhere")
    with pytest.raises(OSError, match="day=1 can not be renamed to day=1/below") as failed:
        directory.move("day=1", "day=1/below")
    assert not isinstance(failed.value, FileNotFoundError)


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_note_is_written_once(
    spark: SparkSession, tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:

        def refused(*_: object) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refused)
    directory = Directory(spark, str(tmp_path))
    assert [directory.note("names", text) for text in ("first", "second")] == [True, False]
    assert directory.read("names") == "first"
    assert directory.names("") == ["names"]
