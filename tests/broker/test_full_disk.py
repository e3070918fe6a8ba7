"""A disk without any room: the broker starts on it, serves what is there, and makes room when it is told to.

As root: the disk is a small tmpfs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from embedded.batches import batch_of, numbered_batch
from embedded.process import BrokerProcess
from embedded.raw import RawClient, entity

from ingestd.broker.server import BrokerServer
from ingestd.broker.settings import BrokerSettings
from ingestd.errors import ErrorCode
from ingestd.records.batch import split_batches
from ingestd.records.decode import decode_records
from ingestd.wire.apis import Api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import RawIOBase
    from pathlib import Path

MIB = 1 << 20
SECONDS = 20
SEGMENT = "500000"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose data directory has 8 MiB, started, and a file `ballast` on the same disk."""
    broker = BrokerProcess(tmp_path, "--topic-default", f"internal.segment.bytes={SEGMENT}")
    broker.data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(broker.data)], check=True)
    try:
        (broker.data / "ballast").touch()
        with broker:
            yield broker
    finally:
        subprocess.run(["umount", str(broker.data)], check=True)


def fill(broker: BrokerProcess, *topics: str) -> dict[str, list[bytes]]:
    """Write until the disk takes no batch, then to its last byte; what was acknowledged."""
    acknowledged: dict[str, list[bytes]] = {topic: [] for topic in topics}
    with RawClient(broker.port) as client:
        client.metadata(*topics)
        error = ErrorCode.none
        while error is ErrorCode.none:
            for topic in topics:
                value = os.urandom(100_000)
                error = client.produce(topic, 0, batch_of([value])).error
                if error is not ErrorCode.none:
                    break
                acknowledged[topic].append(value)
    assert error is ErrorCode.kafka_storage_error
    with (broker.data / "ballast").open("ab", buffering=0) as ballast, pytest.raises(OSError, match="No space left"):
        fill_file(ballast)
    return acknowledged


def fill_file(file: RawIOBase) -> None:
    while True:
        file.write(bytes(4096))


