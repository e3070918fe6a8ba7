"""Checkpoints: what a stream's directory says of it, as Spark keeps it there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ingestd.daemon.pipelines import same_directory
from ingestd.errors import ConfigurationError
from ingestd.spark.pipelines.files import Directory
from ingestd.spark.stream import StreamEnd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ingestd.daemon.pipelines import PipelineSettings

__all__ = ["begun_batch", "claim", "has_begun", "has_begun_here", "last_end"]

_LOCAL: Final = re.compile(r"(?:file:(?://)?)?(?P<path>/.*)|(?P<relative>[^:]*)")
"""A path of this machine as Hadoop writes it. Without a scheme it may be one of another file system."""


_OWNER: Final = "ingestd.json"
"""Says whose a checkpoint is. Spark has no file of that name."""


def has_begun_here(checkpoint: str) -> bool:
    """Whether a stream has begun on this checkpoint, as far as can be known without Spark: on this machine alone."""
    local = _LOCAL.fullmatch(checkpoint)
    if local is None:
        return False
    offsets = Path(local["path"] or local["relative"], "offsets")
    return offsets.is_dir() and any(file.name.isdecimal() for file in offsets.iterdir())


def has_begun(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a stream has begun on this checkpoint."""
    return bool(_batches(Directory(spark, checkpoint), "offsets"))


def claim(spark: SparkSession, pipeline: PipelineSettings) -> None:
    """Note in a checkpoint whose it is. One in which nobody has begun, or that has no note, is taken over.

    Raises `ConfigurationError` for one of another pipeline, or of another sink.
    """
    assert pipeline.checkpoint is not None, "the pipeline is a stream"
    directory = Directory(spark, pipeline.checkpoint)
    place = pipeline.sink.place if pipeline.sink.path is None else same_directory(pipeline.sink.path)
    own = json.dumps({"pipeline": pipeline.name, "sink": place})
    noted = directory.read(_OWNER) if directory.exists(_OWNER) else None
    if noted not in (None, own) and has_begun(spark, pipeline.checkpoint):
        raise ConfigurationError(
            f"checkpoint {pipeline.checkpoint}: it is of {noted}, and this is {own}, which would miss what that one "
            f"has read; expected a checkpoint of its own, or, if only a name was changed, no {_OWNER} in that directory"
        )
    if noted != own:
        directory.write(_OWNER, own)


def begun_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """The number of the micro-batch that has begun and is not done. None: there is none."""
    directory = Directory(spark, checkpoint)
    begun = max(_batches(directory, "offsets"), default=None)
    return None if begun in _batches(directory, "commits") else begun


def last_end(spark: SparkSession, checkpoint: str) -> StreamEnd | None:
    """Where the last micro-batch ended that is done. None: there is none yet."""
    directory = Directory(spark, checkpoint)
    done = _batches(directory, "commits")
    if not done:
        return None
    # The first line is the format's version, the second one is of the batch; a source a line follows.
    offset = directory.read(f"offsets/{max(done)}").splitlines()[2]
    return StreamEnd.from_json(json.loads(offset))


def _batches(directory: Directory, kind: str) -> list[int]:
    return [int(name) for name in directory.names(kind) if name.isdecimal()]
