"""How people write where to start."""

from __future__ import annotations

import pytest

from ingestd.cli.starts import BeforeEnd, parse_partitions, parse_start
from ingestd.consumer.settings import AtTime, Edge
from ingestd.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", Edge.earliest),
        ("end", Edge.latest),
        ("0", 0),
        ("123", 123),
        ("-10", BeforeEnd(10)),
        ("@1700000000000", AtTime(1_700_000_000_000)),
        ("s@1700000000000", AtTime(1_700_000_000_000)),
        ("@2023-11-14T22:13:20Z", AtTime(1_700_000_000_000)),
        ("@2023-11-14T23:13:20.5+01:00", AtTime(1_700_000_000_500)),
    ],
)
def test_a_start_as_written(text: str, start: object) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "begin", "1.5", "@", "@yesterday", "e@1", "0x10", "9223372036854775808"])
def test_what_is_no_start_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"offset '{text}': expected `beginning`, `end`"):
        parse_start(text)


def test_partitions_as_written() -> None:
    assert parse_partitions([]) == []
    assert parse_partitions(["3", "0,2", "4-6,5"]) == [0, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "1-", "1-2-3", "7-4"])
def test_what_is_no_partition_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected numbers"):
        parse_partitions([text])
