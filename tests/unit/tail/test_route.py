"""A route is checked where it is made: each wrong key is named, with what was expected; what is right pickles."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest

from ingestd.daemon.configuration import WrongSetting
from ingestd.daemon.source import PER_RECORD, Found, Lane
from ingestd.tail.facts import (
    LOSS_REASONS,
)
from ingestd.tail.file_id import FileId
from ingestd.tail.known import Known
from ingestd.tail.partition import partition_of_key
from ingestd.tail.route import TailRoute


def route(**settings: Any) -> TailRoute:
    settings.setdefault("paths", ("/var/log/*.log",))
    return TailRoute(**{"name": "access", "cluster": "local", "topic": "t", **settings})


def found(path: str) -> Found:
    return Found("source", 0, {"path": "/elsewhere", "log": path})


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("paths", {"paths": ()}),
        ("paths", {"paths": ("relative.log",)}),
        ("paths", {"paths": ("/var/log/",)}),
        ("paths", {"paths": ("/var/../log/x",)}),
        ("rotated", {"rotated": ("old/*",)}),
        ("rotated", {"rotated": ("/var/log/old/",)}),
        ("compressed", {"compressed": "unpack"}),
        ("compression", {"compression": "brotli"}),
        ("delivery", {"delivery": "exactly-once"}),
        ("on_undeliverable", {"on_undeliverable": "dead-letter"}),
        ("long_lines", {"long_lines": "drop"}),
        ("compression_level", {"compression": "zstd", "compression_level": 99}),
        ("compression_level", {"compression": "none", "compression_level": 1}),
        ("linger", {"linger": -1.0}),
        ("batch_bytes", {"batch_bytes": 1000}),
        ("max_line_bytes", {"max_line_bytes": 100}),
        ("max_line_bytes", {"max_line_bytes": 2_000_000}),
        ("start", {"start": "yesterday"}),
        ("key_pattern", {"partition": "key"}),
        ("key_pattern", {"key_pattern": "user=(\\w+"}),
        ("key_pattern", {"key_pattern": "user=\\w+"}),
        ("key_pattern", {"key_pattern": "(a)(b)"}),
        ("partition", {"partition": "round-robin", "key_pattern": "(a)", "key_from": "path"}),
        ("rescan_interval", {"rescan_interval": 0.0}),
    ],
)
def test_a_wrong_setting_is_named(key: str, settings: dict[str, Any]) -> None:
    with pytest.raises(WrongSetting) as caught:
        route(**settings)
    assert caught.value.key == key
    assert caught.value.expected


def test_a_route_pickles_and_is_the_same() -> None:
    made = route(key_pattern="(?P<key>x)(y)?", partition="key")
    assert pickle.loads(pickle.dumps(made)) == made
    assert made.key_group == 1


@pytest.mark.parametrize(("start", "seconds"), [("90s", 90), ("24h", 86400), ("1.5d", 129600), ("end", None)])
def test_an_age_is_in_seconds(start: str, seconds: float | None) -> None:
    assert route(start=start).start_age == seconds


def test_a_full_batch_stays_below_kafkas_default_limit_even_when_it_does_not_compress() -> None:
    made = route()
    most = made.batch_bytes + made.batch_bytes // 8
    assert most + 61 + 8192 < 1048588
    assert made.max_line_bytes < made.batch_bytes


def test_sticky_files_share_a_lane() -> None:
    assert route().lane(found("/a"), 4) == route().lane(found("/b"), 4) == Lane(None)


def test_a_file_keeps_its_partition_when_it_is_renamed() -> None:
    made = route(partition="file")
    assert made.lane(found("/a.log"), 4) == Lane(partition_of_key(b"/a.log", 4))
    assert len({made.lane(found(f"/{number}.log"), 4).partition for number in range(50)}) == 4


def test_a_key_from_the_path_is_the_key_of_all_lines() -> None:
    made = route(partition="key", key_pattern="/([^/]*)/[^/]*$", key_from="path")
    assert made.lane(found("/srv/shop/a.log"), 8) == Lane(partition_of_key(b"shop", 8), b"shop")
    assert made.lane(found("nowhere"), 8) == Lane(None)
    kept = route(key_pattern="([^/]*)$", key_from="path").lane(found("/srv/a.log"), 8)
    assert kept == Lane(None, b"a.log")


def test_a_path_that_is_not_utf8_gives_its_key_and_partition_as_any_other() -> None:
    # It is stored as its bytes in hexadecimal, in which no pattern would find anything of it.
    path = os.fsdecode(b"/srv/caf\xe9/a.log")
    assigned = Found("s", 0, Known(path, "/elsewhere", FileId(1, 2)).to_detail())
    made = route(partition="key", key_pattern="/([^/]*)/[^/]*$", key_from="path")
    assert made.lane(assigned, 8) == Lane(partition_of_key(b"caf\xe9", 8), b"caf\xe9")
    assert route(partition="file").lane(assigned, 8) == Lane(partition_of_key(b"/srv/caf\xe9/a.log", 8))


def test_keys_in_lines_choose_partitions_line_by_line_only_where_they_are_asked_to() -> None:
    assert route(partition="key", key_pattern="(x)").lane(found("/a"), 4) == Lane(PER_RECORD)
    assert route(partition="round-robin").lane(found("/a"), 4) == Lane(PER_RECORD)
    assert route(key_pattern="(x)").lane(found("/a"), 4) == Lane(None)


def test_what_is_stored_of_version_0_1_gives_the_same_lane() -> None:
    made = route(partition="file")
    old = Found("s", 0, {"path": "/elsewhere", "origin": "/a.log", "device": 1, "inode": 2})
    assert made.lane(old, 4) == made.lane(found("/a.log"), 4)


def test_compressed_rotations_are_found_by_no_glob_unless_they_are_to_be_read() -> None:
    # They are no reason to exclude them: what was compressed after a part of it was read is read on.
    globs = route(paths=("/l/*",)).globs
    names = ("a.log", "a.log.1.gz", "a.zip", "a.swp", ".a.swx", "a.tmp")
    assert [name for name in names if globs.matches(f"/l/{name}")] == ["a.log", "a.log.1.gz"]


def test_rotated_files_are_looked_for_where_it_is_said_excluded_or_not() -> None:
    # What is excluded may be what a log was compressed to.
    globs = route(rotated=("/l/old/*",), exclude=("*.gz",)).rotated_globs
    assert globs.matches("/l/old/a.log.1")
    assert globs.matches("/l/old/a.log.1.gz")
    assert not globs.matches("/l/a.log")
    assert not route().rotated_globs.matches("/l/a.log")


def test_every_reason_of_a_loss_is_known_from_the_start() -> None:
    assert route().loss_reasons == LOSS_REASONS == ("vanished", "deleted", "truncated", "damaged")
