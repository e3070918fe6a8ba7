"""What people type about groups, and where offsets go."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, cast

import pytest

from ingestd.cli import groups as cli_groups
from ingestd.cli.groups import (
    OffsetReset,
    ResetKind,
    ResetTo,
    _offset_after,
    moved_into_the_log,
    parse_time,
    plan_resets,
)
from ingestd.cli.main import main
from ingestd.cli.options import show
from ingestd.cli.scope import parse_scope
from ingestd.cli.tables import table
from ingestd.client.admin import EARLIEST, LATEST, ListedOffset, OffsetAt
from ingestd.client.admin.group_offsets import GroupOffsets
from ingestd.client.group import OffsetAndMetadata
from ingestd.client.metadata import TopicPartition
from ingestd.errors import ConfigurationError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingestd.cli.configured import ClusterAccess


@pytest.mark.parametrize(
    ("to", "before", "after"),
    [
        (ResetTo(ResetKind.earliest), 50, 10),
        (ResetTo(ResetKind.latest), 50, 90),
        (ResetTo(ResetKind.offset, 33), None, 33),
        (ResetTo(ResetKind.offset, 5), None, 10),
        (ResetTo(ResetKind.offset, 500), None, 90),
        (ResetTo(ResetKind.shift, -7), 50, 43),
        (ResetTo(ResetKind.shift, -70), 50, 10),
        (ResetTo(ResetKind.shift, 70), 50, 90),
        (ResetTo(ResetKind.shift, 1), None, None),
        (ResetTo(ResetKind.time, 1000), 50, 77),
    ],
)
def test_offsets_are_reset_to_one_within_the_log(to: ResetTo, before: int | None, after: int | None) -> None:
    assert _offset_after(to, before, 10, 90, 77) == after


def test_a_time_after_the_last_record_is_the_end() -> None:
    assert _offset_after(ResetTo(ResetKind.time, 1000), 50, 10, 90, -1) == 90


@pytest.mark.parametrize(
    ("to", "before", "after", "said"),
    [
        (
            ResetTo(ResetKind.offset, 5000),
            None,
            90,
            "t-0: its log does not reach offset 5000: 90, its nearer end, is taken",
        ),
        (ResetTo(ResetKind.shift, -70), 50, 10, "t-0: its log does not reach offset -20: 10, its nearer end, is taken"),
        (ResetTo(ResetKind.offset, 33), None, 33, None),
        (ResetTo(ResetKind.shift, 0), 50, 50, None),
        (ResetTo(ResetKind.shift, 1), None, None, None),
        (ResetTo(ResetKind.latest), 50, 90, None),
        (ResetTo(ResetKind.time, 1000), 50, 90, None),
    ],
)
def test_an_offset_that_is_not_in_the_log_is_named(
    to: ResetTo, before: int | None, after: int | None, said: str | None
) -> None:
    assert list(moved_into_the_log([OffsetReset("g", "t", 0, before, after)], to)) == ([said] if said else [])


async def test_a_partition_whose_offset_at_a_time_is_not_known_is_not_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages without timestamps: to take the answer for "no record is as late" would skip the whole partition."""

    class Admin:
        async def list_group_offsets(self, asked: Mapping[str, None]) -> list[GroupOffsets]:
            offsets = {TopicPartition("t", number): OffsetAndMetadata(50) for number in (0, 1)}
            return [GroupOffsets(group, offsets, {}) for group in asked]

        async def list_offsets(self, asked: Sequence[OffsetAt]) -> list[ListedOffset]:
            refused = KafkaError(ErrorCode.unsupported_for_message_format, "t-1")
            at = {EARLIEST: 10, LATEST: 90}
            return [
                ListedOffset(one.topic, one.partition, at.get(one.timestamp_ms, 77))
                if one.partition == 0 or one.timestamp_ms in at
                else ListedOffset(one.topic, one.partition, error=refused)
                for one in asked
            ]

    class Access:
        def client(self) -> contextlib.AbstractAsyncContextManager[None]:
            return contextlib.nullcontext()

    monkeypatch.setattr(cli_groups, "ClusterAdmin", lambda _: Admin())
    resets = await plan_resets(cast("ClusterAccess", Access()), "g", ResetTo(ResetKind.time, 1000))
    assert resets == [
        OffsetReset("g", "t", 0, 50, 77),
        OffsetReset("g", "t", 1, 50, None, "UNSUPPORTED_FOR_MESSAGE_FORMAT (43): t-1"),
    ]


def test_a_scope_is_topics_with_or_without_partitions() -> None:
    assert parse_scope(["a", "b:0,2", "c.d:5"], "--topic") == {"a": None, "b": [0, 2], "c.d": [5]}


def test_a_topic_named_twice_means_all_that_was_named_of_it() -> None:
    assert parse_scope(["a:0", "a:2,1"], "--topic") == {"a": [0, 1, 2]}
    assert parse_scope(["a:0", "a"], "--topic") == {"a": None}
    assert parse_scope(["a", "a:0"], "--topic") == {"a": None}


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:x", "a:1,,2", "a:-1"])
def test_a_scope_that_names_no_partition_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected TOPIC"):
        parse_scope([text], "--topic")


def test_times_are_iso_8601() -> None:
    assert parse_time("2026-01-31T12:00:00+00:00") == 1769860800000
    with pytest.raises(ConfigurationError, match="ISO 8601"):
        parse_time("yesterday")


@pytest.mark.parametrize("targets", [[], ["--to-earliest", "--to-latest"], ["--to-offset", "1", "--shift-by", "2"]])
def test_a_reset_says_where_to_once(targets: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups", "reset-offsets", "g", "-b", "nowhere:1", *targets]) == 2
    assert "expected one of --to-earliest" in capsys.readouterr().err


def test_a_table_has_columns_as_wide_as_their_widest_cell_and_numbers_to_the_right() -> None:
    lines = list(table(("TOPIC", "LAG", "HOST"), [("long name", 5, None), ("b", 12345, None), ("c", None, None)]))
    assert lines == [
        "TOPIC        LAG  HOST",
        "long name      5  -",
        "b          12345  -",
        "c              -  -",
    ]
    assert list(table(("A", "B"), [])) == ["A  B"]


def test_programs_get_json_and_people_a_table(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [OffsetReset("g", "t", 0, None, 5)]
    show(found, ["line"], None)
    assert json.loads(capfdbinary.readouterr().out) == [
        {"group": "g", "topic": "t", "partition": 0, "before": None, "after": 5, "error": None}
    ]
    show(found, ["line"], "table")
    assert capfdbinary.readouterr().out == b"line\n"
