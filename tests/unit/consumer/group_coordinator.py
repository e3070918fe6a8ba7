"""A coordinator of the classic protocol in memory: states and generations as Kafka's, errors as a test wants them."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from next_generation_coordinator import Connection, CutAfterwards, Silence

from ingestd.errors import ConnectionLost, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Groups", "Member"]


@dataclass
class Member:
    """A member as the coordinator knows it."""

    member_id: str
    instance: str | None = None
    protocols: tuple[Any, ...] = ()
    joining: asyncio.Future[Any] | None = None
    syncing: asyncio.Future[Any] | None = None
    assignment: bytes = b""


@dataclass
class Groups:
    """Nodes 1 and 2; the first coordinates the one group. `script[kind]` answers requests of a kind in its stead."""

    topics: dict[str, int] = field(default_factory=lambda: {"t": 4})
    window: float = 0.5
    """Seconds that a rebalance waits for members who have not joined again."""
    versions: dict[int, tuple[int, int]] = field(default_factory=dict)
    script: defaultdict[str, deque[Any]] = field(default_factory=lambda: defaultdict(deque))
    """An error code, `Silence`, or `CutAfterwards`, for each request of a kind, the first first; None: as ever."""
    down: bool = False

    def __post_init__(self) -> None:
        self.state = "Empty"
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.pending: set[str] = set()
        self.leader = ""
        self.offsets: dict[tuple[str, int], tuple[int, int, str]] = {}
        self.heard: list[Any] = []
        self.left: list[tuple[str, str | None]] = []
        self._ids = itertools.count(1)
        self._changed = asyncio.Event()
        self._window: asyncio.TimerHandle | None = None
        self._connections: list[Connection] = []

    async def open(self, host: str, port: int, **_: Any) -> Connection:
        if self.down:
            raise ConnectionLost("refused")
        connection = Connection(self)  # type: ignore[arg-type]
        self._connections.append(connection)
        return connection

    def cut(self) -> None:
        """Every connection is lost."""
        for connection in self._connections:
            connection.abort(ConnectionLost("cut"))
        self._connections.clear()

    # What tests ask

    @property
    def counts(self) -> Counter[str]:
        """Requests by kind."""
        return Counter(kind_of(request) for request in self.heard)

    def requests(self, kind: str) -> list[Any]:
        return [request for request in self.heard if kind_of(request) == kind]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; looked at after every request."""
        async with asyncio.timeout(20):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def more(self, kind: str, count: int = 1) -> None:
        """Wait for so many more requests of a kind."""
        wanted = self.counts[kind] + count
        await self.until(lambda: self.counts[kind] >= wanted)

    async def stable(self, members: int, generation: int = 0) -> None:
        """Wait until the group is stable with so many members."""
        await self.until(
            lambda: self.state == "Stable" and len(self.members) == members and self.generation >= generation
        )

    def kick(self, member_id: str) -> None:
        """Forget a member, as when its session timed out."""
        del self.members[member_id]
        self._prepare()

    # Requests

    async def answer(self, request: Any, connection: Connection) -> Any:
        kind = kind_of(request)
        module = import_module(type(request).__module__.removesuffix("request") + "response")
        self.heard.append(request)
        self._changed.set()
        scripted = self.script[kind].popleft() if self.script[kind] else None
        if scripted is Silence:
            await asyncio.get_running_loop().create_future()
        if isinstance(scripted, ErrorCode):
            answer = getattr(self, f"_refuse_{kind}")(module, request, scripted)
        else:
            answer = getattr(self, f"_{kind}")(module, request)
            if asyncio.iscoroutine(answer):
                answer = await answer
        if scripted is CutAfterwards:
            connection.abort(ConnectionLost("cut"))
            await asyncio.get_running_loop().create_future()
        self._changed.set()
        return answer

    def _FindCoordinator(self, module: Any, request: Any) -> Any:  # noqa: N802
        return self._refuse_FindCoordinator(module, request, ErrorCode.none)

    def _refuse_FindCoordinator(self, module: Any, request: Any, code: ErrorCode) -> Any:  # noqa: N802
        return module.FindCoordinatorResponse(
            throttle_time=dt.timedelta(0),
            coordinators=tuple(
                module.Coordinator(key=key, node_id=1, host="one", port=1, error_code=code, error_message=None)
                for key in request.coordinator_keys
            ),
        )

    def _Metadata(self, module: Any, request: Any) -> Any:  # noqa: N802
        names = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        return module.MetadataResponse(
            throttle_time=dt.timedelta(0),
            brokers=tuple(
                module.MetadataResponseBroker(node_id=node, host=host, port=1, rack=None)
                for node, host in ((1, "one"), (2, "two"))
            ),
            cluster_id="cluster",
            controller_id=1,
            topics=tuple(
                module.MetadataResponseTopic(
                    error_code=ErrorCode.none if name in self.topics else ErrorCode.unknown_topic_or_partition,
                    name=name,
                    topic_id=None,
                    is_internal=name.startswith("__"),
                    partitions=tuple(
                        module.MetadataResponsePartition(
                            error_code=ErrorCode.none,
                            partition_index=number,
                            leader_id=1,
                            leader_epoch=1,
                            replica_nodes=(1,),
                            isr_nodes=(1,),
                            offline_replicas=(),
                        )
                        for number in range(self.topics.get(name, 0))
                    ),
                )
                for name in names
            ),
            error_code=ErrorCode.none,
        )

    async def _JoinGroup(self, module: Any, request: Any) -> Any:  # noqa: N802
        member_id = request.member_id
        if not member_id:
            for member in list(self.members.values()):
                if request.group_instance_id is not None and member.instance == request.group_instance_id:
                    return self._restarted(module, request, member)
            member_id = f"m{next(self._ids)}"
            if request.group_instance_id is None:
                self.pending.add(member_id)
                return self._refuse_JoinGroup(module, request, ErrorCode.member_id_required, member_id)
            self.members[member_id] = Member(member_id)
        if member_id in self.pending:
            self.pending.discard(member_id)
            self.members[member_id] = Member(member_id)
        member = self.members.get(member_id)
        if member is None:
            return self._refuse_JoinGroup(module, request, ErrorCode.unknown_member_id)
        member.instance, member.protocols = request.group_instance_id, request.protocols
        member.joining = asyncio.get_running_loop().create_future()
        if self.state != "Preparing":
            self._prepare()
        self._complete_if_all_joined()
        self._changed.set()
        return (await member.joining)(module)

    def _restarted(self, module: Any, request: Any, member: Member) -> Any:
        """A static member comes back under another id: it gets what it had (KIP-345)."""
        del self.members[member.member_id]
        if self.leader == member.member_id:
            self.leader = ""
        member.member_id = f"m{next(self._ids)}"
        self.members[member.member_id] = member
        self.leader = self.leader or member.member_id
        leads = self.leader == member.member_id
        return self._joined(module, member, list(self.members.values()) if leads else [], skip=leads)

    def _prepare(self) -> None:
        self.state = "Preparing"
        for member in self.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_result(ErrorCode.rebalance_in_progress)
        if self._window is None:
            self._window = asyncio.get_running_loop().call_later(self.window, self._complete)
        self._complete_if_all_joined()

    def _complete_if_all_joined(self) -> None:
        if all(member.joining is not None and not member.joining.done() for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        if self._window is not None:
            self._window.cancel()
            self._window = None
        waiting = {key: one for key, one in self.members.items() if one.joining is not None and not one.joining.done()}
        self.members = waiting
        if not waiting:
            self.state = "Empty"
            return
        self.state = "Completing"
        self.generation += 1
        if self.leader not in waiting:
            self.leader = next(iter(waiting))
        everybody = list(waiting.values())
        for member in everybody:
            members = everybody if member.member_id == self.leader else []
            assert member.joining is not None
            member.joining.set_result(
                lambda module, member=member, members=members: self._joined(module, member, members)
            )

    def _joined(self, module: Any, member: Member, members: list[Member], *, skip: bool = False) -> Any:
        protocol = member.protocols[0].name
        return module.JoinGroupResponse(
            throttle_time=dt.timedelta(0),
            error_code=ErrorCode.none,
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=protocol,
            leader=self.leader,
            skip_assignment=skip,
            member_id=member.member_id,
            members=tuple(
                module.JoinGroupResponseMember(
                    member_id=one.member_id,
                    group_instance_id=one.instance,
                    metadata=next(offer.metadata for offer in one.protocols if offer.name == protocol),
                )
                for one in members
            ),
        )

    def _refuse_JoinGroup(self, module: Any, request: Any, code: ErrorCode, member_id: str = "") -> Any:  # noqa: N802
        return module.JoinGroupResponse(
            throttle_time=dt.timedelta(0),
            error_code=code,
            protocol_name=None,
            leader="",
            member_id=member_id,
            members=(),
        )

    async def _SyncGroup(self, module: Any, request: Any) -> Any:  # noqa: N802
        code = self._membership(request)
        if code is ErrorCode.none and self.state == "Preparing":
            code = ErrorCode.rebalance_in_progress
        if code is not ErrorCode.none:
            return self._refuse_SyncGroup(module, request, code)
        member = self.members[request.member_id]
        if self.state == "Completing":
            if request.member_id == self.leader:
                given = {one.member_id: one.assignment for one in request.assignments}
                self.state = "Stable"
                for one in self.members.values():
                    one.assignment = given.get(one.member_id, b"")
                    if one.syncing is not None and not one.syncing.done():
                        one.syncing.set_result(ErrorCode.none)
            else:
                member.syncing = asyncio.get_running_loop().create_future()
                code = await member.syncing
                if code is not ErrorCode.none:
                    return self._refuse_SyncGroup(module, request, code)
        return module.SyncGroupResponse(
            throttle_time=dt.timedelta(0), error_code=ErrorCode.none, assignment=member.assignment
        )

    def _refuse_SyncGroup(self, module: Any, request: Any, code: ErrorCode) -> Any:  # noqa: N802
        return module.SyncGroupResponse(throttle_time=dt.timedelta(0), error_code=code, assignment=b"")

    def _membership(self, request: Any) -> ErrorCode:
        if request.member_id not in self.members:
            return ErrorCode.unknown_member_id
        generation = getattr(request, "generation_id", None)
        if generation is None:
            generation = request.generation_id_or_member_epoch
        return ErrorCode.none if generation == self.generation else ErrorCode.illegal_generation

    def _Heartbeat(self, module: Any, request: Any) -> Any:  # noqa: N802
        code = self._membership(request)
        if code is ErrorCode.none and self.state == "Preparing":
            code = ErrorCode.rebalance_in_progress
        return self._refuse_Heartbeat(module, request, code)

    def _refuse_Heartbeat(self, module: Any, request: Any, code: ErrorCode) -> Any:  # noqa: N802
        return module.HeartbeatResponse(throttle_time=dt.timedelta(0), error_code=code)

    def _DescribeGroups(self, module: Any, request: Any) -> Any:  # noqa: N802
        members = tuple(
            module.DescribedGroupMember(
                member_id=one.member_id,
                group_instance_id=one.instance,
                client_id="",
                client_host="",
                member_metadata=one.protocols[0].metadata,
                member_assignment=one.assignment,
            )
            for one in self.members.values()
        )
        return self._described(module, request, ErrorCode.none, members)

    def _refuse_DescribeGroups(self, module: Any, request: Any, code: ErrorCode) -> Any:  # noqa: N802
        return self._described(module, request, code, ())

    def _described(self, module: Any, request: Any, code: ErrorCode, members: tuple[Any, ...]) -> Any:
        group = module.DescribedGroup(
            error_code=code,
            group_id=request.groups[0],
            group_state=self.state,
            protocol_type="consumer",
            protocol_data="range",
            members=members,
        )
        return module.DescribeGroupsResponse(throttle_time=dt.timedelta(0), groups=(group,))

    def _LeaveGroup(self, module: Any, request: Any) -> Any:  # noqa: N802
        members = []
        for one in request.members:
            self.left.append((one.member_id, one.group_instance_id))
            known = self.members.pop(one.member_id, None)
            members.append(
                module.MemberResponse(
                    member_id=one.member_id,
                    group_instance_id=one.group_instance_id,
                    error_code=ErrorCode.none if known else ErrorCode.unknown_member_id,
                )
            )
            if known is not None:
                self._prepare()
        return module.LeaveGroupResponse(
            throttle_time=dt.timedelta(0), error_code=ErrorCode.none, members=tuple(members)
        )

    def _refuse_LeaveGroup(self, module: Any, request: Any, code: ErrorCode) -> Any:  # noqa: N802
        return module.LeaveGroupResponse(throttle_time=dt.timedelta(0), error_code=code, members=())

    def _OffsetCommit(self, module: Any, request: Any) -> Any:  # noqa: N802
        code = ErrorCode.none
        if request.member_id or self.state != "Empty":
            code = self._membership(request)
            if code is ErrorCode.none and self.state == "Completing":
                code = ErrorCode.rebalance_in_progress
        if code is ErrorCode.none:
            for topic in request.topics:
                for one in topic.partitions:
                    self.offsets[topic.name, one.partition_index] = (
                        one.committed_offset,
                        one.committed_leader_epoch,
                        one.committed_metadata,
                    )
        return self._refuse_OffsetCommit(module, request, code)

    def _refuse_OffsetCommit(self, module: Any, request: Any, code: ErrorCode) -> Any:  # noqa: N802
        return module.OffsetCommitResponse(
            throttle_time=dt.timedelta(0),
            topics=tuple(
                module.OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        module.OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
                        for one in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    def _OffsetFetch(self, module: Any, request: Any) -> Any:  # noqa: N802
        return self._fetched(module, request, ErrorCode.none)

    def _refuse_OffsetFetch(self, module: Any, request: Any, code: ErrorCode) -> Any:  # noqa: N802
        return self._fetched(module, request, code)

    def _fetched(self, module: Any, request: Any, code: ErrorCode) -> Any:
        of_partition = code in (ErrorCode.unstable_offset_commit, ErrorCode.topic_authorization_failed)
        group = request.groups[0]
        return module.OffsetFetchResponse(
            throttle_time=dt.timedelta(0),
            groups=(
                module.OffsetFetchResponseGroup(
                    group_id=group.group_id,
                    error_code=ErrorCode.none if of_partition else code,
                    topics=tuple(
                        module.OffsetFetchResponseTopics(
                            name=topic.name,
                            partitions=tuple(
                                self._committed(module, topic.name, number, code if of_partition else ErrorCode.none)
                                for number in topic.partition_indexes
                            ),
                        )
                        for topic in group.topics
                    ),
                ),
            ),
        )

    def _committed(self, module: Any, topic: str, number: int, code: ErrorCode) -> Any:
        offset, epoch, metadata = self.offsets.get((topic, number), (-1, -1, ""))
        return module.OffsetFetchResponsePartitions(
            partition_index=number,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            metadata=metadata,
            error_code=code,
        )


def kind_of(request: Any) -> str:
    return type(request).__name__.removesuffix("Request")
