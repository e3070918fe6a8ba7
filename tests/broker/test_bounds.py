"""What bounds the broker: memory, idle connections, retention, descriptors."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from embedded.batches import batch_of
from embedded.process import BrokerProcess
from embedded.raw import RawClient, entity

from ingestd.broker.log.files import OpenFiles
from ingestd.broker.log.recent import RecentlyUsed
from ingestd.broker.memory import MemoryBudget
from ingestd.broker.server import BrokerServer
from ingestd.broker.settings import BrokerSettings
from ingestd.errors import ConfigurationError, ErrorCode
from ingestd.wire.apis import Api
from ingestd.wire.codec import encode_entity

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


def test_room_is_given_in_the_order_it_was_asked_for() -> None:
    budget = MemoryBudget(100)
    given: list[str] = []
    assert budget.take_or_wait(60, lambda: given.append("never"))
    assert not budget.take_or_wait(50, lambda: given.append("first"))
    assert not budget.take_or_wait(10, lambda: given.append("second"))
    budget.give_back(5)
    assert given == []
    budget.give_back(55)
    assert given == ["first", "second"]
    assert budget.used == 60


def test_who_stops_waiting_is_given_nothing() -> None:
    budget = MemoryBudget(100)
    given: list[str] = []

    def first() -> None:
        given.append("first")

    budget.take(100)
    assert not budget.take_or_wait(50, first)
    assert not budget.take_or_wait(50, lambda: given.append("second"))
    assert budget.stop_waiting(first)
    assert not budget.stop_waiting(first)
    budget.give_back(100)
    assert given == ["second"]


def test_files_beyond_the_limit_are_closed_and_opened_again_when_used(tmp_path: Path) -> None:
    files = OpenFiles(3)
    for number in range(20):
        os.pwrite(files.get(tmp_path / str(number % 7)), b"%d" % number, 0)
    assert len([None for path in (tmp_path / str(number) for number in range(7)) if path.read_bytes()]) == 7
    files.close_all()


def test_a_file_beyond_what_segments_may_have_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients took the descriptors up to those that are left to the broker."""
    files = OpenFiles(limit=100)
    taken = files.get(tmp_path / "0")
    monkeypatch.setattr("ingestd.broker.log.files.end_of_segments", lambda: taken + 1)
    assert {files.get(tmp_path / str(number)) for number in range(1, 10)} == {taken}
    files.close_all()
    monkeypatch.setattr("ingestd.broker.log.files.end_of_segments", lambda: 0)
    os.fstat(files.get(tmp_path / "0"))  # one there must be
    files.close_all()


def test_what_was_used_last_stays_as_far_as_there_is_room() -> None:
    class Thing:
        released = False

        def release(self) -> None:
            self.released = True

    recent = RecentlyUsed(100)
    first, second, third, large = Thing(), Thing(), Thing(), Thing()
    recent.used(first, 40)
    recent.used(second, 40)
    recent.used(first, 50)
    recent.used(third, 30)
    assert [first.released, second.released, third.released] == [False, True, False]
    recent.used(large, 1_000)
    assert [first.released, third.released, large.released] == [True, True, False]
    recent.used(second, 10)
    assert large.released


async def in_thread(port: int, work: Callable[[RawClient], Any]) -> Any:
    def run() -> Any:
        with RawClient(port) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_requests_beyond_the_memory_wait_and_are_all_answered(tmp_path: Path) -> None:
    settings = BrokerSettings(
        tmp_path / "data", port=0, max_request_bytes=2 * MIB, max_in_flight_bytes=3 * MIB,
        topic_defaults=MappingProxyType({"max.message.bytes": str(2 * MIB)}),
    )  # fmt: skip
    batch = batch_of([b"x" * MIB])

    def work(client: RawClient) -> list[ErrorCode]:
        client.metadata("t")
        for _ in range(20):
            client.send_produce("t", 0, batch)
        return [client.receive_produced().error for _ in range(20)]

    async with BrokerServer(settings) as server:
        answers = await asyncio.gather(*(in_thread(server.port, work) for _ in range(4)))
        assert answers == [[ErrorCode.none] * 20] * 4
        assert server._broker.memory.used == 0


