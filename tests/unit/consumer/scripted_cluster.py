"""A cluster without sockets: every fetch waits until the test answers it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from kio.schema.fetch.v17.request import FetchRequest
from kio.schema.fetch.v17.response import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from kio.static.primitive import i32Timedelta

from ingestd.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from ingestd.client.pushed import PushedMetadata
from ingestd.consumer.consumer import Consumer
from ingestd.consumer.settings import ConsumerSettings
from ingestd.errors import ErrorCode
from ingestd.wire.apis import Api
from ingestd.wire.codec import decode_entity, encode_entity
from ingestd.wire.versions import ApiVersions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingestd.wire.requests import Build

OUTSIDE_SESSION = (0, -1)
TOPIC_ID = UUID(int=77)
OTHER_TOPIC_ID = UUID(int=78)
NODES = {number: Node(number, f"node-{number}", 9092) for number in (1, 2)}


def snapshot(
    leaders: Sequence[int],
    *,
    leader_epoch: int = 1,
    version: int = 1,
    topic_id: UUID | None = TOPIC_ID,
    gone: Sequence[int] = (),
) -> ClusterMetadata:
    """Topic "t", one partition for each leader; nodes that are `gone` are not there."""
    partitions = tuple(
        PartitionMetadata(number, leader, leader_epoch, (1, 2), (1, 2), tuple(gone))
        for number, leader in enumerate(leaders)
    )
    nodes = {number: node for number, node in NODES.items() if number not in gone}
    return ClusterMetadata("c", 1, nodes, {"t": TopicMetadata("t", topic_id, partitions)}, version)


class Asked:
    """A fetch that waits for its answer."""

    def __init__(self, node_id: int, body: bytes) -> None:
        self.node_id = node_id
        self.request: Any = decode_entity(FetchRequest, body)
        self.future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

    @property
    def offsets(self) -> dict[int, int]:
        """Partition → offset, of those that the request names."""
        return {part.partition: part.fetch_offset for topic in self.request.topics for part in topic.partitions}

    @property
    def forgotten(self) -> list[int]:
        return [number for topic in self.request.forgotten_topics_data for number in topic.partitions]

    @property
    def topic_id(self) -> UUID | None:
        """Of the one topic that the request names."""
        return next((topic.topic_id for topic in self.request.topics), None)

    @property
    def session(self) -> tuple[int, int]:
        return self.request.session_id, self.request.session_epoch

    def answer(
        self,
        *parts: PartitionData,
        session_id: int = 5,
        error: ErrorCode = ErrorCode.none,
        throttle_ms: int = 0,
        topic_id: UUID = TOPIC_ID,
    ) -> None:
        topics = (FetchableTopicResponse(topic_id=topic_id, partitions=parts),) if parts else ()
        response = FetchResponse(
            throttle_time=i32Timedelta.parse(timedelta(milliseconds=throttle_ms)),
            error_code=error,
            session_id=session_id,
            responses=topics,
        )
        self.future.set_result(memoryview(encode_entity(response)))


def part(
    number: int,
    records: bytes | None = None,
    *,
    high_watermark: int = 100,
    last_stable_offset: int = -1,
    error: ErrorCode = ErrorCode.none,
    leader: int = -1,
    leader_epoch: int = -1,
    aborted: Sequence[tuple[int, int]] = (),
    preferred: int = -1,
) -> PartitionData:
    """One partition's part of an answer."""
    return PartitionData(
        partition_index=number,
        error_code=error,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=0,
        current_leader=LeaderIdAndEpoch(leader_id=leader, leader_epoch=leader_epoch),
        aborted_transactions=tuple(AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted),
        preferred_read_replica=preferred,
        records=records,
    )


class _Connection:
    def __init__(self, node_id: int, asked: asyncio.Queue[Asked]) -> None:
        self._node_id = node_id
        self._asked = asked
        self.given_back: list[int] = []
        self.versions = ApiVersions({Api.fetch: (4, 17)})

    def send(self, api: int, version: int, body: Sequence[bytes], *, timeout: float) -> asyncio.Future[memoryview]:
        assert (api, version) == (Api.fetch, 17)
        assert timeout > 0
        asked = Asked(self._node_id, b"".join(body))
        if asked.session[0] and asked.session[1] == -1:  # the session is given back
            self.given_back.append(asked.session[0])
            asked.answer(session_id=0)
        else:
            self._asked.put_nowait(asked)
        return asked.future


