"""The examples do what they say, as programs, on a real Kafka."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from harness.reading import end_offsets
from harness.secured import PASSWORD, USER

from ingestd.client.admin import ClusterAdmin
from ingestd.client.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster import KafkaCluster
    from harness.secured import SecuredCluster

EXAMPLES = Path(__file__).parent.parent / "examples"
COUNT = 200


def run(example: str, *arguments: str) -> str:
    """What an example prints; it must end well and in time, and warn of nothing."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{example}.py", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    return ran.stdout


@pytest.fixture(scope="module", autouse=True)
def coordinated(kafka: KafkaCluster) -> None:
    """Who is the first to use groups is refused until their coordinator has begun: an example would warn of that."""

    async def ask() -> None:
        async with Client(kafka.bootstrap) as client:
            # Java's hashes of these names are one each of the five partitions of __consumer_offsets.
            for found in await ClusterAdmin(client).list_group_offsets(dict.fromkeys("01234")):
                assert found.error is None

    asyncio.run(ask())


@pytest.fixture
def filled(kafka: KafkaCluster, topic: Callable[..., str]) -> str:
    """A topic with COUNT records in two partitions."""
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.servers})
    for number in range(COUNT):
        producer.produce(name, b"value %d" % number, b"key %d" % number, number % 2)
    assert producer.flush(30) == 0
    return name


def test_every_example_is_run_here() -> None:
    mine = Path(__file__).read_text()
    assert [path.stem for path in sorted(EXAMPLES.glob("*.py")) if f'run("{path.stem}"' not in mine] == []


def test_async_producer(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    assert run("async_producer", kafka.servers, name) == "10000 delivered, 0 failed\n"
    assert sum(map(len, kafka.read_back(name).values())) == 10_000


def test_sync_producer(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(partitions=2)
    said = run("sync_producer", kafka.servers, name)
    assert re.fullmatch(r"one is at partition [01], offset 0\n400 from four threads\n", said)
    assert sum(map(len, kafka.read_back(name).values())) == 401


def test_consumer(kafka: KafkaCluster, filled: str) -> None:
    said = run("consumer", kafka.servers, filled).splitlines()
    assert said[-1] == f"{COUNT} records in 2 partitions"
    assert f"{filled}-1 offset {COUNT // 2 - 1}: b'value {COUNT - 1}', 0 behind it" in said


def test_columns(kafka: KafkaCluster, filled: str) -> None:
    assert run("columns", kafka.servers, filled) == f"{COUNT} records, the longest value has 9 bytes\n"


def test_sync_consumer(kafka: KafkaCluster, filled: str) -> None:
    assert run("sync_consumer", kafka.servers, filled).startswith(f"{COUNT} records, ")


def test_consumer_group(kafka: KafkaCluster, filled: str) -> None:
    said = run("consumer_group", kafka.servers, filled, f"group-{uuid.uuid4()}", str(COUNT))
    assert f"['{filled}-0', '{filled}-1']" in said
    assert said.endswith(f"the session ended: claim_returned\n{COUNT} records\n")


def test_subscription(kafka: KafkaCluster, filled: str) -> None:
    said = run("subscription", kafka.servers, filled, f"group-{uuid.uuid4()}", str(COUNT))
    assert said.endswith(f"offset {COUNT // 2 - 1}\n{COUNT} records\n")


def test_sync_consumer_group(kafka: KafkaCluster, filled: str) -> None:
    said = run("sync_consumer_group", kafka.servers, filled, group := f"group-{uuid.uuid4()}", str(COUNT))
    assert said == f"assigned: {filled}-0, {filled}-1\n{COUNT} records\n"

    async def committed() -> int:
        async with Client(kafka.bootstrap) as client:
            (found,) = await ClusterAdmin(client).list_group_offsets({group: None})
            return sum(offset.offset for offset in found.offsets.values())

    assert asyncio.run(committed()) == COUNT


def test_custom_assignor(kafka: KafkaCluster, filled: str) -> None:
    said = run("custom_assignor", kafka.servers, filled, f"group-{uuid.uuid4()}", str(COUNT), "3")
    assert said == f"generation 1: 2 partitions for weight 3\n{COUNT} records\n"


def test_exactly_once(kafka: KafkaCluster, topic: Callable[..., str], filled: str) -> None:
    target = topic(partitions=1)
    assert run("exactly_once", kafka.servers, filled, target, str(COUNT)) == f"{COUNT} records\n"
    # The end of the last transaction is answered before its marker is written.
    deadline = time.monotonic() + 30
    while end_offsets(kafka.servers, target, isolation="read_committed") != kafka.end_offsets(target):
        assert time.monotonic() < deadline
    there = kafka.read_back(target, isolation="read_committed")[0]
    assert sorted(there) == sorted(b"VALUE %d" % number for number in range(COUNT))


def test_cluster_admin(kafka: KafkaCluster) -> None:
    name = f"admin-{uuid.uuid4().hex[:8]}"
    said = run("cluster_admin", kafka.servers, name).splitlines()
    assert f"create {name}: done" in said
    assert any(line.startswith("create no such/name: INVALID_TOPIC_EXCEPTION") for line in said)
    assert said[said.index(f"grow {name}: done") + 1] == f"{name}: 4 partitions"
    assert "1 nodes" in said


def test_client(kafka: KafkaCluster, filled: str) -> None:
    said = run("client", kafka.servers, filled)
    assert said.startswith(f"{filled}-0: leader 1, in sync [1]\n{filled}-1: leader 1, in sync [1]\n{{\n")


def test_secured_client(secured_kafka: SecuredCluster, tmp_path: Path) -> None:
    address, ca = secured_kafka.listener("SASL_SSL"), str(secured_kafka.certificates.ca)
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text(PASSWORD)
    assert run("secured_client", address, ca, USER, str(password)) == f"node 1 at {address}\n"
    password.write_text("wrong")
    assert run("secured_client", address, ca, USER, str(password)).startswith(f"refused: {address}: SCRAM-SHA-512: ")


def test_what_readme_shows_first(kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path) -> None:
    name, group_id = topic(partitions=1), f"group-{uuid.uuid4()}"
    readme = (EXAMPLES.parent.parent / "README.md").read_text()
    shown = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]  # Spark's is tried in tests/spark
    shown = (
        shown.replace("kafka-1:9092", kafka.servers)
        .replace('"orders"', repr(name))
        .replace('"billing"', repr(group_id))
    )
    program = tmp_path / "readme.py"
    # A group begins at the newest record unless it has committed; what is sent above stands before that.
    committed = f"await ClusterAdmin(client).alter_group_offsets({group_id!r}, {{({name!r}, 0): OffsetAndMetadata(0)}})"
    lines = shown.replace("    async with ConsumerGroup", f"    {committed}\n    async with ConsumerGroup").splitlines()
    program.write_text(
        "import asyncio\nfrom ingestd import ClusterAdmin, OffsetAndMetadata\nasync def main():\n"
        + "".join(f"    {line}\n" for line in [*lines, "            return"])
        + "asyncio.run(main())\n"
    )
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "b'customer-7' b'one'\n"), ran.stderr
