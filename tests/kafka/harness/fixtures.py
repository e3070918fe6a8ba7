"""The fixtures on real Kafka: `kafka`, `kafka3`, `kafka_cluster`, `topic`, `read_back`, `java_tool`; `go_peers`.

`kafka_of_release` is Kafka of each release of the test matrix in turn.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from harness.cluster import KafkaCluster, live_clusters
from harness.cluster import java_tool as run_java_tool
from harness.go_peers import GoPeer, build_go_peers
from harness.jars import kafka_jars as fetch_kafka_jars
from harness.node import last_lines
from harness.releases import OLD_RELEASES, old_release
from harness.secured import SecuredCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

KAFKA_FIXTURES = {"kafka", "kafka3", "kafka_cluster", "secured_kafka", "kafka_of_release", "racks", "west", "south"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test that used a cluster shows the end of each node's log and says where the whole is."""
    report = yield
    if report.failed and KAFKA_FIXTURES & set(getattr(item, "fixturenames", ())):
        for cluster in live_clusters:
            for node in cluster.nodes.values():
                report.sections.append((f"Kafka node {node.node_id}, end of {node.log}", last_lines(node.log, 15)))
    return report


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The directory with Apache Kafka's jars."""
    return fetch_kafka_jars()


@pytest.fixture(scope="session")
def java_tool() -> Callable[..., str]:
    """`java_tool("TopicCommand", "--list", …)`: one of Kafka's own tools, its standard output."""
    return run_java_tool


@pytest.fixture(scope="session")
def go_peers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GoPeer]:
    """`go_peers["franz"]`, `go_peers["sarama"]`: Go clients as programs. For tests marked `peers`."""
    return build_go_peers(tmp_path_factory.mktemp("go-peers"))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One real node for the whole session. Tests leave it as they found it, but for topics."""
    with KafkaCluster(tmp_path_factory.mktemp("kafka") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="session", params=("current", *OLD_RELEASES))
def kafka_of_release(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster]:
    """One node of each release in turn: all tests that ask for it run on one release before the next is started."""
    if request.param == "current":
        yield request.getfixturevalue("kafka")
        return
    with old_release(request.param, tmp_path_factory.mktemp(f"kafka-{request.param}") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three real nodes for the whole session; tests ask for `kafka3`, which clears them afterwards."""
    with KafkaCluster(tmp_path_factory.mktemp("kafka3") / "cluster", nodes=3) as cluster:
        yield cluster


@pytest.fixture
def kafka3(three_nodes: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three real nodes, all up and in sync, to be killed, frozen and stopped at will; cleared afterwards."""
    yield three_nodes
    three_nodes.clear()


@pytest.fixture(scope="session")
def three_racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three real nodes for the whole session, each in a rack of its own; tests ask for `racks`, which clears them."""
    cluster = KafkaCluster(
        tmp_path_factory.mktemp("racks") / "cluster",
        nodes=3,
        log_requests=True,
        settings={
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "min.insync.replicas": "1",
        },
    )
    for node in cluster.nodes.values():
        with (node.directory / "server.properties").open("a") as properties:
            properties.write(f"broker.rack=rack-{node.node_id}\n")
    with cluster:
        yield cluster


@pytest.fixture
def racks(three_racks: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three real nodes, node N in rack-N; a leader names the replica in a reader's rack. Cleared afterwards."""
    yield three_racks
    three_racks.clear()


@pytest.fixture(scope="session")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    """One real node for the whole session, with a listener for every kind of security."""
    with SecuredCluster(tmp_path_factory.mktemp("secured") / "cluster") as cluster:
        yield cluster


@pytest.fixture
def kafka_cluster(tmp_path: Path) -> Iterator[Callable[..., KafkaCluster]]:
    """`kafka_cluster(nodes=1, log_requests=True, settings={…})`: a cluster of this test's own."""
    started: list[KafkaCluster] = []
    numbers = itertools.count(1)

    def start(**options: Any) -> KafkaCluster:
        cluster = KafkaCluster(tmp_path / f"kafka-{next(numbers)}", **options)
        started.append(cluster)
        return cluster.__enter__()

    yield start
    for cluster in started:
        cluster.close()


@pytest.fixture
def topic(kafka: KafkaCluster) -> Callable[..., str]:
    """`topic(partitions=4, max_message_bytes=…)`: the name of a new topic on `kafka`."""
    return kafka.create_topic


@pytest.fixture
def read_back(kafka: KafkaCluster) -> Callable[..., dict[int, list[bytes]]]:
    """`read_back(topic)`: every value on `kafka`, by partition in order. On `kafka3`: `kafka3.read_back(topic)`."""
    return kafka.read_back