def read_all(client: RawClient, topic: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        partition = entity(
            Api.fetch, 12, "FetchPartition", partition=0, fetch_offset=len(found), partition_max_bytes=16 * MIB
        )
        topics = (entity(Api.fetch, 12, "FetchTopic", topic=topic, partitions=(partition,)),)
        asked = entity(
            Api.fetch, 12, "FetchRequest", max_wait=timedelta(0), min_bytes=1, max_bytes=16 * MIB,
            forgotten_topics_data=(), topics=topics,
        )  # fmt: skip
        answer = client.ask(asked).responses[0].partitions[0]
        assert answer.error_code is ErrorCode.none
        if not answer.records:
            return found
        for batch in split_batches(answer.records):
            found += [record.value for record in decode_records(batch)]


def delete_topic(client: RawClient, name: str) -> ErrorCode:
    asked = entity(Api.delete_topics, 4, "DeleteTopicsRequest", topic_names=(name,), timeout=timedelta(seconds=5))
    return ErrorCode(client.ask(asked).responses[0].error_code)


def delete_records(client: RawClient, topic: str, offset: int) -> Any:
    partition = entity(Api.delete_records, 2, "DeleteRecordsPartition", partition_index=0, offset=offset)
    topics = (entity(Api.delete_records, 2, "DeleteRecordsTopic", name=topic, partitions=(partition,)),)
    asked = entity(Api.delete_records, 2, "DeleteRecordsRequest", topics=topics, timeout=timedelta(seconds=5))
    return client.ask(asked).topics[0].partitions[0]


def new_producer_id(client: RawClient) -> ErrorCode:
    asked = entity(
        Api.init_producer_id, 4, "InitProducerIdRequest", transactional_id=None,
        transaction_timeout=timedelta(seconds=1),
    )  # fmt: skip
    return ErrorCode(client.ask(asked).error_code)


def names(client: RawClient) -> set[str]:
    topics = client.metadata("gone", "kept", create=False).topics
    return {topic.name for topic in topics if topic.error_code is ErrorCode.none}


def until_taken(client: RawClient, topic: str, batch: bytearray) -> int:
    """Produce again and again, as clients do, while there is no room; where the batch stands."""
    for _ in range(2000):
        produced = client.produce(topic, 0, batch)
        if produced.error is ErrorCode.none:
            return produced.base_offset
        assert produced.error is ErrorCode.kafka_storage_error
    pytest.fail("the broker takes no batch")


def test_killed_on_a_full_disk_it_starts_and_a_topic_that_is_deleted_makes_room(small: BrokerProcess) -> None:
    acknowledged = fill(small, "gone", "kept")
    small.kill()
    small.start()
    small.until_logged("no batch is taken until there is room")
    with RawClient(small.port) as client:
        for topic, values in acknowledged.items():
            assert read_all(client, topic) == values
        for _ in range(10):
            assert client.produce("kept", 0, batch_of([b"x"])).error is ErrorCode.kafka_storage_error
            assert new_producer_id(client) is ErrorCode.coordinator_load_in_progress
            assert client.metadata("new").topics[0].error_code is ErrorCode.kafka_storage_error
        assert delete_topic(client, "gone") is ErrorCode.none
        assert names(client) == {"kept"}
        assert until_taken(client, "kept", numbered_batch([b"last"], 7, 0, 0)) == len(acknowledged["kept"])
        assert new_producer_id(client) is ErrorCode.none
        assert delete_topic(client, "gone") is ErrorCode.unknown_topic_or_partition
    small.until_logged("there is room on the disk again")
    for said in ("no batch is taken until there is room", "no producer ids are given", "no topics or partitions are"):
        assert small.stderr.read_text().count(said) == 1
    small.kill()
    small.start()
    with RawClient(small.port) as client:
        assert names(client) == {"kept"}
        assert read_all(client, "kept") == [*acknowledged["kept"], b"last"]
    assert not [path for path in (small.data / "deleted").iterdir() if path.is_file()]


def test_a_topic_is_deleted_on_a_full_disk_and_stays_so_when_the_broker_is_killed_at_once(small: BrokerProcess) -> None:
    """The list of topics is not written before: there was no room for it."""
    acknowledged = fill(small, "gone", "kept")
    with RawClient(small.port) as client:
        assert delete_topic(client, "gone") is ErrorCode.none
    small.kill()
    assert b'"gone"' in (small.data / "topics.json").read_bytes()
    small.start()
    with RawClient(small.port) as client:
        assert names(client) == {"kept"}
        assert read_all(client, "kept") == acknowledged["kept"]
        client.metadata("gone")
        assert client.produce("gone", 0, batch_of([b"new"])).base_offset == 0
    assert b'"gone"' in (small.data / "topics.json").read_bytes()
    small.kill()
    small.start()
    with RawClient(small.port) as client:
        assert read_all(client, "gone") == [b"new"]


def test_records_that_are_deleted_make_room_on_a_full_disk(small: BrokerProcess) -> None:
    written = len(fill(small, "kept")["kept"])
    small.kill()
    small.start()
    with RawClient(small.port) as client:
        answer = delete_records(client, "kept", written - 1)
        assert (answer.error_code, answer.low_watermark) == (ErrorCode.none, written - 1)
        assert until_taken(client, "kept", batch_of([b"x"])) == written
    assert small.stderr.read_text().count("append failed") == 1


async def test_retention_makes_room_on_the_full_disk_of_a_broker_that_was_killed(small: BrokerProcess) -> None:
    written = len(fill(small, "kept")["kept"])
    small.kill()
    settings = BrokerSettings(
        small.data, port=0, retention_check_interval=0.2,
        topic_defaults=MappingProxyType({"internal.segment.bytes": SEGMENT, "retention.bytes": str(4 * MIB)}),
    )  # fmt: skip

    def until_room(port: int) -> int:
        with RawClient(port) as client:
            produced = client.produce("kept", 0, batch_of([b"x"]))
            while produced.error is not ErrorCode.none:
                assert produced.error is ErrorCode.kafka_storage_error
                produced = client.produce("kept", 0, batch_of([b"x"]))
            return produced.base_offset

    async with asyncio.timeout(SECONDS), BrokerServer(settings) as server:
        assert await asyncio.to_thread(until_room, server.port) == written


@pytest.mark.parametrize("idempotent", [True, False])
def test_librdkafka_waits_for_room_and_goes_on_by_itself(small: BrokerProcess, idempotent: bool) -> None:
    """Begun on a full disk, after a kill: it gets no producer id either."""
    from confluent_kafka import Producer

    acknowledged = fill(small, "gone", "kept")
    small.kill()
    small.start()
    producer = Producer(
        {
            "bootstrap.servers": small.servers, "enable.idempotence": idempotent, "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 50, "message.timeout.ms": SECONDS * 1000, "retries": 10_000,
        }
    )  # fmt: skip
    ends: list[Any] = []
    for number in range(50):
        producer.produce("kept", b"%d" % number, partition=0, on_delivery=lambda error, _: ends.append(error))
    asked = "init_producer_id" if idempotent else "produce"
    end = time.monotonic() + SECONDS
    while sum(request["api"] == asked and request["error"] != "none" for request in small.requests()) < 4:
        producer.poll(0.05)
        assert time.monotonic() < end
    assert ends == []
    with RawClient(small.port) as client:
        assert delete_topic(client, "gone") is ErrorCode.none
        assert producer.flush(SECONDS) == 0
        assert ends == [None] * 50
        assert read_all(client, "kept") == [*acknowledged["kept"], *(b"%d" % number for number in range(50))]


def test_a_broker_that_is_told_to_end_on_a_full_disk_ends_well_and_starts_again(small: BrokerProcess) -> None:
    acknowledged = fill(small, "kept")
    for _ in range(2):
        assert small.stop() == 0
        small.start()
        with RawClient(small.port) as client:
            assert read_all(client, "kept") == acknowledged["kept"]
            assert client.produce("kept", 0, batch_of([b"x" * 1000])).error is ErrorCode.kafka_storage_error
    os.truncate(small.data / "ballast", 0)
    with RawClient(small.port) as client:
        assert client.produce("kept", 0, batch_of([b"x"])).base_offset == len(acknowledged["kept"])


def test_a_producers_first_batch_that_finds_no_room_is_written_before_the_smaller_ones_behind_it(
    small: BrokerProcess,
) -> None:
    """Were one of those taken, librdkafka would believe that the first is in the log as well, and say so."""
    from confluent_kafka import Producer

    with RawClient(small.port) as client:
        client.metadata("kept")
    producer = Producer(
        {
            "bootstrap.servers": small.servers, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 1,
            "retry.backoff.ms": 20, "retry.backoff.max.ms": 50, "message.timeout.ms": SECONDS * 1000,
        }
    )  # fmt: skip
    # It gets its id while there is room.
    producer.produce("other", b"x")
    assert producer.flush(SECONDS) == 0
    ballast = small.data / "ballast"
    with ballast.open("ab", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        fill_file(file)
    os.truncate(ballast, ballast.stat().st_size - 8192)
    values = [os.urandom(30_000), *(b"%d" % number for number in range(1, 20))]
    ends: list[Any] = []
    for value in values:
        producer.produce("kept", value, partition=0, on_delivery=lambda error, _: ends.append(error))
    small.until_logged("append failed")
    producer.poll(0.3)
    os.truncate(ballast, 0)
    assert producer.flush(SECONDS) == 0
    assert ends == [None] * 20
    with RawClient(small.port) as client:
        assert read_all(client, "kept") == values