async def test_requests_behind_one_that_is_held_back_are_not_taken_and_hold_no_memory(tmp_path: Path) -> None:
    """Kafka does not read them either. They may wait for minutes, and others need the room."""
    async with BrokerServer(BrokerSettings(tmp_path / "data", port=0)) as server:

        def ask(client: RawClient) -> None:
            client.metadata("t")
            partition = entity(Api.fetch, 12, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=MIB)
            topics = (entity(Api.fetch, 12, "FetchTopic", topic="t", partitions=(partition,)),)
            fetch = entity(
                Api.fetch, 12, "FetchRequest", max_wait=timedelta(minutes=1), min_bytes=1, max_bytes=MIB,
                forgotten_topics_data=(), topics=topics,
            )  # fmt: skip
            client.send(Api.fetch, 12, [encode_entity(fetch)])
            client.socket.settimeout(0.5)
            with pytest.raises(TimeoutError):
                client.send_produce("t", 0, bytes(80 * MIB))

        with RawClient(server.port) as client:
            await asyncio.to_thread(ask, client)
            (connection,) = server._connections
            assert len(connection._slots) == 1
            assert server._broker.memory.used == 0


async def test_a_request_that_stops_half_way_is_given_up(tmp_path: Path) -> None:
    async with BrokerServer(BrokerSettings(tmp_path / "data", port=0)) as server:
        with RawClient(server.port) as client:
            await asyncio.to_thread(client.socket.sendall, (MIB).to_bytes(4, "big") + bytes(100_000))
            async with asyncio.timeout(10):
                while server._broker.memory.used == 0:
                    await asyncio.sleep(0.01)
            for connection in tuple(server._connections):
                connection.sweep(time.monotonic() + 30, 600.0)
            assert len(server._connections) == 1
            for connection in tuple(server._connections):
                connection.sweep(time.monotonic() + 61, 600.0)
            assert await asyncio.to_thread(client.receive) is None
        assert server._broker.memory.used == 0


