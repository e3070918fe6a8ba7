"""Files, wherever Hadoop reaches them: a checkpoint's, and those of a sink. Asked of Spark's JVM."""

from __future__ import annotations

import errno
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["Directory", "File", "literal"]

_MAGIC: Final = re.compile(r"[\\{}\[\]*?]")
_CHECKSUM: Final = re.compile(r"\..*\.crc")
"""A file that Hadoop keeps beside another one on local disks."""
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
"""What FAT, SMB and FUSE say."""


@dataclass(frozen=True, slots=True)
class File:
    """A file below a directory. `path` begins at the directory. `size` is in bytes."""

    path: str
    size: int


def literal(path: str) -> str:
    """A path for Spark's readers, which take it for a glob."""
    return _MAGIC.sub(r"\\\g<0>", path)


class Directory:
    """One directory. Paths begin there. Raises `Py4JError` where the file system refuses."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        hadoop = spark._jvm.org.apache.hadoop  # type: ignore[union-attr]  # noqa: SLF001 - Spark has no other way
        self._path = hadoop.fs.Path
        self._root = self._path(path)
        self._spark = spark
        self._configuration = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._system = self._root.getFileSystem(self._configuration)
        self._uri = self._system.makeQualified(self._root).toUri()
        self._qualified = str(self._uri.getPath()).rstrip("/") + "/"
        self._here = Path(self._qualified) if self._uri.getScheme() == "file" else None

    def exists(self, path: str = "") -> bool:
        """Whether there is a file or a directory."""
        return bool(self._system.exists(self._of(path)))

    def names(self, path: str = "") -> list[str]:
        """The names in a directory, in order; none if it is not there."""
        if not self.exists(path):
            return []
        if self._here is not None:
            # Hadoop lists names here, and then leaves out those that are gone. Who replaces a file by another one
            # meanwhile would have neither listed.
            found = [each.name for each in (self._here / path).iterdir()]
            return sorted(name for name in found if not _CHECKSUM.fullmatch(name))
        return sorted(str(each.getPath().getName()) for each in self._system.listStatus(self._of(path)))

    def files(self, path: str) -> Iterator[File]:
        """All files below a directory."""
        found = self._system.listFiles(self._of(path), True)  # noqa: FBT003 - Java's argument: recursive
        while found.hasNext():
            one = found.next()
            full = str(one.getPath().toUri().getPath())
            yield File(full.removeprefix(self._qualified), int(one.getLen()))

    def read(self, path: str) -> str:
        """The text of a file."""
        with_text = self._system.open(self._of(path))
        try:
            return bytes(with_text.readAllBytes()).decode()
        finally:
            with_text.close()

    def write(self, path: str, text: str) -> None:
        """A file with this text. One that is there already goes."""
        stream = self._system.create(self._of(path), True)  # noqa: FBT003 - Java's argument: overwrite
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def note(self, path: str, text: str) -> bool:
        """A file with this text, whole, unless one is there already. Returns whether it was written.

        Of two callers one writes it on local disks, and where the file system's rename that replaces nothing is atomic.
        """
        whole = f"{path}.{uuid.uuid4().hex}"
        self.write(whole, text)
        written = self._link(whole, path)
        if written is None:
            written = self._rename_to_new(whole, path)
        self.delete(whole)
        return written

    def move(self, source: str, target: str) -> None:
        """Rename a file, unless that was done before. Raises `OSError`; `FileNotFoundError` if neither is there."""
        if self.exists(target):
            return
        self._system.mkdirs(self._of(target).getParent())
        failure = None
        try:
            self._system.rename(self._of(source), self._of(target))
        except Py4JJavaError as error:
            failure = error
        if self.exists(target):  # renamed here, or meanwhile by another driver
            return
        if self.exists(source):
            raise OSError(f"{self.path}/{source} can not be renamed to {target}") from failure
        raise FileNotFoundError(f"{self.path}/{source} is gone, and was not renamed to {target}") from failure

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with all that is in it, if it is there."""
        self._system.delete(self._of(path), True)  # noqa: FBT003 - Java's argument: recursive

    def _link(self, source: str, target: str) -> bool | None:
        """On a local disk. None if it is none, or has no hard links.

        Hadoop's rename on local disks looks whether there is a file, and replaces one that came since.
        """
        if self._here is None:
            return None
        try:
            (self._here / target).hardlink_to(self._here / source)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return None
        return True

    def _rename_to_new(self, source: str, target: str) -> bool:
        hadoop = self._spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]  # noqa: SLF001
        context = hadoop.FileContext.getFileContext(self._uri, self._configuration)
        replacing_nothing = self._spark.sparkContext._gateway.new_array(hadoop.Options.Rename, 0)  # type: ignore[union-attr]  # noqa: SLF001
        try:
            context.rename(self._of(source), self._of(target), replacing_nothing)
        except Py4JJavaError:
            if not self.exists(target):
                raise
            return False
        return True

    def _of(self, path: str) -> Any:
        return self._path(self._root, path) if path else self._root
