"""The verbs of the `ingestd` command: options in, one call, an exit code out."""
# ruff: noqa: PLC0415 - each verb imports what it needs, so that all of them start fast

from __future__ import annotations

import os
import sys
from itertools import chain
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from ingestd import __version__
from ingestd.cli.broker_verbs import broker
from ingestd.cli.group_verbs import groups
from ingestd.cli.mirror_verbs import mirror
from ingestd.cli.options import a_path, configuration_file, of_cluster, show, shown_as
from ingestd.cli.pipeline_verbs import pipeline
from ingestd.cli.topic_verbs import topics

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ingestd.cli.configured import ClusterAccess
    from ingestd.cli.options import Shape

__all__ = ["ingestd"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 120})
@click.version_option(__version__, message="%(prog)s %(version)s")
def ingestd() -> None:
    """Ships log files into Apache Kafka topics, and mirrors topics between clusters, at least once."""


ingestd.add_command(broker)
ingestd.add_command(topics)
ingestd.add_command(groups)
ingestd.add_command(mirror)
ingestd.add_command(pipeline)

_FORMAT = (
    r"As in '%p %o %k: %s\n'. %t topic, %p partition, %o offset, %T timestamp in ms, %k key, %s value, %h headers, "
    r"%K and %S lengths of key and value, %R the value's in binary."
)
of_topic = click.option("--topic", "-t", metavar="TOPIC", required=True)


@ingestd.command()
@configuration_file
@click.option(
    "--once",
    is_flag=True,
    help="Take every file to its present end, then exit.",
)
@click.option(
    "--engine", type=click.Choice(["local", "spark"]), default="local", help="Workers here, or on Spark's executors."
)
@click.option("--master", metavar="URL", help="Spark's master, for --engine spark.  [default: local[*]]")
@click.option("--conf", metavar="spark.NAME=VALUE", multiple=True, help="A setting of Spark, for --engine spark.")
def run(config: Path, once: bool, engine: str, master: str | None, conf: tuple[str, ...]) -> None:
    """Run the daemon in the foreground: tails, mirrors. SIGTERM and SIGINT drain it.

    CONFIG is the configuration file (TOML).
    """
    from ingestd.cli.configured import load_configuration
    from ingestd.cli.run import print_summary, ran_well, run_configuration, run_on_spark, spark_settings

    if engine == "spark":
        settings = spark_settings(conf)
        summary = run_on_spark(load_configuration(config), once=once, master=master or "local[*]", spark=settings)
    elif master or conf:
        raise click.UsageError("--master and --conf are for --engine spark.")
    else:
        summary = run_configuration(load_configuration(config), once=once)
    print_summary(summary)
    if not ran_well(summary, once=once):
        raise Exit(1)


@ingestd.command()
@configuration_file
def check(config: Path) -> None:
    """Say what is wrong with a configuration.

    CONFIG is the configuration file (TOML). Nothing is started, and no broker is asked. Certificates, secrets and
    stored positions that a start would refuse are refused. Files that no tail takes, what this user can not read or
    write now, and a full disk are warnings.
    """
    from ingestd.cli.check import check_positions, check_start, warnings
    from ingestd.cli.configured import load_configuration, route_kinds
    from ingestd.figures import in_count

    configuration = load_configuration(config)
    of_security = check_start(configuration)
    unread = check_positions(configuration)
    warned = 0
    for warning in chain(filter(None, [unread]), of_security, warnings(configuration)):
        warned += 1
        print(f"ingestd: warning: {config}: {warning}", file=sys.stderr)
    parts = {
        "cluster": configuration.clusters,
        **{
            section.removesuffix("s"): [route for route in configuration.routes if isinstance(route, kind)]
            for section, kind in route_kinds().items()
        },
        "pipeline": configuration.pipelines,
    }
    found = ", ".join(in_count(len(items), name) for name, items in parts.items() if items or name == "cluster")
    but = f", with {in_count(warned, 'warning')}" if warned else ""
    print(f"{config}: good{but} ({found})")


@ingestd.command()
@click.argument("name", required=False)
def example(name: str | None) -> None:
    """Write an example of a configuration.

    NAME is one of the examples, as in `ingestd example tails > ingestd.toml`; without it, they are listed.
    """
    from ingestd.cli import examples as verbs
    from ingestd.cli.tables import table

    if name is not None:
        print(verbs.example(name), end="")
        return
    print("ingestd example NAME writes one of:")
    for line in table(("NAME", "FOR"), verbs.examples()):
        print(line)
    print(f"Every key is explained in {verbs.REFERENCE}")


