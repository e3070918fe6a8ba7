"""A real Kafka cluster (KRaft, broker and controller in each JVM) and the questions that tests ask it."""

from __future__ import annotations

import base64
import itertools
import shutil
import subprocess
import time
import uuid
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from harness import reading
from harness.jars import class_archive, kafka_jars, kept
from harness.node import JAVA_FOR_TESTS, Node, NodeDiedError, Ports, free_ports, java
from harness.request_log import read_request_log, requests_by_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["KafkaCluster", "java_tool", "live_clusters"]

START_SECONDS = 90
ADMIN_SECONDS = 60
TOOL_SECONDS = 120
FORMAT_MARK = "bootstrap.checkpoint"

live_clusters: list[KafkaCluster] = []
"""Clusters that run now; a failing test shows their logs."""

_topic_numbers = itertools.count(1)


def java_tool(
    main: str, *arguments: str, stdin: bytes = b"", timeout: float = TOOL_SECONDS, jars: Path | None = None
) -> str:
    """Run one of Kafka's own tools by class name; its standard output. Raises `RuntimeError` with what it said.

    A name without a package is one of `org.apache.kafka.tools` (`TopicCommand`, `GetOffsetShell`). `jars` of another
    release than the current.
    """
    full = {"ConsoleConsumer": "consumer.ConsoleConsumer"}.get(main, main)
    name = full if full.startswith(("org.", "kafka.")) else f"org.apache.kafka.tools.{full}"
    ran = subprocess.run(
        java(jars or kafka_jars(), ("-Dlog4j2.level=WARN", *JAVA_FOR_TESTS), name, *arguments),
        input=stdin, capture_output=True, timeout=timeout, check=False,
    )  # fmt: skip
    if ran.returncode != 0:
        raise RuntimeError(f"{name} {' '.join(arguments)}: exit {ran.returncode}\n{ran.stdout!r}\n{ran.stderr!r}")
    return ran.stdout.decode()


