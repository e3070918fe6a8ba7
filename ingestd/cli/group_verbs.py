"""The verbs of `ingestd groups`: options in, one call, what it found out."""
# ruff: noqa: PLC0415 - each verb imports what it needs, so that all of them start fast

from typing import TYPE_CHECKING, Annotated

import typer

from ingestd.cli.options import Brokers, OfCluster, OfConfiguration, ShownAs, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.cli.groups import ResetTo
    from ingestd.client.admin import GroupDescription

__all__ = ["groups"]

groups = typer.Typer(help="List and describe groups, show their lag, reset their offsets.", no_args_is_help=True)

GroupNames = Annotated[list[str], typer.Argument(metavar="GROUP")]


@groups.command("list")
def list_groups(
    brokers: Brokers = None,
    config: OfConfiguration = None,
    cluster: OfCluster = None,
    state: Annotated[list[str] | None, typer.Option(help="Only in this state: Stable, Empty, …")] = None,
    kind: Annotated[list[str] | None, typer.Option("--type", help="Only of this type: classic, consumer, …")] = None,
    output: ShownAs = None,
) -> None:
    """Name every group, with its state, type and protocol."""
    from ingestd.cli import groups as verbs
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.tables import table

    access = cluster_access(brokers or [], config, cluster)
    found = run_async(verbs.list_groups(access, states=state or (), types=kind or ()))
    rows = ((one.group_id, one.state or None, one.type or None, one.protocol_type or None) for one in found)
    show(found, table(("GROUP", "STATE", "TYPE", "PROTOCOL"), rows), output)


@groups.command("describe")
def describe_groups(
    names: GroupNames,
    brokers: Brokers = None,
    config: OfConfiguration = None,
    cluster: OfCluster = None,
    output: ShownAs = None,
) -> None:
    """Show groups' state and members, and what each of them reads."""
    from ingestd.cli import groups as verbs
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async

    found = run_async(verbs.describe_groups(cluster_access(brokers or [], config, cluster), names))
    show([_plain(group) for group in found], (line for group in found for line in _lines(group)), output)


@groups.command("lag")
def group_lag(
    names: GroupNames,
    brokers: Brokers = None,
    config: OfConfiguration = None,
    cluster: OfCluster = None,
    output: ShownAs = None,
) -> None:
    """Show how far groups are behind, partition by partition, and who reads it."""
    from ingestd.cli import groups as verbs
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.tables import table

    found = run_async(verbs.group_lag(cluster_access(brokers or [], config, cluster), names))
    header = ("GROUP", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "HOST")
    rows = (
        (one.group, one.topic, one.partition, one.committed, one.end, one.lag, one.member_id, one.client_host)
        for one in found
    )
    show(found, table(header, rows), output)


@groups.command("reset-offsets")
def reset_offsets(
    name: Annotated[str, typer.Argument(metavar="GROUP")],
    brokers: Brokers = None,
    config: OfConfiguration = None,
    cluster: OfCluster = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:0,2,5]", help="What to reset; all that it has committed if none."
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first offset there is.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, metavar="OFFSET", help="To an offset.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="To the first record at or after a time (ISO 8601).")
    ] = None,
    shift_by: Annotated[int | None, typer.Option(metavar="N", help="Further on by N; back if negative.")] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Do it. Without it nothing is changed, only shown.")
    ] = False,
    output: ShownAs = None,
) -> None:
    """Set where a group without members goes on. Shows what it would do, unless told to --execute."""
    from ingestd.cli import groups as verbs
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.tables import table

    to = _target(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    access = cluster_access(brokers or [], config, cluster)
    scope = verbs.parse_scope(topic) if topic else None
    resets = run_async(verbs.plan_resets(access, name, to, scope))
    if execute:
        resets = run_async(verbs.apply_resets(access, name, resets))
    header = ("GROUP", "TOPIC", "PARTITION", "BEFORE", "AFTER", "ERROR")
    rows = ((one.group, one.topic, one.partition, one.before, one.after, one.error) for one in resets)
    show(resets, table(header, rows), output)
    if not execute:
        typer.echo("nothing is changed; --execute does it", err=True)
    if any(one.error for one in resets):
        raise typer.Exit(1)


@groups.command("delete")
def delete_groups(
    names: GroupNames, brokers: Brokers = None, config: OfConfiguration = None, cluster: OfCluster = None
) -> None:
    """Delete groups without members, and their offsets."""
    from ingestd.cli import groups as verbs
    from ingestd.cli.configured import cluster_access
    from ingestd.cli.event_loop import run_async

    run_async(verbs.delete_groups(cluster_access(brokers or [], config, cluster), names))


def _target(
    to_earliest: bool, to_latest: bool, to_offset: int | None, to_datetime: str | None, shift_by: int | None
) -> "ResetTo":
    from ingestd.cli.groups import ResetTo, Target, parse_time
    from ingestd.errors import ConfigurationError

    asked = []
    if to_earliest:
        asked.append(ResetTo(Target.earliest))
    if to_latest:
        asked.append(ResetTo(Target.latest))
    if to_offset is not None:
        asked.append(ResetTo(Target.offset, to_offset))
    if to_datetime is not None:
        asked.append(ResetTo(Target.time, parse_time(to_datetime)))
    if shift_by is not None:
        asked.append(ResetTo(Target.shift, shift_by))
    if len(asked) != 1:
        raise ConfigurationError(
            "expected one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        )
    return asked[0]


def _plain(group: "GroupDescription") -> dict[str, object]:
    """A description for JSON: without bytes, partitions by topic."""
    from ingestd.wire.requests.build import by_topic

    members = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscription": member.subscription,
            "assignment": by_topic(member.assignment),
        }
        for member in group.members
    ]
    plain = {name: getattr(group, name) for name in ("group_id", "type", "state", "protocol_type", "assignor")}
    return {**plain, "coordinator": group.coordinator, "members": members}


def _lines(group: "GroupDescription") -> "Iterator[str]":
    from ingestd.cli.tables import table
    from ingestd.wire.requests.build import by_topic

    assignor = f", assignor {group.assignor}" if group.assignor else ""
    yield f"{group.group_id}: {group.state}, {group.type}{assignor}, coordinator {group.coordinator}"
    rows = []
    for member in group.members:
        reads = "; ".join(
            f"{topic}: {','.join(map(str, numbers))}" for topic, numbers in by_topic(member.assignment).items()
        )
        rows.append((member.member_id, member.group_instance_id, member.client_id, member.client_host, reads or None))
    if rows:
        for line in table(("MEMBER", "INSTANCE", "CLIENT", "HOST", "READS"), rows):
            yield f"  {line}"
