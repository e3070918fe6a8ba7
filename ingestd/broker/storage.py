"""A broker's data directory: opens, recovers, creates, deletes and closes its topics and their logs."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import time
import uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ingestd.broker.log.files import (
    DirectoryLock,
    OpenFiles,
    make_directory,
    make_lasting_directory,
    no_room,
    sync_directory,
    write_atomically,
    write_replaceable,
)
from ingestd.broker.log.group_commit import FlushTurns, GroupCommit
from ingestd.broker.log.partition_log import PartitionLog
from ingestd.broker.producer_ids import ProducerIds
from ingestd.broker.topic_config import TopicConfig, check_topic_configs
from ingestd.broker.topics import Topic, TopicStore, check_topic_name
from ingestd.errors import ConfigurationError, ErrorCode, KafkaError
from ingestd.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from ingestd.broker.settings import BrokerSettings

__all__ = ["NewTopic", "Partition", "Storage", "is_data_directory"]

_CLEAN: Final = ".clean-shutdown"
_BOOT: Final = "leader-epoch"
_GRAVEYARD: Final = "deleted"
_TOPIC_ID: Final = "topic-id"
_OPEN_FILES: Final = 4096
_SEALED_AT_ONCE: Final = 16
"""Segments that are sealed at the same time. Each needs a descriptor until it is done."""
_DESCRIPTORS_FOR_OTHERS: Final = 512
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MAX_PARTITIONS: Final = 10_000
"""Most partitions of one topic. More is probably a mistake."""

_log = get_logger(__name__)


def is_data_directory(directory: Path) -> bool:
    """Whether a broker was started on this directory."""
    return (directory / _BOOT).exists()


class NewTopic:
    """A topic to create. The constructor checks it."""

    __slots__ = ("topic",)

    def __init__(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str | None],
        defaults: Mapping[str, str],
        replication: int = 1,
    ) -> None:
        """Raises `KafkaError`: INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_CONFIG."""
        check_topic_name(name)
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise KafkaError(ErrorCode.invalid_partitions, f"{partitions} partitions: expected 1 to {MAX_PARTITIONS}")
        self.topic = Topic(name, uuid.uuid4(), partitions, check_topic_configs(config, defaults), replication)


class Partition:
    """One partition's log, and the group commit that flushes it."""

    __slots__ = ("commit", "log")

    def __init__(self, log: PartitionLog, commit: GroupCommit) -> None:
        self.log = log
        self.commit = commit


