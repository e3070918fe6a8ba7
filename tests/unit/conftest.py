"""Fixtures of the tests without sockets."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Let no test find logs set up as another one, of a command, has left them."""
    yield
    structlog.reset_defaults()
