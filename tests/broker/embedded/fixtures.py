"""Fixtures: `embedded`, `embedded_cluster`, one each for the session; `broker_process`, brokers to be killed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from embedded.cluster import QUICK_GROUPS, EmbeddedCluster
from embedded.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that creates topics on demand with two partitions. Tests use topics of their own."""
    with BrokerProcess(tmp_path_factory.mktemp("embedded"), "--default-partitions", "2") as broker:
        yield broker


@pytest.fixture(scope="session")
def embedded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """A broker that creates no topics on demand, for tests that ask the same of `kafka`."""
    options = ("--no-auto-create-topics", *QUICK_GROUPS)
    with BrokerProcess(tmp_path_factory.mktemp("embedded-cluster"), *options) as broker:
        yield EmbeddedCluster(broker)


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """`broker_process("--flush", "always")`: a broker of this test's own, started."""
    started: list[BrokerProcess] = []
    numbers = itertools.count(1)

    def start(*options: str) -> BrokerProcess:
        directory = tmp_path / f"broker-{next(numbers)}"
        directory.mkdir()
        broker = BrokerProcess(directory, *options)
        started.append(broker)
        return broker.__enter__()

    yield start
    for broker in started:
        broker.__exit__()


@pytest.fixture
def new_topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test has."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:200]
