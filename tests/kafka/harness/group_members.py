"""Members of one consumer group, ours and those of other clients, behind one interface: join, what it has, leave."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import confluent_kafka
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky

from harness.kafka_python import left_sockets
from ingestd.client.metadata import TopicPartition
from ingestd.consumer.group.assignors import ASSIGNORS
from ingestd.consumer.group.classic import ClassicMembership
from ingestd.consumer.group.next_generation import NextGenerationMembership
from ingestd.consumer.group.settings import GroupProtocol, GroupSettings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own, when it is imported
    import kafka
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor as PlainCooperativeSticky
    from kafka.coordinator.assignors.range import RangePartitionAssignor as PlainRange
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as PlainRoundRobin
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as PlainSticky

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from harness.go_peers import GoPeer
    from harness.java_programs import JavaProgram
    from ingestd.client.client import Client
    from ingestd.client.metadata import ClusterMetadata
    from ingestd.consumer.group.assignor import Assignment, Assignor, RebalanceProtocol, Subscription
    from ingestd.consumer.group.membership import Membership

__all__ = [
    "AioMember",
    "GoMember",
    "JavaMember",
    "LibrdkafkaMember",
    "Member",
    "OurMember",
    "Place",
    "PlainMember",
    "settled",
]

HEARTBEAT_MS = 200
SESSION_MS = 15_000
SETTLE_SECONDS = 60
LEAVE_SECONDS = 30


@dataclass(frozen=True)
class Place:
    """Which group of which cluster, reading what, sharing it how ("consumer": KIP-848)."""

    servers: str
    group: str
    topics: Mapping[str, int]
    """Topics with their numbers of partitions."""
    assignor: str

    @property
    def partitions(self) -> set[TopicPartition]:
        """All that the group reads."""
        return {TopicPartition(topic, number) for topic, count in self.topics.items() for number in range(count)}


class Member(ABC):
    """A member of the group, from `join` to `leave`."""

    def __init__(self, place: Place, *, rack: str = "") -> None:
        self.place = place
        self.rack = rack

    @abstractmethod
    async def join(self) -> None:
        """Begin to be a member; does not wait for an assignment."""

    @abstractmethod
    async def has(self) -> frozenset[TopicPartition]:
        """What it has now. Raises what ended the member."""

    @abstractmethod
    async def leave(self) -> None:
        """Leave the group in order."""


class Watched:
    """One of our assignors, which counts how often it was asked to assign: as often as its member led."""

    def __init__(self, assignor: Assignor) -> None:
        self._assignor = assignor
        self.led = 0
        self.assigned = 0

    @property
    def name(self) -> str:
        return self._assignor.name

    @property
    def rebalance_protocols(self) -> frozenset[RebalanceProtocol]:
        return self._assignor.rebalance_protocols

    def user_data(self, topics: Collection[str]) -> bytes | None:
        return self._assignor.user_data(topics)

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        self.led += 1
        return self._assignor.assign(cluster, members)

    def on_assignment(self, assignment: Assignment, member_id: str, generation: int) -> None:
        self.assigned += 1
        self._assignor.on_assignment(assignment, member_id, generation)


class OurMember(Member):
    """Our membership, by itself."""

    led: ClassVar[int] = 0
    """Rebalances that a member of this kind led, over all."""
    followed: ClassVar[int] = 0

    def __init__(self, place: Place, client: Client, *, rack: str = "") -> None:
        super().__init__(place, rack=rack)
        self._client = client
        self._has: set[TopicPartition] = set()
        self._watched: Watched | None = None
        self._membership: Membership | None = None

    async def join(self) -> None:
        shared: dict[str, Any] = {
            "heartbeat_interval": HEARTBEAT_MS / 1000,
            "session_timeout": SESSION_MS / 1000,
            "rack": self.rack or None,
        }
        if self.place.assignor == "consumer":
            settings = GroupSettings(protocol=GroupProtocol.consumer, **shared)
            self._membership = NextGenerationMembership(self._client, self.place.group, settings, self)
        else:
            self._watched = Watched(ASSIGNORS[self.place.assignor]())
            settings = GroupSettings(assignors=(self._watched,), **shared)
            self._membership = ClassicMembership(self._client, self.place.group, settings, self)
        self._membership.start(list(self.place.topics))

    async def has(self) -> frozenset[TopicPartition]:
        assert self._membership is not None
        if self._membership.end is not None:
            raise AssertionError(f"our membership ended: {self._membership.end}")
        assert self._membership.assignment == self._has
        return frozenset(self._has)

    async def leave(self) -> None:
        assert self._membership is not None
        await self._membership.close(LEAVE_SECONDS)
        assert not self._has
        if self._watched is not None:
            OurMember.led += self._watched.led
            OurMember.followed += self._watched.assigned - self._watched.led

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assert not self._has & set(partitions)
        self._has |= set(partitions)

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        assert self._has >= set(partitions)
        self._has -= set(partitions)

    async def lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self.revoked(partitions)


class _ThreadMember(Member):
    """A client that blocks: in a thread of its own, which polls it and notes what it has."""

    def __init__(self, place: Place, *, rack: str = "") -> None:
        super().__init__(place, rack=rack)
        self._stopping = threading.Event()
        self._has: frozenset[TopicPartition] = frozenset()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    @abstractmethod
    def _open(self) -> Any:
        """A consumer that has subscribed."""

    @abstractmethod
    def _poll(self, consumer: Any) -> None:
        """Let it do its work for a moment."""

    def _run(self) -> None:
        try:
            consumer = self._open()
            try:
                while not self._stopping.is_set():
                    self._poll(consumer)
                    self._has = frozenset(TopicPartition(key.topic, key.partition) for key in consumer.assignment())
            finally:
                consumer.close()
        except BaseException as failure:  # noqa: BLE001 - raised by `has`
            self._failure = failure

    async def join(self) -> None:
        self._thread.start()

    async def has(self) -> frozenset[TopicPartition]:
        if self._failure is not None:
            raise self._failure
        return self._has

    async def leave(self) -> None:
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, LEAVE_SECONDS)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure


class LibrdkafkaMember(_ThreadMember):
    """librdkafka, by confluent-kafka."""

    def _open(self) -> Any:
        shared: dict[str, Any] = {"group.protocol": "consumer"}
        if self.place.assignor != "consumer":
            shared = {
                "partition.assignment.strategy": self.place.assignor,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "session.timeout.ms": SESSION_MS,
            }
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.place.servers,
                "group.id": self.place.group,
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 2,
                "client.rack": self.rack,
                **shared,
            }
        )
        consumer.subscribe(list(self.place.topics))
        return consumer

    def _poll(self, consumer: Any) -> None:
        consumer.poll(0.05)


class PlainMember(_ThreadMember):
    """kafka-python."""

    ASSIGNORS: ClassVar[dict[str, Any]] = {
        "range": PlainRange,
        "roundrobin": PlainRoundRobin,
        "sticky": PlainSticky,
        "cooperative-sticky": PlainCooperativeSticky,
    }

    def _open(self) -> Any:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.place.servers.split(","),
            group_id=self.place.group,
            enable_auto_commit=False,
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            partition_assignment_strategy=[self.ASSIGNORS[self.place.assignor]],
        )
        # kafka-python 3.0.12 joins before it knows of new topics, shares out nothing, and joins again when it does.
        # Now and then it sends nothing any more after that, though it is polled: the group removes it for good.
        for topic in self.place.topics:
            while not consumer.partitions_for_topic(topic) and not self._stopping.is_set():
                pass
        consumer.subscribe(list(self.place.topics))
        return consumer

    def _poll(self, consumer: Any) -> None:
        consumer.poll(timeout_ms=50)

    async def leave(self) -> None:
        with left_sockets():
            await super().leave()


class AioMember(Member):
    """aiokafka."""

    ASSIGNORS: ClassVar[dict[str, Any]] = {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._consumer: Any = None
        self._starting: asyncio.Task[None] | None = None

    async def join(self) -> None:
        self._consumer = AIOKafkaConsumer(
            *self.place.topics,
            bootstrap_servers=self.place.servers,
            group_id=self.place.group,
            enable_auto_commit=False,
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            partition_assignment_strategy=[self.ASSIGNORS[self.place.assignor]],
        )
        self._starting = asyncio.create_task(self._consumer.start())

    async def has(self) -> frozenset[TopicPartition]:
        assert self._starting is not None
        if not self._starting.done():
            return frozenset()
        self._starting.result()
        return frozenset(TopicPartition(key.topic, key.partition) for key in self._consumer.assignment())

    async def leave(self) -> None:
        assert self._starting is not None
        await self._starting
        await self._consumer.stop()


class JavaMember(Member):
    """Java's own client, in the one JVM of `tests/interop/java/Members.java`."""

    ASSIGNORS: ClassVar[dict[str, str]] = {
        "range": "RangeAssignor",
        "roundrobin": "RoundRobinAssignor",
        "sticky": "StickyAssignor",
        "cooperative-sticky": "CooperativeStickyAssignor",
    }

    def __init__(self, place: Place, java: JavaProgram, *, rack: str = "") -> None:
        super().__init__(place, rack=rack)
        self._java = java
        self._name = f"member {id(self)}"

    async def join(self) -> None:
        shared = {"group.protocol": "consumer"}
        if self.place.assignor != "consumer":
            shared = {
                "partition.assignment.strategy": (
                    f"org.apache.kafka.clients.consumer.{self.ASSIGNORS[self.place.assignor]}"
                ),
                "heartbeat.interval.ms": str(HEARTBEAT_MS),
                "session.timeout.ms": str(SESSION_MS),
            }
        settings = {
            "bootstrap.servers": self.place.servers,
            "group.id": self.place.group,
            "enable.auto.commit": "false",
            "client.rack": self.rack,
            **shared,
        }
        await self._ask({"start": self._name, "topics": list(self.place.topics), "settings": settings})

    async def has(self) -> frozenset[TopicPartition]:
        answer = await self._ask({"has": self._name})
        assert answer["failure"] is None, answer["failure"]
        return frozenset(TopicPartition(topic, partition) for topic, partition in answer["partitions"])

    async def leave(self) -> None:
        await self._ask({"stop": self._name})

    async def _ask(self, message: Any) -> Any:
        return await asyncio.to_thread(self._java.ask, message)