class KafkaCluster:
    """One real Kafka cluster of `nodes` nodes with ids from 1. Starts when entered, is gone with its data when left.

    Invariants
        `kill`, `stop`, `start`, `freeze`, `thaw` take a node id, as metadata has it.
        `bootstrap` names every node and never changes.
    """

    release = "current"
    """Which release of Apache Kafka it is."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 1,
        log_requests: bool = False,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = JAVA_FOR_TESTS,
        cores: str | None = None,
        proxied: bool = False,
        jars: Path | None = None,
    ) -> None:
        """`proxied`: each node has a second listener, advertised at the port that `proxied` gives: see `Proxies`.

        `jars`: those of another release than the current.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._jars = jars or kafka_jars()
        self._archives = jars is None
        ports = free_ports(2 * nodes)
        self.nodes: dict[int, Node] = {}
        for node_id in range(1, nodes + 1):
            home = directory / f"node-{node_id}"
            home.mkdir()
            self.nodes[node_id] = Node(node_id, Ports(ports.pop(), ports.pop()), home, self._jars, java_options, cores)
        self.proxied = {free_ports(1)[0]: free_ports(1)[0] for _ in self.nodes} if proxied else {}
        """For each node, in order: the port that is advertised, where a proxy shall listen, and the node's own."""
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "x")
        for node in self.nodes.values():
            node.configure(self._settings(node) | dict(settings or {}), log_requests=log_requests)
        self._admin: AdminClient | None = None

    @property
    def bootstrap(self) -> list[str]:
        """HOST:PORT of every node."""
        return [node.address for node in self.nodes.values()]

    @property
    def servers(self) -> str:
        """The same as one string, as librdkafka and the Java tools want it."""
        return ",".join(self.bootstrap)

    @property
    def log(self) -> Path:
        """The log of the first node."""
        return self.nodes[1].log

    @property
    def admin(self) -> AdminClient:
        """librdkafka's admin client for this cluster."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 2})
        return self._admin

    def _settings(self, node: Node) -> dict[str, str]:
        replicas = min(3, len(self.nodes))
        in_sync = max(1, replicas - 1)
        voters = ",".join(f"{other.node_id}@127.0.0.1:{other.ports.controller}" for other in self.nodes.values())
        listeners = f"PLAINTEXT://{node.address},CONTROLLER://127.0.0.1:{node.ports.controller}"
        advertised = f"PLAINTEXT://{node.address}"
        if self.proxied:
            outer, inner = list(self.proxied.items())[node.node_id - 1]
            listeners += f",PROXIED://127.0.0.1:{inner}"
            advertised += f",PROXIED://127.0.0.1:{outer}"
        return {
            "process.roles": "broker,controller",
            "node.id": str(node.node_id),
            "controller.quorum.voters": voters,
            "listeners": listeners,
            "advertised.listeners": advertised,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
            "log.dirs": str(node.data),
            "num.partitions": "1",
            "auto.create.topics.enable": "false",
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(in_sync),
            "offsets.topic.num.partitions": "5",
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.num.partitions": "5",
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(in_sync),
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(in_sync),
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "500",
            # Access can be controlled; the harness may do everything, and so may everybody where nothing is said.
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "log.cleaner.dedupe.buffer.size": "2097152",
            # A dead or frozen node must be noticed within a test's patience.
            "broker.heartbeat.interval.ms": "600",
            "broker.session.timeout.ms": "2000",
            "group.consumer.min.heartbeat.interval.ms": "100",
            "group.consumer.heartbeat.interval.ms": "300",
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.session.timeout.ms": "6000",
            "replica.lag.time.max.ms": "3000",
            "controller.socket.timeout.ms": "2000",
            # What tests moved stays where it is: nothing happens by itself every five minutes.
            "auto.leader.rebalance.enable": "false",
            # Some twenty nodes idle in a run of all tests.
            "metadata.max.idle.interval.ms": "0",
            "controller.quorum.election.timeout.ms": "500",
            "controller.quorum.fetch.timeout.ms": "1000",
        }

    def __enter__(self) -> Self:
        if self._archives:  # the first cluster runs a node once for all others
            kept(class_archive(self._jars), self._archive_classes)
        for node in self.nodes.values():
            self._format(node)
        live_clusters.append(self)
        try:
            for node in self.nodes.values():
                node.start()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every node and delete its data; the logs stay. Safe to call twice."""
        if self in live_clusters:
            live_clusters.remove(self)
        self._admin = None
        for node in self.nodes.values():
            node.kill()
            shutil.rmtree(node.data, ignore_errors=True)

    def _archive_classes(self, path: Path) -> None:
        options = (*JAVA_FOR_TESTS, f"-XX:ArchiveClassesAtExit={path}", "-Xlog:disable")
        with KafkaCluster(self.directory / "archive", jars=self._jars, java_options=options) as first:
            first.stop(1)

    def _format(self, node: Node) -> None:
        # Formatting by Kafka's own tool costs a JVM start for each node. What it writes beside the ids (the feature
        # levels of this version) is the same each time, so it is kept with the jars.
        checkpoint = kept(self._jars / FORMAT_MARK, partial(self._format_by_tool, node))
        node.data.mkdir(parents=True)
        shutil.copy(checkpoint, node.data / FORMAT_MARK)
        directory_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "x")
        (node.data / "meta.properties").write_text(
            f"version=1\ncluster.id={self.cluster_id}\nnode.id={node.node_id}\ndirectory.id={directory_id}\n"
        )

    def _format_by_tool(self, node: Node, path: Path) -> None:
        formatted = node.directory / "format"
        properties = node.directory / "format.properties"
        settings = self._settings(node) | {"log.dirs": str(formatted)}
        properties.write_text("\n".join(f"{name}={value}" for name, value in settings.items()))
        java_tool("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(properties), jars=self._jars)
        shutil.copy(formatted / FORMAT_MARK, path)

    def tool(self, main: str, *arguments: str, stdin: bytes = b"") -> str:
        """Run a tool of this cluster's own release: see `java_tool`."""
        return java_tool(main, *arguments, stdin=stdin, jars=self._jars)

    # nodes

    def node_of(self, node_id: int) -> Node:
        """The node with this id."""
        return self.nodes[node_id]

    def kill(self, node_id: int) -> None:
        """SIGKILL a node."""
        self.nodes[node_id].kill()

    def stop(self, node_id: int) -> None:
        """Shut a node down in order."""
        self.nodes[node_id].stop()

    def start(self, node_id: int, *, wait: bool = True) -> None:
        """Start a node again and, unless told otherwise, wait until every running node is part of the cluster."""
        self.nodes[node_id].start()
        if wait:
            self.wait_ready()

    def freeze(self, node_id: int) -> None:
        """SIGSTOP a node: it keeps its connections and says nothing."""
        self.nodes[node_id].freeze()

    def thaw(self, node_id: int) -> None:
        """Let a frozen node go on."""
        self.nodes[node_id].thaw()

    def heal(self) -> None:
        """Bring every node back and wait until all partitions have all replicas in sync."""
        self._bring_back()
        self.wait_in_sync()

    def clear(self) -> None:
        """The same with nothing left that tests made: for after a test.

        A topic left with one replica would not survive the next test that kills that node.
        """
        self._bring_back()
        self._until(self._deleted, "all topics are deleted but Kafka's own")
        self.wait_in_sync()

    def _bring_back(self) -> None:
        for node in self.nodes.values():
            node.thaw()
            node.start()
        self.wait_ready()

    def _deleted(self) -> bool:
        left = [name for name in self.admin.list_topics(timeout=5).topics if not name.startswith("__")]
        for deletion in self.admin.delete_topics(left, operation_timeout=10).values() if left else ():
            deletion.result(timeout=ADMIN_SECONDS)
        return not left

    def wait_ready(self) -> None:
        """Until every running node is in every answer to a metadata request."""
        expected = {node.node_id for node in self.nodes.values() if node.running}

        def ready() -> bool:
            for node_id in sorted(expected):
                self.nodes[node_id].check()
            return all(set(self._metadata_of(self.nodes[node_id]).brokers) >= expected for node_id in sorted(expected))

        self._until(ready, f"nodes {sorted(expected)} are one cluster")

    @staticmethod
    def _metadata_of(node: Node) -> Any:
        return AdminClient({"bootstrap.servers": node.address, "log_level": 0}).list_topics(timeout=2)

    def wait_in_sync(self, topic: str | None = None) -> None:
        """Until every partition (of `topic`, or of all) has all its replicas in sync, and every node says who leads it.

        A node that was frozen goes on as the leader that it was, until it has heard what happened meanwhile.
        """

        def view(node: Node) -> dict[tuple[str, int], tuple[int, bool]]:
            asked = AdminClient({"bootstrap.servers": node.address, "log_level": 0})
            described = asked.list_topics(topic=topic, timeout=5) if topic else asked.list_topics(timeout=5)
            return {
                (name, number): (partition.leader, set(partition.isrs) == set(partition.replicas))
                for name, entry in described.topics.items()
                for number, partition in entry.partitions.items()
            }

        def in_sync() -> bool:
            views = [view(node) for node in self.nodes.values() if node.running]
            heard = bool(views[0]) or topic is None  # a topic that was just made is nowhere at first
            settled = heard and all(leader in self.nodes and whole for leader, whole in views[0].values())
            return settled and all(other == views[0] for other in views[1:])

        self._until(in_sync, f"all replicas of {topic or 'all topics'} are in sync")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                if holds():
                    return
            except (KafkaException, TimeoutError):
                pass  # Not yet: whoever is asked is still starting, or an election is going on.
            time.sleep(0.1)
        logs = "\n".join(str(node.log) for node in self.nodes.values())
        raise NodeDiedError(f"not within {START_SECONDS} s: {what}. Logs:\n{logs}")

    # topics

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replicas: int | Sequence[Sequence[int]] | None = None,
        **configs: str,
    ) -> str:
        """Create a topic (named uniquely unless named); its leaders lead. `_` in config names stands for `.`.

        `replicas`: how many, or for each partition on which nodes, its leader first.
        """
        topic = name or f"t{next(_topic_numbers)}-{uuid.uuid4().hex[:6]}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        if replicas is None or isinstance(replicas, int):
            wanted = NewTopic(topic, partitions, replicas or min(3, len(self.nodes)), config=settings)
        else:
            wanted = NewTopic(topic, len(replicas), replica_assignment=[*map(list, replicas)], config=settings)
        self.admin.create_topics([wanted], operation_timeout=10)[topic].result(timeout=ADMIN_SECONDS)
        self.wait_in_sync(topic)
        self._until_led(topic, partitions if replicas is None or isinstance(replicas, int) else len(replicas))
        return topic

    def add_partitions(self, topic: str, total: int) -> None:
        """Have a topic so many partitions; their leaders lead."""
        self.admin.create_partitions([NewPartitions(topic, total)], operation_timeout=10)[topic].result(ADMIN_SECONDS)
        self._until_led(topic, total)
        self.wait_in_sync(topic)

    def _until_led(self, topic: str, partitions: int) -> None:
        """Metadata names a leader a moment before that node has made the log and knows that it leads."""
        self._until(lambda: self._lead(topic, range(partitions)), f"the leaders of {topic} lead")

    def _lead(self, topic: str, partitions: Iterable[int]) -> bool:
        """Whether each partition's leader answers as one. Raises `KafkaException` where one does not."""
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})  # one that has heard nothing before
        for told in admin.list_offsets(asked, request_timeout=5).values():
            told.result(timeout=ADMIN_SECONDS)
        return True

    def wait_for_end_offsets(self, topic: str, offsets: dict[int, int]) -> None:
        """Until the high watermarks are these: a transaction's end is answered before its marker is written."""
        self._until(lambda: self.end_offsets(topic) == offsets, f"{topic} ends at {offsets}")

    def delete_topic(self, topic: str, *, made_anew: bool = False) -> None:
        """Delete a topic and its data, wait until no node names it any more: one made anew is not taken for it.

        `made_anew`: something else makes it again at once, perhaps before anybody saw that it was gone.
        """
        self.admin.delete_topics([topic], operation_timeout=10)[topic].result(timeout=ADMIN_SECONDS)
        if made_anew:
            return
        running = [node for node in self.nodes.values() if node.running]
        self._until(lambda: all(topic not in self._metadata_of(node).topics for node in running), f"{topic} is gone")

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Have the logs of these partitions begin at these offsets, as retention does."""
        wanted = [TopicPartition(topic, number, offset) for number, offset in before.items()]
        for deleted in self.admin.delete_records(wanted, operation_timeout=10).values():
            deleted.result(timeout=ADMIN_SECONDS)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node id of a partition's leader; waits until there is one that runs (or is frozen)."""
        found = -1

        def led() -> bool:
            nonlocal found
            found = self.admin.list_topics(topic=topic, timeout=5).topics[topic].partitions[partition].leader
            return found in self.nodes and self.nodes[found].running

        self._until(led, f"{topic} {partition} has a leader")
        return found

    def end_offsets(self, topic: str) -> dict[int, int]:
        """The high watermark of each partition."""
        return reading.end_offsets(self.servers, topic)

    def read_back(
        self, topic: str, *, isolation: str = "read_uncommitted", timeout: float = 60
    ) -> dict[int, list[bytes]]:
        """Every record's value, by partition in order of offsets, up to the present end. A null value reads as b""."""
        return reading.read_back(self.servers, topic, isolation=isolation, timeout=timeout)

    # the request log

    def wait_for_request(self, client_id: str, api: str, times: int = 1) -> None:
        """Until a request is in the log, so many times: a node writes it there after it has answered."""
        what = f"{api} of {client_id} is in the request log, {times} times"
        self._until(lambda: self.requests_by_client().get(client_id, Counter())[api] >= times, what)

    def requests_by_client(self) -> dict[str, Counter[str]]:
        """For each client id, how often it asked what of any node. Needs `log_requests`."""
        return requests_by_client(
            itertools.chain.from_iterable(read_request_log(node.request_log) for node in self.nodes.values())
        )
