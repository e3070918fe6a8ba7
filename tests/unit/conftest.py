"""Fixtures of the tests without sockets."""

import signal
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Let no test find logs set up as another one, of a command, has left them."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """Let no test wait for a signal that the loop of another one's command has kept."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