async def test_a_connection_that_asks_for_nothing_is_ended(tmp_path: Path) -> None:
    async with BrokerServer(BrokerSettings(tmp_path / "data", port=0)) as server:
        with RawClient(server.port) as client:
            await asyncio.to_thread(client.metadata)
            for connection in tuple(server._connections):
                connection.sweep(time.monotonic() + 601, 600.0)
            assert await asyncio.to_thread(client.receive) is None


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_reset_before_it_is_accepted_leaves_no_socket(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """As a port probe does it: the kernel knows no peer any more when the socket is taken."""
    unhandled: list[dict[str, Any]] = []

    async def probed() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        async with BrokerServer(BrokerSettings(tmp_path / "data", port=0)) as server:
            await in_thread(server.port, RawClient.metadata)
            before = open_descriptors()
            for _ in range(20):
                probe = socket.create_connection(("127.0.0.1", server.port))
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                probe.close()
            # Connections are accepted in their order: when this one is served, the others have been dealt with.
            await in_thread(server.port, RawClient.metadata)
            await asyncio.sleep(0)
            return open_descriptors() - before

    with asyncio.Runner(loop_factory=loop) as runner:
        left = runner.run(probed())
    assert unhandled == []
    assert left <= 1


async def test_a_client_that_never_reads_is_ended_with_what_it_holds(tmp_path: Path) -> None:
    """Closing waits for the rest of its answers to be taken; its socket lives on, and so would they."""
    async with BrokerServer(BrokerSettings(tmp_path / "data", port=0)) as server:

        def ask(client: RawClient) -> None:
            client.metadata("t")
            client.produce("t", 0, batch_of([b"x" * 900_000]))
            partition = entity(
                Api.fetch, 12, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=2 * MIB
            )
            topics = (entity(Api.fetch, 12, "FetchTopic", topic="t", partitions=(partition,)),)
            fetch = entity(
                Api.fetch, 12, "FetchRequest", max_wait=timedelta(0), min_bytes=1, max_bytes=2 * MIB,
                forgotten_topics_data=(), topics=topics,
            )  # fmt: skip
            for _ in range(30):
                client.send(Api.fetch, 12, [encode_entity(fetch)])

        with RawClient(server.port) as client:
            await asyncio.to_thread(ask, client)
            async with asyncio.timeout(10):
                while server._broker.memory.used < 10 * MIB:
                    await asyncio.sleep(0.01)
                for connection in tuple(server._connections):
                    connection.sweep(time.monotonic() + 601, 600.0)
                    await connection.lost
            assert server._broker.memory.used == 0


async def test_a_fetch_waits_for_nothing_where_the_next_segment_has_more(tmp_path: Path) -> None:
    """A consumer far behind, with fetch.min.bytes, would else wait at the end of every segment."""
    settings = BrokerSettings(
        tmp_path / "data", port=0, topic_defaults=MappingProxyType({"internal.segment.bytes": "2500"})
    )  # fmt: skip

    def work(client: RawClient) -> int:
        client.metadata("t")
        for _ in range(10):
            client.produce("t", 0, batch_of([b"x" * 1000]))
        partition = entity(Api.fetch, 12, "FetchPartition", partition=0, fetch_offset=1, partition_max_bytes=MIB)
        topics = (entity(Api.fetch, 12, "FetchTopic", topic="t", partitions=(partition,)),)
        asked = entity(
            Api.fetch, 12, "FetchRequest", max_wait=timedelta(minutes=2), min_bytes=5000, max_bytes=MIB,
            forgotten_topics_data=(), topics=topics,
        )  # fmt: skip
        return len(client.ask(asked).responses[0].partitions[0].records)

    async with BrokerServer(settings) as server:
        assert await in_thread(server.port, work) > 1000


async def test_connections_beyond_the_limit_are_ended_at_once(tmp_path: Path) -> None:
    async with BrokerServer(BrokerSettings(tmp_path / "data", port=0, max_connections=2)) as server:
        with RawClient(server.port) as first, RawClient(server.port) as second, RawClient(server.port) as third:
            await asyncio.to_thread(first.metadata)
            await asyncio.to_thread(second.metadata)
            assert await asyncio.to_thread(third.receive) is None


async def test_a_running_broker_removes_what_is_beyond_retention(tmp_path: Path) -> None:
    settings = BrokerSettings(
        tmp_path / "data", port=0, retention_check_interval=0.05,
        topic_defaults=MappingProxyType(
            {"internal.segment.bytes": "20000", "retention.bytes": "50000", "retention.ms": "-1"}
        ),
    )  # fmt: skip

    def earliest(client: RawClient) -> int:
        partition = entity(Api.list_offsets, 7, "ListOffsetsPartition", partition_index=0, timestamp=-2)
        topics = (entity(Api.list_offsets, 7, "ListOffsetsTopic", name="t", partitions=(partition,)),)
        asked = entity(Api.list_offsets, 7, "ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=topics)
        return int(client.ask(asked).topics[0].partitions[0].offset)

    def work(client: RawClient) -> int:
        client.metadata("t")
        for _ in range(100):
            assert client.produce("t", 0, batch_of([b"x" * 1000])).error is ErrorCode.none
        deadline = time.monotonic() + 20
        # Retention that came amid the batches has left those that were not too many yet.
        while (start := earliest(client)) < 30:
            assert time.monotonic() < deadline, f"the log starts at {start}"
        return start

    async with BrokerServer(settings) as server:
        assert await in_thread(server.port, work) <= 60


@pytest.mark.parametrize(
    "wrong",
    [
        {"default_partitions": 0},
        {"port": 70_000},
        {"node_id": -1},
        {"advertised": ("broker.example", 0)},
        {"cleaner_interval": 0.0},
        {"retention_check_interval": -1.0},
        {"offsets_retention_check_interval": float("nan")},
        {"advertised": ("broker.example", 65_535), "nodes": 2},
        {"max_in_flight_bytes": 99, "max_request_bytes": 100},
    ],
)
def test_wrong_settings_are_refused_by_name(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        BrokerSettings(tmp_path, **wrong)


MOST_ANSWERS_MEANWHILE = 5_000


def test_a_client_that_asks_without_end_leaves_room_for_the_others(tmp_path: Path) -> None:
    asked = entity(Api.metadata, 1, "MetadataRequest", topics=())
    ended = threading.Event()
    with BrokerProcess(tmp_path) as broker, RawClient(broker.port) as flooding, RawClient(broker.port) as other:
        answers = itertools.count()
        seen = 0

        def flood() -> None:
            while not ended.is_set():
                for _ in range(200):
                    flooding.send(asked.__api_key__, asked.__version__, [encode_entity(asked)])

        def take() -> None:
            nonlocal seen
            while flooding.receive() is not None:
                seen = next(answers)

        other.metadata()
        threads = [threading.Thread(target=work) for work in (flood, take)]
        for thread in threads:
            thread.start()
        while seen < MOST_ANSWERS_MEANWHILE:
            assert threads[1].is_alive()
            time.sleep(0.01)
        meanwhile = []
        for _ in range(5):
            before = seen
            other.metadata()
            meanwhile.append(seen - before)
        ended.set()
        threads[0].join(20)
        flooding.socket.shutdown(socket.SHUT_RDWR)
        threads[1].join(20)
    assert min(meanwhile) < MOST_ANSWERS_MEANWHILE
