"""A data directory whose file system refuses something half way: topics are there or not, and never both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from embedded.batches import batch_of

from ingestd.broker import storage as storage_module
from ingestd.broker.settings import BrokerSettings
from ingestd.broker.storage import NewTopic, Storage
from ingestd.records.batch import read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


def append(storage: Storage, topic: str, partition: int) -> int:
    found = storage.partition(topic, partition)
    assert found is not None
    batch = batch_of([b"x"])
    return found.log.append(memoryview(batch), read_header(batch)).base_offset


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
