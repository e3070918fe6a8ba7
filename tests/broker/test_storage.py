"""A data directory whose file system refuses something half way: topics are there or not, and never both."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from embedded.batches import batch_of

from ingestd.broker import storage as storage_module
from ingestd.broker.log.partition_log import PartitionLog
from ingestd.broker.settings import BrokerSettings
from ingestd.broker.storage import NewTopic, Storage
from ingestd.errors import ErrorCode, KafkaError
from ingestd.records.batch import read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], Storage]]:
    """Opens the test's data directory."""
    storages: list[Storage] = []

    def open_storage() -> Storage:
        storage = Storage(BrokerSettings(tmp_path / "data"))
        storage.open()
        storages.append(storage)
        return storage

    yield open_storage
    for storage in storages:
        storage.close()


def kill(storage: Storage) -> None:
    """Let another storage have the directory as it is now, as the kernel does when a process is killed."""
    assert storage._lock is not None
    storage._lock.close()


def append(storage: Storage, topic: str, partition: int) -> int:
    found = storage.partition(topic, partition)
    assert found is not None
    batch = batch_of([b"x"])
    return found.log.append(memoryview(batch), read_header(batch)).base_offset


def test_a_start_says_how_the_last_broker_ended(opened: Callable[[], Storage]) -> None:
    # `clean=False` at the very first start read like damage.
    with structlog.testing.capture_logs() as events:
        kill(opened())
        opened().close()
        opened()
    assert [event["last_end"] for event in events if event["event"] == "storage open"] == [
        "none, this is the first start",
        "not clean, the newest segments were read and checked",
        "clean",
    ]


