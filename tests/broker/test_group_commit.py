"""Group commit: an acknowledgement waits for an fsync that began after the append, and many share one."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from embedded.batches import batch_of
from embedded.process import BrokerProcess
from embedded.raw import RawClient, entity

from ingestd.broker.log import group_commit
from ingestd.broker.log.files import OpenFiles
from ingestd.broker.log.group_commit import FlushTurns, GroupCommit
from ingestd.broker.log.partition_log import PartitionLog
from ingestd.broker.server import BrokerServer
from ingestd.broker.settings import BrokerSettings, Flush
from ingestd.broker.topic_config import TopicConfig
from ingestd.errors import ErrorCode, KafkaError
from ingestd.records.batch import read_header
from ingestd.wire.apis import Api
from ingestd.wire.codec import skip_response_header
from ingestd.wire.produce import produce_request, read_produce_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def disk() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=2) as executor:
        yield executor


@pytest.fixture
def log(tmp_path: Path, disk: ThreadPoolExecutor) -> Iterator[PartitionLog]:
    files = OpenFiles(8)
    opened = PartitionLog(
        tmp_path / "t-0", TopicConfig.of({}, {}), files, disk, leader_epoch=0, producer_expiry=1.0, flush=Flush.os
    )
    opened.open()
    yield opened
    files.close_all()


def append(log: PartitionLog, size: int = 1) -> None:
    batch = batch_of([b"x" * size])
    log.append(memoryview(batch), read_header(batch))


def failing_once(sync: Callable[[int], None]) -> Callable[[int], None]:
    """An fsync that says once, as the kernel does, that bytes could not be written."""
    told: list[int] = []

    def failing(descriptor: int) -> None:
        if told:
            sync(descriptor)
            return
        told.append(descriptor)
        raise OSError(5, "Input/output error")

    return failing


def name_of(descriptor: int) -> str:
    return Path(f"/proc/self/fd/{descriptor}").readlink().name


async def refused(waiting: asyncio.Future[None]) -> bool:
    try:
        await asyncio.wait_for(waiting, 10)
    except KafkaError as error:
        return error.code is ErrorCode.kafka_storage_error
    return False


async def test_those_who_come_while_an_fsync_runs_share_the_next(
    log: PartitionLog, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Semaphore(0), threading.Semaphore(0)
    sync = os.fdatasync

    def slow(descriptor: int) -> None:
        began.release()
        assert go_on.acquire(timeout=10)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    commit = GroupCommit(log, disk, FlushTurns())
    append(log)
    first = commit.flushed()
    await asyncio.to_thread(began.acquire)
    later = []
    for _ in range(5):
        append(log)
        later.append(commit.flushed())
    assert len(set(map(id, later))) == 1
    assert later[0] is not first
    go_on.release()
    await asyncio.wait_for(first, 10)
    assert not later[0].done()
    await asyncio.to_thread(began.acquire)
    go_on.release()
    await asyncio.wait_for(later[0], 10)


async def test_after_a_failed_fsync_the_partition_takes_no_more(
    log: PartitionLog, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    commit = GroupCommit(log, disk, FlushTurns())
    append(log)
    with pytest.raises(KafkaError) as failed:
        await asyncio.wait_for(commit.flushed(), 10)
    assert failed.value.code is ErrorCode.kafka_storage_error
    with pytest.raises(KafkaError) as refused:
        append(log)
    assert refused.value.code is ErrorCode.kafka_storage_error


async def test_an_fsync_that_could_not_begin_is_asked_for_again(
    log: PartitionLog, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors have run out for a moment: nothing is lost, and the partition goes on without a restart."""
    commit = GroupCommit(log, disk, FlushTurns())
    append(log)

    def none_left(descriptor: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "dup", none_left)
        assert await refused(commit.flushed())
    append(log)
    synced: list[str] = []
    sync = os.fdatasync

    def noted(descriptor: int) -> None:
        synced.append(name_of(descriptor))
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", noted)
    await asyncio.wait_for(commit.flushed(), 10)
    assert synced == ["00000000000000000000.log"]