class GoMember(Member):
    """franz-go, as a process."""

    def __init__(self, place: Place, peer: GoPeer) -> None:
        super().__init__(place)
        self._peer = peer
        self._process: asyncio.subprocess.Process | None = None
        self._has: frozenset[TopicPartition] = frozenset()
        self._reading: asyncio.Task[None] | None = None

    async def join(self) -> None:
        place = self.place
        self._process = await asyncio.create_subprocess_exec(
            str(self._peer.binary), "member", "-brokers", place.servers, "-topic", ",".join(place.topics),
            "-group", place.group, "-balancer", place.assignor,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._has = frozenset(TopicPartition(*key) for key in json.loads(line)["partitions"])

    async def has(self) -> frozenset[TopicPartition]:
        assert self._process is not None
        assert self._process.returncode is None, "franz ended"
        return self._has

    async def leave(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._reading is not None
        self._process.stdin.close()
        async with asyncio.timeout(LEAVE_SECONDS):
            assert await self._process.wait() == 0
            await self._reading


async def settled(
    place: Place, members: Collection[Member], *, most_apart: int | None = None
) -> list[frozenset[TopicPartition]]:
    """Wait until every partition of the group has one owner and every member has some, twice in a row.

    What others say of themselves is a little late: a member that has just come has nothing yet, and who gave something
    up may still say that it has it. `most_apart`: how many more partitions one member may have than another. A
    group that moves partitions step by step (cooperative, or of KIP-848, where each member gives up its share at its
    own next heartbeat) may be whole already before it is even.
    """
    before: list[frozenset[TopicPartition]] = []
    now: list[frozenset[TopicPartition]] = []
    try:
        async with asyncio.timeout(SETTLE_SECONDS):
            while True:
                now = [await member.has() for member in members]
                whole = sum(map(len, now)) == len(place.partitions) and frozenset().union(*now) == place.partitions
                sizes = [len(has) for has in now]
                even = most_apart is None or max(sizes) - min(sizes) <= most_apart
                if whole and even and all(now) and now == before:
                    return now
                before = now
                await asyncio.sleep(0.1)
    except TimeoutError:
        said = [f"{type(member).__name__} {sorted(map(str, has))}" for member, has in zip(members, now, strict=False)]
        raise AssertionError("not settled:\n" + "\n".join(said)) from None
