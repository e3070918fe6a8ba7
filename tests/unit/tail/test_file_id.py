"""A file keeps its identity whatever it is called, and no other file ever has it."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.tail import file_id
from ingestd.tail.file_id import FileId, identify

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["/dev/shm", None], ids=["tmpfs", "temporary directory"])
def directory(request: pytest.FixtureRequest) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=request.param) as path:
        if not known_at(path).handle:
            pytest.skip("a file system without handles")
        yield Path(path)


@contextmanager
def opened(path: str | Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def known_at(path: str | Path, flags: int = os.O_RDONLY) -> FileId:
    with opened(path, flags) as descriptor:
        return identify(descriptor)


def create(path: Path) -> FileId:
    with opened(path, os.O_CREAT | os.O_EXCL | os.O_RDWR) as descriptor:
        return identify(descriptor)


def test_a_file_is_the_same_through_renames_links_and_every_way_to_open_it(directory: Path) -> None:
    path = directory / "a.log"
    before = create(path)
    assert (before.device, before.inode) == (path.stat().st_dev, path.stat().st_ino)
    assert before == known_at(path, os.O_PATH)
    (directory / "b.log").hardlink_to(path)
    path.rename(directory / "a.log.1")
    path.symlink_to("a.log.1")
    assert {known_at(path), known_at(directory / "b.log"), known_at(directory / "a.log.1")} == {before}
    with opened(path) as descriptor:
        (directory / "a.log.1").unlink()
        (directory / "b.log").unlink()
        assert identify(descriptor) == before


def test_files_that_had_one_inode_in_turn_are_not_the_same(directory: Path) -> None:
    path = directory / "a.log"
    files = []
    for _ in range(20):
        files.append(create(path))
        path.unlink()
    assert len({file.handle for file in files}) == len(files)
    assert not any(one.same(other) or one.resembles(other) for one in files for other in files if one is not other)


def test_births_are_known_and_follow_each_other(directory: Path) -> None:
    one, other = create(directory / "a.log"), create(directory / "b.log")
    assert 0 < one.birth <= other.birth
    assert abs(one.birth - (directory / "a.log").stat().st_mtime_ns) < 10_000_000_000


def test_a_file_of_procfs_has_no_handle_for_it_would_be_a_bare_inode() -> None:
    file = known_at("/proc/self/status")
    assert (file.handle, file.volume) == ("", "")


def test_a_closed_descriptor_is_an_error() -> None:
    with opened("/dev/null") as descriptor:
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        identify(descriptor)


def test_a_kernel_or_library_that_does_not_tell_leaves_device_and_inode(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = create(directory / "a.log")
    missing = file_id._function("no_such_function")
    monkeypatch.setattr(file_id, "_name_to_handle_at", missing)
    assert known_at(directory / "a.log") == FileId(full.device, full.inode, full.birth)
    monkeypatch.setattr(file_id, "_statx", missing)
    bare = known_at(directory / "a.log")
    assert bare == FileId(full.device, full.inode)
    assert bare.same(full)
    monkeypatch.undo()
    monkeypatch.setattr(file_id, "_fstatfs", missing)
    assert not known_at(directory / "a.log").handle


def test_where_no_handle_opens_files_one_to_compare_is_asked_for(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # overlayfs answers EOPNOTSUPP to the plain call; Linux 6.6 and newer answer it with AT_HANDLE_FID.
    full = create(directory / "a.log")
    plain = file_id._name_to_handle_at

    def only_to_compare(descriptor: int, name: bytes, handle: object, mount: object, flags: int) -> int:
        return plain(descriptor, name, handle, mount, flags & ~0x200) if flags & 0x200 else -1

    monkeypatch.setattr(file_id, "_name_to_handle_at", only_to_compare)
    assert known_at(directory / "a.log") == full


def pretend(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fstatfs = file_id._fstatfs

    def answer(descriptor: int, buffer: object) -> int:
        result = fstatfs(descriptor, buffer)
        file_id._buffers.statfs[0:4] = kind.to_bytes(4, "little")
        return result

    monkeypatch.setattr(file_id, "_fstatfs", answer)


@pytest.mark.parametrize("kind", [0x6969, 0xFF534D42, 0xFE534D42, 0x65735546, 0x01021997])
def test_handles_of_network_and_fuse_mounts_are_not_trusted(
    directory: Path, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(directory / "a.log")
    with opened(directory / "a.log", os.O_PATH) as descriptor:
        pretend(kind, monkeypatch)
        assert not identify(descriptor).handle


def test_on_overlayfs_files_that_share_the_handle_of_an_image_are_told_apart(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tried: two containers of one image, and two hard links in an image, have one handle after they were written to.
    create(directory / "a.log")
    create(directory / "b.log")
    pretend(0x794C7630, monkeypatch)
    monkeypatch.setattr(file_id, "_handle_of", lambda _: "f8")
    one, other = known_at(directory / "a.log"), known_at(directory / "b.log")
    assert one.same(known_at(directory / "a.log"))
    assert not one.same(other)
    assert one.resembles(other._replace(birth=one.birth)), "the bytes decide"


def test_threads_do_not_write_into_each_others_buffers(directory: Path) -> None:
    paths = [directory / f"{number}.log" for number in range(4)]
    files = [create(path) for path in paths]
    with ThreadPoolExecutor(4) as threads:
        seen = threads.map(lambda path: {known_at(path) for _ in range(300)}, paths)
        assert list(seen) == [{file} for file in files]


HANDLE = FileId(1, 2, 3, "aa", "v")


@pytest.mark.parametrize(
    ("one", "other", "same", "resembles"),
    [
        (HANDLE, FileId(9, 9, 9, "aa", "v"), True, True),
        (HANDLE, FileId(1, 2, 3, "aa", "w"), False, True),
        (HANDLE, FileId(1, 2, 0, "aa", "w"), False, True),
        (HANDLE, FileId(1, 2, 4, "aa", "w"), False, False),  # two new btrfs disks
        (HANDLE, FileId(1, 2, 3, "bb", "v"), False, False),
        (HANDLE, FileId(1, 2, 3), True, True),
        (HANDLE, FileId(1, 2), True, True),
        (HANDLE, FileId(1, 2, 4), False, False),
        (HANDLE, FileId(9, 2, 3), False, True),
        (FileId(1, 2), FileId(1, 2), True, True),
        (FileId(1, 2), FileId(1, 3), False, False),
        (FileId(1, 2), FileId(9, 2), False, True),
    ],
)
def test_the_strongest_that_both_have_decides(one: FileId, other: FileId, same: bool, resembles: bool) -> None:
    assert (one.same(other), one.resembles(other)) == (same, resembles)


few = st.integers(0, 2)
files = st.builds(FileId, few, few, few, st.sampled_from(["", "aa", "bb"]), st.sampled_from(["", "v"]))


@given(one=files, other=files)
def test_same_is_mutual_and_stronger_than_resembles(one: FileId, other: FileId) -> None:
    assert one.same(one)
    assert one.same(other) == other.same(one)
    assert one.resembles(other) == other.resembles(one)
    assert one.resembles(other) or not one.same(other)
