"""`ingestd.testing`: the fixture `kafka` in a project that is not this one, and the broker that it gives."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ingestd.errors import ConfigurationError, ErrorCode, IngestdError, KafkaError
from ingestd.testing import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

README = Path(__file__).parents[2] / "README.md"
SECONDS = 20


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalKafka]:
    with LocalKafka(tmp_path) as broker:
        yield broker


def run(pytester: pytest.Pytester) -> pytest.RunResult:
    """pytest in a process of its own, which finds the plugin as any does."""
    # pytest-asyncio would warn of a setting that these projects do not have.
    return pytester.runpytest_subprocess("-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider", timeout=60)


def test_the_example_of_the_readme_passes(pytester: pytest.Pytester) -> None:
    (example,) = (
        program
        for program in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
        if "def test_mine(kafka)" in program
    )
    pytester.makepyfile(example)
    run(pytester).assert_outcomes(passed=1)


def test_the_fixture_of_the_readme_is_one_broker_for_all_tests(pytester: pytest.Pytester) -> None:
    (example,) = (
        program
        for program in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
        if '@pytest.fixture(scope="session")' in program
    )
    pytester.makeconftest(example)
    pytester.makepyfile(
        """
        import pytest

        ports = set()

        @pytest.mark.parametrize("number", range(2))
        def test_it(kafka, number):
            ports.add(kafka.port)
            assert len(ports) == 1
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_each_test_gets_a_broker_without_topics(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(3))
        def test_it(kafka, number):
            kafka.create_topic("one")  # refused if it is there
        """
    )
    run(pytester).assert_outcomes(passed=3)


OWN = """
import pytest

@pytest.fixture(scope="session")
def kafka():
    return "own"
"""


@pytest.mark.parametrize("where", ["conftest", "plugin of a conftest", "module"])
def test_a_fixture_of_the_projects_own_comes_first(pytester: pytest.Pytester, where: str) -> None:
    """This project's tests are such a project: `kafka` is a real one here, from a plugin of tests/conftest.py."""
    asks = "def test_it(kafka):\n    assert kafka == 'own'\n"
    match where:
        case "conftest":
            pytester.makeconftest(OWN)
        case "plugin of a conftest":
            pytester.makepyfile(own_harness=OWN)
            pytester.makeconftest("pytest_plugins = ['own_harness']")
    pytester.makepyfile(OWN + asks if where == "module" else asks)
    pytester.syspathinsert()
    run(pytester).assert_outcomes(passed=1)


