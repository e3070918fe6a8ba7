"""Settings of a group's member: what can not be is said before anything is asked of a broker."""

from __future__ import annotations

from typing import Any

import pytest

from ingestd.consumer.group.settings import GroupSettings
from ingestd.errors import ConfigurationError


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"session_timeout": 0.0}, "session_timeout is 0.0"),
        ({"rebalance_timeout": -1.0}, "rebalance_timeout is -1.0"),
        ({"max_poll_interval": 100_000.0}, "max_poll_interval is 100000.0"),
        ({"heartbeat_interval": 45.0}, "heartbeat_interval is 45.0; expected less than session_timeout"),
        ({"auto_commit_interval": 0.0}, "auto_commit_interval is 0.0"),
        ({"assignors": ()}, "assignors is empty"),
    ],
)
def test_a_setting_that_can_not_be_is_refused_and_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        GroupSettings(**changes)


def test_automatic_commits_can_be_switched_off() -> None:
    assert GroupSettings(auto_commit_interval=None).auto_commit_interval is None
