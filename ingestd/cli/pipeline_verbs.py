"""The verbs of `ingestd pipeline`: options in, one call, what it found out."""
# ruff: noqa: PLC0415 - each verb imports what it needs, so that all of them start fast

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ingestd.cli.options import configuration_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["pipeline"]


@click.group()
def pipeline() -> None:
    """Run pipelines on Spark."""


@pipeline.command("run")
@configuration_file
@click.argument("name")
def run_pipeline(config: Path, name: str) -> None:
    """Run a pipeline once, on the Spark that its settings name, over what its topics hold now.

    CONFIG is the configuration file (TOML), NAME which [pipelines.NAME] of it.
    """
    from ingestd.cli.configured import load_configuration
    from ingestd.cli.pipeline import run_configured

    result = run_configured(load_configuration(config), name)
    rows = "" if result.rows is None else f"{result.rows:,} rows "
    print(f"{result.name}: {rows}to {result.path} in {result.seconds:.1f} s")


@pipeline.command("check")
@configuration_file
@click.argument("name")
def check_pipeline(config: Path, name: str) -> None:
    """Show the columns that a pipeline writes, each with its type.

    CONFIG is the configuration file (TOML), NAME which [pipelines.NAME] of it. Spark resolves every step. No broker is
    asked, and no data is read.
    """
    from ingestd.cli.configured import load_configuration
    from ingestd.cli.pipeline import check_configured
    from ingestd.cli.tables import table

    for line in table(("COLUMN", "TYPE"), check_configured(load_configuration(config), name)):
        print(line)


@pipeline.command("plan")
@configuration_file
@click.argument("name")
def plan_pipeline(config: Path, name: str) -> None:
    """Show what a pipeline would read now, and how Spark would run it.

    CONFIG is the configuration file (TOML), NAME which [pipelines.NAME] of it. Brokers are asked for offsets alone.
    """
    from ingestd.cli.configured import load_configuration
    from ingestd.cli.pipeline import plan_configured
    from ingestd.cli.tables import table

    planned = plan_configured(load_configuration(config), name)
    rows = [(each.topic, each.partition, each.start, each.end, each.end - each.start) for each in planned.ranges]
    for line in table(("TOPIC", "PARTITION", "START", "END", "OFFSETS"), rows):
        print(line)
    print(f"\n{planned.query.strip()}")
