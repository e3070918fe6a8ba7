"""The plugin of pytest: the fixture `kafka`. pytest finds it wherever ingestd is installed.

A fixture of the same name in a test module, a `conftest.py` or a plugin that a `conftest.py` loads comes before this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ingestd.testing.local_kafka import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["kafka"]


@pytest.fixture
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A Kafka of this test's own, with no topics: `kafka.bootstrap` is its address (`ingestd.testing.LocalKafka`)."""
    with LocalKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows its broker's log."""
    report = yield
    broker = getattr(item, "funcargs", {}).get("kafka")
    if report.failed and isinstance(broker, LocalKafka) and broker.log.exists():
        report.sections.append((f"log of the broker at {broker.bootstrap}", broker.log.read_text(errors="replace")))
    return report