def test_a_topic_whose_directories_stay_is_deleted_all_the_same(
    opened: Callable[[], Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its partitions took batches that no reader finds, and the next topic of its name wrote into its files."""
    storage = opened()
    storage.create([NewTopic("t", 3, {}, {})])
    for partition in range(3):
        append(storage, "t", partition)
    topic = storage.topics.named("t")
    assert topic is not None
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path.name == "t-0":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refused)
        storage.delete(topic)
    assert [storage.partition("t", partition) for partition in range(3)] == [None] * 3
    storage.create([NewTopic("t", 3, {}, {})])
    assert [append(storage, "t", partition) for partition in range(3)] == [0, 0, 0]
    storage.close()
    again = opened()
    assert [append(again, "t", partition) for partition in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("mark", [b"", bytes(36), b"e91a1064-b92", b"\xff" * 36])
def test_a_log_whose_mark_was_lost_with_the_power_is_its_topics(opened: Callable[[], Storage], mark: bytes) -> None:
    """Nobody waits for the mark: it may be shorter, or zeros. It was taken for that of another topic."""
    storage = opened()
    storage.create([NewTopic("kept", 1, {}, {})])
    assert append(storage, "kept", 0) == 0
    kill(storage)
    found = storage.partition("kept", 0)
    assert found is not None
    (found.log.directory / "topic-id").write_bytes(mark)
    assert append(opened(), "kept", 0) == 1


def test_a_new_topic_has_nothing_of_a_directory_that_has_its_name_and_no_mark(
    opened: Callable[[], Storage],
) -> None:
    storage = opened()
    storage.create([NewTopic("name", 1, {}, {})])
    append(storage, "name", 0)
    kill(storage)
    found = storage.partition("name", 0)
    assert found is not None
    left = found.log.directory
    storage = opened()
    gone = storage.topics.named("name")
    assert gone is not None
    storage.delete(gone)
    kill(storage)
    left.mkdir()
    (left / "topic-id").write_bytes(b"")
    (left / "00000000000000000000.log").write_bytes(bytes(batch_of([b"of the one before"])))
    storage = opened()
    storage.create([NewTopic("name", 1, {}, {})])
    assert append(storage, "name", 0) == 0


def test_an_end_that_can_not_be_marked_as_clean_lets_go_of_the_directory(
    opened: Callable[[], Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened()
    epoch = storage.leader_epoch

    def full(path: Path, mode: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "touch", full)
        storage.close()
    assert opened().leader_epoch == epoch + 1


def test_the_mark_of_a_clean_end_is_gone_for_good_before_the_broker_serves(
    opened: Callable[[], Storage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power soon after the start would else bring it back, and the epoch would stay as it was."""
    opened().close()
    marker = tmp_path / "data" / ".clean-shutdown"
    assert marker.exists()
    seen: list[bool] = []
    write = storage_module.write_atomically

    def noted(path: Path, content: bytes) -> None:
        seen.append(marker.exists())
        write(path, content)

    monkeypatch.setattr(storage_module, "write_atomically", noted)
    opened()
    assert seen == [False]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """`with full():` no file takes a byte; names can be made and removed, as on most file systems."""

    def refused(descriptor: int, content: bytes, position: int) -> int:
        raise OSError(28, "No space left on device")

    @contextmanager
    def no_room() -> Iterator[None]:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", refused)
            yield

    return no_room


def test_a_topic_deleted_without_room_for_the_list_is_gone_for_every_start_after_it(
    opened: Callable[[], Storage], full: Callable[[], AbstractContextManager[None]], tmp_path: Path
) -> None:
    storage = opened()
    storage.create([NewTopic("gone", 2, {}, {}), NewTopic("kept", 1, {}, {})])
    for topic, partition in (("gone", 0), ("gone", 1), ("kept", 0)):
        append(storage, topic, partition)
    gone = storage.topics.named("gone")
    assert gone is not None
    with full():
        storage.delete(gone)
        assert [topic.name for topic in storage.topics] == ["kept"]
        kill(storage)
        again = opened()
        assert [topic.name for topic in again.topics] == ["kept"]
        assert not list((tmp_path / "data").glob("gone-*"))
        kill(again)
    last = opened()
    assert [topic.name for topic in last.topics] == ["kept"]
    assert not [path for path in (tmp_path / "data" / "deleted").iterdir() if path.is_file()]
    last.create([NewTopic("gone", 2, {}, {})])
    assert [append(last, "gone", partition) for partition in range(2)] == [0, 0]
    assert append(last, "kept", 0) == 1


def test_a_topic_whose_deletion_was_cut_off_by_a_kill_is_gone_with_its_files(
    opened: Callable[[], Storage],
    full: Callable[[], AbstractContextManager[None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There was no room for the list, and no directory was taken away yet."""
    storage = opened()
    storage.create([NewTopic("gone", 2, {}, {})])
    gone = storage.topics.named("gone")
    assert gone is not None

    def killed(log: PartitionLog, grave: Path) -> None:
        raise KeyboardInterrupt

    with full():
        with monkeypatch.context() as patched:
            patched.setattr(PartitionLog, "delete", killed)
            with pytest.raises(KeyboardInterrupt):
                storage.delete(gone)
        kill(storage)
        assert (tmp_path / "data" / "gone-0").is_dir()
        again = opened()
        assert len(again.topics) == 0
        assert not list((tmp_path / "data").glob("gone-*"))


async def test_a_topic_that_takes_long_to_remove_holds_up_no_acknowledgement(
    opened: Callable[[], Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened()
    storage.create([NewTopic("large", 8, {}, {}), NewTopic("t", 1, {}, {})])
    large, partition = storage.topics.named("large"), storage.partition("t", 0)
    assert large is not None
    assert partition is not None
    go_on = threading.Event()
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors: go_on.wait(20))
    try:
        storage.delete(large)
        append(storage, "t", 0)
        await asyncio.wait_for(partition.commit.flushed(), 10)
        kill(storage)
        # Nor a start after a kill, which finds what is left.
        assert append(opened(), "t", 0) == 1
    finally:
        go_on.set()


def test_a_deletion_that_can_not_be_made_to_last_is_refused(
    opened: Callable[[], Storage], full: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    storage = opened()
    storage.create([NewTopic("t", 1, {}, {})])
    topic = storage.topics.named("t")
    assert topic is not None
    monkeypatch.setattr(os, "link", refused)
    with full(), pytest.raises(KafkaError) as error:
        storage.delete(topic)
    assert error.value.code is ErrorCode.kafka_storage_error
    assert append(storage, "t", 0) == 0
    storage.close()
    assert append(opened(), "t", 0) == 1


def test_a_topic_that_could_not_be_created_leaves_nothing_behind(
    opened: Callable[[], Storage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients ask for it again and again, and each time would cost directories on a disk that is full."""
    storage = opened()
    write = os.pwrite

    def no_list(descriptor: int, content: memoryview, position: int) -> int:
        if b"cluster_id" in bytes(content):
            raise OSError(28, "No space left on device")
        return write(descriptor, content, position)

    monkeypatch.setattr(os, "pwrite", no_list)
    for _ in range(3):
        with pytest.raises(KafkaError):
            storage.create([NewTopic("t", 2, {}, {})])
    storage.close()
    assert not list((tmp_path / "data").glob("t-*"))
    assert not list((tmp_path / "data" / "deleted").iterdir())


def test_no_batch_is_taken_in_a_leader_epoch_that_is_not_on_the_disk(
    opened: Callable[[], Storage], full: Callable[[], AbstractContextManager[None]]
) -> None:
    """It would be given again to what another start writes in its place."""
    storage = opened()
    epoch = storage.leader_epoch
    kill(storage)
    with full():
        crashed = opened()
        assert crashed.leader_epoch == epoch + 1
        with pytest.raises(KafkaError) as error:
            crashed.check_writable()
        assert error.value.code is ErrorCode.kafka_storage_error
        # Clients know of the new epoch: an end marked as clean would take them back to the old one.
        crashed.close()
        again = opened()
        assert again.leader_epoch == epoch + 1
    again.check_writable()
    kill(again)
    assert opened().leader_epoch == epoch + 2


def test_a_full_disk_after_a_clean_end_is_no_new_epoch(
    opened: Callable[[], Storage], full: Callable[[], AbstractContextManager[None]], tmp_path: Path
) -> None:
    storage = opened()
    epoch = storage.leader_epoch
    storage.close()
    with full():
        again = opened()
        assert again.leader_epoch == epoch
        again.check_writable()
        assert not (tmp_path / "data" / ".clean-shutdown").exists()
