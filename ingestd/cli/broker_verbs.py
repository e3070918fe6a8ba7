"""The verbs of `ingestd broker`: the embedded broker alone, and its users."""
# ruff: noqa: PLC0415 - each verb imports what it needs, so that all of them start fast

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ingestd.cli.options import a_path, show, shown_as

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ingestd.cli.options import Shape

__all__ = ["broker"]


@click.group(invoke_without_command=True)
@click.option("--data", metavar="DIR", type=a_path, help="Directory of the broker's logs.")
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:9092", help="Where to listen.")
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="Where clients are told to connect. By default the IP address that each reached. Needed with TLS if the"
    " certificate has a name alone.",
)
@click.option("--partitions", default=1, help="Partitions of topics created on demand.")
@click.option("--create-topics/--no-create-topics", default=True, help="Create topics on demand.")
@click.option(
    "--flush",
    type=click.Choice(["always", "os"]),
    default="always",
    help="When records are forced to the disk: before they are acknowledged (requests share one fsync), or whenever the"
    " kernel does it. Without power, `os` loses what was acknowledged last.",
)
@click.option(
    "--offsets-retention",
    metavar="SECONDS",
    default=604_800.0,
    help="How long the offsets of an empty group are kept; 0: for ever.",
)
@click.option(
    "--consumer-assignor",
    multiple=True,
    type=click.Choice(["uniform", "range"]),
    help="An assignor that members of KIP-848 groups may choose; the first is the default. May be given several times."
    " Default: uniform, range.",
)
@click.option("--tls-certificate", metavar="FILE", type=a_path, help="Clients use TLS. The broker's certificate (PEM).")
@click.option("--tls-key", metavar="FILE", type=a_path, help="Its private key (PEM), unless it is in the same file.")
@click.option("--tls-client-ca", metavar="FILE", type=a_path, help="Clients show a certificate signed by one of these.")
@click.option(
    "--sasl",
    multiple=True,
    metavar="MECHANISM",
    help="Clients authenticate: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. May be given several times.",
)
@click.option("--session-lifetime", metavar="SECONDS", default=0.0, help="Clients authenticate again; 0: never.")
@click.option("--nodes", default=1, help="Pose as so many nodes, at ports that follow each other: a test aid.")
@click.option("--control", metavar="HOST:PORT", help="Where a test says what shall go wrong. Loopback only.")
@click.option("--insecure", is_flag=True, help="Let other machines in without TLS or authentication.")
@click.pass_context
def broker(
    context: click.Context,
    data: Path | None,
    listen: str,
    advertise: str | None,
    partitions: int,
    create_topics: bool,
    flush: str,
    offsets_retention: float,
    consumer_assignor: Sequence[str],
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    sasl: Sequence[str],
    session_lifetime: float,
    nodes: int,
    control: str | None,
    insecure: bool,
) -> None:
    """Run the embedded broker alone, until SIGTERM or SIGINT."""
    if context.invoked_subcommand is not None:
        return
    if data is None:
        raise click.UsageError("Missing option '--data'.")
    from ingestd.broker.security.settings import SecuritySettings
    from ingestd.broker.settings import CONSUMER_ASSIGNORS, BrokerSettings, Flush
    from ingestd.cli.broker import address, run_broker

    host, port = address("--listen", listen)
    settings = BrokerSettings(
        data=data,
        host=host,
        port=port,
        advertised=None if advertise is None else address("--advertise", advertise),
        auto_create_topics=create_topics,
        default_partitions=partitions,
        flush=Flush(flush),
        offsets_retention=offsets_retention,
        consumer_assignors=tuple(consumer_assignor) or CONSUMER_ASSIGNORS,
        security=SecuritySettings(tls_certificate, tls_key, tls_client_ca, tuple(sasl), session_lifetime),
        insecure=insecure,
        nodes=nodes,
        control=None if control is None else address("--control", control),
    )
    run_broker(settings, lambda host, port: print(f"listening at {host}:{port}", flush=True))


@broker.group()
def users() -> None:
    """Make, list and remove the users of a broker. It may run meanwhile: the next authentication knows."""


of_data = click.option("--data", metavar="DIR", type=a_path, required=True, help="Directory of the broker's logs.")
of_user = click.argument("name", metavar="USER")


@users.command("add")
@of_user
@of_data
@click.option("--password", metavar="@FILE", help="Where it is kept: @FILE or @env:NAME. Default: asked for.")
def add_user(name: str, data: Path, password: str | None) -> None:
    """Make a user, or give one another password. The directory is made if there is none."""
    from ingestd.cli import broker_users as verbs

    if password is None:
        text = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        text = verbs.read_password(password)
    print(verbs.add_user(data, name, text))


@users.command("list")
@of_data
@shown_as
def list_users(data: Path, output: Shape | None) -> None:
    """Name every user, with its mechanisms and their iterations."""
    from ingestd.cli import broker_users as verbs
    from ingestd.cli.tables import table

    found = verbs.list_users(data)
    rows = ((name, ", ".join(f"{mechanism} ({many})" for mechanism, many in of.items())) for name, of in found.items())
    show(found, table(("USER", "MECHANISMS (ITERATIONS)"), rows), output)


@users.command("remove")
@of_user
@of_data
def remove_user(name: str, data: Path) -> None:
    """Remove a user. Connections that it has stay."""
    from ingestd.cli import broker_users as verbs

    verbs.remove_user(data, name)
