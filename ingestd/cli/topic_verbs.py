"""The verbs of `ingestd topics`: options in, one call, what it found out."""
# ruff: noqa: PLC0415 - each verb imports what it needs, so that all of them start fast

from typing import Annotated

import typer

from ingestd.cli.options import Brokers, OfCluster, OfConfiguration, ShownAs, TopicNames, show

__all__ = ["topics"]

topics = typer.Typer(help="List, describe, create, change and delete topics.", no_args_is_help=True)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC")]
ConfigEntries = Annotated[
    list[str] | None, typer.Option("--config-entry", metavar="NAME=VALUE", help="As in retention.ms=3600000.")
]


@topics.command("list")
def list_topics(
    brokers: Brokers = None,
    config: OfConfiguration = None,
    cluster: OfCluster = None,
    internal: Annotated[bool, typer.Option("--internal", help="Kafka's own topics as well.")] = False,
    output: ShownAs = None,
) -> None:
    """Name every topic, with its number of partitions."""
    from ingestd.cli import topics as verbs
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.tables import table

    found = run_async(verbs.list_topics(cluster_access(brokers or [], config, cluster), internal=internal))
    show(found, table(("TOPIC", "PARTITIONS"), found.items()), output)


@topics.command("describe")
def describe_topics(
    names: TopicNames,
    brokers: Brokers = None,
    config: OfConfiguration = None,
    cluster: OfCluster = None,
    output: ShownAs = None,
) -> None:
    """Show topics' partitions: leader, replicas, offsets; and what is configured for them."""
    from ingestd.cli import topics as verbs
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async

    described = run_async(verbs.describe_topics(cluster_access(brokers or [], config, cluster), names))
    show(described, (line for topic in described for line in topic.lines()), output)


@topics.command("create")
def create_topic(
    name: TopicName,
    brokers: Brokers = None,
    config: OfConfiguration = None,
    cluster: OfCluster = None,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="-1: the broker's default.")] = -1,
    replication_factor: Annotated[int, typer.Option(help="-1: the broker's default.")] = -1,
    config_entry: ConfigEntries = None,
) -> None:
    """Create a topic."""
    from ingestd.cli import topics as verbs
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async

    entries = verbs.parse_configs(config_entry or [])
    access = cluster_access(brokers or [], config, cluster)
    run_async(verbs.create_topic(access, name, partitions, replication_factor, entries))


@topics.command("alter")
def alter_topic(
    name: TopicName,
    brokers: Brokers = None,
    config: OfConfiguration = None,
    cluster: OfCluster = None,
    config_entry: ConfigEntries = None,
    default: Annotated[
        list[str] | None, typer.Option("--default", metavar="NAME", help="Take back to its default.")
    ] = None,
) -> None:
    """Change a topic's configuration; what is not named stays as it is."""
    from ingestd.cli import topics as verbs
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async

    entries = verbs.parse_configs(config_entry or [])
    access = cluster_access(brokers or [], config, cluster)
    run_async(verbs.alter_topic(access, name, {**entries, **dict.fromkeys(default or ())}))


@topics.command("add-partitions")
def add_partitions(
    name: TopicName,
    total: Annotated[int, typer.Argument(metavar="TOTAL", min=1, help="How many there are to be altogether.")],
    brokers: Brokers = None,
    config: OfConfiguration = None,
    cluster: OfCluster = None,
) -> None:
    """Give a topic more partitions. Keys may be in other partitions from then on."""
    from ingestd.cli import topics as verbs
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async

    run_async(verbs.add_partitions(cluster_access(brokers or [], config, cluster), name, total))


@topics.command("delete")
def delete_topics(
    names: TopicNames, brokers: Brokers = None, config: OfConfiguration = None, cluster: OfCluster = None
) -> None:
    """Delete topics and all that is in them."""
    from ingestd.cli import topics as verbs
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async

    run_async(verbs.delete_topics(cluster_access(brokers or [], config, cluster), names))