@ingestd.command()
@of_topic
@click.argument("file", required=False, type=a_path)
@of_cluster
@click.option("--partition", "-p", type=int, help="Send to this partition only.")
@click.option("--key-delimiter", "-K", metavar="TEXT", help="Each line is key, TEXT, value.")
@click.option("--key", "-k", metavar="TEXT", help="The key of every record; of lines with a key of their own, theirs.")
@click.option("--header", "-H", multiple=True, metavar="NAME=VALUE", help="A header for every record.")
@click.option("--empty-as-null", "-Z", is_flag=True, help="Send empty values as null; empty keys are none.")
@click.option("--delimiter", "-D", metavar="TEXT", default=r"\n", help="What ends a line.")
@click.option("--compression", "-z", metavar="CODEC[:LEVEL]", default="none", help="none, gzip, snappy, lz4 or zstd.")
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    help="all in-sync replicas, the leader alone (1), or nobody (0).",
)
@click.option("--linger", metavar="SECONDS", default=0.005, help="How long a record may wait for company.")
def produce(
    topic: str,
    file: Path | None,
    access: ClusterAccess,
    partition: int | None,
    key_delimiter: str | None,
    key: str | None,
    header: Sequence[str],
    empty_as_null: bool,
    delimiter: str,
    compression: str,
    acks: str,
    linger: float,
) -> None:
    """Send lines to a topic.

    FILE has the lines to send; standard input if none.
    """
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.produce import Production, open_input, parse_headers, producer_settings
    from ingestd.cli.produce import produce as produce_lines
    from ingestd.cli.rendering import unescape

    separator = None if key_delimiter is None else unescape(key_delimiter)
    production = Production(
        topic,
        partition,
        unescape(delimiter),
        separator,
        None if key is None else os.fsencode(key),
        parse_headers(header),
        empty_as_null,
    )
    settings = access.properties.producer(producer_settings(compression, -1 if acks == "all" else int(acks), linger))
    with open_input(file) as source:
        produced = run_async(produce_lines(access, production, source, settings))
    if produced.error is not None:
        lost = produced.accepted - produced.delivered
        print(
            f"ingestd: {topic}: {lost} of {produced.accepted} records not delivered: {produced.error}", file=sys.stderr
        )
        raise Exit(1)


@ingestd.command()
@of_topic
@of_cluster
@click.option("--partition", "-p", multiple=True, metavar="N", help="Partitions, as in 3, 0,2 or 4-7; else all.")
@click.option(
    "--offset", "-o", default="beginning", help="beginning, end, N, -N (the last N of each partition), or @TIME."
)
@click.option("--count", "-n", type=click.IntRange(min=0), help="Exit after so many records.")
@click.option("--exit-at-end", "-e", is_flag=True, help="Exit at the present end.")
@click.option("--output", type=click.Choice(["raw", "json"]), default="raw", help="Values, or a JSON object a record.")
@click.option("-J", "as_json", is_flag=True, help="The same as --output json.")
@click.option("--format", "-f", "form", help=_FORMAT)
@click.option("--delimiter", "-D", default=r"\n", help="What follows each raw value.")
@click.option("--key-delimiter", "-K", metavar="TEXT", help="Write keys too, with TEXT between key and value.")
@click.option("--show-null", "-Z", is_flag=True, help="Write NULL, not nothing, for a key or value that is null.")
@click.option(
    "--unpack",
    "-s",
    multiple=True,
    metavar="[key=|value=]FORMAT",
    help="Binary numbers as text, by kcat's format characters: b h i q, capitals unsigned; < > c s $.",
)
@click.option("--committed", is_flag=True, help="Without records of open or aborted transactions.")
def consume(
    topic: str,
    access: ClusterAccess,
    partition: Sequence[str],
    offset: str,
    count: int | None,
    exit_at_end: bool,
    output: str,
    as_json: bool,
    form: str | None,
    delimiter: str,
    key_delimiter: str | None,
    show_null: bool,
    unpack: Sequence[str],
    committed: bool,
) -> None:
    """Write a topic's records to standard output."""
    from ingestd.cli.consume import Consumption, consumer_settings
    from ingestd.cli.consume import consume as consume_topic
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.rendering import Layout, rendering_of
    from ingestd.cli.starts import parse_partitions, parse_start
    from ingestd.cli.unpacking import parse_unpackings

    layout = Layout(form, delimiter, key_delimiter, show_null, *parse_unpackings(unpack))
    rendering = rendering_of(layout, as_json=as_json or output == "json")
    consumption = Consumption(topic, parse_partitions(partition), parse_start(offset), count, exit_at_end)
    settings = access.properties.consumer(consumer_settings(committed=committed))
    run_async(consume_topic(access, consumption, sys.stdout.buffer, rendering, settings))


@ingestd.command()
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@of_cluster
@click.option("--internal", is_flag=True, help="Kafka's own topics as well.")
@shown_as
def metadata(names: Sequence[str], access: ClusterAccess, internal: bool, output: Shape | None) -> None:
    """Show brokers, and where partitions are.

    TOPIC is a topic to show; all of them if none is named.
    """
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.metadata import list_metadata

    found = run_async(list_metadata(access, names, internal=internal))
    show(found, found.lines(), output)
