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
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