class Storage:
    """Everything that a broker stores, in one directory.

    Invariants
        One process has the directory at a time.
        The list of topics is the truth: a directory that it does not name belongs to no topic.
        Directories are made before the list names them, and removed after it does not. So every partition of a topic
        in the list is open.
        If there is no room to write the list, a link in the graveyard, named by the topic's id, says that the topic is
        deleted, until the list can be written. So deleting, which makes room, needs none.
        No batch is appended in a leader epoch that is not on the disk.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._directory = settings.data
        self._graveyard = settings.data / _GRAVEYARD
        self._disk = ThreadPoolExecutor(max_workers=4, thread_name_prefix="broker-disk")
        # A thread of its own: removing a large topic takes long, and acknowledgements wait for the other threads.
        self._burial = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-burial")
        self._files = OpenFiles(_descriptor_limit())
        self._flush_turns = FlushTurns()
        self._lock: DirectoryLock | None = None
        self._partitions: dict[tuple[str, int], Partition] = {}
        self.topics = TopicStore(settings.data)
        self.producer_ids = ProducerIds(settings.data)
        self.leader_epoch = 0
        self._epoch_written = False
        self._refusing_topics = False
        self._tombstones: set[Path] = set()

    def open(self) -> None:
        """Lock the directory, and open and recover everything in it. Raises `ConfigurationError`, `OSError`."""
        make_lasting_directory(self._directory)
        self._lock = DirectoryLock(self._directory)
        try:
            self._open_contents()
        except BaseException:
            self._lock.close()
            raise

    def _open_contents(self) -> None:
        check_topic_configs({}, self._settings.topic_defaults)
        clean = self._directory / _CLEAN
        was_clean = clean.exists()
        first_start = not (self._directory / _BOOT).exists()
        if not (self._directory / "topics.json").exists() and any(self._directory.glob(f"*/{_TOPIC_ID}")):
            raise ConfigurationError(f"{self._directory}: holds logs of topics, but topics.json is missing")
        self.topics.load()
        if self._graveyard.is_dir():
            self._tombstones = {path for path in self._graveyard.iterdir() if path.is_file()}
            self.topics.drop(path.name for path in self._tombstones)
        self.producer_ids.load()
        # Removed before the epoch is written, which brings both to the disk. If a loss of power brought the marker
        # back, the next start would believe that nothing is missing.
        clean.unlink(missing_ok=True)
        self._begin_epoch(was_clean=was_clean)
        started = time.monotonic()
        self._bury_strays()
        for topic in self.topics:
            for partition in range(topic.partitions):
                self._partitions[topic.name, partition] = self._open_partition(topic, partition, clean=was_clean)
        self._settle()
        _log.info(
            "storage open",
            data=str(self._directory),
            topics=len(self.topics),
            partitions=len(self._partitions),
            last_end=_last_end(was_clean=was_clean, first_start=first_start),
            seconds=round(time.monotonic() - started, 3),
        )

    def _begin_epoch(self, *, was_clean: bool) -> None:
        """Begin a new leader epoch after a crash: records that clients saw at a log's end may be gone (KIP-320)."""
        path = self._directory / _BOOT
        if path.exists():
            self.leader_epoch = int(path.read_text("ascii")) + (0 if was_clean else 1)
            self._epoch_written = was_clean
        try:
            self._write_epoch()
        except OSError as error:
            if not no_room(error):
                raise
            # Logs can be read, and deleted to make room. But the removed marker must stay removed.
            sync_directory(self._directory)
            _log.error(
                "no room on the disk; what is there is served, no batch is taken until there is room",
                data=str(self._directory),
                error=str(error),
            )

    def _write_epoch(self) -> None:
        write_atomically(self._directory / _BOOT, str(self.leader_epoch).encode("ascii"))
        self._epoch_written = True

    def check_writable(self) -> None:
        """Call it before batches are appended. Raises `KafkaError` (KAFKA_STORAGE_ERROR) while there is no room."""
        if self._epoch_written:
            return
        try:
            self._write_epoch()
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"no room for a new leader epoch: {error}") from error
        _log.info("there is room on the disk again", data=str(self._directory))

    def _settle(self) -> None:
        """Write the deletions that the list of topics had no room for, if there is room now."""
        try:
            self.topics.settle()
            while self._tombstones:
                # A link of a topic that the list does not name does no harm.
                self._tombstones.pop().unlink(missing_ok=True)
        except OSError as error:
            if not no_room(error):
                _log.error("list of topics not written; deleted topics stay deleted", error=str(error))

    def _bury_strays(self) -> None:
        make_directory(self._graveyard)
        known = {"", *(str(topic.topic_id) for topic in self.topics)}
        for name in os.listdir(self._directory):  # noqa: PTH208 - no object for each: there are thousands
            if _marked(f"{self._directory}/{name}/{_TOPIC_ID}") not in known:
                _log.info("log of a deleted topic removed", directory=name)
                (self._directory / name).rename(self._grave())
        # The directory stays, because on a full disk it could not be made again.
        for grave in self._graveyard.iterdir():
            if grave not in self._tombstones:
                self._remove(grave)

    def _bury(self, directory: Path) -> None:
        directory.rename(grave := self._grave())
        self._remove(grave)

    def _remove(self, grave: Path) -> None:
        self._burial.submit(shutil.rmtree, grave, ignore_errors=True)

    def _grave(self) -> Path:
        return self._graveyard / uuid.uuid4().hex

    def _open_partition(self, topic: Topic, partition: int, *, clean: bool = False) -> Partition:
        directory = self._directory / f"{topic.name}-{partition}"
        marker = directory / _TOPIC_ID
        # Without a mark, the directory counts as that of the topic with its name.
        marked = _marked(marker)
        if marked and marked != str(topic.topic_id):
            self._bury(directory)
            marked = ""
        make_directory(directory)
        if not marked:
            write_replaceable(marker, str(topic.topic_id).encode("ascii"))
        log = PartitionLog(
            directory,
            self.config(topic),
            self._files,
            self._disk,
            leader_epoch=self.leader_epoch,
            producer_expiry=self._settings.producer_expiry,
            flush=self._settings.flush,
        )
        log.open(clean=clean)
        return Partition(log, GroupCommit(log, self._disk, self._flush_turns))

    def config(self, topic: Topic) -> TopicConfig:
        """The configuration of the topic's logs."""
        return TopicConfig.of(topic.config, self._settings.topic_defaults)

    def partition(self, topic: str, partition: int) -> Partition | None:
        """The partition; None if there is none."""
        return self._partitions.get((topic, partition))

    def begin_leader_epoch(self, topic: str, partition: int) -> None:
        """Begin another leader epoch of a partition that exists. Raises `KafkaError` (KAFKA_STORAGE_ERROR)."""
        before = self.leader_epoch, self._epoch_written
        self.leader_epoch += 1
        self._epoch_written = False
        try:
            self.check_writable()
        except KafkaError:
            self.leader_epoch, self._epoch_written = before
            raise
        self._partitions[topic, partition].log.leader_epoch = self.leader_epoch

    def wake_readers(self, topic: str, partition: int) -> None:
        """Let those who wait for records of a partition that exists look at it again."""
        log = self._partitions[topic, partition].log
        for watcher in (*log.watchers, *log.stable_watchers):
            watcher.gone()

    def items(self) -> list[tuple[tuple[str, int], Partition]]:
        """All partitions, each with its topic and number."""
        return list(self._partitions.items())

    def logs(self) -> tuple[PartitionLog, ...]:
        """The logs of all partitions."""
        return tuple(partition.log for partition in self._partitions.values())

    def create(self, new: Iterable[NewTopic]) -> None:
        """Create topics that do not exist. Raises `KafkaError` (KAFKA_STORAGE_ERROR); then none was created."""
        topics = [topic.topic for topic in new]
        self._add([(topic, partition) for topic in topics for partition in range(topic.partitions)], topics)

    def add_partitions(self, topic: Topic, count: int) -> None:
        """Grow a topic to `count` partitions. Raises `KafkaError` (KAFKA_STORAGE_ERROR); then nothing has changed."""
        grown = replace(topic, partitions=count)
        self._add([(grown, partition) for partition in range(topic.partitions, count)], [grown])

    def configure(self, topics: Iterable[Topic]) -> None:
        """Replace the configurations of topics. Their logs go by them at once.

        Raises `KafkaError` (KAFKA_STORAGE_ERROR); then nothing has changed.
        """
        topics = tuple(topics)
        try:
            self.topics.put(topics)
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
        self._settle()
        for topic in topics:
            config = self.config(topic)
            for partition in range(topic.partitions):
                self._partitions[topic.name, partition].log.configure(config)

    def _add(self, partitions: Iterable[tuple[Topic, int]], topics: Iterable[Topic]) -> None:
        opened: dict[tuple[str, int], Partition] = {}
        try:
            for topic, partition in partitions:
                directory = self._directory / f"{topic.name}-{partition}"
                if directory.exists():
                    # It is that of a deleted topic: no other topic has this name.
                    self._bury(directory)
                opened[topic.name, partition] = self._open_partition(topic, partition)
            sync_directory(self._directory)
            self.topics.put(topics)
        except OSError as error:
            self._bury_begun(opened.values())
            if not self._refusing_topics:
                _log.error("no topics or partitions are created until the disk takes them", error=str(error))
            self._refusing_topics = True
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
        self._refusing_topics = False
        self._settle()
        self._partitions.update(opened)

    def _bury_begun(self, partitions: Iterable[Partition]) -> None:
        """Remove what was created only in part: on a full disk, clients ask for it again and again."""
        for partition in partitions:
            # The rest belongs to no topic of the list. The next use of the name, or the next start, removes it.
            with suppress(OSError):
                partition.log.delete(grave := self._grave())
                self._remove(grave)

    def delete(self, topic: Topic) -> None:
        """Delete a topic. Its name is free when this returns; a disk thread removes its bytes. Raises `KafkaError`."""
        try:
            self.topics.remove([topic.name])
        except OSError as error:
            self._bury_unlisted(topic, error)
        else:
            self._settle()
        for partition in range(topic.partitions):
            log = self._partitions.pop((topic.name, partition)).log
            try:
                log.delete(grave := self._grave())
            except OSError as error:
                # The topic is deleted all the same. The next use of the name, or the next start, removes this.
                _log.warning("log of a deleted topic stays", partition=log.directory.name, error=str(error))
                continue
            self._remove(grave)

    def _bury_unlisted(self, topic: Topic, reason: OSError) -> None:
        """Make a deletion durable although the list can not be written. Raises `KafkaError`."""
        tombstone = self._graveyard / str(topic.topic_id)
        try:
            # A link takes no block of its own; a new file may.
            os.link(self._directory / f"{topic.name}-0" / _TOPIC_ID, tombstone)
            sync_directory(self._graveyard)
        except OSError as error:
            tombstone.unlink(missing_ok=True)
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
        self._tombstones.add(tombstone)
        self.topics.drop([str(topic.topic_id)])
        _log.warning("topic deleted without room for the list of topics", topic=topic.name, error=str(reason))

    async def enforce_retention(self, now: float) -> None:
        """Let every log remove what is beyond its topic's retention at `now`, in seconds since the epoch.

        Other work goes on between two logs.
        """
        for partition in tuple(self._partitions.values()):
            try:
                partition.log.enforce_retention(now)
            except OSError as error:
                _log.error("retention failed", partition=partition.log.directory.name, error=str(error))
            await asyncio.sleep(0)
        self._settle()

    def close(self) -> None:
        """Write everything to the disk, write a marker that says so, and release the directory."""
        if self._lock is None:
            return
        logs = [partition.log for partition in self._partitions.values()]
        sealing: deque[Future[None]] = deque()
        for log in logs:
            try:
                sealing.extend(log.close())
            except OSError as error:
                _log.error("log not closed cleanly", partition=log.directory.name, error=str(error))
            while len(sealing) > _SEALED_AT_ONCE:
                sealing.popleft().result()
        self._disk.shutdown(wait=True)
        self._burial.shutdown(wait=True)
        self._files.close_all()
        self._settle()
        try:
            if all(log.sealed for log in logs) and self._epoch_written:
                (self._directory / _CLEAN).touch(mode=0o600)
                sync_directory(self._directory)
        except OSError as error:
            # The next start begins a new epoch, as after a crash.
            _log.error("end not marked as clean", error=str(error))
        finally:
            self._lock.close()
            self._lock = None


def _last_end(*, was_clean: bool, first_start: bool) -> str:
    """How the last broker on this directory ended, and what this start does about it."""
    if first_start:
        return "none, this is the first start"
    return "clean" if was_clean else "not clean, the newest segments were read and checked"


def _marked(marker: str | Path) -> str:
    """The id of the topic that a directory is marked with; empty if there is no mark, or none that is whole.

    Nobody waits for the disk to have it. So after a loss of power it may be empty, cut off or zeros.
    """
    try:
        with open(marker, "rb", buffering=0) as file:  # noqa: PTH123 - the same
            text = file.read().decode("ascii", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return text if _UUID.fullmatch(text) else ""


def _descriptor_limit() -> int:
    """How many descriptors segments may use: those of the process, up to a bound, less those for connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(16, min(_OPEN_FILES, hard - _DESCRIPTORS_FOR_OTHERS))
