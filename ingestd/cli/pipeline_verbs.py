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
@click.option("--once", is_flag=True, help="End a stream when it has taken what is there now.")
@click.option(
    "--from",
    "start",
    metavar="OFFSET",
    help="Begin there: earliest, latest, an offset of each partition, @TIME, or JSON. A stream needs a new checkpoint.",
)
@click.option("--checkpoint", metavar="DIR", help="Another checkpoint than that of the configuration.")
@click.option("--master", metavar="URL", help="Another master of Spark than that of the configuration.")
def run_pipeline(
    config: Path, name: str, once: bool, start: str | None, checkpoint: str | None, master: str | None
) -> None:
    """Run a pipeline on Spark. SIGTERM and SIGINT end it.

    CONFIG is the configuration file (TOML), NAME which [pipelines.NAME] of it. With a checkpoint it is a stream, which
    goes on where it was. Without one it takes what its topics hold now, and ends.
    """
    from ingestd.cli.configured import load_configuration
    from ingestd.cli.pipeline import Choices, run_configured, summary_line
    from ingestd.cli.stopping import until_signalled

    choices = Choices(once, start, checkpoint, master)
    with until_signalled() as stopped:
        print(summary_line(run_configured(load_configuration(config), name, choices, stopped)))


@pipeline.command("check")
@configuration_file
@click.argument("name")
def check_pipeline(config: Path, name: str) -> None:
    """Show the columns that a pipeline writes, each with its type.

    CONFIG is the configuration file (TOML), NAME which [pipelines.NAME] of it. Spark resolves every step. No broker is
    asked, and no data is read. Of files it says how many there are, and their bytes.
    """
    from ingestd.cli.configured import load_configuration
    from ingestd.cli.pipeline import check_configured
    from ingestd.cli.tables import table
    from ingestd.figures import in_bytes, in_count

    checked = check_configured(load_configuration(config), name)
    for line in table(("COLUMN", "TYPE"), checked.columns):
        print(line)
    if checked.files:
        size = sum(file.size for file in checked.files)
        print(f"\nsource: {in_count(len(checked.files), 'file')}, {in_bytes(size)}")


@pipeline.command("plan")
@configuration_file
@click.argument("name")
def plan_pipeline(config: Path, name: str) -> None:
    """Show how Spark would run a pipeline, and then what it would read now.

    CONFIG is the configuration file (TOML), NAME which [pipelines.NAME] of it. Brokers are asked for offsets alone.
    """
    from ingestd.cli.configured import load_configuration
    from ingestd.cli.pipeline import plan_configured
    from ingestd.cli.tables import table

    planned = plan_configured(load_configuration(config), name)
    if planned.files:
        lines = table(("FILE", "BYTES"), [(each.path, each.size) for each in planned.files])
    else:
        rows = [(each.topic, each.partition, each.start, each.end, each.end - each.start) for each in planned.ranges]
        lines = table(("TOPIC", "PARTITION", "START", "END", "OFFSETS"), rows)
    print(f"{planned.query.strip()}\n")
    for line in lines:
        print(line)
