"""`ingestd broker`: the embedded broker alone, in this process."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from ingestd.broker.server import serve
from ingestd.broker.settings import BrokerSettings
from ingestd.checks import parse_address
from ingestd.cli.event_loop import run_async
from ingestd.errors import ConfigurationError
from ingestd.logs import configure_logs
from ingestd.records.loops import say_if_plain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ingestd.broker.security.settings import SecuritySettings

__all__ = ["broker_settings", "run_broker"]


def broker_settings(
    data: Path, listen: str, security: SecuritySettings, *, partitions: int, create_topics: bool, insecure: bool
) -> BrokerSettings:
    """Settings from what the verb was told. Raises `ConfigurationError`."""
    try:
        host, port = parse_address(listen)
    except ValueError as error:
        raise ConfigurationError(f"--listen: {error}") from None
    return BrokerSettings(
        data=data,
        host=host,
        port=port,
        auto_create_topics=create_topics,
        default_partitions=partitions,
        security=security,
        insecure=insecure,
    )


def run_broker(settings: BrokerSettings, ready: Callable[[str, int], None]) -> None:
    """Run a broker until SIGTERM or SIGINT; `ready` is told where. Raises `ConfigurationError`, `OSError`."""
    configure_logs(process="broker")
    say_if_plain()
    run_async(_run(settings, ready))


async def _run(settings: BrokerSettings, ready: Callable[[str, int], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(settings, ready, stop)
