"""`ingestd mirror verify`: what is wrong with its command line, and how a verdict reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ingestd.cli.main import main
from ingestd.cli.mirrors import remarks, rows
from ingestd.mirror.comparison import Difference
from ingestd.mirror.verify import PartitionVerdict, Verification

if TYPE_CHECKING:
    from pathlib import Path

CLUSTERS = '[clusters.east]\nbootstrap = ["127.0.0.1:1"]\n[clusters.west]\nbootstrap = ["127.0.0.1:1"]\n'
MIRROR = '[mirrors.ew]\nsource = "east"\ntarget = "west"\ntopics = ["orders"]\n'


@pytest.mark.parametrize(
    ("tables", "name", "said"),
    [
        (CLUSTERS, [], "no mirrors; expected a [mirrors.NAME]"),
        (CLUSTERS + MIRROR, ["we"], "no such [mirrors.NAME]: we (ew)"),
        (CLUSTERS + MIRROR.replace("topics", "topic"), [], "mirrors.ew.topic"),
    ],
    ids=["none", "another name", "faulty"],
)
def test_a_mirror_that_is_not_configured_is_a_wrong_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tables: str, name: list[str], said: str
) -> None:
    file = tmp_path / "ingestd.toml"
    file.write_text(tables)
    assert main(["mirror", "verify", str(file), *name]) == 2
    assert said in capsys.readouterr().err


def verdict(**fields: object) -> PartitionVerdict:
    return PartitionVerdict("orders", "east.orders", 3, 100, 90, 91, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "strict", "said"),
    [
        (verdict(), True, "same"),
        (verdict(duplicates=1), False, "same"),
        (verdict(duplicates=1), True, "duplicates"),
        (verdict(difference=Difference("extra", 7, 8)), False, "extra: source offset 7, target offset 8"),
        (verdict(problem="no broker answered"), False, "not compared: no broker answered"),
    ],
)
def test_a_verdict_is_named_in_its_row(one: PartitionVerdict, strict: bool, said: str) -> None:
    verified = [Verification("ew", [one])]
    ((*_, named),) = rows(verified, strict=strict)
    assert named == said
    assert verified[0].same(strict=strict) == (said == "same")


def test_what_was_not_compared_stands_below_the_table() -> None:
    verified = [Verification("ew", [verdict(notes=("the source's log begins at 40",))])]
    assert list(remarks(verified)) == ["ew, orders-3: the source's log begins at 40"]
