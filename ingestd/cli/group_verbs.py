"""The verbs of `ingestd groups`: options in, one call, what it found out."""
# ruff: noqa: PLC0415 - each verb imports what it needs, so that all of them start fast

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from ingestd.cli.options import of_cluster, show, shown_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingestd.cli.configured import ClusterAccess
    from ingestd.cli.groups import ResetTo
    from ingestd.cli.options import Shape
    from ingestd.client.admin import GroupDescription

__all__ = ["groups"]


@click.group()
def groups() -> None:
    """List and describe groups, show their lag, reset their offsets."""


of_groups = click.argument("names", metavar="GROUP...", nargs=-1, required=True)


@groups.command("list")
@of_cluster
@click.option("--state", multiple=True, help="Only in this state: Stable, Empty, …")
@click.option("--type", "kind", multiple=True, help="Only of this type: classic, consumer, …")
@shown_as
def list_groups(access: ClusterAccess, state: Sequence[str], kind: Sequence[str], output: Shape | None) -> None:
    """Name every group, with its state, type and protocol."""
    from ingestd.cli import groups as verbs
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.tables import table

    found = run_async(verbs.list_groups(access, states=state, types=kind))
    rows = ((one.group_id, one.state or None, one.type or None, one.protocol_type or None) for one in found)
    show(found, table(("GROUP", "STATE", "TYPE", "PROTOCOL"), rows), output)


@groups.command("describe")
@of_groups
@of_cluster
@shown_as
def describe_groups(names: Sequence[str], access: ClusterAccess, output: Shape | None) -> None:
    """Show groups' state and members, and what each of them reads."""
    from ingestd.cli import groups as verbs
    from ingestd.cli.event_loop import run_async

    found = run_async(verbs.describe_groups(access, names))
    show([_plain(group) for group in found], (line for group in found for line in _lines(group)), output)


@groups.command("lag")
@of_groups
@of_cluster
@shown_as
def group_lag(names: Sequence[str], access: ClusterAccess, output: Shape | None) -> None:
    """Show how far groups are behind, partition by partition, and who reads it."""
    from ingestd.cli import groups as verbs
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.tables import table

    found = run_async(verbs.group_lag(access, names))
    header = ("GROUP", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "HOST")
    rows = (
        (one.group, one.topic, one.partition, one.committed, one.end, one.lag, one.member_id, one.client_host)
        for one in found
    )
    show(found, table(header, rows), output)


@groups.command("reset-offsets")
@click.argument("group")
@of_cluster
@click.option(
    "--topic",
    "-t",
    multiple=True,
    metavar="TOPIC[:0,2,5]",
    help="What to reset; all that it has committed if none.",
)
@click.option("--to-earliest", is_flag=True, help="To the first offset there is.")
@click.option("--to-latest", is_flag=True, help="To the end.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="OFFSET", help="To an offset.")
@click.option("--to-datetime", metavar="TIME", help="To the first record at or after a time (ISO 8601).")
@click.option("--shift-by", type=int, metavar="N", help="Further on by N; back if negative.")
@click.option("--execute/--dry-run", default=False, help="Do it. Without it nothing is changed, only shown.")
@shown_as
def reset_offsets(
    group: str,
    access: ClusterAccess,
    topic: Sequence[str],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
    execute: bool,
    output: Shape | None,
) -> None:
    """Set where a group without members goes on. Shows what it would do, unless told to --execute."""
    from ingestd.cli import groups as verbs
    from ingestd.cli.event_loop import run_async
    from ingestd.cli.scope import parse_scope
    from ingestd.cli.tables import table

    to = _reset_to(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    scope = parse_scope(topic, "--topic") if topic else None
    resets = run_async(verbs.plan_resets(access, group, to, scope))
    if execute:
        resets = run_async(verbs.apply_resets(access, group, resets))
    header = ("GROUP", "TOPIC", "PARTITION", "BEFORE", "AFTER", "ERROR")
    rows = ((one.group, one.topic, one.partition, one.before, one.after, one.error) for one in resets)
    show(resets, table(header, rows), output)
    for moved in verbs.moved_into_the_log(resets, to):
        print(f"ingestd: {moved}", file=sys.stderr)
    if not execute:
        print("nothing is changed; --execute does it", file=sys.stderr)
    if any(one.error for one in resets):
        raise Exit(1)


@groups.command("delete")
@of_groups
@of_cluster
def delete_groups(names: Sequence[str], access: ClusterAccess) -> None:
    """Delete groups without members, and their offsets."""
    from ingestd.cli import groups as verbs
    from ingestd.cli.event_loop import run_async

    run_async(verbs.delete_groups(access, names))


def _reset_to(
    to_earliest: bool, to_latest: bool, to_offset: int | None, to_datetime: str | None, shift_by: int | None
) -> ResetTo:
    from ingestd.cli.groups import ResetKind, ResetTo, parse_time
    from ingestd.errors import ConfigurationError

    asked = []
    if to_earliest:
        asked.append(ResetTo(ResetKind.earliest))
    if to_latest:
        asked.append(ResetTo(ResetKind.latest))
    if to_offset is not None:
        asked.append(ResetTo(ResetKind.offset, to_offset))
    if to_datetime is not None:
        asked.append(ResetTo(ResetKind.time, parse_time(to_datetime)))
    if shift_by is not None:
        asked.append(ResetTo(ResetKind.shift, shift_by))
    if len(asked) != 1:
        raise ConfigurationError(
            "expected one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        )
    return asked[0]


def _plain(group: GroupDescription) -> dict[str, object]:
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


def _lines(group: GroupDescription) -> Iterator[str]:
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
