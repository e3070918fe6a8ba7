"""The broker's protocol: order of answers, what is refused and how, and that no client can hurt it or another."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from embedded.batches import batch_of, numbered_batch, with_header
from embedded.raw import RawClient, entity

from ingestd.broker.server import BrokerServer
from ingestd.broker.settings import BrokerSettings
from ingestd.errors import ConfigurationError, ErrorCode, KafkaError
from ingestd.records.codecs import Codec
from ingestd.wire.apis import Api
from ingestd.wire.codec import encode_entity, frame_request
from ingestd.wire.produce import produce_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from embedded.process import BrokerProcess


@pytest.fixture
def client(embedded: BrokerProcess, new_topic: str) -> Iterator[RawClient]:
    """A client of the session's broker; the topic of the test is there."""
    with RawClient(embedded.port) as raw:
        assert raw.metadata(new_topic).topics[0].error_code is ErrorCode.none
        yield raw


def fetch_request(
    topic: str, offset: int, wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 20, version: int = 12
) -> Any:
    partition = entity(
        Api.fetch, version, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    return entity(
        Api.fetch, version, "FetchRequest", max_wait=timedelta(milliseconds=wait_ms), min_bytes=min_bytes,
        max_bytes=max_bytes, forgotten_topics_data=(),
        topics=(entity(Api.fetch, version, "FetchTopic", topic=topic, partitions=(partition,)),),
    )  # fmt: skip


def records_of(response: Any) -> bytes:
    return response.responses[0].partitions[0].records or b""


def test_pipelined_requests_are_answered_in_their_order(client: RawClient, new_topic: str) -> None:
    batch = batch_of([b"x" * 100])
    sent = [client.send_produce(new_topic, 0, batch) for _ in range(300)]
    answers = [client.receive() for _ in sent]
    assert [int.from_bytes(answer[:4], "big") for answer in answers if answer] == sent


def test_an_answer_behind_a_waiting_fetch_comes_after_it(client: RawClient, new_topic: str) -> None:
    first = client.send(Api.fetch, 12, [encode_entity(fetch_request(new_topic, 0, wait_ms=300))])
    second = client.send_produce(new_topic, 1, batch_of([b"x"]))
    answers = [client.receive(), client.receive()]
    assert [int.from_bytes(answer[:4], "big") for answer in answers if answer] == [first, second]


def test_a_waiting_fetch_does_not_hold_up_other_clients(
    client: RawClient, embedded: BrokerProcess, new_topic: str
) -> None:
    client.send(Api.fetch, 12, [encode_entity(fetch_request(new_topic, 0, wait_ms=10_000))])
    began = time.monotonic()
    with RawClient(embedded.port) as other:
        assert other.produce(new_topic, 0, batch_of([b"woken"])).error is ErrorCode.none
    assert client.receive() is not None
    assert time.monotonic() - began < 5


def test_a_batch_that_comes_as_a_fetch_begins_to_wait_wakes_it(
    client: RawClient, embedded: BrokerProcess, new_topic: str
) -> None:
    """Of two connections, both requests come at once: the batch may be in the log before the fetch's task begins."""
    with RawClient(embedded.port) as other:
        for number in range(20):
            value = b"woken %d." % number
            fetch = fetch_request(new_topic, number, wait_ms=120_000)
            client.send(Api.fetch, 12, [encode_entity(fetch)])
            other.send_produce(new_topic, 0, batch_of([value]))
            assert value in (client.receive() or b"").tobytes()  # type: ignore[union-attr]
            assert other.receive_produced().base_offset == number


def test_a_batch_behind_a_fetch_of_its_own_connection_comes_after_the_answer(client: RawClient, new_topic: str) -> None:
    """As in Kafka, which mutes the connection until the fetch is answered. Here both requests come in one piece."""
    frames = (
        frame_request(Api.fetch, 12, 0, "both", [encode_entity(fetch_request(new_topic, 0, wait_ms=300))]),
        frame_request(
            Api.produce,
            12,
            1,
            "both",
            produce_request(12, -1, 1000, None, [(new_topic, None, [(0, batch_of([b"late"]))])]),
        ),
    )
    client.socket.sendall(b"".join(part for parts, _size in frames for part in parts))
    assert b"late" not in (client.receive() or b"late").tobytes()  # type: ignore[union-attr]
    assert client.receive_produced().base_offset == 0


def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for(
    client: RawClient, embedded: BrokerProcess, new_topic: str
) -> None:
    batch = batch_of([b"x" * 1000])
    request = fetch_request(new_topic, 0, wait_ms=15_000, min_bytes=3 * len(batch))
    client.send(Api.fetch, 12, [encode_entity(request)])
    client.socket.settimeout(0.3)
    with RawClient(embedded.port) as other:
        for _ in range(2):
            other.produce(new_topic, 0, batch)
        with pytest.raises(TimeoutError):
            client.receive()
        other.produce(new_topic, 0, batch)
    client.socket.settimeout(10)
    answer = client.receive()
    assert answer is not None
    assert len(answer) > 3 * len(batch)


@pytest.mark.parametrize("max_bytes", [1, 400, 100_000])
def test_a_fetch_gives_whole_batches_within_its_bytes_and_at_least_one(
    client: RawClient, new_topic: str, max_bytes: int
) -> None:
    batch = batch_of([b"x" * 200])
    for _ in range(10):
        client.produce(new_topic, 0, batch)
    records = records_of(client.ask(fetch_request(new_topic, 0, max_bytes=max_bytes)))
    assert len(records) % len(batch) == 0
    assert len(batch) <= len(records) <= max(max_bytes, len(batch))


def test_a_fetch_beyond_the_end_is_out_of_range(client: RawClient, new_topic: str) -> None:
    response = client.ask(fetch_request(new_topic, 5, wait_ms=10_000))
    assert response.responses[0].partitions[0].error_code is ErrorCode.offset_out_of_range


@pytest.mark.parametrize(("deleted", "expected"), [(0, (2, 1_002)), (1, (2, 1_002)), (3, (4, 901)), (5, (-1, -1))])
def test_the_largest_timestamp_is_one_of_a_record_that_is_left(
    client: RawClient, new_topic: str, deleted: int, expected: tuple[int, int]
) -> None:
    """Also where the log starts within a batch: of what was deleted nothing is told, of the rest of the batch all."""
    client.produce(new_topic, 0, batch_of([b"x"] * 3, timestamp_ms=1_000))
    client.produce(new_topic, 0, batch_of([b"x"] * 2, timestamp_ms=900))
    partition = entity(Api.delete_records, 2, "DeleteRecordsPartition", partition_index=0, offset=deleted)
    topics = (entity(Api.delete_records, 2, "DeleteRecordsTopic", name=new_topic, partitions=(partition,)),)
    client.ask(entity(Api.delete_records, 2, "DeleteRecordsRequest", topics=topics, timeout=timedelta(seconds=1)))
    asked = entity(Api.list_offsets, 7, "ListOffsetsPartition", partition_index=0, timestamp=-3)
    named = (entity(Api.list_offsets, 7, "ListOffsetsTopic", name=new_topic, partitions=(asked,)),)
    answer = client.ask(
        entity(Api.list_offsets, 7, "ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=named)
    )
    (told,) = answer.topics[0].partitions
    assert (told.offset, told.timestamp) == expected


async def test_a_created_topic_is_told_the_configurations_that_it_goes_by(tmp_path: Path) -> None:
    """Its own, then the broker's, then Kafka's: as DescribeConfigs says them."""
    defaults = MappingProxyType({"retention.ms": "1000", "segment.bytes": "5000000"})

    def created(port: int) -> dict[str, tuple[str, int]]:
        own = entity(Api.create_topics, 7, "CreatableTopicConfig", name="segment.bytes", value="7000000")
        topic = entity(
            Api.create_topics, 7, "CreatableTopic", name="t", num_partitions=1, replication_factor=1, assignments=(),
            configs=(own,),
        )  # fmt: skip
        with RawClient(port) as raw:
            answer = raw.ask(
                entity(Api.create_topics, 7, "CreateTopicsRequest", topics=(topic,), timeout=timedelta(seconds=1))
            )
        return {config.name: (config.value, config.config_source) for config in answer.topics[0].configs}

    async with BrokerServer(BrokerSettings(tmp_path / "data", port=0, topic_defaults=defaults)) as server:
        told = await asyncio.to_thread(created, server.port)
    assert told["segment.bytes"] == ("7000000", 1)
    assert told["retention.ms"] == ("1000", 4)
    assert told["retention.bytes"] == ("-1", 5)


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_metadata_of_an_unknown_topic_id_is_an_error_of_that_topic_alone(client: RawClient, version: int) -> None:
    """A name is null in the request from version 10 on, in the answer from 12 on."""
    topics = (entity(Api.metadata, version, "MetadataRequestTopic", topic_id=UUID(int=7), name=None),)
    older = {"include_cluster_authorized_operations": False} if version < 11 else {}
    asked = entity(
        Api.metadata, version, "MetadataRequest", topics=topics, include_topic_authorized_operations=False, **older
    )
    told = client.ask(asked).topics
    expected = (ErrorCode.unknown_topic_id, UUID(int=7), "" if version < 12 else None)
    assert [(topic.error_code, topic.topic_id, topic.name) for topic in told] == [expected]


def test_metadata_creates_a_topic_only_when_asked_to(client: RawClient, new_topic: str) -> None:
    name = new_topic + "-other"
    refused = client.metadata(name, create=False).topics[0]
    assert refused.error_code is ErrorCode.unknown_topic_or_partition
    made = client.metadata(name).topics[0]
    assert (made.error_code, len(made.partitions)) == (ErrorCode.none, 2)
    assert client.metadata(name, create=False).topics[0].topic_id == made.topic_id
    wrong = client.metadata("no/such name").topics[0]
    assert wrong.error_code is ErrorCode.invalid_topic_exception


BASE_OFFSET, MAGIC, CRC, ATTRIBUTES, LAST_OFFSET_DELTA, PRODUCER_ID, RECORDS = 0, 16, 17, 21, 23, 43, 57


def changed(batch: bytearray, at: int, content: bytes) -> bytearray:
    """Other bytes, and the CRC left as it was."""
    copy = bytearray(batch)
    copy[at : at + len(content)] = content
    return copy


def wrong_batches() -> dict[str, tuple[Any, ErrorCode]]:
    batch = batch_of([b"one", b"two"])
    return {
        "no bytes": (b"", ErrorCode.invalid_record),
        "part of a header": (batch[:40], ErrorCode.corrupt_message),
        "a torn batch": (batch[:-1], ErrorCode.corrupt_message),
        "two batches": (batch + batch, ErrorCode.invalid_record),
        "an old format": (with_header(batch, MAGIC, b"\x01"), ErrorCode.invalid_record),
        "a wrong CRC": (changed(batch, CRC, b"\0\0\0\0"), ErrorCode.corrupt_message),
        "a changed record": (changed(batch, len(batch) - 2, b"?"), ErrorCode.corrupt_message),
        "a base offset": (changed(batch, BASE_OFFSET, b"\0\0\0\0\0\0\0\x05"), ErrorCode.invalid_record),
        "too few records": (with_header(batch, RECORDS, b"\0\0\0\x01"), ErrorCode.invalid_record),
        "no records": (with_header(batch, LAST_OFFSET_DELTA, b"\xff" * 4), ErrorCode.corrupt_message),
        "a gap of offsets": (with_header(batch, LAST_OFFSET_DELTA, b"\0\0\0\x07"), ErrorCode.invalid_record),
        "an unknown codec": (with_header(batch, ATTRIBUTES, b"\0\x05"), ErrorCode.unsupported_compression_type),
        "LogAppendTime": (with_header(batch, ATTRIBUTES, b"\0\x08"), ErrorCode.invalid_timestamp),
        "a control batch": (with_header(batch, ATTRIBUTES, b"\0\x20"), ErrorCode.invalid_record),
        "a transaction of nobody": (with_header(batch, ATTRIBUTES, b"\0\x10"), ErrorCode.invalid_record),
        "a producer without sequence": (with_header(batch, PRODUCER_ID, bytes(7) + b"\x07"), ErrorCode.invalid_record),
        "more than the topic takes": (batch_of([b"x" * 2_000_000]), ErrorCode.message_too_large),
    }  # fmt: skip


@pytest.mark.parametrize("what", wrong_batches())
def test_a_batch_that_no_producer_may_send_is_refused_and_harms_nothing(
    client: RawClient, new_topic: str, what: str
) -> None:
    batch, code = wrong_batches()[what]
    answer = client.produce(new_topic, 0, batch)
    assert (answer.error, answer.base_offset) == (code, -1)
    assert answer.error_message
    good = client.produce(new_topic, 0, batch_of([b"one"]))
    assert (good.error, good.base_offset) == (ErrorCode.none, 0)


def test_zstd_is_refused_in_versions_of_produce_that_did_not_know_it(client: RawClient, new_topic: str) -> None:
    batch = batch_of([b"x" * 1000], Codec.zstd)
    assert client.produce(new_topic, 0, batch, version=6).error is ErrorCode.unsupported_compression_type
    assert client.produce(new_topic, 0, batch, version=7).error is ErrorCode.none


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce_appends(client: RawClient, new_topic: str, version: int) -> None:
    for offset in range(3):
        answer = client.produce(new_topic, 0, batch_of([b"x"]), version=version)
        assert (answer.error, answer.base_offset) == (ErrorCode.none, offset)


def test_a_duplicate_is_told_the_offset_that_it_got_first(client: RawClient, new_topic: str) -> None:
    for number in range(4):
        batch = numbered_batch([b"a", b"b"], 7001, 0, 2 * number)
        assert client.produce(new_topic, 0, batch).base_offset == 2 * number
    again = client.produce(new_topic, 0, numbered_batch([b"a", b"b"], 7001, 0, 2))
    assert (again.error, again.base_offset) == (ErrorCode.none, 2)
    gap = client.produce(new_topic, 0, numbered_batch([b"a"], 7001, 0, 9))
    assert gap.error is ErrorCode.out_of_order_sequence_number


async def test_room_for_the_epoch_that_comes_between_two_batches_of_a_new_producer_changes_not_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [KafkaError(ErrorCode.kafka_storage_error, "no room yet")] * 2

    def check_writable() -> None:
        if refusals:
            raise refusals.pop()

    async with BrokerServer(BrokerSettings(tmp_path / "data", port=0)) as server:
        monkeypatch.setattr(server._broker.storage, "check_writable", check_writable)

        def produce() -> list[ErrorCode]:
            with RawClient(server.port) as client:
                client.metadata("t")
                return [
                    client.produce("t", 0, numbered_batch([b"x"], 7, 0, sequence)).error
                    for sequence in (0, 1, 2, 1, 0, 1)
                ]

        told = await asyncio.to_thread(produce)
    assert told[:2] == [ErrorCode.kafka_storage_error] * 2
    assert told[2:4] == [ErrorCode.out_of_order_sequence_number] * 2
    assert told[4:] == [ErrorCode.none] * 2


async def test_each_partition_has_a_leader_epoch_of_its_own(tmp_path: Path) -> None:
    """Metadata, ListOffsets and OffsetForLeaderEpoch go by the partition's, not by another's."""

    def told(port: int) -> list[tuple[int, ErrorCode, ErrorCode]]:
        with RawClient(port) as client:
            epochs = [partition.leader_epoch for partition in client.metadata("t").topics[0].partitions]
            return [(epochs[at], *(listed(client, at, epoch) for epoch in (0, 5))) for at in range(2)]

    def listed(client: RawClient, number: int, epoch: int) -> ErrorCode:
        asked = entity(
            Api.list_offsets,
            5,
            "ListOffsetsPartition",
            partition_index=number,
            timestamp=-1,
            current_leader_epoch=epoch,
        )
        topics = (entity(Api.list_offsets, 5, "ListOffsetsTopic", name="t", partitions=(asked,)),)
        request = entity(Api.list_offsets, 5, "ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=topics)
        return ErrorCode(client.ask(request).topics[0].partitions[0].error_code)

    async with BrokerServer(BrokerSettings(tmp_path / "data", port=0, default_partitions=2)) as server:
        await asyncio.to_thread(told, server.port)
        server._broker.partition("t", 1).log.leader_epoch = 5
        assert await asyncio.to_thread(told, server.port) == [
            (0, ErrorCode.none, ErrorCode.unknown_leader_epoch),
            (5, ErrorCode.fenced_leader_epoch, ErrorCode.none),
        ]


def test_unknown_partitions_and_acks_are_refused(client: RawClient, new_topic: str) -> None:
    assert client.produce(new_topic, 9, batch_of([b"x"])).error is ErrorCode.unknown_topic_or_partition
    assert client.produce("nowhere", 0, batch_of([b"x"])).error is ErrorCode.unknown_topic_or_partition
    assert client.produce(new_topic, 0, batch_of([b"x"]), acks=2).error is ErrorCode.invalid_required_acks


def test_acks_0_gets_no_answer_and_an_error_closes_the_connection(client: RawClient, new_topic: str) -> None:
    client.send_produce(new_topic, 0, batch_of([b"x"]), acks=0)
    assert client.produce(new_topic, 0, batch_of([b"y"])).base_offset == 1
    client.send_produce(new_topic, 99, batch_of([b"x"]), acks=0)
    assert client.receive() is None


def test_a_client_newer_than_the_broker_is_told_what_the_broker_speaks(embedded: BrokerProcess) -> None:
    with RawClient(embedded.port) as client:
        client.send(Api.api_versions, 77, [b"\x02x\x02y\x00" + b"whatever comes"])
        answer = client.receive()
        assert answer is not None
        assert int.from_bytes(answer[4:6], "big") == ErrorCode.unsupported_version
        assert int.from_bytes(answer[6:10], "big") >= 10
        assert len(answer) == 10 + 6 * int.from_bytes(answer[6:10], "big")


HOSTILE = {
    "a negative size": b"\xff\xff\xff\xff",
    "a size of 0": bytes(8),
    "a huge size": b"\x7f\xff\xff\xff",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "an unknown API": b"\0\0\0\x0a\x7f\xff\0\0\0\0\0\x01\xff\xff",
    "an unknown version": b"\0\0\0\x0a\0\x03\x7f\xff\0\0\0\x01\xff\xff",
    "a client id beyond the frame": b"\0\0\0\x0a\0\x03\0\x01\0\0\0\x01\x7f\xff",
    "an array beyond the frame": b"\0\0\0\x0e\0\x03\0\x01\0\0\0\x01\xff\xff\x7f\xff\xff\xff",
    "null where an array is expected": b"\0\0\0\x12\0\x14\0\x01\0\0\0\x01\xff\xff\xff\xff\xff\xff\0\0\0\0",
    "topics beyond the frame": b"\0\0\0\x16\0\0\0\x03\0\0\0\x01\xff\xff\xff\xff\0\x01\0\0\0\0\x7f\xff\xff\xff",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_bytes_that_are_no_request_end_their_connection_with_a_line_in_the_log(
    embedded: BrokerProcess, what: str
) -> None:
    with RawClient(embedded.port) as client:
        peer = "{}:{}".format(*client.socket.getsockname())
        client.socket.sendall(HOSTILE[what])
        assert client.receive() is None
    embedded.until_logged(f'"peer":"{peer}"')
    assert "Traceback" not in embedded.stderr.read_text()


def test_random_bytes_never_hurt_the_broker(embedded: BrokerProcess, new_topic: str) -> None:
    chance = random.Random(7)
    with RawClient(embedded.port) as good:
        good.metadata(new_topic)
        whole = b"".join(
            part
            for api, version in ((Api.metadata, 12), (Api.fetch, 12), (Api.produce, 9), (Api.list_offsets, 6))
            for part in frame_request(api, version, 1, "x", [chance.randbytes(60)])[0]
        )
        for _ in range(300):
            with RawClient(embedded.port) as client:
                content = bytearray(whole)
                for _ in range(chance.randrange(1, 6)):
                    content[chance.randrange(len(content))] = chance.randrange(256)
                client.socket.sendall(content)
        assert good.produce(new_topic, 0, batch_of([b"still here"])).error is ErrorCode.none
    assert embedded.running
    assert embedded.memory_bytes() < 400 << 20
    assert "Traceback" not in embedded.stderr.read_text()


def test_announced_sizes_alone_take_no_memory(embedded: BrokerProcess, new_topic: str) -> None:
    """Ten clients announce 100 MB each, twice what the broker gives out, and send little of it."""
    clients = [RawClient(embedded.port) for _ in range(10)]
    try:
        for client in clients:
            client.socket.sendall((100 * 1000 * 1000).to_bytes(4, "big") + bytes(200_000)[:20_000])
        with RawClient(embedded.port) as good:
            good.metadata(new_topic)
            assert good.produce(new_topic, 0, batch_of([b"small"])).error is ErrorCode.none
        assert embedded.memory_bytes() < 400 << 20
    finally:
        for client in clients:
            client.socket.close()
    with RawClient(embedded.port) as good:
        assert good.produce(new_topic, 0, batch_of([b"x" * 500_000])).error is ErrorCode.none


def test_a_client_that_does_not_read_is_not_read_from(embedded: BrokerProcess, new_topic: str) -> None:
    with RawClient(embedded.port) as good, RawClient(embedded.port) as greedy:
        good.metadata(new_topic)
        for _ in range(20):
            good.produce(new_topic, 0, batch_of([b"x" * 900_000]))
        before = embedded.memory_bytes()
        greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000)
        request = fetch_request(new_topic, 0, max_bytes=10 << 20)
        greedy.socket.settimeout(1)
        asked = 0
        with contextlib.suppress(TimeoutError):
            while asked < 100_000:
                asked += 1
                greedy.send(Api.fetch, 12, [encode_entity(request)])
        assert asked < 100_000
        assert embedded.memory_bytes() - before < 1 << 30
        assert good.produce(new_topic, 0, batch_of([b"y"])).error is ErrorCode.none


def test_the_request_log_says_who_asked_for_what(embedded: BrokerProcess, new_topic: str) -> None:
    with RawClient(embedded.port, "who-asks") as client:
        client.metadata(new_topic)
        client.produce(new_topic, 77, batch_of([b"x"]))
        port = client.socket.getsockname()[1]
    mine = [entry for entry in embedded.requests() if entry["client_id"] == "who-asks" and entry["peer"] == port]
    assert [(entry["api"], entry["version"], entry["error"]) for entry in mine] == [
        ("metadata", 12, "none"),
        ("produce", 12, "unknown_topic_or_partition"),
    ]


async def test_a_server_counts_requests_by_api_and_client(tmp_path: Path) -> None:
    async with BrokerServer(BrokerSettings(tmp_path / "data", port=0)) as server:

        def ask() -> None:
            with RawClient(server.port, "counted") as client:
                client.metadata("made")
                client.metadata("made")

        await asyncio.to_thread(ask)
        assert server.requests["metadata", "counted"] == 2


async def test_a_data_directory_has_one_broker_at_a_time(tmp_path: Path) -> None:
    settings = BrokerSettings(tmp_path / "data", port=0)
    async with BrokerServer(settings):
        with pytest.raises(ConfigurationError, match="in use by another broker"):
            async with BrokerServer(settings):
                pass
    async with BrokerServer(settings):
        pass


async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    async with BrokerServer(BrokerSettings(tmp_path / "data", port=0)) as server:

        def ask() -> None:
            with RawClient(server.port) as client:
                client.metadata("made")
                client.produce("made", 0, numbered_batch([b"x"], 1, 0, 0))

        await asyncio.to_thread(ask)
    paths = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert len(paths) > 8
    assert {path: oct(path.stat().st_mode & 0o077) for path in paths} == dict.fromkeys(paths, "0o0")


def test_a_large_request_behind_a_full_pipeline_is_read_when_there_is_room_again(
    client: RawClient, new_topic: str
) -> None:
    """32 requests fill the pipeline behind one that waits; a large one has begun in the scratch buffer already."""
    batch = batch_of([b"x" * 50_000])
    waiting = encode_entity(fetch_request(new_topic, 0, wait_ms=300))
    at_once = encode_entity(fetch_request(new_topic, 0, wait_ms=0))
    frames = [frame_request(Api.fetch, 12, 1, "x", [waiting])[0]]
    frames += [frame_request(Api.fetch, 12, number, "x", [at_once])[0] for number in range(2, 33)]
    body = produce_request(12, -1, 1000, None, [(new_topic, None, [(0, batch)])])
    frames.append(frame_request(Api.produce, 12, 33, "x", body)[0])
    client.socket.sendall(b"".join(part for frame in frames for part in frame))
    answers = [client.receive() for _ in range(33)]
    assert [int.from_bytes(answer[:4], "big") for answer in answers if answer] == list(range(1, 34))
