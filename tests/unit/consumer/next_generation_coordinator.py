"""A KIP-848 coordinator in memory, one node, scripted connections: assigns as tests say, remembers what it heard."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from collections import deque
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ingestd.client.settings import ClientSettings
from ingestd.errors import ConnectionLost, ErrorCode
from ingestd.wire.versions import ApiVersions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingestd.errors import IngestdError

__all__ = ["FAST", "Coordinator", "CutAfterwards", "Late", "Member", "Silence"]

FAST = ClientSettings(
    connect_timeout=1.0,
    metadata_minimum_interval=0.01,
    retry_initial=0.001,
    retry_maximum=0.002,
    reconnect_initial=0.001,
    reconnect_maximum=0.002,
)


class Silence:
    """In a script: the request is never answered."""


class Late:
    """In a script: the request is done, the answer comes when the coordinator's `late` is set."""


class CutAfterwards:
    """In a script: the request is done, the connection is cut instead of the answer."""


@dataclass
class Member:
    """A member as the coordinator knows it."""

    epoch: int
    instance: str | None
    topics: tuple[str, ...] = ()
    regex: str = ""
    owned: set[tuple[uuid.UUID, int]] = field(default_factory=set)
    """As it said itself."""
    assigned: set[tuple[uuid.UUID, int]] = field(default_factory=set)
    """Its to use, as far as the coordinator is concerned."""
    revoking: set[tuple[uuid.UUID, int]] = field(default_factory=set)
    """To be given up; nobody else's until the member says what it owns, without any of them."""
    told: set[tuple[uuid.UUID, int]] | None = None


