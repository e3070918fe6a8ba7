"""Older releases of Apache Kafka, each from its own pom: what the client must get along with beside the current one.

3.9 runs in KRaft as the current one does. 2.8, the last that keeps old message formats (`message.format.version` of a
topic), and 0.10.2, the last that knows no record batches, need ZooKeeper, which they bring along.
"""

from __future__ import annotations

from pathlib import Path

from harness.cluster import KafkaCluster
from harness.jars import kafka_jars
from harness.node import JAVA_FOR_TESTS, Node, Ports, free_ports

__all__ = ["OLD_RELEASES", "ZooKeeperCluster", "old_release"]

POMS = Path(__file__).resolve().parent.parent / "releases"
OLD_RELEASES = ("3.9", "2.8", "0.10")


def old_release(release: str, directory: Path) -> KafkaCluster:
    """A cluster of one node of one of `OLD_RELEASES`, to be entered."""
    jars = kafka_jars(POMS / f"{release}.xml")
    cluster = KafkaCluster(directory, jars=jars) if release == "3.9" else ZooKeeperCluster(directory, jars=jars)
    cluster.release = release
    return cluster


class ZooKeeperCluster(KafkaCluster):
    """One node and a ZooKeeper. Topics are created as everywhere; requests are not logged."""

    def __init__(self, directory: Path, *, jars: Path) -> None:
        self._keeper_port = free_ports(1)[0]
        super().__init__(directory, jars=jars)
        home = directory / "zookeeper"
        home.mkdir()
        self._keeper = _ZooKeeper(0, Ports(self._keeper_port, self._keeper_port), home, jars, JAVA_FOR_TESTS, None)
        self._keeper.configure(
            {
                "dataDir": str(self._keeper.data),
                "clientPort": str(self._keeper_port),
                "clientPortAddress": "127.0.0.1",
                "admin.enableServer": "false",
                "tickTime": "500",
            },
            log_requests=False,
        )

    def _settings(self, node: Node) -> dict[str, str]:
        return {
            "broker.id": str(node.node_id),
            "listeners": f"PLAINTEXT://{node.address}",
            "zookeeper.connect": f"127.0.0.1:{self._keeper_port}",
            "log.dirs": str(node.data),
            "num.partitions": "1",
            "auto.create.topics.enable": "false",
            "delete.topic.enable": "true",
            "offsets.topic.num.partitions": "5",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "5",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": "2097152",
        }

    def _format(self, node: Node) -> None:
        """Nothing to format; the node waits for its ZooKeeper while it starts."""
        self._keeper.data.mkdir(parents=True, exist_ok=True)
        self._keeper.start()

    def close(self) -> None:
        """Kill both and delete their data."""
        super().close()
        self._keeper.kill()


class _ZooKeeper(Node):
    """The ZooKeeper of a cluster, kept as a node is."""

    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
