"""The verbs of `ingestd mirror`: options in, one call, what it found out."""
# ruff: noqa: PLC0415 - each verb imports what it needs, so that all of them start fast

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from ingestd.cli.options import configuration_file, show, shown_as

if TYPE_CHECKING:
    from pathlib import Path

    from ingestd.cli.options import Shape

__all__ = ["mirror"]


@click.group()
def mirror() -> None:
    """Verify mirrors, and hand consumers over."""


@mirror.command("verify")
@configuration_file
@click.argument("name", required=False)
@click.option("--to-end", is_flag=True, help="Up to the present end at the source, not to what is committed.")
@click.option("--strict", is_flag=True, help="Records that came twice are a fault.")
@shown_as
def verify_mirror(config: Path, name: str | None, to_end: bool, strict: bool, output: Shape | None) -> None:
    """Compare a mirror's target with its source, record by record.

    CONFIG is the configuration file (TOML), NAME which [mirrors.NAME] of it; all of them without it. Compared is what
    the mirror has committed: numbers, order, keys, values, headers and timestamps of records. The first difference of
    each partition is named. Records that came again after a crash are counted, and are no fault. Exits with 1 if
    anything differs.
    """
    from ingestd.cli import mirrors as verbs
    from ingestd.cli.configured import load_configuration
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.tables import table

    verified = run_async(verbs.verify_mirrors(load_configuration(config), name, to_end=to_end))
    lines = [*table(verbs.HEADER, verbs.rows(verified, strict=strict)), *verbs.remarks(verified)]
    show(verified, lines, output)
    if not all(one.same(strict=strict) for one in verified):
        raise Exit(1)


@mirror.command("hand-over")
@configuration_file
@click.argument("name")
@click.option("--timeout", metavar="SECONDS", default=300.0, help="How long to wait until all is copied.")
@click.option("--reverse", is_flag=True, help="Only print the configuration of the way back.")
@shown_as
def hand_over_mirror(config: Path, name: str, timeout: float, *, reverse: bool, output: Shape | None) -> None:
    """Move consumers from a mirror's source to its target.

    CONFIG is the configuration file (TOML), NAME which [mirrors.NAME] of it. The mirror runs meanwhile, here or
    elsewhere. Stop the consumers first. Waits until the mirror has copied what the source has now, commits the offsets
    of its `groups` on the target, and says of each whether its consumers can start there. Exits with 1 if one can not.
    """
    from ingestd.cli import mirrors as verbs
    from ingestd.cli.configured import load_configuration
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.tables import table

    configuration = load_configuration(config)
    if reverse:
        print(verbs.reverse(configuration, name))
        return
    handed = run_async(verbs.hand_over_mirror(configuration, name, timeout))
    lines = [*table(verbs.HAND_OVER_HEADER, verbs.hand_over_rows(handed)), *verbs.hand_over_remarks(handed)]
    show(handed, lines, output)
    if not handed.ready:
        raise Exit(1)