class EpochAsked(NamedTuple):
    """A question where an epoch ends, to the leader of the current one."""

    node_id: int
    partition: int
    leader_epoch: int
    current_leader_epoch: int


def same_log(asked: EpochAsked) -> tuple[int, int]:
    """The answer of a leader that has all of it."""
    return asked.leader_epoch, 2**40


class _Broker:
    connected = True

    def __init__(self, node_id: int, asked: asyncio.Queue[Asked], cluster: Cluster) -> None:
        self.link = _Connection(node_id, asked)
        self._node_id = node_id
        self._cluster = cluster

    async def request(self, build: Build, timeout: float) -> Any:
        assert timeout > 0
        request: Any = build(ApiVersions({Api.offset_for_leader_epoch: (0, 4), Api.list_offsets: (1, 8)}))
        await asyncio.sleep(0)
        if request.__api_key__ == Api.list_offsets:
            await self._cluster.answers_offsets.wait()
            return SimpleNamespace(topics=[self._listed(topic) for topic in request.topics])
        return SimpleNamespace(topics=[self._ended(topic) for topic in request.topics])

    def _listed(self, topic: Any) -> Any:
        partitions = [
            SimpleNamespace(partition_index=part.partition_index, error_code=ErrorCode.none, offset=self._cluster.edge)
            for part in topic.partitions
        ]
        return SimpleNamespace(name=topic.name, partitions=partitions)

    def _ended(self, topic: Any) -> Any:
        partitions = []
        for part in topic.partitions:
            asked = EpochAsked(self._node_id, part.partition, part.leader_epoch, part.current_leader_epoch)
            self._cluster.epochs_asked.append(asked)
            answer = self._cluster.end_of_epoch(asked)
            code, (epoch, end) = (answer, (-1, -1)) if isinstance(answer, ErrorCode) else (ErrorCode.none, answer)
            partitions.append(
                SimpleNamespace(partition=part.partition, error_code=code, leader_epoch=epoch, end_offset=end)
            )
        return SimpleNamespace(topic=topic.topic, partitions=partitions)

    async def connection(self, timeout: float) -> _Connection:
        assert timeout > 0
        return self.link


class Cluster:
    """Stands for a client. `wanted` are the topics that somebody wished fresh metadata of."""

    def __init__(self, leaders: Sequence[int]) -> None:
        self.wanted: list[str] = []
        self.sections: dict[str, Callable[[], object]] = {}
        self.metadata = PushedMetadata(lambda topics, _: self.wanted.extend(topics), lambda *_: None)
        self.metadata.push(snapshot(leaders))
        self._asked: asyncio.Queue[Asked] = asyncio.Queue()
        self._brokers = {number: _Broker(number, self._asked, self) for number in NODES}
        self.end_of_epoch: Callable[[EpochAsked], tuple[int, int] | ErrorCode] = same_log
        """What a leader says of an epoch: the largest one up to it and its end, or an error."""
        self.epochs_asked: list[EpochAsked] = []
        self.edge = 0
        """The answer to any question for an offset."""
        self.answers_offsets = asyncio.Event()
        """Cleared: such questions wait for their answer."""
        self.answers_offsets.set()

    def broker(self, node_id: int, purpose: str = "control") -> _Broker:
        assert purpose == "fetch" or node_id in NODES
        return self._brokers[node_id]

    def add_status(self, name: str, section: Callable[[], object]) -> Callable[[], None]:
        self.sections[name] = section
        return self.sections.clear

    async def partitions(self, topic: str, timeout: float | None = None) -> list[int]:
        return list(range(len(self.metadata.snapshot.topics[topic].partitions)))

    @property
    def given_back(self) -> list[int]:
        """Ids of the fetch sessions that were given back."""
        return [session for broker in self._brokers.values() for session in broker.link.given_back]

    async def asked(self) -> Asked:
        """The next fetch that was sent."""
        return await asyncio.wait_for(self._asked.get(), 5)

    async def asked_within(self, seconds: float) -> Asked | None:
        """The next fetch, or None when none is sent for so long."""
        try:
            return await asyncio.wait_for(self._asked.get(), seconds)
        except TimeoutError:
            return None

    @property
    def quiet(self) -> bool:
        """Whether no fetch was sent that the test has not seen."""
        return self._asked.empty()

    def consumer(self, events: Any = None, **settings: Any) -> Consumer:
        return Consumer(self, ConsumerSettings(**settings), events=events)  # type: ignore[arg-type]
