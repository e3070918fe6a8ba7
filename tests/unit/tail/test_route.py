"""A route is checked where its table is read: each wrong key is named, with what was expected. It pickles."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from ingestd.daemon.configuration_file import load
from ingestd.daemon.source import PER_RECORD, Found, Lane
from ingestd.daemon.tables import FaultyConfiguration
from ingestd.tail.facts import LOSS_REASONS
from ingestd.tail.file_id import FileId
from ingestd.tail.known import Known
from ingestd.tail.partition import partition_of_key
from ingestd.tail.route import TailRoute

if TYPE_CHECKING:
    from pathlib import Path

KINDS: dict[str, Any] = {"tails": TailRoute}
NEEDED = {"paths": "['/var/log/*.log']", "cluster": "'local'", "topic": "'t'"}


def route(**settings: Any) -> TailRoute:
    settings.setdefault("paths", ("/var/log/*.log",))
    return TailRoute(**{"name": "access", "cluster": "local", "topic": "t", **settings})


def found(path: str) -> Found:
    return Found("source", 0, {"path": "/elsewhere", "log": path})


@pytest.fixture
def faults(tmp_path: Path):
    """What is wrong with a file that has a tail `access` with these lines, and what follows."""

    def faults(lines: str, following: str = "") -> list[str]:
        file = tmp_path / "ingestd.toml"
        needed = "".join(f"{key} = {value}\n" for key, value in NEEDED.items() if f"{key} =" not in lines)
        file.write_text(f"clusters.local.embedded = true\n[tails.access]\n{needed}{lines}\n{following}")
        try:
            load(file, KINDS)
        except FaultyConfiguration as faulty:
            return [str(fault).removeprefix(f"{file}: tails.") for fault in faulty.faults]
        return []

    return faults


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("paths = []", "paths = []: expected at least one absolute glob"),
        ("paths = ['/a', 'b']", 'paths[1] = "b": expected an absolute path of files, without "..", a'),
        ("paths = ['/var/log/']", 'paths[0] = "/var/log/": expected an absolute path of files'),
        ("paths = ['/var/../log/x']", 'paths[0] = "/var/../log/x": expected an absolute path of files, without ".."'),
        ("rotated = ['old/*']", 'rotated[0] = "old/*": expected an absolute path of files'),
        ("compressed = 'unpack'", "compressed = \"unpack\": expected 'skip' or 'read'"),
        ("compression = 'brotli'", "compression = \"brotli\": expected 'none', 'gzip', 'snappy', 'lz4' or 'zstd'"),
        (
            "delivery = 'exactly-once'",
            'delivery = "exactly-once": expected "at-least-once" (exactly-once delivery is not built yet)',
        ),
        (
            "on_undeliverable = 'dead-letter'",
            'on_undeliverable = "dead-letter": expected "stop" (dead-letter is not built yet)',
        ),
        ("long_lines = 'drop'", "long_lines = \"drop\": expected 'truncate' or 'split'"),
        ("compression = 'zstd'\ncompression_level = 99", "compression_level = 99: expected -7 to 22"),
        ("compression = 'none'\ncompression_level = 1", "compression_level = 1: expected "),
        ("linger = -1.0", "linger = -1.0: expected 0 to 60 seconds"),
        ("batch_bytes = 1000\nmax_line_bytes = 999", "batch_bytes = 1000: expected 65536 to 67108864 bytes"),
        ("max_line_bytes = 100", "max_line_bytes = 100: expected 256 bytes to less than batch_bytes"),
        (
            "max_line_bytes = 2_000_000",
            "max_line_bytes = 2000000: expected 256 bytes to less than batch_bytes (9175",
        ),
        (
            "start = 'yesterday'",
            'start = "yesterday": expected "beginning", "end", or an age as in "24h" (s, m, h or d)',
        ),
        ("start = '0h'", 'start = "0h": expected "beginning", "end", or an age as in "24h" (s, m, h or d)'),
        ("partition = 'key'", 'key_pattern: expected a regular expression, since partition = "key" needs one'),
        ("key_from = 'path'", 'key_pattern: expected a regular expression, since key_from = "path" needs one'),
        ("exclude = ['[a']", 'exclude[0] = "[a": expected a glob with a ] for each ['),
        (
            "rotated = ['/x/[a']",
            'rotated[0] = "/x/[a": expected an absolute path of files, without "..", a [ without its ]',
        ),
        ("key_pattern = 'user=(a'", 'key_pattern = "user=(a": expected a regular expression: missing )'),
        (
            "key_pattern = 'user=a'",
            'key_pattern = "user=a": expected a regular expression with one group, or a gr',
        ),
        (
            "key_pattern = '(a)(b)'",
            'key_pattern = "(a)(b)": expected a regular expression with one group, or a gr',
        ),
        (
            "key_pattern = '(?P<key>a)|(?P<key>b)'",
            'key_pattern = "(?P<key>a)|(?P<key>b)": expected a regular expression with one group, or a gr',
        ),
        (
            "key_pattern = '(?<=user=)(a)'",
            'key_pattern = "(?<=user=)(a)": expected a regular expression: (?<=: RE2 has no look-around; match',
        ),
        (
            "key_pattern = '(a){,3}'",
            'key_pattern = "(a){,3}": expected a regular expression: {,N}: RE2 takes it for text; write {0,N}',
        ),
        (
            "partition = 'round-robin'\nkey_pattern = '(a)'\nkey_from = 'path'",
            'partition = "round-robin": expected sticky, file or key with key_from = "path"',
        ),
        ("rescan_interval = 0", "rescan_interval = 0: expected seconds, more than 0, at most 86400"),
    ],
)
def test_a_wrong_setting_is_named(faults, lines: str, fault: str) -> None:
    (found,) = faults(lines)
    assert found.startswith(f"access.{fault}")


@pytest.mark.parametrize(("arena", "most"), [("", 33_488_896), ("[daemon]\narena_bytes = 33554432\n", 16_711_680)])
def test_a_batch_that_finds_no_room_in_an_arena_is_refused(faults, arena: str, most: int) -> None:
    # Such a tail was accepted, read nothing for ever, and said nothing.
    assert faults(f"batch_bytes = {most}\n{arena}") == []
    (fault,) = faults(f"batch_bytes = {most + 1}\n{arena}")
    assert fault.startswith(f"access.batch_bytes = {most + 1}: expected at most {most} bytes with an arena_bytes of ")


def test_a_file_belongs_to_one_tail(faults) -> None:
    other = "[tails.b]\npaths = ['/b', '/var/log/*.log']\ncluster = 'local'\ntopic = 'u'\n"
    said = """b.paths = ["/b", "/var/log/*.log"]: [tails.access] takes "/var/log/*.log" too; expected one of its own"""
    assert faults("", other) == [said]
    assert faults("linger = 'x'", other)[1:] == [said]  # beside another fault too
    assert faults("exclude = ['*.1']", other) == []


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


def test_no_path_stalls_the_search_for_its_key() -> None:
    # The supervisor stood still, and with it every worker.
    made = route(partition="key", key_pattern="^(?P<key>(/?a+)+)$", key_from="path")
    assert made.lane(found("/" + "a" * 200 + "!"), 8) == Lane(None)


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
