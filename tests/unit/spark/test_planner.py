"""What the driver says while a cluster does not answer."""

from __future__ import annotations

import socket

import pytest

from ingestd.consumer.settings import ConsumerSettings
from ingestd.errors import IngestdError
from ingestd.spark import planner
from ingestd.spark.cluster import Cluster


def test_a_wait_for_the_cluster_is_told_once_before_it_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipeline at whose start the broker was down said nothing for up to 71 s."""
    monkeypatch.setattr(planner, "_SILENCE", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    with (
        planner.Planner(Cluster((address,)), ConsumerSettings(metadata_timeout=0.5)) as asking,
        pytest.raises(IngestdError, match="no broker answered"),
    ):
        asking.describe(["t"])
    (said,) = [record.getMessage() for record in caplog.records if record.name == planner.__name__]
    reason = f"no broker answered: {address}: Connection refused"
    assert said == f"ingestd source: waiting for the cluster at {address}: describing t: {reason}"