class Connection:
    """Answers kio requests as the coordinator does."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.versions = ApiVersions(dict.fromkeys(range(100), (0, 99)) | coordinator.versions)
        self.closed = False
        self.error: IngestdError | None = None
        self.in_flight = 0
        self._ended = asyncio.get_running_loop().create_future()
        self._ended.add_done_callback(lambda ended: ended.exception())

    async def request(self, request: Any, *, timeout: float) -> Any:
        if self.closed:
            raise ConnectionLost("closed")
        answering = asyncio.ensure_future(self._coordinator.answer(request, self))
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wait([answering, self._ended], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            self.abort(ConnectionLost("deadline"))
        finally:
            if not answering.done():
                answering.cancel()
        if self._ended.done():
            self._ended.result()
        return answering.result()

    def abort(self, error: IngestdError) -> None:
        if not self.closed:
            self.closed = True
            self.error = error
            self._ended.set_exception(error)

    async def close(self) -> None:
        self.abort(ConnectionLost("closed"))


class Coordinator:
    """Node 1, which coordinates every group. `topics` has each topic's id; `assign` says who shall have what."""

    def __init__(self) -> None:
        self.interval = 0.02
        self.topics: dict[str, uuid.UUID] = {}
        self.hidden: set[uuid.UUID] = set()
        self.members: dict[str, Member] = {}
        self.wanted: dict[str, set[tuple[uuid.UUID, int]]] = {}
        self.script: deque[ErrorCode | type] = deque()
        self.leave_script: deque[ErrorCode | type] = deque()
        self.commit_script: deque[ErrorCode] = deque()
        self.versions: dict[int, tuple[int, int]] = {}
        self.heard: list[Any] = []
        """Every heartbeat, as it was asked."""
        self.commits: list[Any] = []
        self.late = asyncio.Event()
        self.lookups = 0
        self.lookups_by_id = 0
        self.epoch = 1
        self._changed = asyncio.Event()
        self.connections: list[Connection] = []

    async def open(self, host: str, port: int, **_: Any) -> Connection:
        connection = Connection(self)
        self.connections.append(connection)
        return connection

    def topic(self, name: str) -> uuid.UUID:
        """Create a topic, or create it anew under another id."""
        self.topics[name] = uuid.uuid4()
        return self.topics[name]

    def assign(self, member: str, partitions: Iterable[tuple[str, int]]) -> None:
        """What a member shall have from now on, as soon as the others have given it up."""
        self.wanted[member] = {(self.topics[topic], number) for topic, number in partitions}
        self.epoch += 1

    def fence(self) -> None:
        """Forget every member."""
        self.members.clear()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; looked at after every request."""
        async with asyncio.timeout(20):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def heartbeats(self, more: int = 1) -> None:
        """Wait for so many more heartbeats."""
        until = len(self.heard) + more
        await self.until(lambda: len(self.heard) >= until)

    async def answer(self, request: Any, connection: Connection) -> Any:
        module = import_module(type(request).__module__.removesuffix("request") + "response")
        kind = type(request).__name__.removesuffix("Request")
        if kind == "ConsumerGroupHeartbeat":
            return await self._heartbeat(module, request, connection)
        answer = {
            "FindCoordinator": self._find,
            "Metadata": self._metadata,
            "OffsetCommit": self._commit,
            "OffsetFetch": self._fetch,
        }[kind](module, request)
        self._changed.set()
        return answer

    async def _heartbeat(self, module: Any, request: Any, connection: Connection) -> Any:
        self.heard.append(request)
        script = self.leave_script if request.member_epoch < 0 and self.leave_script else self.script
        scripted = script.popleft() if script else None
        self._changed.set()
        if scripted is Silence:
            await asyncio.get_running_loop().create_future()
        code = scripted if isinstance(scripted, ErrorCode) else self._apply(request)
        if scripted is CutAfterwards:
            connection.abort(ConnectionLost("cut"))
            await asyncio.get_running_loop().create_future()
        member = self.members.get(request.member_id)
        assignment = None
        if code is ErrorCode.none and member is not None:
            self._share(member, self.wanted.get(request.member_id, set()), said=request.topic_partitions is not None)
            # As real ones do: whoever says everything may have missed an answer.
            said_everything = request.topic_partitions is not None and request.subscribed_topic_names is not None
            if said_everything or member.assigned != member.told:
                member.told = set(member.assigned)
                assignment = self._assignment(module, member.told)
        self._changed.set()
        answer = module.ConsumerGroupHeartbeatResponse(
            throttle_time=dt.timedelta(0),
            error_code=code,
            error_message=None if code is ErrorCode.none else f"because {code.name}",
            member_id=request.member_id,
            member_epoch=member.epoch if member is not None else request.member_epoch,
            heartbeat_interval=dt.timedelta(seconds=self.interval),
            assignment=assignment,
        )
        if scripted is Late:
            await self.late.wait()
        return answer

    def _share(self, member: Member, wanted: set[tuple[uuid.UUID, int]], *, said: bool) -> None:
        member.revoking |= member.assigned - wanted
        member.assigned &= wanted
        if said and not member.revoking & member.owned:
            member.revoking = set()
        if not member.revoking:
            others = [other for other in self.members.values() if other is not member]
            member.assigned |= wanted - set().union(*(other.assigned | other.revoking for other in others))
            member.epoch = self.epoch

    def _apply(self, request: Any) -> ErrorCode:
        if request.member_epoch < 0:
            self.members.pop(request.member_id, None)
            return ErrorCode.none
        if request.member_epoch == 0:
            self.members[request.member_id] = Member(self.epoch, request.instance_id)
        member = self.members.get(request.member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if request.topic_partitions is not None:
            member.owned = {
                (topic.topic_id, number) for topic in request.topic_partitions for number in topic.partitions
            }
        if request.subscribed_topic_names is not None:
            member.topics = request.subscribed_topic_names
        if getattr(request, "subscribed_topic_regex", None) is not None:
            member.regex = request.subscribed_topic_regex
        return ErrorCode.none

    @staticmethod
    def _assignment(module: Any, keys: Iterable[tuple[uuid.UUID, int]]) -> Any:
        topics: dict[uuid.UUID, list[int]] = {}
        for topic_id, number in sorted(keys):
            topics.setdefault(topic_id, []).append(number)
        return module.Assignment(
            topic_partitions=tuple(
                module.TopicPartitions(topic_id=topic_id, partitions=tuple(numbers))
                for topic_id, numbers in topics.items()
            )
        )

    def _find(self, module: Any, request: Any) -> Any:
        self.lookups += 1
        return module.FindCoordinatorResponse(
            throttle_time=dt.timedelta(0),
            coordinators=tuple(
                module.Coordinator(
                    key=key, node_id=1, host="one", port=1, error_code=ErrorCode.none, error_message=None
                )
                for key in request.coordinator_keys
            ),
        )

    def _metadata(self, module: Any, request: Any) -> Any:
        self.lookups_by_id += 1
        names = {topic_id: name for name, topic_id in self.topics.items()}
        topics = []
        for wanted in request.topics or ():
            name = names.get(wanted.topic_id) if wanted.topic_id not in self.hidden else None
            topics.append(
                module.MetadataResponseTopic(
                    error_code=ErrorCode.none if name else ErrorCode.unknown_topic_id,
                    name=name,
                    topic_id=wanted.topic_id,
                    is_internal=False,
                    partitions=(),
                )
            )
        return module.MetadataResponse(
            throttle_time=dt.timedelta(0),
            brokers=(module.MetadataResponseBroker(node_id=1, host="one", port=1, rack=None),),
            cluster_id="cluster",
            controller_id=1,
            topics=tuple(topics),
            error_code=ErrorCode.none,
        )

    def _commit(self, module: Any, request: Any) -> Any:
        self.commits.append(request)
        code = self.commit_script.popleft() if self.commit_script else ErrorCode.none
        member = self.members.get(request.member_id)
        if code is ErrorCode.none and (member is None or member.epoch != request.generation_id_or_member_epoch):
            code = ErrorCode.unknown_member_id if member is None else ErrorCode.stale_member_epoch
        return module.OffsetCommitResponse(
            throttle_time=dt.timedelta(0),
            topics=tuple(
                module.OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        module.OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                        for partition in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    def _fetch(self, module: Any, request: Any) -> Any:
        raise NotImplementedError("no test asks a scripted coordinator for offsets")
