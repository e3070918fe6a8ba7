"""`python -m ingestd.broker`: the embedded broker as a child process.

Says `ready HOST PORT` on standard output, or on the descriptor of `--ready-fd`, once it listens. Ends with 0 on SIGTERM
and SIGINT, and when the last writer closes the pipe whose reading end is `--parent-fd`. So it never outlives the
process that started it, however that one ended.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ingestd.broker.security.exchanges import MECHANISMS
from ingestd.broker.security.settings import SecuritySettings
from ingestd.broker.server import serve
from ingestd.broker.settings import (
    CLEANER_INTERVAL,
    CONSUMER_ASSIGNORS,
    HEARTBEAT_INTERVAL,
    OFFSETS_RETENTION,
    OFFSETS_RETENTION_CHECK_INTERVAL,
    RETENTION_CHECK_INTERVAL,
    SESSION_TIMEOUT,
    TRANSACTION_VERSION,
    BrokerSettings,
    Flush,
)
from ingestd.checks import parse_address
from ingestd.errors import IngestdError
from ingestd.logs import configure_logs

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(given: Sequence[str] | None = None) -> int:
    """Run until told to end. Returns 2, with a message on standard error, if the broker can not start.

    `given` are the arguments; None: those of this process.
    """
    arguments = _arguments(given)
    # Standard output is for the announcement.
    configure_logs(arguments.log_level, arguments.log_format, process="broker")
    host, _, port = arguments.listen.rpartition(":")
    try:
        settings = BrokerSettings(
            data=arguments.data,
            host=host.strip("[]"),
            port=int(port),
            advertised=None if arguments.advertise is None else parse_address(arguments.advertise),
            auto_create_topics=not arguments.no_auto_create_topics,
            default_partitions=arguments.default_partitions,
            flush=Flush(arguments.flush),
            topic_defaults=dict(entry.split("=", 1) for entry in arguments.topic_default),
            request_log=arguments.request_log,
            retention_check_interval=arguments.retention_check_interval,
            cleaner_interval=arguments.cleaner_interval,
            offsets_retention=arguments.offsets_retention,
            offsets_retention_check_interval=arguments.offsets_retention_check_interval,
            consumer_assignors=tuple(arguments.consumer_assignor or CONSUMER_ASSIGNORS),
            consumer_heartbeat_interval=arguments.consumer_heartbeat_interval,
            consumer_session_timeout=arguments.consumer_session_timeout,
            transaction_version=arguments.transaction_version,
            security=SecuritySettings(
                certificate=arguments.tls_certificate,
                key=arguments.tls_key,
                client_ca=arguments.tls_client_ca,
                mechanisms=tuple(arguments.sasl),
                session_lifetime=arguments.session_lifetime,
            ),
            insecure=arguments.insecure,
            nodes=arguments.nodes,
            control=None if arguments.control is None else parse_address(arguments.control),
        )
        _run(settings, arguments.ready_fd, arguments.parent_fd)
    except (IngestdError, OSError, ValueError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        said = f"{arguments.data}: {os.strerror(errno.ENOSPC)}; make room there" if full else error
        sys.stderr.write(f"ingestd broker: {said}\n")
        return 2
    return 0


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ingestd.broker", description="The embedded broker.")
    parser.add_argument("--data", type=Path, required=True, help="directory of the topics, made when missing")
    parser.add_argument(
        "--listen",
        default="127.0.0.1:9092",
        metavar="HOST:PORT",
        help="where to listen; port 0 takes a free one; default: %(default)s",
    )
    parser.add_argument("--advertise", metavar="HOST:PORT", help="where clients connect; default: what they reached")
    parser.add_argument(
        "--default-partitions", type=int, default=1, help="partitions of a topic made on demand; default: %(default)s"
    )
    parser.add_argument("--no-auto-create-topics", action="store_true", help="make no topics on demand")
    parser.add_argument(
        "--flush",
        choices=[flush.value for flush in Flush],
        default=Flush.always.value,
        help="when records are forced to the disk: before they are acknowledged, or whenever the kernel does it; "
        "default: %(default)s. Without power, `os` loses what was acknowledged last",
    )
    parser.add_argument(
        "--topic-default",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a topic configuration for all topics",
    )
    _add_groups(parser)
    parser.add_argument(
        "--transaction-version",
        type=int,
        choices=range(3),
        default=TRANSACTION_VERSION,
        help="level of the feature transaction.version (KIP-890); default: %(default)s",
    )
    parser.add_argument(
        "--cleaner-interval",
        type=float,
        default=CLEANER_INTERVAL,
        metavar="SECONDS",
        help="time between two looks for logs to compact; default: %(default)s",
    )
    parser.add_argument(
        "--retention-check-interval",
        type=float,
        default=RETENTION_CHECK_INTERVAL,
        metavar="SECONDS",
        help="time between two looks for records that are past their retention; the first comes after 30 s at most; "
        "default: %(default)s",
    )
    parser.add_argument("--nodes", type=int, default=1, help="pose as so many nodes, at ports that follow each other")
    parser.add_argument("--control", metavar="HOST:PORT", help="where a test says what shall go wrong; loopback")
    _add_security(parser)
    parser.add_argument("--request-log", type=Path, help="file that gets a JSON line per request")
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="the least level that is logged; default: %(default)s",
    )
    parser.add_argument(
        "--log-format",
        choices=["auto", "text", "json"],
        default="auto",
        help="auto, the default: text on a terminal, JSON otherwise",
    )
    parser.add_argument("--ready-fd", type=int, default=1, help="descriptor that is told when the broker listens")
    parser.add_argument("--parent-fd", type=int, help="reading end of a pipe that the parent keeps open")
    return parser.parse_args(given)


def _add_groups(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--offsets-retention",
        type=float,
        default=OFFSETS_RETENTION,
        metavar="SECONDS",
        help="how long the offsets of an empty group are kept; 0: for ever; default: %(default)s",
    )
    parser.add_argument(
        "--offsets-retention-check-interval",
        type=float,
        default=OFFSETS_RETENTION_CHECK_INTERVAL,
        metavar="SECONDS",
        help="time between two checks for expired offsets; default: %(default)s",
    )
    parser.add_argument(
        "--consumer-assignor",
        action="append",
        choices=CONSUMER_ASSIGNORS,
        help="an assignor that members of KIP-848 groups may choose; the first is the default. Default: uniform, range",
    )
    parser.add_argument(
        "--consumer-heartbeat-interval",
        type=float,
        default=HEARTBEAT_INTERVAL,
        metavar="SECONDS",
        help="time between heartbeats that members of KIP-848 groups are told; default: %(default)s",
    )
    parser.add_argument(
        "--consumer-session-timeout",
        type=float,
        default=SESSION_TIMEOUT,
        metavar="SECONDS",
        help="how long members of KIP-848 groups may be silent; default: %(default)s",
    )


def _add_security(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tls-certificate", type=Path, help="PEM file with the broker's certificate: clients use TLS")
    parser.add_argument("--tls-key", type=Path, help="PEM file with its private key, if the certificate's has none")
    parser.add_argument(
        "--tls-client-ca", type=Path, help="PEM file: clients show a certificate that one of these signed"
    )
    parser.add_argument(
        "--sasl", action="append", choices=MECHANISMS, default=[], help="clients authenticate with one of those named"
    )
    parser.add_argument(
        "--session-lifetime",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="clients authenticate again after this time; 0: never",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="let other machines reach a listener without TLS or authentication"
    )


def _run(settings: BrokerSettings, ready_fd: int, parent_fd: int | None) -> None:
    import uvloop  # noqa: PLC0415 - Linux and macOS only; this module must import elsewhere

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, ready_fd, parent_fd))


async def _serve(settings: BrokerSettings, ready_fd: int, parent_fd: int | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if parent_fd is not None:
        loop.add_reader(parent_fd, _parent_says, parent_fd, stop)
    await serve(settings, lambda host, port: _announce(ready_fd, host, port), stop)


def _announce(descriptor: int, host: str, port: int) -> None:
    os.write(descriptor, f"ready {host} {port}\n".encode())


def _parent_says(descriptor: int, stop: asyncio.Event) -> None:
    try:
        gone = not os.read(descriptor, 1)
    except OSError:
        gone = True
    if gone:
        asyncio.get_running_loop().remove_reader(descriptor)
        stop.set()


if __name__ == "__main__":
    sys.exit(main())
