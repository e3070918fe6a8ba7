"""Group commit: an acknowledgement waits for an fsync that began after the append, and many share one."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from embedded.batches import batch_of

from ingestd.broker.log.files import OpenFiles
from ingestd.broker.log.group_commit import GroupCommit
from ingestd.broker.log.partition_log import PartitionLog
from ingestd.broker.topic_config import TopicConfig
from ingestd.errors import ErrorCode, KafkaError
from ingestd.records.batch import read_header

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def disk() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=2) as executor:
        yield executor


@pytest.fixture
def log(tmp_path: Path, disk: ThreadPoolExecutor) -> Iterator[PartitionLog]:
    files = OpenFiles(8)
    opened = PartitionLog(tmp_path / "t-0", TopicConfig.of({}, {}), files, disk, leader_epoch=0, producer_expiry=1.0)
    opened.open()
    yield opened
    files.close_all()


def append(log: PartitionLog) -> None:
    batch = batch_of([b"x"])
    log.append(memoryview(batch), read_header(batch))


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
    commit = GroupCommit(log, disk)
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
    commit = GroupCommit(log, disk)
    append(log)
    with pytest.raises(KafkaError) as failed:
        await asyncio.wait_for(commit.flushed(), 10)
    assert failed.value.code is ErrorCode.kafka_storage_error
    with pytest.raises(KafkaError) as refused:
        append(log)
    assert refused.value.code is ErrorCode.kafka_storage_error
