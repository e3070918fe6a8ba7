"""A file is known by its bytes; a name only says where to look."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.tail.identity import (
    Fingerprint,
    Identity,
    Witness,
    birth_of,
    find_again,
    is_rotation_of,
    name_source,
    opened,
    possible_originals,
    rotated_from,
    same_content,
)

if TYPE_CHECKING:
    from pathlib import Path


@given(data=st.binary(min_size=1, max_size=1500), more=st.binary(max_size=1500))
def test_a_fingerprint_fits_its_file_however_it_grew(data: bytes, more: bytes) -> None:
    fingerprint = Fingerprint.of(data)
    assert fingerprint.length == min(len(data), 1024)
    assert fingerprint.fits((data + more)[:1024])
    assert not fingerprint.fits(data[: fingerprint.length - 1])


ROTATED = [
    ("access.log.1", "access.log"),
    ("access.log-20260101", "access.log"),
    ("access.log.2026-01-01.gz", "access.log"),
    ("access-20260101.log", "access.log"),
    ("access.1.log", "access.log"),
    ("access.log.old", "access.log"),
    ("access.log~", "access.log"),
    ("messages-1", "messages"),
]


@pytest.mark.parametrize(("name", "original"), ROTATED)
def test_the_names_that_rotation_gives(name: str, original: str) -> None:
    assert is_rotation_of(name, original)
    assert original in set(possible_originals(name))
    assert f"/var/log/{original}" in rotated_from(f"/var/log/{name}")


@pytest.mark.parametrize(
    ("name", "original"), [("access.log", "access.log"), ("error.log", "access.log"), ("access.log", "access.log.1")]
)
def test_other_names_are_no_rotations(name: str, original: str) -> None:
    assert not is_rotation_of(name, original)


def test_a_name_that_was_only_made_longer_is_not_taken_for_a_rotation_without_need() -> None:
    assert "/app" not in rotated_from("/app.log")
    assert "/app.log" not in rotated_from("/app.logger")


@given(name=st.text("ab.-_1", min_size=1, max_size=8), original=st.text("ab.-_1", min_size=1, max_size=8))
def test_every_rotation_is_found_by_its_possible_originals(name: str, original: str) -> None:
    if is_rotation_of(name, original):
        assert original in set(possible_originals(name))


def test_names_of_sources_are_never_given_twice_and_know_which_is_younger(tmp_path: Path) -> None:
    status = tmp_path.stat()
    names = [name_source(status, Fingerprint.of(b"x")) for _ in range(100)]
    assert len(set(names)) == 100
    assert sorted(names, key=birth_of) == names
    assert birth_of("by another program") == 0


def test_an_identity_survives_json() -> None:
    identity = Identity("/a", "/b", 1, 2, Fingerprint.of(b"abc"), Witness.of(3, b"bc"), 7, copy=True)
    assert Identity.from_detail(json.loads(json.dumps(identity.to_detail()))) == identity


def test_content_is_found_under_a_new_name_and_not_in_a_file_that_only_begins_alike(tmp_path: Path) -> None:
    content = b"header\n" * 200 + b"and the rest\n"
    path = tmp_path / "a.log"
    path.write_bytes(content)
    status = path.stat()
    identity = Identity(
        os.fspath(path), os.fspath(path), status.st_dev, status.st_ino, Fingerprint.of(content),
        Witness.of(len(content), content[-256:]),
    )  # fmt: skip
    (tmp_path / "a.log.1").write_bytes(content.replace(b"rest", b"REST") + b"longer\n")
    (tmp_path / "b.log").write_bytes(content)
    path.unlink()
    assert find_again(identity, len(content), besides=set()) is None
    (tmp_path / "a.log.2").write_bytes(content + b"more\n")
    found = find_again(identity, len(content), besides=set())
    assert found is not None
    assert found[0] == os.fspath(tmp_path / "a.log.2")
    assert find_again(identity, len(content), besides={(found[1].st_dev, found[1].st_ino)}) is None


@pytest.mark.parametrize(
    ("copy", "same"), [(b"one\ntwo\n", True), (b"one\n", True), (b"one\nTWO\n", False), (b"", False), (b"x", False)]
)
def test_a_copy_in_the_making_repeats_the_beginning(tmp_path: Path, copy: bytes, same: bool) -> None:
    (tmp_path / "original").write_bytes(b"one\ntwo\n")
    (tmp_path / "copy").write_bytes(copy)
    with opened(os.fspath(tmp_path / "copy")) as one, opened(os.fspath(tmp_path / "original")) as other:
        assert same_content(one, other) is same