def test_who_does_not_ask_for_it_starts_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert not {"ingestd.broker", "ingestd.daemon", "uvloop"} & set(sys.modules)
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_a_failed_test_shows_the_brokers_log(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(kafka):\n    assert False\n")
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*log of the broker at 127.0.0.1:*", "*broker listening*"])


def test_brokers_are_forked_by_one_process_that_has_imported_what_they_need(tmp_path: Path) -> None:
    """It is what makes a start take 20 ms and not 250."""
    parents = set()
    for name in ("one", "two"):
        directory = tmp_path / name
        directory.mkdir()
        with LocalKafka(directory) as broker:
            stat = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
            parents.add(int(stat[1]))
    assert len(parents) == 1
    assert parents != {os.getpid()}


def produce(broker: LocalKafka, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, value)
    assert producer.flush(SECONDS) == 0


def first_value(broker: LocalKafka, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(SECONDS)
    consumer.close()
    assert message is not None
    assert message.error() is None
    return message.value()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_it_is_ended_by_the_test_and_comes_back_with_its_topics_at_its_port(local: LocalKafka, how: str) -> None:
    produce(local, "kept", b"one")
    port, pid = local.port, local.pid
    process = os.pidfd_open(pid)
    getattr(local, how)()
    getattr(local, how)()
    # Not whether /proc has it: the kernel says that a process has ended before it takes it out there.
    assert select.select([process], [], [], 0)[0]
    os.close(process)
    local.start()
    local.start()
    assert (local.port, local.pid != pid) == (port, True)
    assert first_value(local, "kept") == b"one"


def test_one_that_died_by_itself_is_started_again(local: LocalKafka) -> None:
    produce(local, "kept", b"one")
    process = os.pidfd_open(local.pid)
    os.kill(local.pid, signal.SIGKILL)
    assert select.select([process], [], [], SECONDS)[0]
    os.close(process)
    local.stop()
    local.start()
    assert first_value(local, "kept") == b"one"


def test_it_poses_as_several_brokers_that_come_back_at_their_ports(tmp_path: Path) -> None:
    with LocalKafka(tmp_path, nodes=3) as broker:
        broker.create_topic("spread", 3)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        before = admin.list_topics(timeout=SECONDS)
        broker.kill()
        broker.start()
        after = admin.list_topics(timeout=SECONDS)
    assert [str(node) for node in before.brokers.values()] == [str(node) for node in after.brokers.values()]
    assert [node.port for node in after.brokers.values()] == [broker.port, broker.port + 1, broker.port + 2]
    assert {partition.leader for partition in after.topics["spread"].partitions.values()} == {1, 2, 3}
    assert all(len(partition.isrs) == 3 for partition in after.topics["spread"].partitions.values())


def test_topics_are_created_as_told(tmp_path: Path) -> None:
    with LocalKafka(tmp_path, partitions=3, configs={"retention.ms": "-1"}) as broker:
        broker.create_topic("five", 5, {"cleanup.policy": "compact"})
        with pytest.raises(KafkaError) as refused:
            broker.create_topic("five")
        assert refused.value.code is ErrorCode.topic_already_exists
        produce(broker, "on-demand", b"x")
        found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=SECONDS).topics
        assert {name: len(topic.partitions) for name, topic in found.items()} == {"five": 5, "on-demand": 3}


def test_without_topics_on_demand_a_topic_that_was_not_created_is_unknown(tmp_path: Path) -> None:
    with LocalKafka(tmp_path, create_topics=False) as broker:
        found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics("absent", timeout=SECONDS).topics
        assert found["absent"].error is not None


def test_a_broker_that_can_not_start_says_why(local: LocalKafka, tmp_path: Path) -> None:
    with pytest.raises(IngestdError, match=r"did not start; its log ends with:(.|\n)*in use by another broker"):
        LocalKafka(tmp_path).start()
    assert local.pid


def test_without_a_directory_it_has_a_temporary_one_that_is_removed() -> None:
    with LocalKafka(nodes=3) as broker:
        directory = broker.log.parent
        produce(broker, "one", b"x")
        assert first_value(broker, "one") == b"x"
    assert not directory.exists()
    unused = LocalKafka()
    directory = unused.log.parent
    assert directory.is_dir()
    del unused
    assert not directory.exists()


def test_a_directory_may_be_text_and_be_made(tmp_path: Path) -> None:
    with LocalKafka(f"{tmp_path}/a/b") as broker:
        assert broker.log == tmp_path / "a" / "b" / "log"
    assert broker.log.exists()
    with pytest.raises(ConfigurationError, match="directory: expected a path"):
        LocalKafka(3)  # type: ignore[arg-type]


def test_a_relative_directory_is_where_the_test_is(
    local: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that forks brokers began elsewhere, and the test goes on elsewhere."""
    local.start()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with LocalKafka("kafka") as broker:
        broker.create_topic("a")
        monkeypatch.chdir(tmp_path)
        assert broker.faults.waiting == 0
        broker.kill()
        broker.start()
    assert (tmp_path / "here" / "kafka" / "data" / "a-0").is_dir()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_what_is_asked_of_one_that_does_not_run_says_so(local: LocalKafka, how: str) -> None:
    getattr(local, how)()
    with pytest.raises(IngestdError, match=f"the broker at {local.bootstrap} does not run; start it first"):
        local.create_topic("one")
    with pytest.raises(IngestdError, match="the broker does not run; start it first"):
        local.faults.clear()


def test_compaction_and_retention_are_as_soon_as_told(tmp_path: Path) -> None:
    """As the page says: two values of a key, and what came before another segment began."""
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "100"}
    with LocalKafka(tmp_path, upkeep_interval=0.1) as broker:
        broker.create_topic("compacted", configs=compacted)
        broker.create_topic("kept", configs={"retention.ms": "100"})
        for value in (b"old", b"new"):
            keyed(broker, "compacted", value)
            time.sleep(0.2)
        produce(broker, "kept", b"x")
        keyed(broker, "compacted", b"last")
        deadline = time.monotonic() + SECONDS
        while (found := first_value(broker, "compacted")) == b"old" or first_offset(broker, "kept") == 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert found == b"new"


def keyed(broker: LocalKafka, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, value, b"key")
    assert producer.flush(SECONDS) == 0


def first_offset(broker: LocalKafka, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    first, _end = consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)
    consumer.close()
    return int(first)


def test_it_ends_when_the_process_of_the_tests_is_gone(tmp_path: Path) -> None:
    program = (
        "import pathlib, signal, sys; from ingestd.testing import LocalKafka; "
        "broker = LocalKafka(pathlib.Path(sys.argv[1])); broker.start(); print(broker.pid, flush=True); signal.pause()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        broker = os.pidfd_open(int(tests.stdout.readline()))
        tests.send_signal(signal.SIGKILL)
    ended, _, _ = select.select([broker], [], [], SECONDS)
    os.close(broker)
    assert ended
