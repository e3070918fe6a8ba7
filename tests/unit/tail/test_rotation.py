"""Names that rotation gives, compressed or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.tail.rotation import (
    beginnings_of,
    codec_of,
    date_of,
    families_of,
    is_numbered,
    is_rotation_of,
    may_have_been,
    names_of,
    possible_originals,
    rotated_from,
)

ROTATED = [
    ("access.log.1", "access.log"),
    ("access.log-20260101", "access.log"),
    ("access.log.2026-01-01.gz", "access.log"),
    ("access-20260101.log", "access.log"),
    ("access-20260101.log.gz", "access.log"),
    ("access.1.log", "access.log"),
    ("access.1.log.zst", "access.log"),
    ("access.log.2.gz", "access.log"),
    ("access.log.2.bz2", "access.log"),
    ("access.log.2.gz", "access.log.2"),
    ("access.log.gz", "access.log"),
    ("access.log.bz2", "access.log"),
    ("access.log.lz4", "access.log"),
    ("access.log.old", "access.log"),
    ("access.log.old.xz", "access.log"),
    ("access.log~", "access.log"),
    ("messages-1", "messages"),
    ("messages.1.gz", "messages"),
    ("0.log.20240101-120000", "0.log"),
    ("0.log.20240101-120000.gz", "0.log"),
]


@pytest.mark.parametrize(("name", "original"), ROTATED)
def test_the_names_that_rotation_gives(name: str, original: str) -> None:
    assert is_rotation_of(name, original)
    assert original in set(possible_originals(name))
    assert f"/var/log/{original}" in rotated_from(f"/var/log/{name}")


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("access.log", "access.log"),
        ("error.log", "access.log"),
        ("error.log.1.gz", "access.log"),
        ("access.log", "access.log.1"),
        ("access.log", "access.log.gz"),
        ("access.log.1.tar.gz", "access.log"),
        ("access.log-20260101.tar", "access.log"),
        ("access.log.1.tgz", "access.log"),
        ("access.log.1.gz.sha256", "access.log"),
        ("access.log.1.md5", "access.log"),
    ],
)
def test_other_names_are_no_rotations(name: str, original: str) -> None:
    assert not is_rotation_of(name, original)
    assert f"/var/log/{original}" not in rotated_from(f"/var/log/{name}")


def test_a_name_that_was_only_made_longer_is_not_taken_for_a_rotation_without_need() -> None:
    assert "/app" not in rotated_from("/app.log")
    assert "/app.log" not in rotated_from("/app.logger")


@pytest.mark.parametrize("codec", ["gz", "bz2", "xz", "zst", "lz4"])
def test_the_ending_of_a_compressed_file_is_no_number_that_rotation_added(codec: str) -> None:
    assert rotated_from(f"/app.log.{codec}") == ["/app.log"]


@given(name=st.text("ab.-_1gz", min_size=1, max_size=8), original=st.text("ab.-_1gz", min_size=1, max_size=8))
def test_every_rotation_is_found_by_its_possible_originals(name: str, original: str) -> None:
    if is_rotation_of(name, original):
        assert original in set(possible_originals(name))


@given(name=st.text("ab.-_1gz", min_size=1, max_size=8), original=st.text("ab.-_1gz", min_size=1, max_size=8))
def test_what_a_name_may_have_been_is_told_for_one_or_for_all(name: str, original: str) -> None:
    assert may_have_been(name, original) == (original in names_of(f"/d/{name}"))
    if may_have_been(name, original):
        assert name.startswith(beginnings_of(original))


@given(name=st.text("ab.-_1", min_size=1, max_size=8), original=st.text("ab.-_1", min_size=1, max_size=8))
def test_what_is_compressed_stays_a_rotation(name: str, original: str) -> None:
    assert is_rotation_of(f"{name}.gz", original) or not is_rotation_of(name, original)
    assert is_rotation_of(f"{name}.gz", name)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.log.1.gz", "gz"),
        ("/var/log/a.bz2", "bz2"),
        ("a.xz", "xz"),
        ("a.zst", "zst"),
        ("a.lz4", "lz4"),
        ("a.log", ""),
        ("gz", ""),
        (".gz", ""),
        ("a.", ""),
        ("/old.gz/a.log", ""),
        ("/old.gz/a", ""),
        ("", ""),
    ],
)
def test_how_a_file_is_compressed_is_read_from_its_name(name: str, codec: str) -> None:
    assert codec_of(name) == codec


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("app.log", ("app.log",)),
        ("app-6-5.log", ("app.log", "app-6.log", "app-6-5.log")),
        ("log-19.log.3.gz", ("log.log", "log-19.log", "log-19.log.3")),
        ("app-6-20260101.log.zst", ("app.log", "app-6.log", "app-6-20260101.log")),
        ("app.log~", ("app.log", "app.log~")),
        # pm2-logrotate; concurrent-log-handler.
        ("app__2026.log.gz", ("app.log", "app__2026.log")),
        ("app.log.rotate.7.gz", ("app.log", "app.log.rotate", "app.log.rotate.7")),
    ],
)
def test_a_name_belongs_to_families_from_the_widest_to_the_narrowest(name: str, families: tuple[str, ...]) -> None:
    """Where dozens of logs differ by a number only, a copy of one of them is compared with that one still."""
    assert families_of(name) == families


@pytest.mark.parametrize(
    ("path", "date"),
    [
        ("/d/0.log.20260101-120001.gz", ("/d/0.log.", ("20260101120001", 0))),
        ("/d/0.log.20260101-120001", ("/d/0.log.", ("20260101120001", 0))),
        ("/d/0.log.20260101-120001.0012.gz", ("/d/0.log.", ("20260101120001", 12))),
        ("/d/app-2026-01-31.log.gz", ("/d/app-.log", ("20260131", 0))),
        ("/d/app-2026-01-31.2.log.gz", ("/d/app-.log", ("20260131", 2))),
        ("/d/app-2026-01-31-10.log", ("/d/app-.log", ("20260131", 10))),
        ("/d/app__2026-11-28_03-51-57.log", ("/d/app__.log", ("20261128035157", 0))),
        ("/2026-01-01/app.log", None),
        ("/d/app.log.1", None),
        ("/d/app-123420260101.log", None),
        ("/d/app-20269901.log", None),
    ],
)
def test_a_date_in_a_name_is_known(path: str, date: tuple[str, tuple[str, int]] | None) -> None:
    assert date_of(path) == date


@pytest.mark.parametrize(
    ("name", "numbered"),
    [("app.log.1", True), ("app.log-20261129", True), ("app.log.old", False), ("app.log.save2", True), ("b.1", False)],
)
def test_a_number_or_a_date_tells_a_rotation_from_a_copy(name: str, numbered: bool) -> None:
    assert is_numbered(f"/log/{name}", "/log/app.log") is numbered
    assert is_numbered(f"/log/old/{name}", "/log/app.log") is numbered