async def test_those_who_came_while_an_fsync_failed_are_refused_too(
    log: PartitionLog, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bytes may be those that could not be written, and the next fsync says nothing of it."""
    began, go_on = threading.Event(), threading.Event()
    fails = failing_once(os.fdatasync)

    def slow(descriptor: int) -> None:
        began.set()
        assert go_on.wait(10)
        fails(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    commit = GroupCommit(log, disk, FlushTurns())
    append(log)
    first = commit.flushed()
    await asyncio.to_thread(began.wait)
    append(log)
    second = commit.flushed()
    go_on.set()
    assert await refused(first)
    assert await refused(second)


async def test_a_log_whose_fsync_failed_is_read_as_a_whole_by_the_next_start(
    log: PartitionLog, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index would say that nothing needs to be looked at: closing syncs again, and hears of no error then."""
    monkeypatch.setattr(os, "fdatasync", failing_once(os.fdatasync))
    commit = GroupCommit(log, disk, FlushTurns())
    append(log)
    assert await refused(commit.flushed())
    for sealing in log.close():
        sealing.result()
    assert not log.sealed
    assert list(log.directory.glob("*.index")) == []


class Held:
    """An executor that does nothing until told."""

    def __init__(self, disk: ThreadPoolExecutor) -> None:
        self.disk = disk
        self.held: list[Callable[[], Future[None]]] = []

    def submit(self, work: Callable[..., None], *arguments: object) -> Future[None]:
        self.held.append(lambda: self.disk.submit(work, *arguments))
        return Future()


@pytest.fixture
def rolling(tmp_path: Path, disk: ThreadPoolExecutor) -> Iterator[tuple[PartitionLog, Held]]:
    """A log of small segments, sealed when the test says so."""
    files = OpenFiles(8)
    held = Held(disk)
    config = TopicConfig.of({"segment.bytes": "1000"}, {})
    settings = {"leader_epoch": 0, "producer_expiry": 1.0, "flush": Flush.os}
    opened = PartitionLog(tmp_path / "t-0", config, files, held, **settings)  # type: ignore[arg-type]
    opened.open()
    yield opened, held
    files.close_all()
    for seal in held.held:
        seal().result()


async def test_segments_sealed_in_another_order_are_flushed_all(
    rolling: tuple[PartitionLog, Held], disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first segment waits for its turn, the second is sealed: what was acknowledged of the first is flushed."""
    log, held = rolling
    for _ in range(3):
        append(log, 800)
    held.held.pop(1)().result()
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(name_of(descriptor)))
    await asyncio.wait_for(GroupCommit(log, disk, FlushTurns()).flushed(), 10)
    assert set(synced) == {f"{0:020d}.log", f"{2:020d}.log"}


async def test_a_new_segment_that_took_nothing_does_not_hide_the_full_one(
    rolling: tuple[PartitionLog, Held], disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full just when a new segment has begun: what the old one has is flushed all the same."""
    log, _held = rolling
    append(log, 800)

    def full(descriptor: int, content: memoryview, position: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(KafkaError):
            append(log, 800)
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(name_of(descriptor)))
    await asyncio.wait_for(GroupCommit(log, disk, FlushTurns()).flushed(), 10)
    assert synced == [f"{0:020d}.log"]


async def test_a_seal_that_hears_of_the_failed_write_refuses_who_waits_for_it(
    rolling: tuple[PartitionLog, Held], disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells the first fsync of the file, which is the seal's; the acknowledgement's hears nothing."""
    log, held = rolling
    append(log, 800)
    append(log, 800)
    monkeypatch.setattr(os, "fsync", failing_once(os.fsync))
    held.held.pop()().result()
    assert await refused(GroupCommit(log, disk, FlushTurns()).flushed())
    assert list(log.directory.glob("*.index")) == []


async def test_the_name_of_a_new_segment_is_on_the_disk_with_its_first_batch(
    rolling: tuple[PartitionLog, Held], disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _held = rolling
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(name_of(descriptor)))
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(name_of(descriptor)))
    commit = GroupCommit(log, disk, FlushTurns())
    first, second = f"{0:020d}.log", f"{2:020d}.log"
    for expected in ([first, "t-0"], [first], [second, "t-0"]):
        append(log, 300)
        await asyncio.wait_for(commit.flushed(), 10)
        assert synced == expected
        synced.clear()


@pytest.fixture
def durable(tmp_path: Path, disk: ThreadPoolExecutor) -> Iterator[Callable[[], PartitionLog]]:
    """Opens one log of small segments with `Flush.always`; again, as after a kill."""
    files: list[OpenFiles] = []

    def open_log() -> PartitionLog:
        files.append(OpenFiles(8))
        config = TopicConfig.of({"segment.bytes": "1000", "retention.bytes": "0", "retention.ms": "-1"}, {})
        log = PartitionLog(
            tmp_path / "t-0", config, files[-1], disk, leader_epoch=0, producer_expiry=1.0, flush=Flush.always
        )
        log.open()
        return log

    yield open_log
    for opened in files:
        opened.close_all()


class Watched:
    """Adds up what it is told of."""

    def __init__(self) -> None:
        self.size = 0

    def grew(self, size: int) -> None:
        self.size += size

    def gone(self) -> None:
        pass


async def test_readers_get_what_an_fsync_has_brought_to_the_disk(
    durable: Callable[[], PartitionLog], disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fsync that runs while a batch is appended is not that batch's."""
    began, go_on = threading.Semaphore(0), threading.Semaphore(0)
    sync = group_commit._sync

    def slow(descriptors: list[int], names: Path | None) -> None:
        began.release()
        assert go_on.acquire(timeout=10)
        sync(descriptors, names)

    monkeypatch.setattr(group_commit, "_sync", slow)
    log, watched = durable(), Watched()
    log.watchers.add(watched)
    commit = GroupCommit(log, disk, FlushTurns())
    readable = 0
    for appended in range(1, 20):
        append(log, 200)
        waiting = commit.flushed()
        await asyncio.to_thread(began.acquire)
        append(log, 200)
        assert (log.end_offset, log.high_watermark, log.last_stable_offset) == (2 * appended, readable, readable)
        log.enforce_retention(0.0)
        assert log.start_offset <= log.high_watermark
        assert log.slice(readable, 1 << 20) is None
        readable = 2 * appended - 1
        go_on.release()
        await asyncio.wait_for(waiting, 10)
        assert log.high_watermark == readable
        piece = log.slice(readable - 1, 1 << 20)
        assert piece is not None
        assert piece.last
        assert read_header(piece.read()).base_offset == readable - 1
        assert piece.length == piece.first == watched.size // readable


def test_what_a_killed_broker_left_is_on_the_disk_before_it_is_read(
    durable: Callable[[], PartitionLog], disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(durable(), 200)
    synced: list[str] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(name_of(descriptor)), sync(descriptor)))
    assert durable().high_watermark == 1
    assert synced == [f"{0:020d}.log", "t-0"]


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_a_reader_never_gets_what_a_power_cut_takes_back_whatever_its_producer_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    go_on = threading.Event()
    sync = os.fdatasync

    def slow(descriptor: int) -> None:
        assert go_on.wait(20)
        sync(descriptor)

    def offsets(client: RawClient, timestamp: int) -> int:
        asked = entity(Api.list_offsets, 7, "ListOffsetsPartition", partition_index=0, timestamp=timestamp)
        topics = (entity(Api.list_offsets, 7, "ListOffsetsTopic", name="t", partitions=(asked,)),)
        answer = client.ask(
            entity(Api.list_offsets, 7, "ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=topics)
        )
        return int(answer.topics[0].partitions[0].offset)

    def fetch(client: RawClient, milliseconds: int, isolation: int) -> tuple[int, int, int]:
        asked = entity(Api.fetch, 12, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = (entity(Api.fetch, 12, "FetchTopic", topic="t", partitions=(asked,)),)
        wait = timedelta(milliseconds=milliseconds)
        answer = client.ask(
            entity(
                Api.fetch, 12, "FetchRequest", max_wait=wait, min_bytes=1, max_bytes=1 << 20, topics=topics,
                forgotten_topics_data=(), isolation_level=isolation,
            )
        ).responses[0].partitions[0]  # fmt: skip
        return answer.high_watermark, answer.last_stable_offset, len(answer.records or b"")

    def work(port: int) -> None:
        with RawClient(port) as producer, RawClient(port) as reader:
            producer.metadata("t")
            batch = batch_of([b"x"])
            producer.send_produce("t", 0, batch, acks=acks)
            for isolation in (0, 1):
                assert fetch(reader, 200, isolation) == (0, 0, 0)
            assert (offsets(reader, -1), offsets(reader, 0), offsets(reader, -3)) == (0, -1, -1)
            go_on.set()
            assert fetch(reader, 10_000, 1) == (1, 1, len(batch))
            assert (offsets(reader, -1), offsets(reader, 0), offsets(reader, -3)) == (1, 0, 0)
            if acks:
                assert producer.receive_produced().base_offset == 0

    monkeypatch.setattr(os, "fdatasync", slow)
    settings = BrokerSettings(tmp_path / "data", port=0, flush=Flush.always, topic_defaults={"retention.ms": "-1"})
    async with BrokerServer(settings) as server:
        await asyncio.to_thread(work, server.port)


async def test_a_turn_comes_in_the_order_asked_for_and_no_more_begin_than_may() -> None:
    turns = FlushTurns(at_once=2)
    begun: list[int] = []
    for number in range(5):
        turns.take(partial(begun.append, number))
    assert begun == [0, 1]
    turns.give_back()
    turns.take(partial(begun.append, 5))  # comes later than those who wait
    await asyncio.sleep(0)
    assert begun == [0, 1, 2]
    for _ in range(5):
        turns.give_back()
        await asyncio.sleep(0)
    assert begun == [0, 1, 2, 3, 4, 5]
    turns.take(partial(begun.append, 6))
    assert begun[-1] == 6


def test_a_request_may_be_about_more_logs_than_there_are_descriptors(tmp_path: Path) -> None:
    logs = 100
    few = ["prlimit", "--nofile=64:64"]
    with BrokerProcess(tmp_path, "--flush", "always", "--default-partitions", str(logs), under=few) as broker:
        with RawClient(broker.port) as client:
            client.metadata("t")
            for _ in range(3):
                batches = [(number, batch_of([b"x"])) for number in range(logs)]
                client.send(Api.produce, 12, produce_request(12, -1, 1000, None, [("t", None, batches)]))
                answer = client.receive()
                assert answer is not None
                told = read_produce_response(12, skip_response_header(Api.produce, 12, answer))
                assert [one.error for one in told] == [ErrorCode.none] * logs
        assert broker.stop() == 0
    assert "error" not in broker.stderr.read_text()
