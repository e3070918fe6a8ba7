"""What is wrong with a call is said by name, at once, whatever is known of the topic."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from simulated_clock import simulate
from simulated_cluster import SimulatedCluster

from ingestd.client.client import Client
from ingestd.client.settings import ClientSettings
from ingestd.errors import ConfigurationError, WrongLoop
from ingestd.producer.producer import AsyncProducer
from ingestd.wire.connection import ConnectionSettings
from ingestd.wire.tls import TlsSettings

if TYPE_CHECKING:
    from pathlib import Path

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"value": "text"}, r"value: 'text'; expected bytes, or None, as in 'text'.encode\(\)"),
    ({"value": {"a": 1}}, r"value: \{'a': 1\}; expected bytes, or None$"),
    ({"key": "text"}, "key: 'text'; expected bytes"),
    ({"key": 5}, "key: 5; expected bytes"),
    ({"key": b"k", "headers": {"a": b"1"}}, "headers: .* expected pairs"),
    ({"headers": [("a", "text")]}, "value of 'a': 'text'; expected bytes"),
    ({"key": b"k", "headers": [("a", "text")]}, "value of 'a': 'text'; expected bytes"),
    ({"timestamp_ms": "now"}, "timestamp_ms: 'now'; expected milliseconds"),
]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("given", "said"), WRONG)
def test_the_argument_that_is_wrong_is_named(given: dict[str, Any], said: str, known: bool) -> None:
    async def work() -> None:
        cluster = SimulatedCluster(2)
        cluster.exists = known
        if known:
            cluster.metadata.learn()
        async with AsyncProducer(cluster) as producer:  # type: ignore[arg-type]
            for _ in range(2):
                with pytest.raises(TypeError, match=said):
                    producer.send("events", **({"value": b"value"} | given))
                if known:
                    producer.send("events", b"value")
            with pytest.raises(TypeError, match=said):
                await producer.send_and_wait("events", **({"value": b"value"} | given))
        assert sum(len(log.values) for log in cluster.logs) == (2 if known else 0)

    simulate(work)


def test_a_call_from_another_thread_is_refused_whatever_is_open() -> None:
    """Records that went the short way were taken, now and then, without a lock."""
    refused: list[WrongLoop] = []

    async def work() -> None:
        cluster = SimulatedCluster(1)
        cluster.metadata.learn()
        async with AsyncProducer(cluster) as producer:  # type: ignore[arg-type]

            def call() -> None:
                for _ in range(3):
                    try:
                        producer.send("events", b"foreign", partition=0)
                    except WrongLoop as error:
                        refused.append(error)

            for _ in range(2):
                producer.send("events", b"own", partition=0)
                thread = threading.Thread(target=call, name="foreign")
                thread.start()
                thread.join()
        assert cluster.logs[0].values == [b"own", b"own"]

    simulate(work)
    assert len(refused) == 6
    assert "the producer was called in thread 'foreign', which runs no event loop; expected" in str(refused[0])


def test_a_call_without_an_event_loop_says_so() -> None:
    producer = AsyncProducer(SimulatedCluster(1))  # type: ignore[arg-type]
    with pytest.raises(WrongLoop, match="which runs no event loop"):
        producer.send("events", b"value")


@pytest.mark.parametrize("key", ["ca_file", "certificate_file"])
async def test_a_file_that_is_missing_is_said_at_once(tmp_path: Path, key: str) -> None:
    tls = TlsSettings(**{key: tmp_path / "missing.pem"})
    async with Client(["127.0.0.1:9"], ClientSettings(ConnectionSettings(tls=tls))) as client:
        said = "missing.pem: can not be read: No such file"
        with pytest.raises(ConfigurationError, match=said):
            await asyncio.wait_for(client.partitions("events", 60), 10)
        async with AsyncProducer(client) as producer:
            for partition in (None, 0):
                with pytest.raises(ConfigurationError, match=said):
                    await asyncio.wait_for(producer.send_and_wait("events", b"", partition=partition), 10)
