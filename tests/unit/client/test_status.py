"""A client's status: everything a bug report needs, in values that JSON takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ingestd.client.client import Client, CoordinatorKind
from ingestd.errors import ConnectionLost, KafkaError


async def test_the_status_of_an_untouched_client_is_empty(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        status = client.status()
    assert (status.brokers, status.metadata.version, status.metadata.age_seconds) == ([], 0, None)
    json.dumps(status.as_dict())


async def test_the_status_says_who_is_connected_who_failed_and_what_is_known(cluster: Any, settings: Any) -> None:
    cluster.coordinator_of = {"g": 2}
    async with Client(["one:1"], settings(reconnect_initial=5.0, reconnect_maximum=5.0)) as client:
        await client.metadata.refresh(["t"], 5)
        await client.coordinator("g", CoordinatorKind.group, 5)
        cluster.down = {"three:3"}
        with pytest.raises(ConnectionLost):
            await (await client.leader("t", 2, 5, purpose="probe")).connection(5)
        with pytest.raises(KafkaError):
            await client.partitions("nix", 1)
        status = json.loads(json.dumps(client.status().as_dict()))
    brokers = {(broker["node_id"], broker["purpose"]): broker for broker in status["brokers"]}
    failed = brokers[3, "probe"]
    assert (failed["address"], failed["connected"]) == ("three:3", False)
    assert failed["last_error"] == "ConnectionLost: three:3: refused"
    assert failed["backoff_seconds"] > 1
    connected = [broker for broker in status["brokers"] if broker["connected"]]
    assert connected
    assert all(broker["api_versions"]["metadata"] == 9 and broker["last_error"] is None for broker in connected)
    metadata = status["metadata"]
    assert (metadata["topics"], metadata["partitions"], metadata["nodes"]) == (2, 3, 3)
    assert metadata["leaders"] == {"1": 1, "2": 1, "3": 1}
    assert metadata["errors"] == {"nix": "unknown_topic_or_partition"}
    assert metadata["age_seconds"] >= 0
    assert status["coordinators"] == {"group g": 2}


async def test_users_of_a_client_add_their_part_and_take_it_away(cluster: Any, settings: Any) -> None:
    async with Client(["one:1"], settings()) as client:
        stop = client.add_status("producer", lambda: {"outstanding": 5})
        client.add_status("producer", lambda: {"outstanding": 7})
        assert client.status().sections == {"producer": {"outstanding": 5}, "producer-2": {"outstanding": 7}}
        stop()
        assert client.status().sections == {"producer-2": {"outstanding": 7}}
