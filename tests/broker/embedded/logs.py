"""One partition's log without a broker: opened, killed, opened again, and read as clients read it."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ingestd.broker.log.files import OpenFiles
from ingestd.broker.log.partition_log import PartitionLog
from ingestd.broker.settings import Flush
from ingestd.broker.topic_config import TopicConfig
from ingestd.records.batch import read_header, split_batches
from ingestd.records.decode import ControlKind, decode_control, decode_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ingestd.records.decode import Record

__all__ = ["Opened", "SlowDisk", "append", "committed_records"]

EXPIRY = 86_400.0
CONFIG = {"segment.bytes": "700", "index.interval.bytes": "200", "retention.ms": "-1"}


class SlowDisk(Executor):
    """Does nothing until it is told to."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, partial(fn, *args, **kwargs)))
        return future

    def catch_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future, work in waiting:
            future.set_result(work())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What waits has descriptors to close."""
        self.catch_up()


class Opened:
    """A log on one directory; `again` opens it as the next process would."""

    def __init__(self, directory: Path, flush: Flush = Flush.os, disk: Executor | None = None, **config: str) -> None:
        self._directory = directory
        self._flush = flush
        self._config = TopicConfig.of({**CONFIG, **config}, {})
        self._disk = disk or ThreadPoolExecutor(max_workers=1)
        self._files: list[OpenFiles] = []
        self.log = self.again()

    def again(self) -> PartitionLog:
        files = OpenFiles(4)
        self._files.append(files)
        log = PartitionLog(
            self._directory / "t-0",
            self._config,
            files,
            self._disk,
            leader_epoch=0,
            producer_expiry=EXPIRY,
            flush=self._flush,
        )
        log.open()
        self.log = log
        return log

    def configure(self, **config: str) -> None:
        """Another configuration, for this log and those that are opened later."""
        self._config = TopicConfig.of({**CONFIG, **config}, {})
        self.log.configure(self._config)

    def settle(self) -> None:
        """Until the disk thread has nothing left to do."""
        self._disk.submit(int).result()

    def end(self) -> None:
        self._disk.shutdown()
        for files in self._files:
            files.close_all()


def append(log: PartitionLog, batch: bytearray | memoryview) -> int:
    return log.append(memoryview(batch), read_header(batch)).base_offset


def committed_records(log: PartitionLog, offset: int, max_bytes: int) -> list[Record]:
    """What a client gets that reads committed records from `offset` on, by the rules of the protocol."""
    found: list[Record] = []
    while (piece := log.slice(offset, max_bytes, log.last_stable_offset)) is not None:
        waiting = log.aborted(offset, min(piece.ends_before, log.last_stable_offset))
        assert all(one.last_offset >= offset for one in waiting)
        aborting: set[int] = set()
        for batch in split_batches(piece.read()):
            header = read_header(batch)
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborting.add(waiting.pop(0).producer_id)
            if header.control:
                aborting -= {one.producer_id for one in decode_control(batch) if one.kind is ControlKind.abort}
            elif not (header.transactional and header.producer_id in aborting):
                found += decode_records(batch, first=offset)
            offset = header.last_offset + 1
    return found
