"""The verbs of `ingestd topics`: options in, one call, what it found out."""
# ruff: noqa: PLC0415 - each verb imports what it needs, so that all of them start fast

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from ingestd.cli.options import of_cluster, show, shown_as

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestd.cli.configured import ClusterAccess
    from ingestd.cli.options import Shape

__all__ = ["topics"]


@click.group()
def topics() -> None:
    """List, describe, create, change and delete topics, and what is in them."""


of_topic = click.argument("topic")
of_topics = click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
config_entry = click.option("--config-entry", multiple=True, metavar="NAME=VALUE", help="As in retention.ms=3600000.")


@topics.command("list")
@of_cluster
@click.option("--internal", is_flag=True, help="Kafka's own topics as well.")
@shown_as
def list_topics(access: ClusterAccess, internal: bool, output: Shape | None) -> None:
    """Name every topic, with its number of partitions."""
    from ingestd.cli import topics as verbs
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.tables import table

    found = run_async(verbs.list_topics(access, internal=internal))
    show(found, table(("TOPIC", "PARTITIONS"), found.items()), output)


@topics.command("describe")
@of_topics
@of_cluster
@shown_as
def describe_topics(names: Sequence[str], access: ClusterAccess, output: Shape | None) -> None:
    """Show topics' partitions: leader, replicas, offsets; and what is configured for them."""
    from ingestd.cli import topics as verbs
    from ingestd.cli.event_loop import run_async

    described = run_async(verbs.describe_topics(access, names))
    show(described, (line for topic in described for line in topic.lines()), output)


@topics.command("offsets")
@click.argument("names", metavar="TOPIC[:0,2]...", nargs=-1, required=True)
@of_cluster
@click.option("--at", default="end", help="beginning, end, or @TIME (ISO 8601, or milliseconds since 1970).")
@shown_as
def list_offsets(names: Sequence[str], access: ClusterAccess, at: str, output: Shape | None) -> None:
    """Name the offset of the first record at or after a time, in each partition.

    TOPIC:0,2 is about these partitions of TOPIC alone. No offset: no record is as late as that.
    """
    from ingestd.cli import topics as verbs
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.scope import parse_scope
    from ingestd.cli.tables import table

    found = run_async(verbs.list_offsets(access, parse_scope(names, "topic"), verbs.parse_at(at)))
    rows = ((one.topic, one.partition, one.offset, one.timestamp_ms) for one in found)
    show(found, table(("TOPIC", "PARTITION", "OFFSET", "TIMESTAMP"), rows), output)


@topics.command("disk-use")
@click.argument("names", metavar="[TOPIC[:0,2]...]", nargs=-1)
@of_cluster
@click.option("--by-topic", is_flag=True, help="One line a topic, the largest first, in place of one a replica.")
@shown_as
def disk_use(names: Sequence[str], access: ClusterAccess, by_topic: bool, output: Shape | None) -> None:
    """Show how many bytes topics take on the brokers' disks, and in which directories; all topics, if none is named.

    TOPIC:0,2 is about these partitions of TOPIC alone. Each replica counts.
    """
    from ingestd.cli import topics as verbs
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.scope import parse_scope
    from ingestd.cli.tables import table

    found, errors = run_async(verbs.disk_use(access, parse_scope(names, "topic") if names else None))
    if by_topic:
        totals = verbs.by_topic(found)
        lines = table(("TOPIC", "REPLICAS", "BYTES"), ((one.topic, one.replicas, one.size) for one in totals))
        show(totals, lines, output)
    else:
        rows = ((one.topic, one.partition, one.broker, one.size, one.offset_lag, one.directory) for one in found)
        show(found, table(("TOPIC", "PARTITION", "BROKER", "BYTES", "LAG", "DIRECTORY"), rows), output)
    for error in errors:
        print(f"ingestd: {error}", file=sys.stderr)
    if errors:
        raise Exit(1)


@topics.command("create")
@of_topics
@of_cluster
@click.option("--partitions", "-p", default=-1, help="-1: the broker's default.")
@click.option("--replication-factor", default=-1, help="-1: the broker's default.")
@config_entry
def create_topics(
    names: Sequence[str], access: ClusterAccess, partitions: int, replication_factor: int, config_entry: Sequence[str]
) -> None:
    """Create topics that are alike, and say what was created."""
    from ingestd.cli import topics as verbs
    from ingestd.cli.event_loop import run_async
    from ingestd.figures import in_count

    entries = verbs.parse_configs(config_entry)
    outcomes = run_async(verbs.create_topics(access, names, partitions, replication_factor, entries))
    for created in outcomes:
        if created.error is None:
            # A broker of before Kafka 2.4 does not say what its defaults were.
            has, replicas = max(partitions, created.partitions), max(replication_factor, created.replication_factor)
            known = [in_count(has, "partition")] if has > 0 else []
            known += [f"replication factor {replicas}"] if replicas > 0 else []
            print(f"{created.topic}: created", *known, *config_entry, sep=", ")
    verbs.raise_errors("topics not created", outcomes)


@topics.command("alter")
@of_topic
@of_cluster
@config_entry
@click.option("--default", multiple=True, metavar="NAME", help="Take back to its default.")
def alter_topic(topic: str, access: ClusterAccess, config_entry: Sequence[str], default: Sequence[str]) -> None:
    """Change a topic's configuration; what is not named stays as it is."""
    from ingestd.cli import topics as verbs
    from ingestd.cli.event_loop import run_async

    run_async(verbs.alter_topic(access, topic, {**verbs.parse_configs(config_entry), **dict.fromkeys(default)}))


@topics.command("add-partitions")
@of_topic
@click.argument("total", type=click.IntRange(min=1))
@of_cluster
def add_partitions(topic: str, total: int, access: ClusterAccess) -> None:
    """Give a topic more partitions. Keys may be in other partitions from then on.

    TOTAL is how many there are to be altogether.
    """
    from ingestd.cli import topics as verbs
    from ingestd.cli.event_loop import run_async

    run_async(verbs.add_partitions(access, topic, total))


@topics.command("delete")
@of_topics
@of_cluster
def delete_topics(names: Sequence[str], access: ClusterAccess) -> None:
    """Delete topics and all that is in them."""
    from ingestd.cli import topics as verbs
    from ingestd.cli.event_loop import run_async

    run_async(verbs.delete_topics(access, names))


@topics.command("delete-records")
@click.argument("names", metavar="TOPIC[:0,2]...", nargs=-1, required=True)
@of_cluster
@click.option(
    "--before", required=True, metavar="OFFSET|@TIME|end", help="The first that stays. end: none of these does."
)
@shown_as
def delete_records(names: Sequence[str], access: ClusterAccess, before: str, output: Shape | None) -> None:
    """Delete the records before an offset or a time, in each partition, for good. Names each one's first offset then.

    TOPIC:0,2 is about these partitions of TOPIC alone. @TIME (ISO 8601, or milliseconds since 1970) stands for the
    first record at or after it.
    """
    from ingestd.cli import topics as verbs
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.scope import parse_scope
    from ingestd.cli.tables import table

    found = run_async(verbs.delete_records(access, parse_scope(names, "topic"), verbs.parse_before(before)))
    rows = ((one.topic, one.partition, one.first_offset, one.error) for one in found)
    show(found, table(("TOPIC", "PARTITION", "FIRST", "ERROR"), rows), output)
    if any(one.error for one in found):
        raise Exit(1)
