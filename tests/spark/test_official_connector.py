"""Spark's own Kafka connector reads from the embedded broker and writes to it, in batches and as a stream."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from harness.jars import connector_pyspark, kafka_jars
from harness.mirrors import records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Servers

ROOT = Path(__file__).parents[2]
POM = ROOT / "load-tests" / "connector" / "pom.xml"
JOB = Path(__file__).with_name("connector_job.py")
PARTITIONS, SECONDS = 3, 60
pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]


class Connector:
    """A session of the PySpark that the connector is for."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors

    def hear(self) -> Any:
        """The next line. It has none when Spark has failed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._errors.read_text()
        return json.loads(line)

    def copy(self, **asked: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self.hear()


@pytest.fixture
def connector(tmp_path: Path) -> Iterator[Connector]:
    python, environment = connector_pyspark()
    jars = ",".join(str(jar) for jar in sorted(kafka_jars(POM).glob("*.jar")))
    errors = tmp_path / "errors"
    with (
        errors.open("w") as log,
        subprocess.Popen(
            [python, str(JOB), jars],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=tmp_path,
        ) as process,
    ):  # fmt: skip
        session = Connector(process, errors)
        try:
            assert session.hear() == {"ready": "4.0.0"}
            yield session
        finally:
            process.kill()


def write(servers: str, topic: str, first: int, last: int) -> None:
    """Committed records, and behind them as many that were aborted."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(SECONDS)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(first, last):
            key = None if number % 5 == 0 else b"key %d" % number
            value = None if number % 7 == 0 else b"value %d" % number
            producer.produce(topic, value, key, number % PARTITIONS, headers=[("number", b"%d" % number)])
        assert producer.flush(SECONDS) == 0
        end(SECONDS)


def contents(servers: str, topic: str) -> Counter[Any]:
    """Keys, values and headers of all committed records."""
    found = [one for partition in range(PARTITIONS) for one in records(servers, topic, partition)]
    return Counter((key, value, tuple(headers or ())) for key, value, headers, _timestamp in found)


def test_topics_are_copied_in_a_batch_and_by_a_stream_that_goes_on(
    here: Servers, connector: Connector, tmp_path: Path
) -> None:
    source, batch, stream = (here.create_topic(partitions=PARTITIONS) for _ in range(3))
    to_stream = {"from": source, "into": stream, "servers": here.servers, "checkpoint": str(tmp_path / "checkpoint")}
    write(here.servers, source, 0, 600)
    expected = contents(here.servers, source)
    assert expected.total() == 600
    connector.copy(**{"from": source, "into": batch, "servers": here.servers})
    assert contents(here.servers, batch) == expected
    assert connector.copy(**to_stream) == {"rows": 600}
    assert contents(here.servers, stream) == expected
    write(here.servers, source, 600, 900)
    assert connector.copy(**to_stream) == {"rows": 300}
    assert contents(here.servers, stream) == contents(here.servers, source)
    assert contents(here.servers, batch) == expected
