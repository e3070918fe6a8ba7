"""A broker's life: what runs between `start` and `close`, and by which clock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from moved_clock import MovedClock
from structlog.testing import capture_logs

from ingestd.broker.broker import Broker
from ingestd.broker.security.credentials import Mechanism, credential_of
from ingestd.broker.security.settings import SecuritySettings
from ingestd.broker.security.users import Users
from ingestd.broker.settings import BrokerSettings
from ingestd.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


async def test_retention_comes_soon_after_the_start_and_then_at_its_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovedClock(5_000.0)
    broker = Broker(BrokerSettings(tmp_path / "data", retention_check_interval=100.0), clock)
    enforced: list[float] = []

    async def noted(now: float) -> None:
        enforced.append(now)

    monkeypatch.setattr(broker.storage, "enforce_retention", noted)
    broker.start()
    for _ in range(25):
        await clock.move(10)
    assert enforced == [5_030.0, 5_130.0, 5_230.0]
    await broker.close()


async def test_no_task_of_the_broker_outlives_it(tmp_path: Path) -> None:
    broker = Broker(BrokerSettings(tmp_path / "data"))
    broker.start()
    forever = broker.tasks.start(asyncio.Event().wait(), "forever")
    await broker.close()
    assert forever.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_broker_that_could_not_start_holds_nothing(tmp_path: Path) -> None:
    """The directory is in use. After the other broker's end the next start takes it."""
    first, second = (Broker(BrokerSettings(tmp_path / "data")) for _ in range(2))
    first.start()
    with pytest.raises(ConfigurationError, match="in use by another broker"):
        second.start()
    assert len(asyncio.all_tasks()) == 5, (
        "this one, and the first broker's: retention, the cleaner, and two that expire"
    )
    await first.close()
    third = Broker(BrokerSettings(tmp_path / "data"))
    third.start()
    await third.close()


@pytest.mark.parametrize(
    ("mechanisms", "users", "warned"), [(("PLAIN",), 0, 1), (("PLAIN",), 1, 0), ((), 0, 0)], ids=["none", "one", "open"]
)
async def test_a_broker_that_nobody_can_authenticate_with_says_so_at_its_start(
    tmp_path: Path, mechanisms: tuple[str, ...], users: int, warned: int
) -> None:
    if users:
        sha_256 = next(iter(Mechanism))
        Users(tmp_path).change(lambda added: added.update({"me": {sha_256: credential_of(sha_256, "correct horse")}}))
    broker = Broker(BrokerSettings(tmp_path, security=SecuritySettings(mechanisms=mechanisms)))
    with capture_logs() as logs:
        broker.start()
    await broker.close()
    warnings = [one for one in logs if one["log_level"] == "warning"]
    assert [one["event"].partition(":")[0] for one in warnings] == ["no users"] * warned
    assert all(f"users add NAME --data {tmp_path}" in one["add"] for one in warnings)
