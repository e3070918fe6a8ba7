"""`ingestd broker`: the embedded broker alone, in this process."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from ingestd.broker.server import serve
from ingestd.checks import parse_address
from ingestd.cli.event_loop import run_async
from ingestd.errors import ConfigurationError
from ingestd.logs import configure_logs
from ingestd.records.loops import say_if_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.broker.settings import BrokerSettings

__all__ = ["address", "run_broker"]


def address(option: str, text: str) -> tuple[str, int]:
    """Host and port of what an option was told. Raises `ConfigurationError`."""
    try:
        return parse_address(text)
    except ValueError as error:
        no_host = option == "--listen" and text.startswith(":")
        instead = f"; every IPv4 address of this machine is 0.0.0.0{text}, every IPv6 address [::]{text}"
        raise ConfigurationError(f"{option}: {error}{instead if no_host else ''}") from None


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
