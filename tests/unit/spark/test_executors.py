"""What is sent to executors says what their Python lacks."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle
from pyspark.accumulators import Accumulator, _accumulatorRegistry
from pyspark.sql.types import StructType

from ingestd import __version__
from ingestd.records import loops
from ingestd.spark import executors
from ingestd.spark.read_options import batch_options, stream_options
from ingestd.spark.source import BatchReader, BatchWriter, IngestdDataSource, StreamReader, StreamWriter
from ingestd.spark.write_options import write_options

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "t"}
SINK = {"kafka.bootstrap.servers": "127.0.0.1:9"}
WITHOUT = """
import pickle, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "{0}":
            raise ModuleNotFoundError("No module named '{0}'", name="{0}")
sys.meta_path.insert(0, Missing())
sent = pickle.loads(sys.stdin.buffer.read())
"""
SENT = [
    BatchReader(batch_options(OPTIONS)),
    StreamReader(stream_options(OPTIONS)),
    BatchWriter(write_options(SINK)),
    StreamWriter(write_options(SINK)),
]


def elsewhere(sent: object, then: str = "", *, before: str = "", without: str = "ingestd") -> str:
    """What an interpreter without a module says of its end that is sent this object, and does something with it."""
    ended = subprocess.run(
        [sys.executable, "-c", f"{before}\n{WITHOUT.format(without)}{then}"],
        input=cloudpickle.dumps(sent),
        capture_output=True,
        timeout=60,
        check=False,
    )
    return ended.stderr.decode()


@pytest.fixture
def slow() -> Iterator[executors.Slow]:
    """As a driver has it."""
    gathered = Accumulator(-77, frozenset(), executors._Logged())
    yield gathered
    del _accumulatorRegistry[-77]


@pytest.mark.parametrize("sent", SENT, ids=lambda each: type(each).__name__)
def test_an_interpreter_without_ingestd_is_named(sent: object) -> None:
    said = elsewhere(sent)
    assert f"ingestd.spark.executors.NotInstalled: {sys.executable} on " in said
    assert f"has no ingestd; expected PYSPARK_PYTHON to name an interpreter that has ingestd {__version__}, on" in said


@pytest.mark.parametrize("sent", [*SENT, executors.sent_source(None)], ids=lambda each: type(each).__name__)
def test_another_version_is_named(sent: object) -> None:
    said = elsewhere(sent, "sent(options={}).schema()", before="import ingestd\ningestd.__version__ = '0.0.7'")
    assert f"NotInstalled: {sys.executable} on " in said
    assert f"has ingestd 0.0.7, and the driver {__version__}; expected PYSPARK_PYTHON" in said


def test_a_module_that_ingestd_needs_is_named() -> None:
    assert "has no lz4, which ingestd needs; expected" in elsewhere(SENT[0], without="lz4")


def test_the_driver_is_told_too_when_it_plans_with_such_an_interpreter() -> None:
    source = executors.sent_source(None)
    assert elsewhere(source) == ""
    assert "has no ingestd; expected PYSPARK_PYTHON" in elsewhere(source, "sent(options={}).schema()")


@pytest.mark.parametrize("sent", SENT, ids=lambda each: type(each).__name__)
def test_what_is_sent_is_the_same_there(sent: BatchReader) -> None:
    there = pickle.loads(cloudpickle.dumps(sent))
    assert type(there) is type(sent)
    assert there._options == sent._options


def test_what_is_registered_is_the_data_source() -> None:
    sent, own = executors.sent_source(None)(OPTIONS), IngestdDataSource(OPTIONS)
    schema = own.schema()
    assert isinstance(schema, StructType)
    assert (sent.name(), sent.schema()) == (own.name(), schema)
    assert isinstance(sent.reader(schema), BatchReader)
    assert isinstance(sent.streamReader(schema), StreamReader)
    sent, rows = executors.sent_source(None)(SINK), StructType().add("value", "binary").add("topic", "string")
    for made, kind in ((sent.writer(rows, False), BatchWriter), (sent.streamWriter(rows, False), StreamWriter)):
        assert isinstance(made, kind)


def test_the_driver_says_once_which_interpreter_has_no_compiled_loops(
    slow: executors.Slow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = cloudpickle.dumps(BatchReader(batch_options(OPTIONS), slow))
    pickle.loads(reader)
    assert slow.value == frozenset()
    monkeypatch.setattr(loops, "COMPILED", False)
    with caplog.at_level(logging.WARNING):
        pickle.loads(reader)
        pickle.loads(reader)
    (said,) = caplog.messages
    assert f"{loops.__file__} of {sys.executable} on " in said
    assert "install ingestd there with a C compiler" in said


def test_executors_log_nothing_of_it(slow: executors.Slow, caplog: pytest.LogCaptureFixture) -> None:
    sent = pickle.loads(cloudpickle.dumps(executors._Logged()))
    assert sent.addInPlace(frozenset("a"), frozenset("b")) == frozenset("ab")
    assert caplog.messages == []


def test_what_spark_has_loaded_is_not_looked_through_while_ingestd_is_imported() -> None:
    """Looking through it for garbage, again and again, took longer than importing half of ingestd."""
    program = (
        "import gc, sys; from pyspark import cloudpickle; before = gc.get_freeze_count(); "
        "cloudpickle.loads(sys.stdin.buffer.read()); print(before, gc.get_freeze_count() > 10_000)"
    )
    sent = cloudpickle.dumps(BatchReader(batch_options(OPTIONS)))
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True)
    assert done.stdout.split() == [b"0", b"True"]
