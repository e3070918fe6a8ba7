"""Options that verbs share, and how what they found is written: a table for people, JSON for programs."""
# ruff: noqa: PLC0415 - each verb imports what it needs, so that all of them start fast

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Shape", "a_path", "configuration_file", "of_cluster", "show", "shown_as"]

Shape = Literal["table", "json"]
"""How what was found is written."""

a_path = click.Path(path_type=Path, readable=False)
"""A path. Whoever opens it says what is wrong with it: click's own words for a file that can not be read are others."""
configuration_file = click.argument("config", type=a_path)
shown_as = click.option(
    "--output", type=click.Choice(get_args(Shape)), help="Default: a table on a terminal, else JSON."
)


def of_cluster(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options that say which cluster it talks to; it gets the cluster as `access`."""

    @click.option(
        "--brokers",
        "-b",
        multiple=True,
        metavar="HOST[:PORT][,…]",
        envvar="INGESTD_BROKERS",
        show_envvar=True,
        help="Brokers to ask first; port 9092 unless given.",
    )
    @click.option(
        "--config",
        "-c",
        metavar="CONFIG",
        type=a_path,
        help="Take brokers and security from a configuration.",
    )
    @click.option("--cluster", metavar="NAME", help="Which [clusters.NAME] of --config; needed if several.")
    @click.option(
        "--timeout", "-m", metavar="SECONDS", default=30.0, help="How long to wait for a first answer of the cluster."
    )
    @click.option(
        "--setting",
        "-X",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        is_eager=True,
        callback=_list_settings,
        help="A setting of the client, by librdkafka's name; or @FILE, with one a line. `-X list` lists them.",
    )
    @functools.wraps(verb)
    def with_access(
        *,
        brokers: Sequence[str],
        config: Path | None,
        cluster: str | None,
        timeout: float,
        settings: Sequence[str],
        **others: object,
    ) -> None:
        from ingestd.cli.configured import cluster_access
        from ingestd.cli.properties import parse_properties

        if config is not None and config.name.isdecimal() and not config.exists():
            # kcat has -c for a number of records.
            raise click.BadParameter(f"{config}: no such file; expected a configuration. -n ends after so many records")
        access = cluster_access(brokers, config, cluster, timeout, parse_properties(settings))
        verb(access=access, **others)

    return with_access


def _list_settings(context: click.Context, _: click.Parameter, given: Sequence[str]) -> Sequence[str]:
    """`-X list`, which asks for nothing else."""
    if "list" in given:
        from ingestd.cli.properties import known_properties
        from ingestd.cli.tables import table

        for line in table(("NAME", "VALUE"), known_properties()):
            print(line)
        context.exit()
    return given


def show(found: object, lines: Iterable[str], shape: Shape | None) -> None:
    """Write `found` as JSON, or `lines` for people; None: whichever fits where standard output goes."""
    if shape == "table" or (shape is None and sys.stdout.isatty()):
        for line in lines:
            print(line)
        return
    import orjson

    sys.stdout.buffer.write(orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE, default=str))
    sys.stdout.buffer.flush()
