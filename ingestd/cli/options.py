"""Options that verbs share, and how what they found is written: a table for people, JSON for programs."""
# ruff: noqa: PLC0415 - each verb imports what it needs, so that all of them start fast

import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Brokers", "ConfigurationFile", "OfCluster", "OfConfiguration", "Shape", "ShownAs", "TopicNames", "show"]

ConfigurationFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration file (TOML).")]
TopicNames = Annotated[list[str], typer.Argument(metavar="TOPIC")]
Brokers = Annotated[
    list[str] | None,
    typer.Option("--brokers", "-b", metavar="HOST:PORT[,…]", envvar="INGESTD_BROKERS", help="Brokers to ask first."),
]
OfConfiguration = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="CONFIG", help="Take brokers and security from a configuration."),
]
OfCluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help=r"Which \[clusters.NAME] of --config; needed if several."),
]


class Shape(StrEnum):
    """How what was found is written."""

    table = "table"
    json = "json"


ShownAs = Annotated[
    Shape | None,
    typer.Option("--output", help="Default: a table on a terminal, else JSON."),
]


def show(found: object, lines: Iterable[str], shape: Shape | None) -> None:
    """Write `found` as JSON, or `lines` for people; None: whichever fits where standard output goes."""
    if shape is Shape.table or (shape is None and sys.stdout.isatty()):
        for line in lines:
            print(line)
        return
    import orjson

    sys.stdout.buffer.write(orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE, default=str))
    sys.stdout.buffer.flush()
