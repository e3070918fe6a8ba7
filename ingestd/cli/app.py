"""The verbs of the `ingestd` command: options in, one call, an exit code out."""
# ruff: noqa: PLC0415 - each verb imports what it needs, so that all of them start fast

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ingestd import __version__
from ingestd.cli.group_verbs import groups
from ingestd.cli.options import Brokers, ConfigurationFile, OfCluster, OfConfiguration
from ingestd.cli.topic_verbs import topics

__all__ = ["app"]

app = typer.Typer(
    name="ingestd",
    help="Moves records into Apache Kafka clusters as fast as the machine allows, and loses none.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
pipeline = typer.Typer(help="Run pipelines on Spark.", no_args_is_help=True)
app.add_typer(topics, name="topics")
app.add_typer(groups, name="groups")
app.add_typer(pipeline, name="pipeline")

OfTopic = Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC")]


class Output(StrEnum):
    """How records are written."""

    raw = "raw"
    json = "json"


class Acks(StrEnum):
    """Who must have a record before it counts as delivered."""

    all = "all"
    leader = "1"
    none = "0"


def _version(asked: bool) -> None:
    if asked:
        print(f"ingestd {__version__}")
        raise typer.Exit


@app.callback()
def ingestd(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Moves records into Apache Kafka clusters as fast as the machine allows, and loses none."""


@app.command()
def run(
    config: ConfigurationFile,
    once: Annotated[bool, typer.Option("--once", help="Take every file to its present end, then exit.")] = False,
) -> None:
    """Run the daemon in the foreground. SIGTERM and SIGINT drain it."""
    from ingestd.cli.configured import load_configuration
    from ingestd.cli.run import print_summary, ran_well, run_configuration

    summary = run_configuration(load_configuration(config), once=once)
    print_summary(summary)
    if not ran_well(summary, once=once):
        raise typer.Exit(1)


@app.command()
def check(config: ConfigurationFile) -> None:
    """Validate a configuration without starting anything."""
    from ingestd.cli.configured import load_configuration

    configuration = load_configuration(config)
    parts = {
        "cluster": configuration.clusters,
        "route": configuration.routes,
        "pipeline": configuration.pipelines,
    }
    found = ", ".join(f"{len(items)} {name}{'' if len(items) == 1 else 's'}" for name, items in parts.items())
    print(f"{config}: good ({found})")


@app.command()
def broker(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Directory of the broker's logs.")],
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:9092",
    partitions: Annotated[int, typer.Option(help="Partitions of topics created on demand.")] = 1,
    create_topics: Annotated[bool, typer.Option(help="Create topics on demand.")] = True,
) -> None:
    """Run the embedded broker alone, until SIGTERM or SIGINT."""
    from ingestd.cli.broker import broker_settings, run_broker

    settings = broker_settings(data, listen, partitions=partitions, create_topics=create_topics)
    run_broker(settings, lambda host, port: print(f"listening at {host}:{port}", flush=True))


@app.command()
def produce(
    topic: OfTopic,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Lines to send; standard input if none.")] = None,
    brokers: Brokers = None,
    config: OfConfiguration = None,
    cluster: OfCluster = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="Send to this partition only.")] = None,
    key_delimiter: Annotated[
        str | None, typer.Option("--key-delimiter", "-K", metavar="TEXT", help="Each line is key, TEXT, value.")
    ] = None,
    delimiter: Annotated[str, typer.Option("--delimiter", "-D", metavar="TEXT", help="What ends a line.")] = "\\n",
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC[:LEVEL]", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    acks: Annotated[Acks, typer.Option(help="all in-sync replicas, the leader alone (1), or nobody (0).")] = Acks.all,
    linger: Annotated[float, typer.Option(metavar="SECONDS", help="How long a record may wait for company.")] = 0.005,
) -> None:
    """Send lines to a topic."""
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.produce import Production, open_input, producer_settings
    from ingestd.cli.produce import produce as produce_lines
    from ingestd.cli.rendering import unescape

    separator = None if key_delimiter is None else unescape(key_delimiter)
    production = Production(topic, partition, unescape(delimiter), separator)
    settings = producer_settings(compression, -1 if acks is Acks.all else int(acks.value), linger)
    access = cluster_access(brokers or [], config, cluster)
    with open_input(file) as source:
        produced = run_async(produce_lines(access, production, source, settings))
    if produced.error is not None:
        lost = produced.accepted - produced.delivered
        print(
            f"ingestd: {topic}: {lost} of {produced.accepted} records not delivered: {produced.error}", file=sys.stderr
        )
        raise typer.Exit(1)


@app.command()
def consume(
    topic: OfTopic,
    brokers: Brokers = None,
    config: OfConfiguration = None,
    cluster: OfCluster = None,
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", "-p", metavar="N", help="As in 3, 0,2 or 4-7; all if not given."),
    ] = None,
    offset: Annotated[
        str, typer.Option("--offset", "-o", help="beginning, end, N, -N (the last N of each partition), or @TIME.")
    ] = "beginning",
    count: Annotated[int | None, typer.Option("--count", "-n", min=0, help="Exit after so many records.")] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit-at-end", "-e", help="Exit at the present end.")] = False,
    output: Annotated[Output, typer.Option(help="Values, or a JSON object a record.")] = Output.raw,
    form: Annotated[
        str | None,
        typer.Option("--format", "-f", help=r"As kcat's: %t %p %o %T %k %s %h %K %S, and \n: '%p %o %k: %s\n'."),
    ] = None,
    delimiter: Annotated[str, typer.Option("--delimiter", "-D", help="What follows each raw value.")] = "\\n",
    committed: Annotated[
        bool, typer.Option("--committed", help="Without records of open or aborted transactions.")
    ] = False,
) -> None:
    """Write a topic's records to standard output."""
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.consume import Consumption, consumer_settings
    from ingestd.cli.consume import consume as consume_topic
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.rendering import FormattedRecords, JsonRecords, RawValues, unescape
    from ingestd.cli.starts import parse_partitions, parse_start

    rendering: RawValues | JsonRecords | FormattedRecords = RawValues(unescape(delimiter))
    if form is not None:
        rendering = FormattedRecords(form)
    elif output is Output.json:
        rendering = JsonRecords()
    consumption = Consumption(topic, parse_partitions(partition or []), parse_start(offset), count, exit_at_end)
    access = cluster_access(brokers or [], config, cluster)
    settings = consumer_settings(committed=committed)
    run_async(consume_topic(access, consumption, sys.stdout.buffer, rendering, settings))


@pipeline.command("run")
def run_pipeline(
    config: ConfigurationFile, name: Annotated[str, typer.Argument(metavar="NAME", help=r"Which \[pipelines.NAME].")]
) -> None:
    """Run a pipeline once, on the Spark that its settings name, over what its topics hold now."""
    from ingestd.cli.configured import load_configuration
    from ingestd.cli.pipeline import run_configured

    result = run_configured(load_configuration(config), name)
    print(f"{result.name}: {result.rows:,} rows to {result.path} in {result.seconds:.1f} s")
