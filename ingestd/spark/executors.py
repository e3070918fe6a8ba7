"""Executors: what is sent to Spark's Python workers finds out there whether ingestd is installed, and compiled.

Of an interpreter that has no ingestd, Spark says neither which one it is nor what to do. So this module is sent by
value: it runs where ingestd is not installed, and there imports nothing of it before it has looked.
"""

from __future__ import annotations

import gc
import importlib
import logging
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle
from pyspark.accumulators import AccumulatorParam
from pyspark.sql.datasource import DataSource

from ingestd import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    Slow = Accumulator[frozenset[str]]

__all__ = ["NotInstalled", "packed", "sent_source", "slow_executors", "slow_interpreter", "warn_of_slow"]

_log = logging.getLogger(__name__)
_EXPECTED: Final = (
    "expected PYSPARK_PYTHON to name an interpreter that has ingestd {version}, on the driver and on every executor "
    "(OPERATIONS.md, Spark on a cluster)"
)
_SENT: Final = __version__
"""The driver's version, also on an executor: it comes along with this module."""


class NotInstalled(Exception):
    """An interpreter that Spark runs has no ingestd, or another version, or lacks what that needs."""


def packed(slow: Slow | None, make: Callable[..., object], *arguments: object) -> tuple[Any, ...]:
    """What `__reduce__` returns of an object that `make` makes of these arguments, on an executor.

    Unpickling raises `NotInstalled`, and adds an interpreter whose ingestd is not compiled to `slow`.
    """
    return _unpacked, (cloudpickle.dumps((make, arguments)), slow)  # type: ignore[no-untyped-call]


def sent_source(slow: Slow | None) -> type[DataSource]:
    """The data source `ingestd`, as a class that is sent by value."""

    class SentSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ingestd"

        def schema(self) -> StructType | str:
            return self._own().schema()

        def reader(self, schema: StructType) -> DataSourceReader:
            return self._own().reader(schema)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            return self._own().streamReader(schema)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's argument
            return self._own().writer(schema, overwrite)  # type: ignore[return-value]

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802, FBT001
            return self._own().streamWriter(schema, overwrite)  # type: ignore[return-value]

        def _own(self) -> DataSource:
            _require_same_version()
            own: DataSource = _found("ingestd.spark.source").IngestdDataSource(self.options)
            own.slow = slow  # type: ignore[attr-defined]
            return own

    return SentSource


def slow_executors(spark: SparkSession) -> Slow | None:
    """Gathers the interpreters whose ingestd is not compiled, and logs each of them when its first task has ended.

    None: the session is Spark Connect's, which has no way for that.
    """
    context = getattr(spark, "sparkContext", None)
    return None if context is None else context.accumulator(frozenset(), _Logged())


def slow_interpreter() -> str:
    """This interpreter and where its ingestd is, if that is not compiled; empty if it is."""
    loops = _found("ingestd.records.loops")
    return "" if loops.COMPILED else f"{loops.__file__} of {_interpreter()}"


def warn_of_slow(interpreter: str) -> None:
    """Log on the driver what `slow_interpreter` said on an executor."""
    _log.warning(
        "an executor works in plain Python, several times slower: %s has no compiled loops; install ingestd there "
        "with a C compiler at hand, and have no source checkout on its path",
        interpreter,
    )


class _Union(AccumulatorParam[frozenset[str]]):
    def zero(self, value: frozenset[str]) -> frozenset[str]:  # noqa: ARG002 - as Spark calls it
        return frozenset()

    def addInPlace(self, value1: frozenset[str], value2: frozenset[str]) -> frozenset[str]:  # noqa: N802 - Spark's name
        return value1 | value2


class _Logged(_Union):
    """On the driver, which hears of each task that has ended. What is sent to executors logs nothing."""

    def addInPlace(self, value1: frozenset[str], value2: frozenset[str]) -> frozenset[str]:  # noqa: N802
        for each in sorted(value2 - value1):
            warn_of_slow(each)
        return super().addInPlace(value1, value2)

    def __reduce__(self) -> tuple[type[_Union], tuple[()]]:
        return _Union, ()


def _unpacked(content: bytes, slow: Slow | None) -> object:
    _require_same_version()
    if slow is not None and (interpreter := slow_interpreter()):
        slow.add(frozenset([interpreter]))
    for module in ("ingestd.records.codecs", "ingestd.spark.source"):  # all that needs what has to be installed
        _found(module)
    make, arguments = cloudpickle.loads(content)
    return make(*arguments)


def _require_same_version() -> None:
    there = _found("ingestd").__version__
    if there != _SENT:
        expected = _EXPECTED.format(version=_SENT)
        raise NotInstalled(f"{_interpreter()} has ingestd {there}, and the driver {_SENT}; {expected}")


def _found(module: str) -> ModuleType:
    if module not in sys.modules:
        # Importing it makes many objects, and so Python looks for garbage: from now on not through all of Spark's. That
        # was a third of the time.
        gc.freeze()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        lacking = str(error.name) if error.name == "ingestd" else f"{error.name}, which ingestd needs"
        raise NotInstalled(f"{_interpreter()} has no {lacking}; {_EXPECTED.format(version=_SENT)}") from error


def _interpreter() -> str:
    return f"{sys.executable} on {socket.gethostname()}"


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
