"""Text files as the source of a pipeline: which there are, and their lines as rows, by Spark's own reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql

from ingestd.errors import ConfigurationError
from ingestd.spark.pipelines.files import literal
from ingestd.tail.rotation import codec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TextFile", "find_files", "line_rows"]

_LOCAL: Final = "file:"
_UNREAD: Final = ("xz", "lz4")
"""Spark takes .xz for text that is not compressed. Its reader of .lz4 knows another format, and ends the JVM."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file. `path` has its scheme, as in `file:/var/log/app.log`; `size` is in bytes, as it is on the disk."""

    path: str
    size: int

    @property
    def local_path(self) -> str | None:
        """The path of a file that is in the local file system; None for any other."""
        return self.path.removeprefix(_LOCAL) if self.path.startswith(_LOCAL) else None


def find_files(spark: SparkSession, globs: Sequence[str]) -> tuple[TextFile, ...]:
    """The files that paths and globs match now, each once, by path. Asked on the driver.

    Raises `ConfigurationError` for a glob that matches no file.
    """
    hadoop = spark._jvm.org.apache.hadoop  # type: ignore[union-attr]  # noqa: SLF001 - Spark has no other way, here and below
    configuration = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    found: dict[str, TextFile] = {}
    for glob in globs:
        path = hadoop.fs.Path(glob)
        matched = path.getFileSystem(configuration).globStatus(path) or ()
        files = [TextFile(str(one.getPath().toString()), int(one.getLen())) for one in matched if one.isFile()]
        if not files:
            raise ConfigurationError(f"source.files: {glob}: there is no such file; of a directory, expected DIR/*")
        found |= {file.path: file for file in files}
    return tuple(found[path] for path in sorted(found))


def line_rows(spark: SparkSession, files: Sequence[TextFile]) -> DataFrame:
    """A row for each line: its bytes, without the newline, and the URI of its file. Nothing is read yet.

    A large file that is not compressed is read by several tasks. Raises `ConfigurationError` for what Spark's reader
    does not read, or not rightly.
    """
    for file in files:
        name = file.path.rpartition("/")[2]
        if codec_of(name) in _UNREAD:
            raise ConfigurationError(
                f"source.files: {file.path}: expected text, .gz, .bz2 or .zst. .xz and .lz4 are for a pipeline into a "
                "topic without steps and dead_letters"
            )
        if name.startswith(("_", ".")):
            raise ConfigurationError(f"source.files: {file.path}: Spark reads no file whose name begins with _ or .")
    # Spark takes paths for globs again. A newline alone ends a line, as in a tail.
    paths = [literal(file.path) for file in files]
    rows = spark.read.option("lineSep", "\n").text(paths)
    return rows.select(sql.col("value").cast("binary"), sql.col("_metadata.file_path").alias("file"))
